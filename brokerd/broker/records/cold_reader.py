# Tests: tests/broker/test_cold_reader.py
"""Reads records that are no longer in memory from the log or the archive, in threads.

The log comes first. The archive has the records that the log does not have.

One read of a partition runs at a time. Other requests for the partition wait for it, because the
chunks that it reads often contain their offsets too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.broker.archive.read_ahead import ReadAhead
from brokerd.broker.callbacks import run_callback
from brokerd.broker.model.chunks import CHUNK_BYTES, CHUNK_RECORDS, Chunk, ChunkCache, MutableChunk
from brokerd.broker.model.topics import Partition
from brokerd.broker.status.damage import DamagedBytes, DamageRegistry
from brokerd.errors import DamagedData, RecordRemoved
from brokerd.wal import DamagedBatch, ReadPlan, Wal
from brokerd.walformat import decode_records
from brokerd.worker_pool import WorkerPool

READ_AHEAD_BYTES = 1024 * 1024
NOT_FOUND = "neither journal nor archive holds it"

LoadCallback = Callable[[Chunk | None, Exception | None], None]


class Unreadable(DamagedData):
    """Neither log nor archive can give the records at offsets ``first`` to ``end``, exclusive."""

    def __init__(self, problem: str, first: int, end: int) -> None:
        super().__init__(problem)
        self.first = first
        self.end = end


def run_plan(plan: ReadPlan | None) -> list[Chunk]:
    """Carry out a plan: read and decode batches, and join small neighbours to one chunk."""
    chunks: list[MutableChunk] = []
    for batch in plan.run() if plan is not None else ():
        chunk = chunks[-1] if chunks else None
        if (
            chunk is None
            or chunk.end != batch.base_offset
            or len(chunk.values) >= CHUNK_RECORDS
            or chunk.cached_bytes >= CHUNK_BYTES
        ):
            chunk = MutableChunk(batch.base_offset)
            chunks.append(chunk)
        chunk.extend(batch.count, decode_records(batch.body, batch.count))
        chunk.cached_bytes += len(batch.body)
    for chunk in chunks:
        chunk.cached_bytes = chunk.content_bytes()
        chunk.close()
    return [*chunks]


def _removed(partition: Partition, offset: int) -> RecordRemoved:
    return RecordRemoved(
        f"offset {offset} of topic {partition.topic.name!r} partition {partition.index} is "
        f"removed; the records begin at {partition.start_offset}"
    )


class ColdReader:
    """Brings chunks into ``cache``: from the log, which ``pool`` reads, else from the archive.

    It reports unreadable records to ``damage``.
    """

    def __init__(
        self,
        wal: Wal,
        pool: WorkerPool,
        cache: ChunkCache,
        damage: DamageRegistry,
        archive: ReadAhead,
    ) -> None:
        self._wal = wal
        self._pool = pool
        self._cache = cache
        self._damage = damage
        self._archive = archive
        self._waiting: dict[Partition, list[tuple[int, LoadCallback]]] = {}
        self.reads = 0

    def load(
        self,
        partition: Partition,
        offset: int,
        loaded: LoadCallback,
        ahead_bytes: int = READ_AHEAD_BYTES,
    ) -> None:
        """Read ``offset`` and up to ``ahead_bytes`` after it, or wait for a read under way.

        Call ``loaded(chunk, None)`` with a chunk that holds ``offset``, or
        ``loaded(None, error)``: `RecordRemoved` if it is below the start offset by now, or its
        topic deleted, `Unreadable` if neither log nor archive can give it, ``OSError`` or
        `ArchiveUnavailable` if that may pass.
        """
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.append((offset, loaded))
            return
        self._waiting[partition] = [(offset, loaded)]
        self.reads += 1
        self._read_log(partition, offset, ahead_bytes)

    def _read_log(self, partition: Partition, offset: int, ahead_bytes: int) -> None:
        """Plan the read and hand it to the pool.

        An error of planning goes through the pool too: ``loaded`` is never called before `load`
        returns, and readers of the partition never wait for a read that did not begin.
        """
        if offset < partition.start_offset:
            self._fail(partition, offset, _removed(partition, offset))
            return
        try:
            plan = self._wal.plan_read(
                partition.topic.topic_id, partition.index, offset, ahead_bytes
            )
        except Exception as error:
            self._fail(partition, offset, error)
            return
        if plan is None:
            self._read_archive(partition, offset, ahead_bytes)
            return

        def ended(chunks: list[Chunk] | None, error: Exception | None) -> None:
            if isinstance(error, RecordRemoved) or (error is None and not chunks):
                self._read_archive(partition, offset, ahead_bytes)
            else:
                self._done(partition, offset, chunks, error)

        self._pool.submit(partial(run_plan, plan), ended)

    def _fail(self, partition: Partition, offset: int, error: Exception) -> None:
        def work() -> None:
            raise error

        self._pool.submit(work, partial(self._done, partition, offset))

    def _read_archive(self, partition: Partition, offset: int, ahead_bytes: int) -> None:
        """Read an offset that the log does not have from the archive."""
        self._archive.read(partition, offset, ahead_bytes, partial(self._done, partition, offset))

    def _done(
        self,
        partition: Partition,
        offset: int,
        chunks: list[Chunk] | None,
        error: Exception | None,
    ) -> None:
        for chunk in chunks or ():
            if not partition.topic.deleted:
                self._cache.add_read(partition.cold, chunk)
        if error is None and partition.cold.find(offset) is None:
            error = DamagedData(NOT_FOUND)
        if error is not None and offset >= partition.start_offset:
            error = self._report_damage(partition, offset, error)
        retry = []
        for wanted, loaded in self._waiting.pop(partition):
            found = partition.cold.find(wanted)
            if wanted < partition.start_offset:
                run_callback(loaded, None, _removed(partition, wanted))
            elif found is not None:
                run_callback(loaded, found, None)
            elif wanted == offset:
                run_callback(loaded, None, error)
            else:
                retry.append((wanted, loaded))
        for wanted, loaded in retry:
            self.load(partition, wanted, loaded)
        self._cache.trim()

    def _report_damage(self, partition: Partition, offset: int, error: Exception) -> Exception:
        """Report damage to the `DamageRegistry`, and return the error for the waiting reader."""
        if isinstance(error, ArchiveUnavailable):
            return error  # `ArchiveReader` reports it
        if isinstance(error, DamagedBatch):
            place, lost = DamagedBytes(error.name, *error.positions, error.problem), error.offsets
        elif isinstance(error, DamagedArchive):
            place = DamagedBytes("", -1, -1, str(error))
            lost = error.first, max(error.end, offset + 1)
        elif isinstance(error, DamagedData):
            place, lost = DamagedBytes("", -1, -1, str(error)), (offset, offset + 1)
        else:
            self._damage.read_failed(partition, offset, error)
            return error
        in_archive = isinstance(error, DamagedArchive)
        self._damage.read_damaged(partition, *lost, place, in_archive)
        return Unreadable(str(place), *lost)
