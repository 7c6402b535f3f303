# Tests: tests/wal/test_log.py
"""Completes segments in the background: trims the unused tail and writes the index file.

A failed trim is fatal like any failed write. A failed index write is not. The segment then keeps
its index in memory. The sealer tries again on request and after the next index that is written.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.logger import Logger

from brokerd.wal.catalog import Catalog
from brokerd.wal.disk import Disk
from brokerd.wal.index_files import write_index
from brokerd.wal.segment import Segment, trim
from brokerd.worker_pool import WorkerPool


class Sealer:
    """Completes the segments that get no more frames.

    It calls ``failed(what, error)`` for a failed trim, ``idle()`` after each work, and
    ``on_sealed()`` when a segment has its index file.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        path: str,
        background: WorkerPool,
        catalog: Catalog,
        failed: Callable[[str, Exception], None],
        idle: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._path = path
        self._background = background
        self._catalog = catalog
        self._failed = failed
        self._idle = idle
        self.on_sealed: Callable[[], None] = lambda: None
        self._waiting: list[Segment] = []
        self._under_way: list[Segment] = []
        self._unindexed: list[Segment] = []

    @property
    def busy(self) -> bool:
        """Whether the background thread has work."""
        return bool(self._under_way)

    @property
    def unsynced(self) -> list[Segment]:
        """Segments that get no more frames and may not be synced."""
        return [*self._under_way, *self._waiting]

    def add(self, segment: Segment) -> None:
        """Complete a segment once all its frames are durable."""
        self._waiting.append(segment)

    def complete_below(self, lsn: int) -> None:
        """Complete the segments that end at or below ``lsn``, since all below is durable."""
        while self._waiting and self._waiting[0].end_lsn <= lsn:
            self._finish(self._waiting.pop(0))

    def add_unindexed(self, segment: Segment) -> None:
        """Add a segment whose index could not be written at the start."""
        self._unindexed.append(segment)

    def retry(self) -> None:
        """Write the indexes again that could not be written."""
        unindexed, self._unindexed = self._unindexed, []
        for segment in unindexed:
            self._finish(segment)

    def _finish(self, segment: Segment) -> None:
        self._under_way.append(segment)

        def work() -> OSError | None:
            trim(self._disk, self._path, segment)
            return write_index(self._disk, self._path, segment)

        self._background.submit(work, lambda result, error: self._finished(segment, result, error))

    def _finished(
        self, segment: Segment, index_error: OSError | None, error: Exception | None
    ) -> None:
        self._under_way.remove(segment)
        if error is not None:
            self._failed(f"trimming {segment.name} failed", error)
        elif index_error is None:
            self._catalog.complete(segment)
            self._log.info("{name} is sealed", name=segment.name, event_id="segment-sealed")
            self.on_sealed()
            self.retry()
        else:
            self._unindexed.append(segment)
            self._log.warn(
                "the index of {name} cannot be written: {error}; it stays in memory",
                name=segment.name,
                error=index_error,
                event_id="index-failed",
            )
        self._idle()
