# Tests: tests/admin/test_openapi.py
"""Answers about the archive; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from msgspec import Struct


class WaitingShape(Struct):
    """Bytes of sealed segments that are not deleted yet, by the reason."""

    archive: int
    """The archive does not hold them yet."""
    events: int
    """They have no records, and the archive does not hold their events yet."""
    proof: int
    """The archive is refused, and a restart needs the segment to refuse it again."""
    newer: int
    """They are among the newest ones, which archive.keep_wal_bytes keeps."""
    snapshot: int
    """Two snapshots must hold the rest of their content first."""
    bounds: int
    """The bounds file must name the topics that they create first."""
    lacking: int
    """The archive lacks records that it should hold; see ``lack``."""


class BoundsShape(Struct):
    """The file of bounds: the records that the rollup must not remove."""

    written: int
    """Number of writes since the start."""
    lsn: int
    """The bounds consider the journal below this LSN; 0: not written since the start."""
    error: str | None
    """Error of the last write; null: it succeeded."""


class ArchiveShape(Struct):
    """The archive as this broker sees it, and the segments that wait for it.

    An LSN is a position in the journal.
    """

    address: str
    log_id: str | None
    """The log id that the archive must have; null: the log has none yet, because the disk is
    full."""
    version: int | None
    """Version of the table of records; null: the archive is empty."""
    usable: bool
    """Whether the broker can read the archive now."""
    error: str | None
    """The reason why the archive is unusable."""
    degraded: str
    """The reason why records cannot be read that only the archive holds; "" if none."""
    looked_seconds_ago: float | None
    files: int
    """Files of the table of records."""
    bytes: int
    records_lsn: int
    """The archive holds all records below this LSN."""
    events_lsn: int
    """The archive holds all events of groups below this LSN."""
    first_lsn: int
    """The first LSN of the journal."""
    sealed_lsn: int
    """The first LSN of the open segment. The rollup can copy the journal below it."""
    durable_lsn: int
    """The end of the durable journal."""
    behind_bytes: int
    """Bytes of the journal that the archive does not hold."""
    behind_segments: int
    deleted_segments: int
    """Segments deleted since the start because the archive holds them."""
    deleted_bytes: int
    waiting_bytes: WaitingShape
    lack: str | None
    """Records that the archive should hold and lacks."""
    bounds: BoundsShape


class Sealed(Struct):
    """The LSN below which the whole journal is sealed."""

    lsn: int
