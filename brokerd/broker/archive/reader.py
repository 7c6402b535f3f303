# Tests: tests/broker/test_archive_reader.py
"""Reads records from the archive, in threads, so that a slow archive does not delay the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from twisted.logger import Logger

from brokerd.archive.contract.view import ArchiveUnavailable, ArchiveView
from brokerd.broker.archive.chunks import chunks_of
from brokerd.broker.archive.refresher import ArchiveRefresher
from brokerd.broker.clock import Clock
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import Partition
from brokerd.errors import DamagedData, error_text
from brokerd.worker_pool import WorkerPool

ReadCallback = Callable[[list[Chunk] | None, Exception | None], None]
"""Called at the end of a read with its chunks, or with the reason of its failure."""

T = TypeVar("T")

SLOW_SECONDS = 5.0
"""A read that fails after more time timed out."""
FAILING_SECONDS = 60.0
"""Time for which a failed read counts although others succeed."""


class _NotRun(ArchiveUnavailable):
    """A question timed out while this one waited for a thread."""


class ArchiveReader:
    """Reads from the newest version that ``refresher`` has opened, in ``pool``.

    All methods and callbacks belong to the reactor thread.
    """

    _log = Logger()

    def __init__(self, pool: WorkerPool, clock: Clock, refresher: ArchiveRefresher) -> None:
        self._pool = pool
        self._clock = clock
        self._refresher = refresher
        self.reads = 0
        self.failed_reads = 0
        self.read_bytes = 0
        """Size in memory of all records read."""
        self.read_seconds = 0.0
        """Sum of the times from request to result."""
        self._is_failing = False
        """Whether the last read failed. The log has its error then."""
        self._failure = ""
        """Error of the last failed read, which ended at ``_failed_seconds``."""
        self._failed_seconds = 0.0
        self._newest_question = 0
        """Number of the newest question."""
        self._failed_up_to = 0
        """Questions up to this number fail if they still wait for a thread."""

    @property
    def problem(self) -> str:
        """Why reads fail; "" if they succeed.

        It stays for `FAILING_SECONDS` after a failure, because other files may be readable.
        """
        if not self._failure:
            return ""
        recent = self._clock.seconds() - self._failed_seconds < FAILING_SECONDS
        if not (self._is_failing or recent):
            self._failure = ""
        return self._failure

    def status(self) -> dict[str, Any]:
        """Return the counts of reads, as JSON values."""
        return {
            "reads": self.reads,
            "failed_reads": self.failed_reads,
            "read_bytes": self.read_bytes,
            "read_seconds": self.read_seconds,
        }

    def read(self, partition: Partition, offset: int, max_bytes: int, done: ReadCallback) -> None:
        """Read records of a partition from ``offset`` on, and call ``done`` later.

        ``done(chunks, None)``: ``chunks`` begin with ``offset``. They are empty if the archive does
        not have the offset and the log did not delete it. ``done(None, error)`` as `ask`.
        """
        topic_id, index = partition.topic.topic_id, partition.index
        journal_lacks_it = offset < partition.archived_end
        began_seconds = self._clock.seconds()

        def question(view: ArchiveView) -> list[Chunk]:
            rows = view.read(topic_id, index, offset, max_bytes)
            if rows is None and journal_lacks_it:
                raise ArchiveUnavailable(
                    f"version {view.version} of the archive does not hold offset {offset} of topic "
                    f"{partition.topic.name!r} partition {index}, which the log has deleted; was "
                    "an older version of the archive restored?"
                )
            return [] if rows is None else chunks_of(rows)

        def ended(chunks: list[Chunk] | None, error: Exception | None) -> None:
            self.reads += 1
            self.read_seconds += self._clock.seconds() - began_seconds
            self.read_bytes += sum(chunk.cached_bytes for chunk in chunks or ())
            done(chunks, error)

        def refreshed(error: Exception | None) -> None:
            if self._refresher.last_view is not None:
                self.ask(question, ended)
            elif error is not None:
                done(None, _unusable(error))
            else:
                done([], None)

        if self._refresher.last_view is not None or journal_lacks_it:
            self.ask(question, ended)
        elif self._refresher.is_active:
            self._refresher.refresh(refreshed)
        else:
            # Without an archive: no chunks, and like every other answer not before this returns.
            self._pool.submit(_no_chunks, done)

    def ask(
        self,
        question: Callable[[ArchiveView], T],
        done: Callable[[T | None, Exception | None], None],
    ) -> None:
        """Run ``question`` on the newest version in a thread, and call ``done`` later.

        ``question`` may block. ``done(None, error)``: DamagedData, such as `DamagedArchive`, or
        `ArchiveUnavailable`, which may pass. When a question times out, all queued questions fail
        at once, so that they do not each wait for the same timeout.
        """
        self._ask(question, done, is_retry=False)

    def _ask(
        self,
        question: Callable[[ArchiveView], T],
        done: Callable[[T | None, Exception | None], None],
        is_retry: bool,
    ) -> None:
        view = self._refresher.last_view
        self._newest_question += 1
        number = self._newest_question
        began_seconds: list[float] = []

        def work() -> T:
            if number <= self._failed_up_to:
                raise _NotRun("the archive does not answer")
            began_seconds.append(self._clock.seconds())
            if view is None:
                raise ArchiveUnavailable(
                    "no archive is open, so records that only the archive has cannot be read"
                )
            return question(view)

        def ended(answer: T | None, error: Exception | None) -> None:
            if error is None or isinstance(error, DamagedData):
                self._log_failure(None)
                done(answer, error)
                return
            if began_seconds and self._clock.seconds() - began_seconds[0] > SLOW_SECONDS:
                self._failed_up_to = self._newest_question
            if is_retry or isinstance(error, _NotRun):
                give_up(error)
            else:
                self._refresher.refresh(lambda _: again(error))

        def again(error: Exception) -> None:
            """Ask again if the refresh opened a newer version, which may have other files."""
            if self._refresher.last_view is view:
                give_up(error)
            else:
                self._ask(question, done, is_retry=True)

        def give_up(error: Exception) -> None:
            self.failed_reads += 1
            if view is None and self._refresher.error is not None:
                error = _unusable(self._refresher.error)
            elif not isinstance(error, ArchiveUnavailable):
                error = ArchiveUnavailable(f"the archive cannot be read: {error_text(error)}")
            self._log_failure(error)
            done(None, error)

        self._pool.submit(work, ended)

    def _log_failure(self, error: Exception | None) -> None:
        """Log the first failed read after a successful one."""
        if error is not None and not self._is_failing:
            self._log.error(
                "records cannot be read from the archive: {error}; readers are told to try again",
                error=error_text(error),
                event_id="archive-read-failed",
            )
        self._is_failing = error is not None
        if error is not None:
            self._failure, self._failed_seconds = error_text(error), self._clock.seconds()

    def may_hold_below(self, partition: Partition, offset: int) -> bool:
        """Return whether records right below ``offset`` may be in the archive alone.

        If not, the record before ``offset`` is in the log or does not exist.
        """
        if not partition.start_offset < offset:
            return False
        for first, end in sorted(partition.gaps, reverse=True):
            if first < offset <= end:
                offset = first
        return partition.start_offset < offset <= partition.archived_end


def _no_chunks() -> list[Chunk]:
    return []


def _unusable(error: Exception) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"the archive cannot be used: {error_text(error)}")
