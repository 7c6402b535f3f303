# Tests: tests/backup/test_points.py
"""Chooses the backups and files that hold a point of the log: an LSN or a time.

docs/backup.rst, section "How a point is restored", has the rules. No I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from brokerd.backup.manifest import (
    UNKNOWN_ID,
    BackupFailed,
    Manifest,
    StoredSegment,
    StoredSnapshot,
)
from brokerd.backup.repository import Backup
from brokerd.wal.deletion.deleted_ranges import DeletedRanges, LsnRange


class BackupEnd(NamedTuple):
    """The end of a backup."""

    number: int
    lsn: int
    time_us: int
    """Broker time of its last frame; 0 without frames."""
    made_us: int
    """Time at which it was made."""


class Point(NamedTuple):
    """The end of a restored log. Without either, it is the end of the backup."""

    lsn: int | None = None
    time_us: int | None = None

    def is_before(self, backup: BackupEnd) -> bool:
        """Return whether a backup may reach beyond the point."""
        if self.lsn is not None:
            return backup.lsn > self.lsn
        return self.time_us is not None and backup.time_us > self.time_us

    def has(self, end_lsn: int, time_us: int) -> bool:
        """Return whether a frame with this end and broker time is in the restored log."""
        if self.lsn is not None:
            return end_lsn <= self.lsn
        return self.time_us is None or time_us <= self.time_us


END = Point()
"""The end of the newest backup."""


class Choice(NamedTuple):
    """The backups for a point."""

    holder: Backup
    """The backup that has the segment of the point."""
    base: Backup
    """The backup that has the state before the point; the holder itself if none is older."""

    @property
    def is_whole(self) -> bool:
        """Return whether the holder is restored to its end, unless a point is before that."""
        return self.base.number == self.holder.number


def time_text(time_us: int) -> str:
    """Format a time in UTC."""
    text = datetime.fromtimestamp(time_us // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{time_us % 1_000_000:06d}Z"


def was_continued(older: Manifest, newer: Manifest) -> bool:
    """Return whether the log of a newer backup has all of the log of an older one, or had it.

    It has not if a restore, or a power loss, took the log back below the end of the older backup:
    the segments after that are other ones, even if they reach further by now, or are deleted. A
    deleted part begins and ends where segments did.
    """
    if older.lsn > newer.lsn:
        return False
    firsts = [segment.first_lsn for segment in newer.segments]
    limits = sorted({lsn for deleted in newer.deleted for lsn in deleted})
    for segment in older.segments:
        if _has_between(limits, segment) or _has_between(firsts, segment):
            return False
        at = bisect_right(firsts, segment.first_lsn)
        same = newer.segments[at - 1] if at else None
        if same is None or same.first_lsn != segment.first_lsn:
            continue  # deleted since
        if same.id != segment.id and UNKNOWN_ID not in (same.id, segment.id):
            return False
    return True


def _has_between(lsns: Sequence[int], segment: StoredSegment) -> bool:
    """Return whether one of the sorted LSNs lies within a segment, and not at its begin or end."""
    at = bisect_right(lsns, segment.first_lsn)
    return at < len(lsns) and lsns[at] < segment.end_lsn


def history(backups: Sequence[BackupEnd]) -> list[BackupEnd]:
    """Return the backups of the newest history, oldest first. None ends before an older one.

    A backup that ends after a newer one is of a history that a restore has ended.
    """
    found: list[BackupEnd] = []
    for backup in reversed(backups):
        if not found or backup.lsn <= found[-1].lsn:
            found.append(backup)
    return found[::-1]


def choose(backups: Sequence[BackupEnd], point: Point) -> tuple[BackupEnd, BackupEnd]:
    """Choose holder and base for a point, by the ends of all backups that may be used.

    Raises BackupFailed if none reaches the point.
    """
    found = history(backups)
    newest = found[-1]
    if point.lsn is not None and point.lsn > newest.lsn:
        raise BackupFailed(
            f"backup {newest.number} ends at LSN {newest.lsn}, before --to-lsn {point.lsn}; "
            "give an LSN up to there, or make a backup first"
        )
    newest_us = max(newest.time_us, newest.made_us)
    if point.time_us is not None and point.time_us > newest_us:
        raise BackupFailed(
            f"backup {newest.number} was made at {time_text(newest.made_us)}, before --to-time "
            f"{time_text(point.time_us)}; give a time up to {time_text(newest_us)}, or make a "
            "backup first"
        )
    later = [backup for backup in found if point.is_before(backup)]
    earlier = [backup for backup in found if not point.is_before(backup)]
    if not later:
        return newest, newest
    if not earlier:
        return later[0], later[0]
    base = earlier[-1]
    return (base if base.lsn == point.lsn else later[0]), base


def segments_of(choice: Choice, point: Point) -> list[StoredSegment]:
    """Return the segments that may have frames up to a point, in order.

    Raises BackupFailed if the broker deleted a part between base and holder before the holder was
    made.
    """
    base, holder = choice.base.manifest, choice.holder.manifest
    found = {segment.first_lsn: segment for segment in base.segments}
    if not choice.is_whole:
        last_lsn = base.segments[-1].first_lsn if base.segments else base.lsn
        found |= {one.first_lsn: one for one in holder.segments if one.first_lsn >= last_lsn}
    segments = [found[lsn] for lsn in sorted(found) if _may_have(found[lsn], point)]
    if not choice.is_whole:
        _require_all(segments, choice, point)
    return segments


def _may_have(segment: StoredSegment, point: Point) -> bool:
    """Return whether a segment may have a frame up to a point."""
    if point.lsn is not None:
        return segment.first_lsn < point.lsn
    return point.time_us is None or segment.created_us <= point.time_us


def _require_all(segments: Sequence[StoredSegment], choice: Choice, point: Point) -> None:
    """Raise BackupFailed if a part of the log between base and point is missing."""
    base, holder = choice.base, choice.holder
    ends = base.manifest.lsn
    for segment in segments:
        if segment.first_lsn > ends:
            break
        ends = max(ends, segment.end_lsn)
    else:
        if point.lsn is None or point.lsn <= ends:
            return
    raise BackupFailed(
        f"the log after LSN {ends} is in no backup: the broker deleted it before backup "
        f"{holder.number}. Nearest points: LSN {ends}, and LSN {holder.manifest.lsn} "
        f"({time_text(holder.manifest.time_us)}), the end of backup {holder.number}"
    )


def snapshots_of(choice: Choice, lsn: int) -> list[StoredSnapshot]:
    """Return the snapshots for a log that ends at an LSN.

    Raises BackupFailed if deleted parts of the log have no snapshot.
    """
    manifest = choice.base.manifest
    found = [one for one in manifest.snapshots if one.reached_lsn <= lsn]
    start_lsn = max((one.start_lsn for one in found), default=0)
    deleted = DeletedRanges(LsnRange(*one) for one in manifest.deleted)
    if any(deleted.after(start_lsn)) or deleted.end > lsn:
        first = min(
            (one.reached_lsn for one in manifest.snapshots if one.start_lsn >= deleted.end),
            default=manifest.lsn,
        )
        raise BackupFailed(
            f"backup {choice.base.number} cannot be restored to LSN {lsn}: the broker had deleted "
            f"the log below LSN {deleted.end}, and the first snapshot after that needs the log up "
            f"to LSN {first}. Give that LSN or a later one; an older backup may have more"
        )
    return found
