"""What a reader of frames observes, however the bytes arrive; and how dialects are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs.rustlog import MAX_PAYLOAD, Dialect, FrameReader, dialect_of, frame
from tests.strategies.chunks import CUTS, chunkings
from tests.strategies.rustlog import payloads

LISTS = st.lists(payloads, max_size=8)


@given(
    LISTS,
    st.just(0) | st.integers(MAX_PAYLOAD + 1, (1 << 32) - 1),
    st.binary(max_size=9),
    CUTS,
)
def test_payloads_before_a_wrong_length_are_returned_and_none_after(sent, length, tail, cuts):
    data = b"".join(map(frame, sent)) + length.to_bytes(4, "big") + tail
    for pieces in chunkings(data, cuts):
        reader = FrameReader()
        assert [one for piece in pieces for one in reader.feed(piece)] == sent
        assert reader.error is not None
        assert reader.error.length == length
        assert str(length) in str(reader.error)
        assert reader.partial_bytes == 0
        assert reader.feed(frame(b"x")) == []


def test_the_longest_payload_is_gathered_from_pieces_and_no_more_is_held():
    payload = bytes(MAX_PAYLOAD)
    data = frame(payload)
    reader = FrameReader()
    read = []
    for start in range(0, len(data), 65_536):
        read += reader.feed(data[start : start + 65_536])
        assert reader.partial_bytes <= len(data)
    assert read == [payload]
    assert reader.partial_bytes == 0


def test_a_smaller_limit_can_be_set():
    reader = FrameReader(max_payload=8)
    assert reader.feed(frame(b"12345678")) == [b"12345678"]
    reader.feed(frame(b"123456789"))
    assert reader.error is not None
    assert reader.error.limit == 8


@pytest.mark.parametrize(
    ("payload", "dialect"),
    [
        *[(bytes([first]) + b"x", Dialect.JSON) for first in b'{"[ \n\r'],
        *[(bytes([first]) + b"{", Dialect.BINARY) for first in [*range(9), 0xFE, 0xFF]],
        (b"\t", Dialect.BINARY),
        (b"\tx", Dialect.BINARY),
        (b'\t \r\n\t{"Ping":null}', Dialect.JSON),
        (b"\xef\xbb\xbf{", Dialect.BINARY),
        (b"n", Dialect.BINARY),
    ],
)
def test_the_first_byte_tells_the_dialect(payload, dialect):
    """A tab may be MetricsFetch or a blank in front of JSON: what follows it decides."""
    assert dialect_of(payload) is dialect
