# Tests: tests/broker/test_archive_reader.py
"""Opens the newest version of the archive again and again, in a thread.

After a failed refresh, readers keep the last version that opened. `ArchiveRefresher.view` is None
until a refresh succeeds, so that the broker deletes nothing because of an archive that may be gone.
Each kind of failure is logged once.

The broker does not use an archive of another log, or an archive that `guard` refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.logger import Logger

from brokerd.archive.contract.view import Archive, ArchiveUnavailable, ArchiveView, ForeignArchive
from brokerd.broker.callbacks import run_callback
from brokerd.broker.clock import Clock, Timer
from brokerd.errors import error_text
from brokerd.worker_pool import WorkerPool

RefreshDone = Callable[[Exception | None], None]
"""Called at the end of a refresh with None, or with the reason of its failure."""

Guard = Callable[[ArchiveView | None], None]
"""Raises `ForeignArchive` for an archive that cannot belong to this log as it is now.

None stands for no archive. `ArchiveUnavailable` is raised if the log needs one.
"""

SILENT_SECONDS = 30.0
"""A refresh that takes longer probably meets a file system that hangs."""


class ArchiveRefresher:
    """Keeps the newest version of the archive, and opens it anew every ``poll_us`` in ``pool``.

    All methods and callbacks belong to the reactor thread.
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
        self.last_view: ArchiveView | None = None
        """The newest version that ever opened, for reads."""
        self.error: Exception | None = None
        """The error of the last refresh; None after a success."""
        self._logged: set[type[Exception]] = set()
        self._poll_call: Timer | None = None
        self._began_seconds: float | None = None
        """When the refresh in progress began."""
        self._ended_seconds: float | None = None
        self._waiting: list[RefreshDone] = []
        """Callbacks of the next refresh."""
        self._stopped = False
        self.on_version: list[Callable[[], None]] = []
        """Called when another version is in use."""
        self.refreshes = 0
        self.failed_refreshes = 0

    def start(self, archive: Archive | None, log_id: str) -> None:
        """Begin to refresh the archive of the log ``log_id``; None: the log has no archive."""
        self._archive = archive
        self._log_id = log_id
        self._poll()

    def stop(self) -> None:
        """Start no more refreshes, and drop the result of the one in progress."""
        self._stopped = True
        self._cancel_poll()

    @property
    def is_active(self) -> bool:
        """Whether there is an archive and the broker is not stopping."""
        return self._archive is not None and not self._stopped

    @property
    def view(self) -> ArchiveView | None:
        """The newest version, or None if the last refresh failed."""
        return self.last_view if self.error is None else None

    @property
    def events_lsn(self) -> int | None:
        """All events before this LSN are archived; None if this archive holds no events."""
        if self.last_view is not None:
            return self.last_view.events_lsn
        return 0 if self.is_unchecked or isinstance(self.error, ArchiveUnavailable) else None

    @property
    def is_unchecked(self) -> bool:
        """Whether there is an archive, and no refresh of it has ended since the start."""
        return self._archive is not None and self._ended_seconds is None

    @property
    def is_silent(self) -> bool:
        """Whether a refresh has taken longer than `SILENT_SECONDS`."""
        began = self._began_seconds
        return began is not None and self._clock.seconds() - began > SILENT_SECONDS

    def refresh(self, done: RefreshDone = lambda error: None) -> None:
        """Refresh now; ``done`` is called at the end, or at once without an archive.

        A refresh in progress may have missed the newest version. So callers wait for the next one,
        which they share.
        """
        if not self.is_active:
            done(None)
            return
        self._waiting.append(done)
        if self._began_seconds is None:
            self._begin()

    def _poll(self) -> None:
        self._poll_call = None
        self.refresh()

    def _cancel_poll(self) -> None:
        if self._poll_call is not None:
            self._poll_call.cancel()
            self._poll_call = None

    def _begin(self) -> None:
        assert self._archive is not None
        self._cancel_poll()
        waiting, self._waiting = self._waiting, []
        self._began_seconds = self._clock.seconds()
        self._pool.submit(self._archive.refresh, partial(self._end, waiting))

    def _end(
        self, waiting: list[RefreshDone], view: ArchiveView | None, error: Exception | None
    ) -> None:
        self._began_seconds = None
        if self._stopped:
            return
        self.refreshes += 1
        self._ended_seconds = self._clock.seconds()
        if error is None:
            error = self._use(view)
        if error is not None:
            self._fail(error)
        elif self.error is not None:
            self.error = None
            self._logged.clear()
            self._log.info("the archive can be used again", event_id="archive-usable")
        if self._waiting:
            self._begin()
        else:
            self._poll_call = self._clock.callLater(self._poll_us / 1e6, self._poll)
        for done in waiting:
            run_callback(done, error)

    def _use(self, view: ArchiveView | None) -> Exception | None:
        """Use a version from now on, or return the reason why not."""
        if view is None and self.last_view is not None:
            return ArchiveUnavailable("the archive that was there is gone; bring it back")
        if view is self.last_view and view is not None:
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
        self.last_view = view
        for call in self.on_version:
            run_callback(call)
        return None

    def _fail(self, error: Exception) -> None:
        """Log a failure of a new kind. Readers keep the last version, except a foreign one."""
        self.failed_refreshes += 1
        self.error = error
        if isinstance(error, ForeignArchive):
            self.last_view = None
        if type(error) not in self._logged:
            self._logged.add(type(error))
            self._log.error(
                "the archive cannot be used: {error}; nothing is deleted because of it, and it is "
                "tried again every {seconds} s",
                error=error_text(error),
                seconds=self._poll_us / 1e6,
                event_id="archive-unusable",
            )

    def status(self) -> dict[str, Any]:
        """Return the version in use and the last error, as JSON values."""
        view, ended, error = self.last_view, self._ended_seconds, self.error
        return {
            "version": None if view is None else view.version,
            "files": 0 if view is None else view.files,
            "bytes": 0 if view is None else view.bytes,
            "records_lsn": 0 if view is None else view.records_lsn,
            "events_lsn": 0 if view is None else view.events_lsn,
            "error": None if error is None else error_text(error),
            "looked_seconds_ago": None if ended is None else self._clock.seconds() - ended,
            "refreshes": self.refreshes,
            "failed_refreshes": self.failed_refreshes,
        }
