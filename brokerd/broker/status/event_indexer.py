# Tests: tests/broker/test_event_indexer.py
"""Makes event indexes of sealed segments in the background, for ``brokerctl explain``.

A read thread makes one index at a time, the newest segment first, in slices with pauses, so that
reads and the reactor go on beside it. A segment with damaged frames gets none until the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from twisted.logger import Logger

from brokerd.broker.clock import StepTimer
from brokerd.broker.context import Context
from brokerd.errors import BrokerdError
from brokerd.wal import SegmentStatus
from brokerd.wal.event_indexes import EventIndexBuild
from brokerd.worker_pool import WorkerPool

CHECK_SECONDS: Final = 10.0
"""Time from a start or a sealed segment to the search for segments without an index."""

PAUSE_SECONDS: Final = 0.1
"""Pause between slices of 2 MiB."""

RETRY_SECONDS: Final = 600.0
"""Time until the next search after an error of the disk."""


class EventIndexer:
    """Keeps the index files in step with the sealed segments."""

    _log = Logger()

    def __init__(self, context: Context, read_threads: WorkerPool) -> None:
        self._wal = context.wal
        self._indexes = context.wal.event_indexes
        self._timer = StepTimer(context.clock)
        self._read_threads = read_threads
        self._damaged: set[bytes] = set()
        """Ids of segments whose index could not be made."""
        self._is_at_work = False
        self._is_checked = False
        """Whether no segment was sealed since the last search began."""

    def start(self) -> None:
        """Search for segments without an index now, and after each sealed segment."""
        self._wal.on_sealed.append(self._wake)
        if self._wal.segments():
            self._wake()

    def _wake(self) -> None:
        self._is_checked = False
        if not self._is_at_work:
            self._is_at_work = True
            self._timer.call_later(CHECK_SECONDS, self._check)

    def stop(self) -> None:
        """Start no more work and ignore the results of threads."""
        self._timer.stop()

    def _submit(
        self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        """Run work in a thread, then ``done``. After an error of the disk, check again later.

        A missing file is no error of the disk.
        """

        def ended(result: Any, error: Exception | None) -> None:
            if self._timer.is_stopped:
                return
            if error is None or isinstance(error, (BrokerdError, FileNotFoundError)):
                done(result, error)
            elif isinstance(error, OSError):
                self._warn(error)
                self._timer.call_later(RETRY_SECONDS, self._check)
            else:
                raise error

        self._read_threads.submit(work, ended)

    def _warn(self, error: Exception) -> None:
        self._log.warn(
            "no event index: {error}; brokerctl explain reads all of the segment",
            error=error,
            event_id="event-index-failed",
        )

    def _check(self) -> None:
        """Remove indexes without a segment, then make one that is missing."""
        self._is_checked = True
        segments = [segment for segment in self._wal.segments() if segment.sealed]
        first_lsns = {segment.first_lsn for segment in segments}

        def remove_others() -> set[int]:
            names = self._indexes.names()
            for first_lsn in names - first_lsns:
                self._indexes.remove(first_lsn)
            return names

        def found(names: set[int] | None, _: object) -> None:
            if names is not None:  # None: an index file went away on its own
                for segment in reversed(segments):
                    if segment.first_lsn not in names and segment.segment_id not in self._damaged:
                        self._step(segment, self._indexes.build(segment))
                        return
            self._is_at_work = False
            if not self._is_checked:
                self._wake()

        self._submit(remove_others, found)

    def _step(self, segment: SegmentStatus, build: EventIndexBuild) -> None:
        def done(is_written: bool, error: Exception | None) -> None:
            if error is not None:
                if isinstance(error, BrokerdError):
                    self._warn(error)  # otherwise the segment was deleted meanwhile
                self._damaged.add(segment.segment_id)
            is_ended = is_written or error is not None
            self._timer.call_later(PAUSE_SECONDS, self._check if is_ended else next_step)

        def next_step() -> None:
            self._step(segment, build)

        self._submit(build.step, done)
