# Tests: tests/broker/test_archive_admin.py
"""What is seen of a broker's archive, and asked for, by the admin API and by health checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.broker.archive.access import ArchiveAccess
from brokerd.broker.archive.bounds_writer import BoundsWriter
from brokerd.broker.archive.reader import ArchiveReader
from brokerd.broker.context import Context
from brokerd.broker.retention.sealing import Sealed, Sealing
from brokerd.broker.retention.segment_cleaner import SegmentCleaner

Refreshed = Callable[[Exception | None], None]


class ArchiveAdmin:
    """Puts the parts together. A broker that was given no ``access`` has no archive, ever."""

    def __init__(
        self,
        context: Context,
        access: ArchiveAccess | None,
        archived: ArchiveReader,
        sweep: SegmentCleaner,
        bounds: BoundsWriter | None,
    ) -> None:
        self._access = access
        self._state = context.state
        self._wal = context.wal
        self._archived = archived
        self._sweep = sweep
        self._bounds = bounds
        self._sealing = Sealing(context.wal, context.journal, context.clock, self._changed)

    def start(self) -> None:
        """Begin to look at the archive and to write bounds; when the broker serves."""
        if self._bounds is not None:
            self._bounds.start(self._open)

    def stop(self) -> None:
        """Begin nothing any more; who waits is never told."""
        self._archived.stop()
        self._sealing.stop()
        if self._bounds is not None:
            self._bounds.stop()

    def _open(self, log_id: str) -> None:
        assert self._access is not None
        self._archived.start(self._access.open(log_id), log_id)

    def _changed(self) -> None:
        if self._bounds is not None:
            self._bounds.changed()

    # -- what can be asked for ----------------------------------------------------------------

    def refresh(self, done: Refreshed) -> None:
        """Use the newest version of the archive; call back when it is in use, or with why not.

        New bounds follow soon, and so does the deletion of what need not stay in the log.
        """

        def looked(error: Exception | None) -> None:
            self._sweep.wake()
            self._changed()
            done(error)

        self._archived.refresh(looked)

    def seal(self, sealed: Sealed) -> None:
        """Seal all of the log as `Sealing.seal` does, and have bounds written, then call back."""

        def written(lsn: int, error: Exception | None) -> None:
            if self._bounds is None:
                sealed(lsn, error)
            else:
                self._bounds.request(lambda _: sealed(lsn, error))

        self._sealing.seal(written)

    def write_bounds(self, written: Callable[[Exception | None], None]) -> None:
        """Have the bounds of what is so now written; call back when they are durable."""
        if self._bounds is None:
            written(None)
        else:
            self._bounds.request(written)

    # -- what can be seen ---------------------------------------------------------------------

    @property
    def reason(self) -> str:
        """Why records cannot be read that are in the archive alone; "" if none are, or they can."""
        if not self._state.archived:
            return ""
        if self._archived.is_silent:
            return "records that the journal let go of wait for the archive, which does not answer"
        if self._archived.view is not None:
            return ""
        status = self._archived.status()
        if status["looked_seconds_ago"] is None:
            return ""  # it begins with a look
        why = status["error"] or "it is not there"
        return f"records that the journal let go of cannot be read from the archive: {why}"

    def status(self) -> dict[str, Any]:
        """All about the archive, in values that JSON can hold; {} if there can be none."""
        if self._access is None or self._bounds is None:
            return {}
        archived, sweep = self._archived.status(), self._sweep.status()
        segments = self._wal.segments()
        lsn = min(archived["records_lsn"], archived["events_lsn"])
        first_lsn = segments[0].first_lsn if segments else self._wal.durable_lsn
        return {
            "address": self._access.place,
            "log_id": self._bounds.log_id,
            "usable": self._archived.view is not None,
            "degraded": self.reason,
            **archived,
            "first_lsn": first_lsn,
            "sealed_lsn": self._wal.sealed_lsn,
            "durable_lsn": self._wal.durable_lsn,
            "behind_bytes": max(0, self._wal.durable_lsn - max(lsn, first_lsn)),
            "behind_segments": sum(segment.end_lsn > lsn for segment in segments),
            "deleted_segments": sweep["deleted_segments"],
            "deleted_bytes": sweep["deleted_bytes"],
            "waiting_bytes": {
                "archive": sweep["behind_bytes"],
                "events": sweep["events_bytes"],
                "newer": sweep["kept_bytes"],
                "snapshot": sweep["snapshot_bytes"],
                "lacking": sweep["lacking_bytes"],
            },
            "lack": sweep["lack"],
            "bounds": self._bounds.status(),
        }
