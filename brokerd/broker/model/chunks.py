# Tests: tests/broker/test_chunks.py
"""Records in memory: chunks of columns, found by offset, bounded in bytes.

A `Chunk` holds the records of a range of offsets of one partition as parallel columns. The broker
appends to the newest chunk of a partition. Older chunks stay in memory until the `ChunkCache`,
which all partitions share, exceeds its budget. It drops the oldest chunk first. Reads of the log
bring dropped records back in chunks of the same kind. Reads of the archive, where records may be
removed, bring chunks with holes (`brokerd.broker.archive.chunks`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice, repeat, takewhile
from typing import Any, NamedTuple, Protocol, TypeVar

from brokerd.values import Format, Record, total_bytes
from brokerd.walformat import LARGE_BODY_BYTES, RecordColumns, encode_plain_record

TRIM_EXAMINED_MAX = 64
"""The most chunks that one `ChunkCache.trim` examines: some may be in use."""

CHUNK_RECORDS = 1024
CHUNK_BYTES = 256 * 1024
"""A chunk is closed at the end of the frame in which it reaches one of these two limits."""

RECORD_OVERHEAD_BYTES = 120
"""Memory of a cached record besides its own bytes: object headers and column slots."""

REMOVED = -1
"""Expiry time of a removed record: expired at any time of the clock."""

_new_record: Callable[[tuple[Any, ...]], Record] = partial(tuple.__new__, Record)
"""`Record._make` without a step of Python: a fetch makes hundreds."""

_NOT_COUNTED = -1
"""In place of the size of the values of a chunk: nobody looked at them yet."""

_nones: tuple[None, ...] = (None,) * CHUNK_RECORDS

T_co = TypeVar("T_co", covariant=True)


def shared_nones(count: int) -> Sequence[None]:
    """Return at least ``count`` times None, for a column in which no record has a value.

    All columns share one tuple. It grows to twice the size when it is too short.
    """
    global _nones
    if len(_nones) < count:
        _nones = (None,) * max(count, 2 * len(_nones))
    return _nones


class Column(Protocol[T_co]):
    """A value for each offset of a chunk, by its distance from the first offset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


