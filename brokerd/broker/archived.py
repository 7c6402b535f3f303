# Tests: tests/broker/test_archived.py
"""The archive as the broker has it: its newest version, looked for now and then, and read from.

The archive is looked at and read in threads of its own, so that a slow one never holds up the log.
A look that fails changes nothing for readers, who go on with the version that was seen last; but
`Archived.view` is None until a look succeeds again, so that nothing is deleted because of an
archive that may be gone. What fails is told once for each kind of failure.

An archive of another log, or one that `guard` refuses, is not used for anything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.logger import Logger

from brokerd.archive.view import (
    Archive,
    ArchivedRows,
    ArchiveUnavailable,
    ArchiveView,
    ForeignArchive,
)
from brokerd.broker.journal import Clock, DelayedCall
from brokerd.broker.topics import Partition
from brokerd.errors import DamagedData
from brokerd.wal import Committer

Refreshed = Callable[[Exception | None], None]
"""Told when a look is over: None, or why it failed."""

Rows = Callable[[ArchivedRows | None, Exception | None], None]
"""Told what was read: `ArchiveView.read`, or why that failed."""

Guard = Callable[[ArchiveView], None]
"""Raises `ForeignArchive` for an archive that cannot be of this log as it is now."""


class Archived:
    """Looks at the archive every ``poll_us`` and reads from it, in ``pool``.

    All methods belong to the reactor thread, and so does what they call.
    """

    _log = Logger()

    def __init__(
        self,
        pool: Committer,
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
        self._is_looking = False
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
        self.read_bytes = 0
        """Bytes of keys, values and metadata that reads brought."""
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

    def refresh(self, done: Refreshed = lambda error: None) -> None:
        """Look now; ``done`` is called when a look that began after this is over, or at once.

        Who asks while a look is under way waits for the next, all of them for the same.
        """
        if self._archive is None or self._stopped:
            done(None)
            return
        self._waiting.append(done)
        if not self._is_looking:
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
        self._is_looking = True
        self._pool.submit(self._archive.refresh, partial(self._looked, waiting))

    def _looked(
        self, waiting: list[Refreshed], view: ArchiveView | None, error: Exception | None
    ) -> None:
        self._is_looking = False
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
            done(error)

    def _go_on(self) -> None:
        if self._waiting:
            self._look()
        else:
            self._call = self._clock.callLater(self._poll_us / 1e6, self._poll)

    def _take(self, view: ArchiveView | None) -> Exception | None:
        """Use a version from now on, or say why not."""
        if view is None:
            if self._seen is None:
                return None
            return ArchiveUnavailable("the archive that was there is gone; bring it back")
        if view is self._seen:
            return None
        try:
            if view.log_id != self._log_id:
                raise ForeignArchive(
                    f"it is the archive of log {view.log_id}, and this log is {self._log_id}: "
                    "give it back its own archive, or another archive.uri"
                )
            self._guard(view)
        except ForeignArchive as error:
            return error
        self._seen = view
        for call in self.on_version:
            call()
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
                error=str(error) or type(error).__name__,
                seconds=self._poll_us / 1e6,
                event_id="archive-unusable",
            )

    # -- reading ------------------------------------------------------------------------------

    def read(self, partition: Partition, offset: int, max_bytes: int, done: Rows) -> None:
        """Have read what the archive knows of a partition from ``offset`` on; later, as `Rows`.

        ``done(None, None)``: it knows nothing of that offset, and the log never let go of it.
        Errors: `DamagedArchive`, and `ArchiveUnavailable` for all that may pass.
        """
        self._read(partition, offset, max_bytes, done, is_retry=False)

    def _read(
        self, partition: Partition, offset: int, max_bytes: int, done: Rows, is_retry: bool
    ) -> None:
        view = self._seen
        began_seconds = self._clock.seconds()

        def work() -> ArchivedRows | None:
            if view is None:
                return None
            return view.read(partition.topic.topic_id, partition.index, offset, max_bytes)

        def ended(rows: ArchivedRows | None, error: Exception | None) -> None:
            self.reads += 1
            self.read_seconds += self._clock.seconds() - began_seconds
            if rows is None and error is None and offset < partition.archived:
                error = self._missing(view, partition, offset)
            if error is None or isinstance(error, DamagedData):
                done(rows, error)
            elif is_retry or self._stopped:
                self.failed_reads += 1
                done(None, _unavailable(error))
            else:
                self.refresh(lambda _: again(error))

        def again(error: Exception) -> None:
            """Read once more if there is a newer version, whose files may be others."""
            if self._seen is view:
                self.failed_reads += 1
                done(None, _unavailable(error))
            else:
                self._read(partition, offset, max_bytes, done, is_retry=True)

        self._pool.submit(work, ended)

    def _missing(
        self, view: ArchiveView | None, partition: Partition, offset: int
    ) -> ArchiveUnavailable:
        what = (
            f"offset {offset} of topic {partition.topic.name!r} partition {partition.index} is "
            "in the archive alone, which "
        )
        if view is not None:
            return ArchiveUnavailable(
                f"{what}does not hold it in version {view.version}: has an older one been restored?"
            )
        why = "is not there" if self._error is None else f"cannot be used: {self._error}"
        return ArchiveUnavailable(f"{what}{why}")

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
            "error": None if self._error is None else str(self._error),
            "looked_seconds_ago": None if looked is None else self._clock.seconds() - looked,
            "refreshes": self.refreshes,
            "failed_refreshes": self.failed_refreshes,
            "reads": self.reads,
            "failed_reads": self.failed_reads,
            "read_bytes": self.read_bytes,
            "read_seconds": self.read_seconds,
        }


def _unavailable(error: Exception) -> ArchiveUnavailable:
    """What a reader is told, whatever it was that may pass."""
    if isinstance(error, ArchiveUnavailable):
        return error
    return ArchiveUnavailable(f"the archive cannot be read: {error or type(error).__name__}")
