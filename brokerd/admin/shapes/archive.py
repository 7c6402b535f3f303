# Tests: tests/admin/test_openapi.py
"""What the API answers about the archive; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from msgspec import Struct


class WaitingShape(Struct):
    """Bytes of sealed journal files that an archive might let go, by what they wait for."""

    archive: int
    """For the archive to have them."""
    events: int
    """Those without records: for the archive to have their events."""
    newer: int
    """For more journal to follow: archive.keep_wal_bytes."""
    snapshot: int
    """For two snapshots of what else they say."""
    lacking: int
    """For the archive to have what it should have: ``lack`` says what."""


class BoundsShape(Struct):
    """The file that tells the archive's job what it may remove."""

    written: int
    """How often since the start."""
    lsn: int
    """It holds all that the journal said below; 0: not written since the start."""
    error: str | None
    """Why it could not be written last."""


class ArchiveShape(Struct):
    """The archive as this broker sees it, and what of the journal waits for it.

    An LSN is a position in the journal.
    """

    address: str
    log_id: str | None
    """The log it must be of; null while that has none for want of room."""
    version: int | None
    """Of its table of records; null: nothing was archived yet."""
    usable: bool
    """Whether it can be used now."""
    error: str | None
    """Why not."""
    degraded: str
    """Why records cannot be read that are in the archive alone; "" if there are none, or they
    can."""
    looked_seconds_ago: float | None
    files: int
    """Of the table of records."""
    bytes: int
    records_lsn: int
    """All records below are in it."""
    events_lsn: int
    """All events of groups below are."""
    first_lsn: int
    """Where the journal begins."""
    sealed_lsn: int
    """Where its last file begins, which can be archived once it is sealed."""
    durable_lsn: int
    """Where it ends."""
    behind_bytes: int
    """Of the journal, so much is not in it."""
    behind_segments: int
    deleted_segments: int
    """Journal files deleted since the start because the archive has them."""
    deleted_bytes: int
    waiting_bytes: WaitingShape
    lack: str | None
    bounds: BoundsShape


class Sealed(Struct):
    """The LSN below which the whole journal is sealed."""

    lsn: int
