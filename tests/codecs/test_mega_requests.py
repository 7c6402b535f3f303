"""What a reader of MEGA requests observes, in both dialects and however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import mega
from tests.strategies.chunks import CUTS, chunkings
from tests.strategies.mega import conversations, correlation_ids, dialects, requests, timestamps

KIB = 1024
T = 1_700_000_000_000
DOCUMENT, REFERENCE = mega.Dialect.DOCUMENT, mega.Dialect.REFERENCE


def read(pieces: list[bytes], reader: mega.RequestReader | None = None) -> list[object]:
    reader = reader or mega.RequestReader()
    return [one for piece in pieces for one in reader.feed(piece)]


def encoded(conversation: list[tuple[mega.Request, mega.Dialect]]) -> bytes:
    return b"".join(mega.encode_request(*one) for one in conversation)


@given(conversations)
def test_a_request_is_there_with_its_last_byte(conversation):
    """A client that waits for each answer never waits for one because of the look-ahead."""
    reader = mega.RequestReader()
    for request, dialect in conversation:
        needed = mega.encode_request(request, DOCUMENT)
        assert read([needed[:-1]], reader) == []
        assert read([needed[-1:]], reader) == [request]
        read([mega.encode_request(request, dialect)[len(needed) :]], reader)
        assert reader.partial_bytes == 0, "nothing of a request has begun"


@given(
    conversations,
    st.integers(4, 255) | st.just(0),
    correlation_ids,
    timestamps,
    st.booleans(),
    conversations,
    CUTS,
)
def test_an_unknown_type_is_refused_and_its_neighbours_are_read(
    before, kind, correlation_id, timestamp, trailer, after, cuts
):
    unknown = bytearray(mega.encode_request(mega.CreateTopic(correlation_id, "name", timestamp)))
    unknown[4] = kind
    if not trailer:
        del unknown[-4:]
    for pieces in chunkings(encoded(before) + unknown + encoded(after), cuts):
        assert read(pieces) == [
            *(request for request, _ in before),
            mega.Refused(correlation_id, mega.Code.INVALID_MESSAGE_TYPE),
            *(request for request, _ in after),
        ]


WRONG = {
    "topic length -1": (b"\x01\xff\xff\xff\xff", mega.Code.INVALID_REQUEST),
    "topic length 65,536": (b"\x03\x00\x01\x00\x00", mega.Code.INVALID_REQUEST),
    "of an unknown type": (b"\x09\x7f\xff\xff\xff", mega.Code.INVALID_REQUEST),
    "payload length -1": (
        b"\x01\x00\x00\x00\x01a" + bytes(8) + b"\xff\xff\xff\xff",
        mega.Code.INVALID_REQUEST,
    ),
    "payload length 64 MiB + 1": (
        b"\x01\x00\x00\x00\x01a" + bytes(8) + b"\x04\x00\x00\x01",
        mega.Code.MESSAGE_TOO_LARGE,
    ),
}


@given(
    st.sampled_from([*WRONG]),
    conversations,
    correlation_ids.filter(bool),
    st.binary(max_size=30),
    CUTS,
)
def test_a_length_that_makes_no_sense_ends_the_stream_behind_its_answer(
    name, before, correlation_id, tail, cuts
):
    """It is known with ten bytes of its request: none of those it claims is waited for."""
    wrong, code = WRONG[name]
    before = [(request, DOCUMENT) for request, _ in before]
    data = encoded(before) + correlation_id.to_bytes(4, "big", signed=True) + wrong + b"?"
    for pieces in (*chunkings(data, cuts), [data + tail]):
        reader = mega.RequestReader()
        expected = [*(request for request, _ in before), mega.Refused(correlation_id, code)]
        assert read(pieces, reader) == expected
        assert "length" in str(reader.error)
        assert reader.partial_bytes == 0
        assert read([mega.encode_request(mega.CreateTopic(1, "a", T))], reader) == []


def test_the_largest_payload_is_gathered_and_one_byte_more_is_not():
    for size in (mega.MAX_PAYLOAD_BYTES, mega.MAX_PAYLOAD_BYTES + 1):
        reader = mega.RequestReader()
        produce = mega.Produce(7, "t" * 255, T, bytes(size))
        data = mega.encode_request(produce) + mega.encode_request(mega.CreateTopic(8, "a", T))
        taken = []
        for start in range(0, len(data), 64 * KIB):
            taken += read([data[start : start + 64 * KIB]], reader)
            if size > mega.MAX_PAYLOAD_BYTES:
                assert len(reader._partial) < 64 * KIB
        too_large = mega.Refused(7, mega.Code.MESSAGE_TOO_LARGE)
        first = produce if size == mega.MAX_PAYLOAD_BYTES else too_large
        assert taken == [first, mega.CreateTopic(8, "a", T)]


@given(st.integers(11, 200), conversations, CUTS)
def test_a_payload_over_a_smaller_limit_is_passed_over(size, after, cuts):
    """Its bytes, whatever they are, are no requests."""
    behind = [one for one in after if not isinstance(one[0], mega.Produce)]
    inside = mega.encode_request(mega.CreateTopic(3, "inside", T)) * 10
    data = mega.encode_request(mega.Produce(9, "t", T, inside[:size])) + encoded(behind)
    for pieces in chunkings(data, cuts):
        assert read(pieces, mega.RequestReader(max_payload_bytes=10)) == [
            mega.Refused(9, mega.Code.MESSAGE_TOO_LARGE),
            *(request for request, _ in behind),
        ]


def test_a_payload_being_passed_over_is_a_request_begun():
    reader = mega.RequestReader(max_payload_bytes=10)
    data = mega.encode_request(mega.Produce(9, "t", T, bytes(50)))
    assert read([data[:-1]], reader) == []
    assert reader.partial_bytes > 0
    assert reader.partial_id == 9
    assert read([data[-1:]], reader) == [mega.Refused(9, mega.Code.MESSAGE_TOO_LARGE)]
    assert reader.partial_bytes == 0


@pytest.mark.parametrize("dialect", mega.Dialect)
def test_up_to_four_zero_bytes_after_a_request_are_not_a_request_begun(dialect):
    """They may be the reference's empty payload, and no clock runs on a client that has sent it."""
    reader = mega.RequestReader()
    read([mega.encode_request(mega.CreateTopic(1, "a", T), dialect)], reader)
    sent = 4 if dialect is REFERENCE else 0
    while sent < 4:
        read([b"\0"], reader)
        sent += 1
        assert reader.partial_bytes == 0
    read([b"\0"], reader)
    assert reader.partial_bytes == 5
    assert reader.partial_id == 0


