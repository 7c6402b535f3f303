"""Records in memory: what goes in comes out, and the cache keeps its budget."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker.model.chunks import (
    RECORD_OVERHEAD_BYTES,
    ChunkCache,
    ChunkList,
    MutableChunk,
)
from brokerd.values import Encoding, Format, Record
from brokerd.walformat import decode_records, encode_records


def filled(base: int, *values: bytes) -> MutableChunk:
    chunk = MutableChunk(base)
    for value in values:
        chunk.values.append(value)
        chunk.keys.append(None)
        chunk.metadata.append(None)
        chunk.encodings.append(Encoding.TEXT)
        chunk.formats.append(Format.MAMAMIA)
    chunk.times_us = [5] * len(values)
    return chunk


def test_records_survive_the_way_through_log_columns() -> None:
    """Keys, metadata, both kinds of time and the formats come back for every record."""
    chunk = filled(10, b"a", b"", b"ccc")
    chunk.keys[1] = b"key"
    chunk.metadata[2] = b"\x80"
    chunk.encodings[0] = Encoding.MSGPACK
    chunk.producer_times = [None, -3, None]
    chunk.expires_at_us = [0, 0, 99]
    before = [chunk.record(index) for index in range(3)]
    body = encode_records(chunk.columns(0, 5))
    again = MutableChunk(10)
    again.extend(3, decode_records(body, 3))
    assert [again.record(index) for index in range(3)] == before


def test_a_batch_without_optional_columns_joins_one_with_them() -> None:
    plain, timed = filled(0, b"a"), filled(1, b"b")
    timed.producer_times = [7]
    timed.expires_at_us = [8]
    joined = MutableChunk(0)
    for part in (plain, timed, plain):
        joined.extend(1, decode_records(encode_records(part.columns(0, 5)), 1))
    assert [joined.record(i).producer_time for i in range(3)] == [None, 7, None]
    assert [joined.record(i).expires_at_us for i in range(3)] == [0, 8, 0]


def test_many_records_at_once_are_those_one_by_one() -> None:
    """With columns that most records do not have, and without."""
    plain, full = filled(10, b"a", b"b", b"c"), MutableChunk(10)
    plain.set_framed(3, 5, 1, 1)
    columns = plain.columns(0, 5)._replace(
        keys=[b"k", None, b""],
        metadata=[None, b"\x80", None],
        producer_time=[None, -7, 1],
        expires_at_us=[0, 9, 1],
        producer_format=Format.MEGA,
    )
    full.extend(3, columns)
    for chunk in (plain, full):
        one_by_one = [chunk.record(index) for index in range(3)]
        assert chunk.records(10, 13) == one_by_one
        assert chunk.records(11, 12) == one_by_one[1:2]
        assert chunk.records(12, 12) == []
        assert all(type(record) is Record for record in chunk.records(10, 13))


@given(st.data())
def test_a_closed_chunk_has_the_same_records_and_nothing_for_the_collector(
    data: st.DataObject,
) -> None:
    """The collector forgets its columns after one collection."""
    count = data.draw(st.integers(2, 5))
    chunk = filled(7, *[b"%d" % number for number in range(count)])
    column = st.none() | st.lists(st.none() | st.binary(), min_size=count, max_size=count)
    numbers = st.none() | st.lists(st.integers(1, 9), min_size=count, max_size=count)
    chunk.keys = data.draw(column) or chunk.keys
    chunk.metadata = data.draw(column) or chunk.metadata
    chunk.expires_at_us = data.draw(numbers)
    chunk.producer_times = data.draw(st.none() | st.just([None] * count)) or data.draw(numbers)
    before = chunk.records(7, chunk.end)
    size = chunk.content_bytes()
    chunk.close()
    assert chunk.records(7, chunk.end) == before
    assert [chunk.record(index) for index in range(count)] == before
    assert chunk.content_bytes() == size
    gc.collect()
    columns = [one for one in gc.get_referents(chunk) if not isinstance(one, type)]
    assert not [one for one in columns if gc.is_tracked(one) and len(gc.get_referents(one)) > 1]


@pytest.mark.parametrize(
    ("values", "size"),
    [([b"ab", b"cd", b"ef"], 2), ([b"", b""], 0), ([b"ab", b"cd", b"e"], None), ([], None)],
)
def test_a_closed_chunk_tells_the_common_size_of_its_values(
    values: list[bytes], size: int | None
) -> None:
    """And an open one does not: the next value may have another one."""
    chunk = filled(7, *values)
    assert chunk.value_size() is None
    chunk.close()
    assert [chunk.value_size(), chunk.value_size()] == [size, size]
    assert chunk.rows(7, chunk.end).size() == sum(map(len, values))
    assert chunk.rows(7 + len(values[1:]), chunk.end).size() == sum(map(len, values[-1:]))


def test_closed_chunks_share_the_column_of_absent_keys() -> None:
    long, short = MutableChunk(0), filled(0, b"a")
    long.append_values([b""] * 5000, Format.MAMAMIA, 0)
    for chunk in (long, short):
        chunk.close()
    assert long.keys is long.metadata
    assert len(long.keys) >= 5000
    assert [*long.keys[4990:5000], *short.keys[:1]] == [None] * 11


def test_find_gives_the_chunk_that_holds_the_offset_or_none() -> None:
    chunks = ChunkList()
    first, third = filled(0, b"a", b"b"), filled(4, b"e")
    chunks.add(third)
    chunks.add(first)
    found = [chunks.find(offset) for offset in range(-1, 6)]
    assert found == [None, first, first, None, None, third, None]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), max_size=12))
def test_whatever_was_read_is_found_however_reads_overlap(reads: list[tuple[int, int]]) -> None:
    """And each byte that is counted is of a chunk that is held."""
    cache, chunks, held = ChunkCache(1 << 30, lambda chunk: True), ChunkList(), set[int]()
    for base, count in reads:
        chunk = filled(base, *[b"%d" % offset for offset in range(base, base + count)])
        chunk.cached_bytes = count
        cache.add_read(chunks, chunk)
        held |= set(range(base, base + count))
        for offset in range(26):
            found = chunks.find(offset)
            assert (found is not None) == (offset in held)
            assert found is None or found.record(offset - found.base).value == b"%d" % offset
    assert cache.used_bytes == sum(len(chunk.values) for chunk in chunks.take_all())


def test_the_oldest_chunk_goes_first_and_the_budget_holds() -> None:
    cache = ChunkCache(2 * RECORD_OVERHEAD_BYTES, lambda chunk: True)
    chunks = ChunkList()
    for base in range(4):
        chunk = filled(base, b"x")
        cache.add(chunks, chunk)
        cache.grow(chunk, RECORD_OVERHEAD_BYTES)
    chunks.open = chunks.find(3)
    cache.trim()
    assert cache.used_bytes == 2 * RECORD_OVERHEAD_BYTES
    assert [chunks.find(offset) is not None for offset in range(4)] == [False, False, True, True]
    assert chunks.open is not None


def test_what_is_not_on_disk_yet_stays_whatever_the_budget() -> None:
    durable: set[int] = set()
    cache = ChunkCache(0, lambda chunk: chunk.base in durable)
    chunks = ChunkList()
    for base in (0, 1):
        chunk = filled(base, b"x")
        cache.add(chunks, chunk)
        cache.grow(chunk, 100)
    chunks.open = chunks.find(1)
    cache.trim()
    assert cache.used_bytes == 200
    durable.update((0, 1))
    cache.trim()
    assert cache.used_bytes == 0
    assert chunks.open is None
    assert chunks.find(1) is None


def test_a_chunk_knows_how_many_of_its_records_are_durable() -> None:
    """Whatever number of commits is under way."""
    chunk = MutableChunk(100)
    durable = []
    for ticket, done in ((1, 0), (2, 0), (3, 1), (5, 1), (6, 5)):
        chunk.values += [b""] * ticket
        chunk.set_framed(ticket, 1_000_000, ticket, done)
        durable.append([chunk.durable_end(now) - 100 for now in range(done, 8)])
    assert durable == [
        [0, 1, 1, 1, 1, 1, 1, 1],
        [0, 1, 3, 3, 3, 3, 3, 3],
        [1, 3, 6, 6, 6, 6, 6],
        [1, 3, 6, 6, 11, 11, 11],
        [11, 17, 17],
    ]


def test_what_is_dropped_is_found_no_more_and_its_bytes_are_free() -> None:
    cache = ChunkCache(250, lambda chunk: True)
    gone, kept = ChunkList(), ChunkList()
    for base, chunks in enumerate((kept, gone, kept, gone)):
        chunk = filled(base, b"x")
        cache.add(chunks, chunk)
        cache.grow(chunk, 100)
    gone.open = gone.find(3)
    cache.drop([gone])
    assert (gone.find(1), gone.find(3), gone.open) == (None, None, None)
    assert cache.used_bytes == 200
    cache.limit_bytes = 100
    cache.trim()
    assert [kept.find(base) is not None for base in (0, 2)] == [False, True]
    cache.clear()
    assert (kept.find(2), cache.used_bytes) == (None, 0)


def test_to_drop_a_few_chunks_costs_the_same_whatever_else_is_held() -> None:
    cache = ChunkCache(1 << 30, lambda chunk: True)
    lists = [ChunkList() for _ in range(20_000)]
    for chunks in lists:
        cache.add(chunks, MutableChunk(0))
    began = time.thread_time()
    for chunks in lists[:100]:
        cache.drop([chunks])
    assert time.thread_time() - began < 0.1, "a look at each of the others took 0.5 s"
