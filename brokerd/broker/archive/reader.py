# Tests: tests/broker/test_archive_reader.py
"""Follows the newest version of the archive and reads records from it.

Own threads open and read the archive, so a slow archive does not delay the log. After a failed
refresh, readers keep the last version that opened. `ArchiveReader.view` is None until a refresh
succeeds, so that the broker deletes nothing because of an archive that may be gone. Each kind of
failure is logged once.

The broker does not use an archive of another log, or an archive that `guard` refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.logger import Logger

from brokerd.archive.contract.view import Archive, ArchiveUnavailable, ArchiveView, ForeignArchive
from brokerd.broker.archive.chunks import chunks_of
from brokerd.broker.callbacks import guarded
from brokerd.broker.journal import Clock, DelayedCall
from brokerd.broker.model.chunks import Chunk
from brokerd.broker.model.topics import Partition
from brokerd.errors import DamagedData, error_text
from brokerd.wal import WorkerPool

Refreshed = Callable[[Exception | None], None]
"""Told when a look is over: None, or why it failed."""

Brought = Callable[[list[Chunk] | None, Exception | None], None]
"""Told what was read, or why that failed."""

T = TypeVar("T")

Guard = Callable[[ArchiveView | None], None]
"""Raises `ForeignArchive` for an archive that cannot be of this log as it is now.

