"""What the decoder of every wire format owes its connection, however the bytes arrive."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codecs.every import DECODERS, Reader
from tests.strategies.chunks import CUTS, chunked, chunkings

MANY = 300
KIB = 1024

# pytest-twisted cannot run a test that is parametrized and given values, hence the inner functions.
every = pytest.mark.parametrize("name", DECODERS)


def read(reader: Reader, pieces: list[bytes]) -> list[Any]:
    return [value for piece in pieces for value in reader.feed(piece)]


@every
def test_any_chunking_yields_the_same_requests(name: str) -> None:
    """One by one, all in one chunk, in random chunks, one byte at a time."""
    decoder = DECODERS[name]

    @given(st.lists(decoder.sent, max_size=8), CUTS)
    def holds(sent: list[tuple[bytes, Any]], cuts: list[int]) -> None:
        requests, values = [data for data, _ in sent], [value for _, value in sent]
        assert read(decoder.reader(), requests) == values
        for pieces in chunkings(b"".join(requests), cuts):
            reader = decoder.reader()
            assert read(reader, pieces) == values
            assert reader.error is None
            assert reader.partial_bytes == 0

    holds()


@every
def test_many_requests_in_one_chunk_are_all_there(name: str) -> None:
    """And of what has begun behind them no more is held than has come."""
    decoder = DECODERS[name]

    begun = decoder.claims[0]

    @given(st.lists(decoder.requests, min_size=1, max_size=3))
    def holds(requests: list[bytes]) -> None:
        reader = decoder.reader()
        found = reader.feed(b"".join(requests * MANY) + begun)
        assert found == read(decoder.reader(), requests * MANY)
        assert len(begun) <= reader.partial_bytes <= len(begun) + decoder.look_ahead_bytes

    holds()


@every
def test_any_bytes_are_read_alike_in_any_chunks(name: str) -> None:
    """What is wrong is as wrong, and nothing more or less is read before it."""
    decoder = DECODERS[name]

    @given(st.lists(decoder.requests, max_size=4), st.data(), CUTS)
    def holds(requests: list[bytes], data: st.DataObject, cuts: list[int]) -> None:
        whole = b"".join(requests)
        start = data.draw(st.integers(0, len(whole)))
        end = data.draw(st.integers(start, min(len(whole), start + 8)))
        stream = whole[:start] + data.draw(st.binary(max_size=12)) + whole[end:]
        seen = []
        for pieces in chunkings(stream, cuts):
            reader = decoder.reader()
            seen.append((read(reader, pieces), str(reader.error), reader.partial_bytes))
        assert seen[0] == seen[1] == seen[2]

    holds()


@every
def test_requests_before_a_fault_are_read_and_none_after(name: str) -> None:
    """The fault is known with its last byte, says what it is, holds nothing, and stays."""
    decoder = DECODERS[name]
    lists = st.lists(decoder.requests, max_size=4)

    @given(lists, decoder.broken, decoder.requests, st.binary(max_size=9), CUTS)
    def holds(
        requests: list[bytes], broken: bytes, valid: bytes, tail: bytes, cuts: list[int]
    ) -> None:
        one_by_one = read(decoder.reader(), requests)
        for pieces in chunkings(b"".join(requests), cuts):
            reader = decoder.reader()
            assert read(reader, pieces) == one_by_one
            read(reader, chunked(broken, cuts))
            assert reader.error is not None
            error = str(reader.error)
            assert len(error) > 20
            assert reader.partial_bytes == 0
            assert read(reader, [tail, valid, broken]) == []
            assert str(reader.error) == error
            assert reader.partial_bytes == 0

    holds()


@every
def test_no_more_is_held_than_the_unfinished_request(name: str) -> None:
    decoder = DECODERS[name]

    @given(st.lists(decoder.requests, min_size=1, max_size=4))
    def holds(requests: list[bytes]) -> None:
        reader = decoder.reader()
        for request in requests:
            for number in range(len(request)):
                reader.feed(request[number : number + 1])
                assert reader.partial_bytes <= number + 1 + decoder.look_ahead_bytes
            assert reader.partial_bytes == 0

    holds()


@every
def test_what_is_claimed_is_not_allocated(name: str) -> None:
    """The largest sizes that are allowed, and a few bytes of what they promise."""
    decoder = DECODERS[name]
    for claim in decoder.claims:
        reader = decoder.reader()
        tracemalloc.start()
        try:
            assert read(reader, [claim, b"\1" * KIB]) == []
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert reader.error is None
        assert reader.partial_bytes > 0
        assert peak < 32 * KIB