def test_a_byte_that_is_not_zero_begins_a_request():
    reader = mega.RequestReader()
    read([mega.encode_request(mega.CreateTopic(1, "a", T), DOCUMENT)], reader)
    read([b"\0\0\0\x07"], reader)
    assert (reader.partial_bytes, reader.partial_id) == (4, 7)


@given(requests, dialects)
def test_the_id_of_an_unfinished_request_is_known_from_its_fourth_byte(request_, dialect):
    data = mega.encode_request(request_, dialect)
    for size in range(1, 17):
        reader = mega.RequestReader()
        read([data[:size]], reader)
        assert reader.partial_bytes == size
        assert reader.partial_id == (request_.correlation_id if size >= 4 else 0)


def test_a_name_of_bytes_that_are_not_utf_8_is_read_and_written_as_it_is():
    data = bytes.fromhex("00000001 03 00000002 ff61") + bytes(12)
    (request,) = read([data])
    assert isinstance(request, mega.CreateTopic)
    assert mega.encode_request(request) == data


def test_a_chunk_of_many_requests_costs_no_more_than_its_bytes():
    """Requests are taken out of one chunk without copying the rest of it again and again."""
    data = mega.encode_request(mega.CreateTopic(1, "a", T), DOCUMENT) * 3000
    reader = mega.RequestReader()
    assert len(read([data], reader)) == 3000
    assert len(reader._partial) == 0


class Counting(mega.RequestReader):
    """Counts how often it looks at what it holds."""

    looks = 0

    def _parse(self, data: bytes, requests: list[mega.Request | mega.Refused]) -> None:
        self.looks += 1
        super()._parse(data, requests)


@pytest.mark.pure_only("overrides a method")
def test_a_large_payload_in_small_pieces_is_not_looked_at_piece_by_piece():
    """Which would copy it as often, and hold the broker up."""
    data = mega.encode_request(mega.Produce(1, "t", T, bytes(100 * KIB)))
    reader = Counting()
    assert len(read([data[at : at + 10] for at in range(0, len(data), 10)], reader)) == 1
    assert reader.looks < 10


@given(
    st.lists(
        st.builds(
            mega.Produce,
            correlation_ids,
            st.sampled_from(["topic-1", "topic-2", "t\u00f6pic1", "other"]),
            timestamps,
            st.binary(max_size=9),
        )
        | requests
    ),
    CUTS,
)
def test_produces_to_topics_of_one_length_are_read_as_one_by_one(sent, cuts):
    data = b"".join(mega.encode_request(one, DOCUMENT) for one in sent)
    for pieces in chunkings(data, cuts):
        assert read(pieces) == sent
