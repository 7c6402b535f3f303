# Tests: tests/broker/test_fetch.py
"""Reads records by offset, for clients that keep their own position: fetches, peeks and tails.

A fetch skips offsets without a readable record: gaps after damage, removed and expired records. It
takes records from memory where it can. Other threads read the others. A fetch returns durable
records only, so no client reads a record that a crash may take back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.clock import BrokerTime
from brokerd.broker.context import Context
from brokerd.broker.model.chunks import Chunk, Rows
from brokerd.broker.model.topics import Partition
from brokerd.broker.records.cold_reader import ColdReader, LoadCallback, Unreadable
from brokerd.broker.records.fetch_result import FetchedRecords
from brokerd.broker.records.offset_at_time import OffsetCallback, offset_at_time
from brokerd.errors import InvalidRequest, UnknownTopic
from brokerd.values import Record
from brokerd.worker_pool import WorkerPool

EXAMINED_MAX = 1024
"""The most records and holes that a fetch examines in one reactor turn."""

FetchCallback = Callable[[Sequence[Record], int, Exception | None], None]


class Expiry:
    """Tells which records are past their time to live, by `BrokerTime.removal_us`."""

    def __init__(self, time: BrokerTime) -> None:
        self._time = time

    def is_expired(self, chunk: Chunk, index: int) -> bool:
        """Return whether the record at ``index`` of the chunk has expired."""
        column = chunk.expires_at_us
        return column is not None and self.is_past(column[index])

    def is_past(self, expires_at_us: int) -> bool:
        """Return whether an expiry time is past. 0 never is, and `REMOVED` always is."""
        return expires_at_us != 0 and expires_at_us <= self.removal_us()

    def removal_us(self) -> int:
        """Return the time for removal: records that expire at it or before are gone."""
        return self._time.removal_us()


class RecordReader:
    """Reads records of partitions by offset, from memory, the log and the archive.

    ``pool`` runs reads of the log's indexes.
    """

    def __init__(
        self,
        context: Context,
        expiry: Expiry,
        cold: ColdReader,
        pool: WorkerPool,
        archive: ArchiveReader,
    ) -> None:
        self.group_commit = context.group_commit
        self.clock = context.clock
        self.expiry = expiry
        self.traffic = context.counters.traffic
        self._wal = context.wal
        self._cold = cold
        self._pool = pool
        self._archive = archive

    def load(self, partition: Partition, offset: int, loaded: LoadCallback) -> None:
        """Read ``offset`` and records after it from log or archive; see `ColdReader.load`."""
        self._cold.load(partition, offset, loaded)

    def offset_at_time(self, partition: Partition, time_us: int, found: OffsetCallback) -> None:
        """Find the first offset appended at or after a broker time; see `offset_at_time`."""
        offset_at_time(
            self._wal, self.group_commit, self._pool, self._archive, partition, time_us, found
        )

    def fetch(
        self,
        partition: Partition,
        offset: int,
        max_records: int,
        max_bytes: int,
        done: FetchCallback,
    ) -> None:
        """Call ``done(records, next_offset, error)`` once, with records from ``offset`` on.

        The call may come before this method returns. It brings at most ``max_records`` records,
        and at most ``max_bytes`` of keys, values and metadata, but at least one record of any size.
        Offsets grow. They are not consecutive where records are removed, expired or in a gap. Below
        the partition's start offset, a fetch begins at the start offset. The next fetch begins at
        ``next_offset``. No records and an unchanged ``next_offset`` mean that no durable record
        follows yet.

        At damage, a fetch returns the records before it. The next fetch, which begins at the
        damage, has the ``error`` `Unreadable`, and ``next_offset`` is the offset after it. Another
        ``error``, such as ``OSError``, may pass: the same fetch may succeed later. `UnknownTopic`
        means that the topic was deleted. Raises `InvalidRequest`.
        """
        if max_records < 1 or max_bytes < 0:
            raise InvalidRequest(
                f"a fetch of {max_records} records and {max_bytes} bytes gets nowhere; "
                "ask for 1 record or more"
            )
        found = self._in_memory(partition, offset) if max_records == 1 else None
        if found is not None:
            rows = found.rows(offset, offset + 1)
            traffic = partition.topic.traffic or self.traffic.of(partition.topic)
            traffic.read_records += 1
            traffic.read_bytes += rows.size()
            done(FetchedRecords(rows), offset + 1, None)
            return
        _Fetch(self, partition, offset, max_records, max_bytes, done).go_on()

    def records_in_memory(
        self, partition: Partition, offsets: Iterable[int], max_bytes: int
    ) -> list[Record]:
        """Return the records at the first of these offsets, as many as memory can answer.

        The list ends before an offset whose record is not in memory, not durable, or expired: only
        a `fetch` can tell what is there. It also ends with the record that reaches ``max_bytes`` of
        keys, values and metadata.
        """
        records: list[Record] = []
        size = 0
        for offset in offsets:
            chunk = self._in_memory(partition, offset) if size < max_bytes else None
            if chunk is None:
                break
            record = chunk.record(offset - chunk.base)
            size += len(record.value) + len(record.key or b"") + len(record.metadata or b"")
            records.append(record)
        traffic = partition.topic.traffic or self.traffic.of(partition.topic)
        traffic.read_records += len(records)
        traffic.read_bytes += size
        return records

    def _in_memory(self, partition: Partition, offset: int) -> Chunk | None:
        """Return the chunk of a record that is in memory, durable, and not expired."""
        chunk = partition.find(offset)
        if chunk is None or not partition.start_offset <= offset < chunk.durable_end(
            self.group_commit.durable_ticket
        ):
            return None
        return None if self.expiry.is_expired(chunk, offset - chunk.base) else chunk


class _Fetch:
    """A fetch in progress."""

    def __init__(
        self,
        reader: RecordReader,
        partition: Partition,
        offset: int,
        max_records: int,
        max_bytes: int,
        done: FetchCallback,
    ) -> None:
        self._reader = reader
        self._partition = partition
        self._offset = offset
        self._records_left = max_records
        self._bytes_left = self._max_bytes = max_bytes
        self._done = done
        self._records = FetchedRecords()

    def go_on(self) -> None:
        """Take records from memory, load others, and yield to the reactor after many."""
        self._take(None)

    def _take(self, loaded: Chunk | None) -> None:
        """Continue as `go_on` does. ``loaded`` was just read, and may be in no cache."""
        reader, partition = self._reader, self._partition
        if partition.topic.deleted:
            # A crash may undo the deletion, so the reader must not believe that it has all records.
            name = partition.topic.name
            gone = UnknownTopic(f"topic {name!r} was deleted while it was read")
            self._finish(None if self._records else gone)
            return
        to_examine = EXAMINED_MAX
        while self._records_left:
            self._offset = max(self._offset, partition.start_offset)
            if self._offset >= partition.framed_end:
                break
            chunk, loaded = loaded, None
            if chunk is None or not chunk.base <= self._offset < chunk.end:
                chunk = partition.find(self._offset)
            if chunk is None:
                if not self._skip_gap():
                    reader.load(partition, self._offset, self._loaded)
                    return
                continue
            end = min(
                chunk.durable_end(reader.group_commit.durable_ticket),
                chunk.end_of_run(self._offset, min(to_examine, self._records_left)),
            )
            if self._offset >= end:
                break
            count = self._take_from(chunk, end)
            to_examine -= max(1, count)
            if self._offset < end:
                break
            if to_examine <= 0:
                reader.clock.callLater(0, self.go_on)
                return
        self._finish(None)

    def _take_from(self, chunk: Chunk, end: int) -> int:
        """Take records of a chunk below ``end``, as many as fit the limits of the fetch.

        Return the number of examined records.
        """
        rows = chunk.rows(self._offset, end)
        for part in self._unexpired(rows):
            fit = self._fitting(part)
            self._records_left -= fit
            if fit < len(part.offsets):
                self._records.add(part.cut(0, fit))
                self._offset = part.offsets[fit]
                break
            self._records.add(part)
        else:
            self._offset = end
        return len(rows.offsets)

    def _unexpired(self, rows: Rows) -> Iterator[Rows]:
        """Yield the runs of rows that have not expired."""
        column = rows.chunk.expires_at_us
        removal_us = 0 if column is None else self._reader.expiry.removal_us()
        if column is None or not removal_us:
            yield rows
            return
        first = 0
        for at, expires_at_us in enumerate(column[rows.part]):
            if 0 < expires_at_us <= removal_us:
                if first < at:
                    yield rows.cut(first, at)
                first = at + 1
        if first < len(rows.offsets):
            yield rows.cut(first, len(rows.offsets))

    def _fitting(self, rows: Rows) -> int:
        """Return how many of the records fit the limits, and count them."""
        size, count = rows.size(), len(rows.offsets)
        if size <= self._bytes_left:
            self._bytes_left -= size
            return count
        fit, too_many = 0, count
        while too_many - fit > 1:
            middle = (fit + too_many) // 2
            size = rows.cut(fit, middle).size()
            if size <= self._bytes_left:
                self._bytes_left -= size
                fit = middle
            else:
                too_many = middle
        if not fit and not self._records:
            self._bytes_left -= rows.cut(0, 1).size()
            return 1
        return fit

    def _skip_gap(self) -> bool:
        """If the offset is in a gap, move to its end and return True."""
        for first, end in self._partition.gaps:
            if first <= self._offset < end:
                self._offset = end
                return True
        return False

    def _loaded(self, chunk: Chunk | None, error: Exception | None) -> None:
        if chunk is not None or self._offset < self._partition.start_offset:
            self._take(chunk)
        elif self._records:
            self._finish(None)
        else:
            if isinstance(error, Unreadable):
                self._offset = max(self._offset, error.end)
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        if self._records:
            traffic = self._reader.traffic.of(self._partition.topic)
            traffic.read_records += len(self._records)
            traffic.read_bytes += self._max_bytes - self._bytes_left
        self._done(self._records, self._offset, error)
