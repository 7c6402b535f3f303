"""What a reader of FlyMQ frames observes, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.flymq import MAX_LENGTH, FrameReader, frame
from tests.strategies.chunks import CUTS, chunkings
from tests.strategies.flymq import frames

LISTS = st.lists(frames, max_size=8)
GOOD = frame(1, b"x")


def written(sent: list[tuple[int, int, bytes]]) -> bytes:
    return b"".join(frame(opcode, payload, flags) for opcode, flags, payload in sent)


WRONG = {
    "magic": (b"\xae", False, "0xAE"),
    "http": (b"GET / HTTP/1.1\r\n\r\n", False, "0x47"),
    "version": (b"\xaf\x02", True, "version 2 is not supported"),
    "version with the rest": (b"\xaf\x00\x01\x01\0\0\0\0", True, "version 0"),
    "length": (b"\xaf\x01\x01\x01\x02\x00\x00\x01", True, "33554433"),
    "longest length": (b"\xaf\x01\x01\x01\xff\xff\xff\xff", True, "4294967295"),
}


@given(st.sampled_from(sorted(WRONG)), LISTS, st.binary(max_size=9), CUTS)
def test_frames_before_a_wrong_header_are_returned_and_none_after(name, sent, tail, cuts):
    head, answered, text = WRONG[name]
    for pieces in chunkings(written(sent) + head + tail, cuts):
        reader = FrameReader()
        assert [one for piece in pieces for one in reader.feed(piece)] == sent
        assert reader.error is not None
        assert reader.error.answer is answered
        assert text in str(reader.error)
        assert reader.partial_bytes == 0
        assert reader.feed(GOOD) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_header_field_is_known_from_its_last_byte(name):
    """The field that is wrong stands at the end of each but the longer ones."""
    head = WRONG[name][0]
    needed = {"http": 1, "version with the rest": 2}.get(name, len(head))
    reader = FrameReader()
    for position in range(needed):
        assert reader.error is None
        assert reader.feed(head[position : position + 1]) == []
    assert reader.error is not None


def test_the_largest_payload_is_accepted_and_gathered_from_pieces():
    payload = bytes(MAX_LENGTH)
    data = frame(7, payload)
    reader = FrameReader()
    read = []
    for start in range(0, len(data), 1 << 20):
        read += reader.feed(data[start : start + (1 << 20)])
        assert reader.partial_bytes <= len(data)
    assert read == [(7, 1, payload)]
    assert reader.partial_bytes == 0


def test_a_smaller_limit_can_be_set():
    reader = FrameReader(max_length=10)
    assert reader.feed(frame(1, b"1234567890")) == [(1, 1, b"1234567890")]
    reader.feed(frame(1, b"12345678901"))
    assert reader.error is not None
    assert "11 bytes is over the limit of 10" in str(reader.error)


def test_flags_come_as_they_are():
    assert FrameReader().feed(frame(1, b"", 0xF1)) == [(1, 0xF1, b"")]
