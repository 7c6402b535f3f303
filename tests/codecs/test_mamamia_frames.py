"""What a reader of frames observes, however the bytes arrive."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.mamamia import MAX_LENGTH, FrameReader, frame
from tests.strategies.chunks import CUTS, chunkings
from tests.strategies.mamamia import frames

LISTS = st.lists(frames, max_size=8)


@given(
    LISTS,
    st.integers(0, 1) | st.integers(MAX_LENGTH + 1, (1 << 32) - 1),
    st.binary(max_size=9),
    CUTS,
)
def test_frames_before_a_wrong_length_are_returned_and_none_after(sent, length, tail, cuts):
    data = b"".join(frame(*one) for one in sent) + length.to_bytes(4, "big") + tail
    for pieces in chunkings(data, cuts):
        reader = FrameReader()
        read = [one for piece in pieces for one in reader.feed(piece)]
        assert read == sent
        assert str(length) in str(reader.error)
        assert reader.partial_bytes == 0
        assert reader.feed(frame(1, b"x")) == []


def test_the_largest_length_is_accepted_and_gathered_from_pieces():
    body = bytes(MAX_LENGTH - 2)
    data = frame(7, body)
    reader = FrameReader()
    read = []
    for start in range(0, len(data), 65_536):
        read += reader.feed(data[start : start + 65_536])
        assert reader.partial_bytes <= len(data)
    assert read == [(7, body)]
    assert reader.partial_bytes == 0


def test_a_smaller_limit_can_be_set():
    reader = FrameReader(max_length=10)
    assert reader.feed(frame(1, b"12345678")) == [(1, b"12345678")]
    reader.feed(frame(1, b"123456789"))
    assert reader.error is not None
