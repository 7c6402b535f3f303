# Tests: tests/broker/test_archive_admin.py
"""Status and commands of the archive for the admin API and health checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.broker.archive.access import ArchiveAccess, ArchiveSettings
from brokerd.broker.archive.bounds_writer import BoundsWriter
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.archive.refresher import ArchiveRefresher, RefreshDone
from brokerd.broker.context import Context
from brokerd.broker.retention.sealing import SealCallback, Sealing
from brokerd.broker.retention.segment_cleaner import SegmentCleaner
from brokerd.errors import error_text


class ArchiveAdmin:
    """Administers the archive. ``access`` None: the broker has no archive."""

    def __init__(
        self,
        context: Context,
        access: ArchiveAccess | None,
        archive_refresher: ArchiveRefresher,
        archive_reader: ArchiveReader,
        segment_cleaner: SegmentCleaner,
        bounds: BoundsWriter | None,
        settings: ArchiveSettings,
    ) -> None:
        self._access = access
        self._time = context.time
        self._settings = settings
        self._state = context.state
        self._wal = context.wal
        self._archive_refresher = archive_refresher
        self._archive_reader = archive_reader
        self._segment_cleaner = segment_cleaner
        self._bounds = bounds
        self._sealing = Sealing(context.wal, context.group_commit, context.clock, self._changed)

    def start(self) -> None:
        """Start to refresh the archive and to write bounds. The broker calls it when it serves."""
        if self._bounds is not None:
            self._bounds.start(self._open)

    def stop(self) -> None:
        """Stop all work and drop waiting callbacks."""
        self._archive_refresher.stop()
        self._sealing.stop()
        if self._bounds is not None:
            self._bounds.stop()

    def _open(self, log_id: str) -> None:
        assert self._access is not None
        self._archive_refresher.start(self._access.open(log_id), log_id)

    def _changed(self) -> None:
        if self._bounds is not None:
            self._bounds.changed()

    # -- commands ----------------------------------------------------------------------------

    def refresh(self, done: RefreshDone) -> None:
        """Refresh the archive, then call ``done(error)``.

        New bounds and the deletion of archived segments follow soon.
        """

        def on_refreshed(error: Exception | None) -> None:
            self._segment_cleaner.wake()
            self._changed()
            done(error)

        self._archive_refresher.refresh(on_refreshed)

    def seal(self, sealed: SealCallback) -> None:
        """Seal the log as `Sealing.seal` does, write bounds, then call ``sealed``."""

        def on_sealed(lsn: int, error: Exception | None) -> None:
            if self._bounds is None:
                sealed(lsn, error)
            else:
                self._bounds.request(lambda _: sealed(lsn, error))

        self._sealing.seal(on_sealed)

    def write_bounds(self, written: Callable[[Exception | None], None]) -> None:
        """Write the current bounds; call ``written`` when they are durable."""
        if self._bounds is None:
            written(None)
        else:
            self._bounds.request(written)

    # -- status -------------------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """The reason why records that only the archive holds are unreadable; "" if readable."""
        return self._unusable or self._unread

    @property
    def _unread(self) -> str:
        """Why reads of an archive that can be used fail; "" if they succeed."""
        problem = self._archive_reader.problem
        return f"reads of records from the archive fail: {problem}" if problem else ""

    @property
    def _unusable(self) -> str:
        if not self._state.archived:
            return ""
        if self._archive_refresher.is_silent:
            return "reads of records that only the archive holds wait: the archive does not answer"
        if self._archive_refresher.view is not None:
            return ""
        status = self._archive_refresher.status()
        if status["looked_seconds_ago"] is None:
            return ""  # the first refresh is under way
        why = status["error"] or "it does not exist"
        return f"records of the log cannot be read from the archive: {why}"

    @property
    def uselessness(self) -> str:
        """Why an archive on which no record depends yet cannot be used; "" if it can, or is
        missing.
        """
        error = self._archive_refresher.error
        if error is None or self._state.archived:
            return ""
        return (
            f"the archive cannot be used: {error_text(error)}; the broker deletes no archived "
            "journal meanwhile"
        )

    @property
    def lateness(self) -> str:
        """Why the archive is behind the log; "" if it is not, or if there is no archive yet."""
        view, behind_us = self._archive_refresher.last_view, self._settings.behind_us
        if view is None or not behind_us:
            return ""
        lsn = min(view.records_lsn, view.events_lsn)
        segments = (one for one in self._wal.segments() if one.sealed and one.end_lsn > lsn)
        oldest = next(segments, None)
        if oldest is None or not oldest.created_us:
            return ""
        age_us = self._time.removal_us() - oldest.created_us
        if age_us < behind_us:
            return ""
        return (
            f"the archive lacks journal that is {age_us // 3_600_000_000} hours old, from "
            f"{oldest.name} on; does brokerd-rollup run, and end well?"
        )

    def status(self) -> dict[str, Any]:
        """Return the status of the archive as JSON values; {} if the broker has no archive."""
        if self._access is None or self._bounds is None:
            return {}
        version, cleaner = self._archive_refresher.status(), self._segment_cleaner.status()
        segments = self._wal.segments()
        lsn = min(version["records_lsn"], version["events_lsn"])
        first_lsn = segments[0].first_lsn if segments else self._wal.durable_lsn
        return {
            "address": self._access.place,
            "log_id": self._bounds.log_id,
            "usable": self._archive_refresher.view is not None and not self._unread,
            "degraded": self.reason,
            **version,
            **self._archive_reader.status(),
            "first_lsn": first_lsn,
            "sealed_lsn": self._wal.sealed_lsn,
            "durable_lsn": self._wal.durable_lsn,
            "behind_bytes": max(0, self._wal.durable_lsn - max(lsn, first_lsn)),
            "behind_segments": sum(segment.end_lsn > lsn for segment in segments),
            "deleted_segments": cleaner["deleted_segments"],
            "deleted_bytes": cleaner["deleted_bytes"],
            "waiting_bytes": {
                "archive": cleaner["behind_bytes"],
                "events": cleaner["events_bytes"],
                "proof": cleaner["proof_bytes"],
                "newer": cleaner["kept_bytes"],
                "snapshot": cleaner["snapshot_bytes"],
                "bounds": cleaner["bounds_bytes"],
                "lacking": cleaner["lacking_bytes"],
            },
            "lack": cleaner["lack"],
            "bounds": self._bounds.status(),
        }