class Chunk:
    """Records of a range of offsets of one partition, as columns; ``base`` is the first offset."""

    __slots__ = (
        "base",
        "cached_bytes",
        "encodings",
        "expires_at_us",
        "formats",
        "keys",
        "metadata",
        "producer_times",
        "ticket",
        "times_us",
        "values",
    )

    values: Column[bytes]
    keys: Column[bytes | None]
    """It may be longer than ``values`` if no record has a key."""
    metadata: Column[bytes | None]
    """It may be longer than ``values`` if no record has metadata."""
    encodings: Column[int]
    formats: Column[int]
    producer_times: Column[int | None] | None
    expires_at_us: Column[int] | None
    """`REMOVED` marks a removed record; its values in the other columns have no meaning."""
    times_us: Column[int]
    """Append times; shorter than ``values`` while a frame is being gathered."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.cached_bytes = 0
        self.ticket = 0
        """Ticket of the frame with the newest record of the chunk."""

    @property
    def end(self) -> int:
        return self.base + len(self.values)

    def durable_end(self, durable_ticket: int) -> int:
        """The first offset from ``base`` on that is not known to be on disk."""
        return self.end

    def end_of_run(self, offset: int, count: int) -> int:
        """Return the offset after the next ``count`` records from ``offset`` on, or the end."""
        return min(offset + count, self.end)

    def hole_end(self, offset: int) -> int:
        """Return the end of the hole at an offset, at most the end of this chunk."""
        return offset

    def value_size(self) -> int | None:
        """Return the size of each value, if it is known that all have the same."""
        return None

    def rows(self, first: int, end: int) -> Rows:
        """Return the records at offsets ``first`` to ``end``, exclusive. All must be framed."""
        raise NotImplementedError

    def records(self, first: int, end: int) -> list[Record]:
        """Return the records at offsets ``first`` to ``end``, exclusive, without removed ones."""
        return self.rows(first, end).records()

    def record(self, index: int, pending_time_us: int = 0) -> Record:
        """Return the record at ``index``, with ``pending_time_us`` while its frame is not built."""
        times = self.times_us
        return Record(
            offset=self.base + index,
            value=self.values[index],
            key=self.keys[index],
            encoding=self.encodings[index],
            metadata=self.metadata[index],
            append_time_us=times[index] if index < len(times) else pending_time_us,
            producer_time=None if self.producer_times is None else self.producer_times[index],
            expires_at_us=0 if self.expires_at_us is None else self.expires_at_us[index],
            producer_format=Format(self.formats[index]),
        )


class DenseChunk(Chunk):
    """A chunk without holes."""

    __slots__ = ()

    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    metadata: Sequence[bytes | None]
    encodings: Sequence[int]
    formats: Sequence[int]
    producer_times: Sequence[int | None] | None
    expires_at_us: Sequence[int] | None
    times_us: Sequence[int]

    def rows(self, first: int, end: int) -> Rows:
        return Rows(self, range(first, end), slice(first - self.base, end - self.base))

    def content_bytes(self) -> int:
        """Return the memory of the records in bytes, as the cache counts it."""
        return self.rows(self.base, self.end).size() + len(self.values) * RECORD_OVERHEAD_BYTES


class MutableChunk(DenseChunk):
    """A dense chunk that can be appended to until `close`."""

    __slots__ = ("_frames", "_value_size")

    values: list[bytes]
    keys: list[bytes | None]
    metadata: list[bytes | None]
    encodings: bytearray
    formats: bytearray
    producer_times: list[int | None] | None
    expires_at_us: list[int] | None
    times_us: list[int]

    def __init__(self, base: int) -> None:
        super().__init__(base)
        self.values = []
        self.keys = []
        self.metadata = []
        self.encodings = bytearray()
        self.formats = bytearray()
        self.producer_times = None
        self.expires_at_us = None
        self.times_us = []
        self._frames: list[tuple[int, int]] = []
        """Frames before ``ticket`` that may not be durable: (ticket, records up to it)."""
        self._value_size: int | None = None

    def set_framed(self, count: int, time_us: int, ticket: int, durable_ticket: int) -> int:
        """Report that the last ``count`` records are in the frame with this ticket.

        Return the number of all records of the chunk.
        """
        times, before = self.times_us, self.ticket
        framed = len(times)
        if before <= durable_ticket:
            self._frames = [(before, framed)]
        else:
            frames = self._frames
            frames.append((before, framed))
            while len(frames) > 1 and frames[1][0] <= durable_ticket:
                del frames[0]
        times += [time_us] * count
        self.ticket = ticket
        return framed + count

    def close(self) -> None:
        """Make the columns immutable. Nothing may be appended afterwards.

        The garbage collector traverses a list in each collection. It forgets a tuple of bytes and
        numbers after the first one.
        """
        closed: DenseChunk = self
        count = len(self.values)
        closed.values = tuple(self.values)
        self._value_size = _NOT_COUNTED
        closed.keys = _closed(self.keys, count)
        closed.metadata = _closed(self.metadata, count)
        closed.times_us = tuple(self.times_us)
        if self.producer_times is not None:
            closed.producer_times = tuple(self.producer_times)
        if self.expires_at_us is not None:
            closed.expires_at_us = tuple(self.expires_at_us)

    def value_size(self) -> int | None:
        """Return the size of each value, if the chunk is closed and all have the same.

        A fetch then need not look at their sizes: 500 records are counted and laid out in two
        thirds of the time. The first call after `close` looks at all of them.
        """
        if self._value_size == _NOT_COUNTED:
            sizes = set(map(len, self.values))
            self._value_size = sizes.pop() if len(sizes) == 1 else None
        return self._value_size

    def durable_end(self, durable_ticket: int) -> int:
        """The first offset from ``base`` on that is not known to be on disk."""
        if self.ticket <= durable_ticket:
            return self.base + len(self.times_us)
        counts = [count for ticket, count in self._frames if ticket <= durable_ticket]
        return self.base + max(counts, default=0)

    def extend(self, count: int, columns: RecordColumns) -> None:
        """Append the records of a decoded batch that starts where this chunk ends."""
        before = len(self.values)
        self.values += columns.values
        self.keys += columns.keys if columns.keys is not None else [None] * count
        self.metadata += columns.metadata if columns.metadata is not None else [None] * count
        self.encodings += bytes(_column(columns.encodings, count))
        self.formats += bytes(_column(columns.producer_format, count))
        self.times_us += _column(columns.append_time_us, count)
        if columns.producer_time is not None or self.producer_times is not None:
            self.producer_times = self.producer_times or [None] * before
            self.producer_times += columns.producer_time or [None] * count
        if columns.expires_at_us is not None or self.expires_at_us is not None:
            self.expires_at_us = self.expires_at_us or [0] * before
            self.expires_at_us += columns.expires_at_us or [0] * count

    def append_values(
        self,
        values: Sequence[bytes],
        producer_format: int,
        expires_at_us: int,
        producer_times: Sequence[int] | None = None,
    ) -> None:
        """Append records of bytes alone, whose frame is not built yet."""
        before, count = len(self.values), len(values)
        self.values += values
        self.keys += [None] * count
        self.metadata += [None] * count
        self.encodings += bytes(count)
        self.formats += bytes([producer_format]) * count
        if self.producer_times is None and producer_times is not None:
            self.producer_times = [None] * before
        if self.producer_times is not None:
            self.producer_times += [None] * count if producer_times is None else producer_times
        if self.expires_at_us is None and expires_at_us:
            self.expires_at_us = [0] * before
        if self.expires_at_us is not None:
            self.expires_at_us += [expires_at_us] * count

    def append_rows(
        self,
        values: Sequence[bytes],
        keys: Sequence[bytes | None],
        metadata: Sequence[bytes | None],
        encodings: bytes | bytearray,
        producer_format: int,
        expires_at_us: Sequence[int] | None,
    ) -> None:
        """Append records whose frame is not built yet, column by column."""
        before, count = len(self.values), len(values)
        self.values += values
        self.keys += keys
        self.metadata += metadata
        self.encodings += encodings
        self.formats += bytes([producer_format]) * count
        if self.producer_times is not None:
            self.producer_times += [None] * count
        if self.expires_at_us is None and expires_at_us is not None:
            self.expires_at_us = [0] * before
        if self.expires_at_us is not None:
            self.expires_at_us += [0] * count if expires_at_us is None else expires_at_us

    def optional_columns(self, producer_time: int | None, expires_at_us: int) -> None:
        """Append to the columns that most producers never use."""
        before = len(self.values) - 1
        if self.producer_times is None and producer_time is not None:
            self.producer_times = [None] * before
        if self.producer_times is not None:
            self.producer_times.append(producer_time)
        if self.expires_at_us is None and expires_at_us:
            self.expires_at_us = [0] * before
        if self.expires_at_us is not None:
            self.expires_at_us.append(expires_at_us)

    def last_record_body(self, time_us: int) -> bytes | None:
        """Encode the last record for the log, appended at ``time_us``, if it is small and plain.

        It has the bytes of `columns`, in a fifth of the time. Returns None for other records.
        """
        value = self.values[-1]
        if (
            self.keys[-1] is not None
            or self.metadata[-1] is not None
            or self.expires_at_us is not None
            or len(value) >= LARGE_BODY_BYTES
        ):
            return None
        times = self.producer_times
        producer_time = None if times is None else times[-1]
        return encode_plain_record(
            value, time_us, producer_time, self.encodings[-1], self.formats[-1]
        )

    def columns(self, first: int, time_us: int) -> RecordColumns:
        """The records from index ``first`` on, all appended at ``time_us``, for the log."""
        keys = self.keys[first:]
        metadata = self.metadata[first:]
        return RecordColumns(
            values=self.values[first:],
            keys=None if keys.count(None) == len(keys) else keys,
            encodings=_collapse(self.encodings, first),
            metadata=None if metadata.count(None) == len(metadata) else metadata,
            append_time_us=time_us,
            producer_time=None if self.producer_times is None else self.producer_times[first:],
            expires_at_us=None if self.expires_at_us is None else self.expires_at_us[first:],
            producer_format=_collapse(self.formats, first),
        )


class Rows(NamedTuple):
    """Rows of a chunk. `records` copies them; until then they refer to its columns."""

    chunk: DenseChunk
    offsets: Sequence[int]
    """The offsets of the records in these rows."""
    part: slice
    """The rows by index, with both ends."""

    def cut(self, first: int, end: int) -> Rows:
        """Return the rows from the index ``first`` to ``end``, exclusive, counted within these."""
        start = self.part.start
        return Rows(self.chunk, self.offsets[first:end], slice(start + first, start + end))

    def records(self) -> list[Record]:
        chunk, offsets, part = self
        columns = zip(
            offsets,
            chunk.values[part],
            chunk.keys[part],
            chunk.encodings[part],
            chunk.metadata[part],
            chunk.times_us[part],
            repeat(None) if chunk.producer_times is None else chunk.producer_times[part],
            repeat(0) if chunk.expires_at_us is None else chunk.expires_at_us[part],
            chunk.formats[part],
            strict=False,  # two of the iterators may be endless
        )
        return list(map(_new_record, columns))

    def size(self) -> int:
        """Bytes of keys, values and metadata."""
        chunk, offsets, part = self
        each = chunk.value_size()
        size = total_bytes(chunk.values[part]) if each is None else each * len(offsets)
        for column in (chunk.keys[part], chunk.metadata[part]):
            if column.count(None) < len(column):
                size += sum(map(len, filter(None, column)))
        return size


def _closed(column: list[bytes | None], count: int) -> Sequence[bytes | None]:
    return shared_nones(count) if column.count(None) == count else tuple(column)


def _column(column: Sequence[int] | int, count: int) -> list[int]:
    return [column] * count if isinstance(column, int) else list(column)


def _collapse(column: bytearray, first: int) -> Sequence[int] | int:
    if len(column) - first == 1:
        return column[first]
    part = column[first:]
    return part[0] if part.count(part[:1]) == len(part) else part


class ChunkList:
    """The cached chunks of one partition in offset order, with gaps where some were dropped.

    Chunks may overlap, but no chunk lies within another. So of the chunks that begin at or before
    an offset, the last reaches farthest. It holds the offset if any chunk does.
    """

    __slots__ = ("_bases", "_chunks", "_last", "open")

    def __init__(self) -> None:
        self.open: MutableChunk | None = None
        """The chunk being appended to."""
        self._bases: list[int] = []
        self._chunks: list[Chunk] = []
        self._last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        """Add a chunk. No chunk may contain another."""
        at = bisect_right(self._bases, chunk.base)
        self._bases.insert(at, chunk.base)
        self._chunks.insert(at, chunk)

    def remove(self, chunk: Chunk) -> None:
        at = bisect_right(self._bases, chunk.base) - 1
        while self._chunks[at] is not chunk:
            at -= 1
        del self._bases[at], self._chunks[at]
        if self._last is chunk:
            self._last = None
        if self.open is chunk:
            self.open = None

    def holds_all_of(self, chunk: Chunk) -> bool:
        """Return whether a chunk lies within a chunk of this list."""
        at = bisect_right(self._bases, chunk.base) - 1
        return at >= 0 and self._chunks[at].end >= chunk.end

    def within(self, chunk: Chunk) -> list[Chunk]:
        """Return the chunks of this list that lie within ``chunk``."""
        first = bisect_left(self._bases, chunk.base)
        found = takewhile(lambda inner: inner.end <= chunk.end, islice(self._chunks, first, None))
        return list(found)

    def take_all(self) -> list[Chunk]:
        """Remove all chunks, and return them."""
        chunks = self._chunks
        self._bases, self._chunks, self._last, self.open = [], [], None, None
        return chunks

    def find(self, offset: int) -> Chunk | None:
        """Return the chunk that holds ``offset``; None if it is not in memory."""
        chunk = self._last
        if chunk is not None and 0 <= offset - chunk.base < len(chunk.values):
            return chunk
        at = bisect_right(self._bases, offset) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        if offset - chunk.base >= len(chunk.values):
            return None
        self._last = chunk
        return chunk


class ChunkCache:
    """A byte budget over the chunks of all partitions; the oldest chunk goes first.

    ``may_drop(chunk)`` returns whether the log can give the records of the chunk back. It cannot
    before they are on disk.
    """

    def __init__(self, limit_bytes: int, may_drop: Callable[[Chunk], bool]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._may_drop = may_drop
        self._order: OrderedDict[Chunk, ChunkList] = OrderedDict()
        """All chunks, oldest first, and the list that holds each."""

    def add(self, chunks: ChunkList, chunk: Chunk) -> None:
        """Add a chunk; its bytes count after a call of `grow`."""
        chunks.add(chunk)
        self._order[chunk] = chunks

    def add_read(self, chunks: ChunkList, chunk: Chunk) -> None:
        """Add a chunk that was read from the log or the archive.

        The two cut chunks at different offsets. A chunk that lies within another is dropped.
        """
        if chunks.holds_all_of(chunk):
            return
        for inner in chunks.within(chunk):
            self._forget(inner)
        self.add(chunks, chunk)
        self.used_bytes += chunk.cached_bytes

    def grow(self, chunk: Chunk, added_bytes: int) -> None:
        """Count bytes that were appended to a chunk of this cache."""
        chunk.cached_bytes += added_bytes
        self.used_bytes += added_bytes

    def trim(self) -> None:
        """Drop oldest chunks until the budget holds.

        A chunk in use moves to the end of the order. So one old chunk in use does not keep the
        others in memory.
        """
        left = min(TRIM_EXAMINED_MAX, len(self._order))
        while self.used_bytes > self.limit_bytes and left and self._order:
            chunk = next(iter(self._order))
            if self._may_drop(chunk):
                self._forget(chunk)
            else:
                self._order.move_to_end(chunk)
                left -= 1

    def _forget(self, chunk: Chunk) -> None:
        self._order.pop(chunk).remove(chunk)
        self.used_bytes -= chunk.cached_bytes

    def drop(self, lists: Iterable[ChunkList]) -> None:
        """Remove the chunks of these lists in O(their number)."""
        for chunks in lists:
            for chunk in chunks.take_all():
                del self._order[chunk]
                self.used_bytes -= chunk.cached_bytes

    def clear(self) -> None:
        """Forget everything."""
        for chunks in self._order.values():
            chunks.take_all()
        self._order.clear()
        self.used_bytes = 0