None is no archive; `ArchiveUnavailable` is raised if there has to be one.
"""


SILENT_SECONDS = 30.0
"""A look that takes longer is one at a file system that hangs, or nearly so."""


SLOW_SECONDS = 5.0
"""A read that fails after longer was at an archive that does not answer."""


class _NotAsked(ArchiveUnavailable):
    """The archive did not answer somebody else while this waited for its turn."""


class ArchiveReader:
    """Looks at the archive every ``poll_us`` and reads from it, in ``pool``.

    All methods belong to the reactor thread, and so does what they call.
    """

    _log = Logger()

    def __init__(
        self,
        pool: WorkerPool,
        clock: Clock,
        poll_us: int,
        guard: Guard = lambda view: None,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._poll_us = poll_us
        self._guard = guard
        self._archive: Archive | None = None
        self._log_id = ""
        self._seen: ArchiveView | None = None
        self._error: Exception | None = None
        self._told: set[type[Exception]] = set()
        self._call: DelayedCall | None = None
        self._looks_since: float | None = None
        """When the look began that is under way."""
        self._waiting: list[Refreshed] = []
        """Who wants a look that has not begun."""
        self._stopped = False
        self._looked_seconds: float | None = None
        self.on_version: list[Callable[[], None]] = []
        """Called when another version is in use."""
        self.refreshes = 0
        self.failed_refreshes = 0
        self.reads = 0
        self.failed_reads = 0
        self._reads_fail = False
        """Whether the last read did, which was told."""
        self._asked = 0
        """Number of the last question."""
        self._given_up = 0
        """Questions up to this one are not asked any more, if they still wait for a thread."""
        self.read_bytes = 0
        """What reads brought, as it is in memory."""
        self.read_seconds = 0.0
        """How long reads took, from the request to what came of it."""

    def start(self, archive: Archive | None, log_id: str) -> None:
        """Begin to look at the archive of the log ``log_id``; None: there never will be one."""
        self._archive = archive
        self._log_id = log_id
        self._poll()

    def stop(self) -> None:
        """Look and read no more; what threads are at comes to nothing."""
        self._stopped = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    # -- the newest version -------------------------------------------------------------------

    @property
    def view(self) -> ArchiveView | None:
        """The newest version, if the last look found the archive as it should be."""
        return self._seen if self._error is None else None

    @property
    def seen(self) -> ArchiveView | None:
        """The newest version that was ever found, for reads."""
        return self._seen

    @property
    def events_lsn(self) -> int | None:
        """Up to where events are archived for certain; None if nobody archives them, it seems."""
        if self._seen is not None:
            return self._seen.events_lsn
        begins = self._archive is not None and self._looked_seconds is None
        return 0 if begins or isinstance(self._error, ArchiveUnavailable) else None

    @property
    def is_silent(self) -> bool:
        """Whether a look has been under way for longer than any should take."""
        since = self._looks_since
        return since is not None and self._clock.seconds() - since > SILENT_SECONDS

    def refresh(self, done: Refreshed = lambda error: None) -> None:
        """Look now; ``done`` is called when a look that began after this is over, or at once.

        Who asks while a look is under way waits for the next, all of them for the same.
        """
        if self._archive is None or self._stopped:
            done(None)
            return
        self._waiting.append(done)
        if self._looks_since is None:
            self._look()

    def _poll(self) -> None:
        self._call = None
        self.refresh()

    def _look(self) -> None:
        assert self._archive is not None
        if self._call is not None:
            self._call.cancel()
            self._call = None
        waiting, self._waiting = self._waiting, []
        self._looks_since = self._clock.seconds()
        self._pool.submit(self._archive.refresh, partial(self._looked, waiting))

    def _looked(
        self, waiting: list[Refreshed], view: ArchiveView | None, error: Exception | None
    ) -> None:
        self._looks_since = None
        if self._stopped:
            return
        self.refreshes += 1
        self._looked_seconds = self._clock.seconds()
        if error is None:
            error = self._take(view)
        if error is not None:
            self._failed(error)
        elif self._error is not None:
            self._error = None
            self._told.clear()
            self._log.info("the archive can be used again", event_id="archive-usable")
        self._go_on()
        for done in waiting:
            guarded(done, error)

    def _go_on(self) -> None:
        if self._waiting:
            self._look()
        else:
            self._call = self._clock.callLater(self._poll_us / 1e6, self._poll)

    def _take(self, view: ArchiveView | None) -> Exception | None:
        """Use a version from now on, or say why not."""
        if view is None and self._seen is not None:
            return ArchiveUnavailable("the archive that was there is gone; bring it back")
        if view is self._seen and view is not None:
            return None
        try:
            if view is not None and view.log_id != self._log_id:
                raise ForeignArchive(
                    f"it is the archive of log {view.log_id}, and this log is {self._log_id}: "
                    "give it back its own archive, or another archive.uri"
                )
            self._guard(view)
        except (ForeignArchive, ArchiveUnavailable) as error:
            return error
        if view is None:
            return None
        self._seen = view
        for call in self.on_version:
            guarded(call)
        return None

    def _failed(self, error: Exception) -> None:
        """Keep what was seen for reads, unless it is another's now; tell each kind once."""
        self.failed_refreshes += 1
        self._error = error
        if isinstance(error, ForeignArchive):
            self._seen = None
        if type(error) not in self._told:
            self._told.add(type(error))
            self._log.error(
                "the archive cannot be used: {error}; nothing is deleted because of it, and it is "
                "tried again every {seconds} s",
                error=error_text(error),
                seconds=self._poll_us / 1e6,
                event_id="archive-unusable",
            )

    # -- reading ------------------------------------------------------------------------------

    def read(self, partition: Partition, offset: int, max_bytes: int, done: Brought) -> None:
        """Read records of a partition from ``offset`` on, and call ``done`` later.

        ``done(chunks, None)``: ``chunks`` begin with ``offset``. They are empty if the archive does
        not have the offset and the log did not delete it. ``done(None, error)`` as `ask`.
        """
        topic_id, index = partition.topic.topic_id, partition.index
        is_needed = offset < partition.archived
        began_seconds = self._clock.seconds()

        def question(view: ArchiveView) -> list[Chunk]:
            rows = view.read(topic_id, index, offset, max_bytes)
            if rows is None and is_needed:
                raise ArchiveUnavailable(
                    f"version {view.version} of the archive does not hold offset {offset} of topic "
                    f"{partition.topic.name!r} partition {index}, which the log has not any more: "
                    "has an older one been restored?"
                )
            return [] if rows is None else chunks_of(rows)

        def ended(chunks: list[Chunk] | None, error: Exception | None) -> None:
            self.reads += 1
            self.read_seconds += self._clock.seconds() - began_seconds
            self.read_bytes += sum(chunk.cached_bytes for chunk in chunks or ())
            done(chunks, error)

        def looked(error: Exception | None) -> None:
            if self._seen is not None:
                self.ask(question, ended)
            elif error is not None:
                done(None, _unusable(error))
            else:
                done([], None)

        if self._seen is not None or is_needed:
            self.ask(question, ended)
        elif self._archive is None or self._stopped:
            self._pool.submit(list, done)
        else:
            self.refresh(looked)

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
        view = self._seen
        self._asked += 1
        number = self._asked
        began_seconds: list[float] = []

        def work() -> T:
            if number <= self._given_up:
                raise _NotAsked("the archive does not answer")
            began_seconds.append(self._clock.seconds())
            if view is None:
                raise ArchiveUnavailable(
                    "what is in the archive alone is out of reach: there is none"
                )
            return question(view)

        def ended(answer: T | None, error: Exception | None) -> None:
            if error is None or isinstance(error, DamagedData):
                self._tell_reads(None)
                done(answer, error)
                return
            if began_seconds and self._clock.seconds() - began_seconds[0] > SLOW_SECONDS:
                self._given_up = self._asked
            if is_retry or isinstance(error, _NotAsked):
                give_up(error)
            else:
                self.refresh(lambda _: again(error))

        def again(error: Exception) -> None:
            """Run the question again if there is a newer version, which may have other files."""
            if self._seen is view:
                give_up(error)
            else:
                self._ask(question, done, is_retry=True)

        def give_up(error: Exception) -> None:
            self.failed_reads += 1
            if view is None and self._error is not None:
                error = _unusable(self._error)
            elif not isinstance(error, ArchiveUnavailable):
                error = ArchiveUnavailable(f"the archive cannot be read: {error_text(error)}")
            self._tell_reads(error)
            done(None, error)

        self._pool.submit(work, ended)

    def _tell_reads(self, error: Exception | None) -> None:
        """Log the first failed read after a successful one."""
        if error is not None and not self._reads_fail:
            self._log.error(
                "records cannot be read: {error}; who asks for them is told to try again",
                error=error_text(error),
                event_id="archive-read-failed",
            )
        self._reads_fail = error is not None

    def may_hold_below(self, partition: Partition, offset: int) -> bool:
        """Return whether records right below ``offset`` may be in the archive alone.

        Otherwise the log has the record before ``offset``, or there is none.
        """
        if not partition.start_offset < offset:
            return False
        for first, end in sorted(partition.gaps, reverse=True):
            if first < offset <= end:
                offset = first
        return partition.start_offset < offset <= partition.archived

    # -- what can be seen ---------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What is in use and what failed, in values that JSON can hold."""
        view, looked = self._seen, self._looked_seconds
        return {
            "version": None if view is None else view.version,
            "files": 0 if view is None else view.files,
            "bytes": 0 if view is None else view.bytes,
            "records_lsn": 0 if view is None else view.records_lsn,
            "events_lsn": 0 if view is None else view.events_lsn,
            "error": None if self._error is None else error_text(self._error),
            "looked_seconds_ago": None if looked is None else self._clock.seconds() - looked,
            "refreshes": self.refreshes,
            "failed_refreshes": self.failed_refreshes,
            "reads": self.reads,
            "failed_reads": self.failed_reads,
            "read_bytes": self.read_bytes,
            "read_seconds": self.read_seconds,
        }


def _unusable(error: Exception) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"the archive cannot be used: {error_text(error)}")
