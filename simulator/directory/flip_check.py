# Tests: tests/simulator/test_flips.py
"""Flip one byte of a directory, verify, start, read, and judge the result.

See `simulator.flips`. A checker holds a sound directory, its acknowledged data, and the state that
a broker shows; each check works on a copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from brokerd.broker import BrokerSettings
from brokerd.errors import DamagedData
from brokerd.values import Record
from brokerd.wal import RecoveryReport, WalOptions
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.walformat import Entry
from simulator.directory.byte_map import ByteMap, GroupPartitionName, Region, Unit
from simulator.directory.reference import OPTIONS, Key, Reference, reserved, served
from simulator.directory.visible_state import Sight, look
from simulator.machine.bare import STATE_DIR, WAL_DIR, BareBroker, BareLog, counting_ids
from simulator.machine.disk import SimDisk

START_OPTIONS = WalOptions(segment_bytes=256 << 10, free_bytes_min=0)
"""The segment that a start begins has room for all leases of a check."""
START_SETTINGS = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=1 << 20)

VARIANTS = {
    "with snapshots": "a start reads the newest snapshot, and the frames after it",
    "without snapshots": "a start reads every frame",
    "snapshot last": "as with snapshots, the last of which was written after the last frame",
    "running": "the byte flips under a broker that runs and keeps nothing in memory",
    "running, index": "the byte of an index flips after a start, before it is first used",
    "log alone": "entries of all kinds, those included that no broker of this version reads",
}


class Outcome(Enum):
    """The result of a flip. Forbidden results are in capitals."""

    HARMLESS = "harmless"
    """No check noticed the flip, and the byte carries no information: see `CARRY_NOTHING`."""
    UNUSED = "unused"
    """The broker did not need the byte; ``wal verify`` reports it."""
    REBUILT = "rebuilt"
    """An index was rebuilt, or a snapshot skipped, and that was reported; nothing is lost."""
    DETECTED = "detected"
    """Reported, and nothing is lost but the entry (or, for a byte of its header, the frame)."""
    TORN_TAIL = "torn tail"
    """The last commit, after which nothing was synced, is cut, and the position is reported."""
    WRONG_PAYLOAD = "WRONG PAYLOAD"
    SILENT_LOSS = "SILENT LOSS"
    TOO_MUCH = "TOO MUCH"
    """More is lost than the entry or frame of the byte."""
    NOT_NAMED = "NOT NAMED"
    """Something differs, and ``wal verify`` does not report the place."""
    UNNOTICED = "UNNOTICED"
    """No check noticed the flip, and the byte carries information."""
    REUSED = "REUSED"
    """An offset or topic id was, or would be, assigned twice."""
    BROKEN = "BROKEN"
    """The broker did not start, or raised an unexpected error."""


VIOLATIONS = frozenset(outcome for outcome in Outcome if outcome.value.isupper())
CARRY_NOTHING = frozenset(
    {("segment header", "zeros"), ("entry padding", "padding"), ("chunk padding", "padding")}
)
"""(area, field) of bytes that docs/wal-format.rst says readers ignore."""


Changed = int | GroupPartitionName
"""A topic, or a group in a partition, whose state changed."""


class Judged(NamedTuple):
    """An outcome and its explanation."""

    outcome: Outcome
    detail: str = ""


class Checker(Protocol):
    """Checks single bytes of one directory in one way."""

    bytemap: ByteMap
    live_bytes: dict[str, int]
    """Number of bytes that can be checked, by file."""

    def check(self, path: str, position: int, mask: int) -> Judged: ...


def names_place(report: VerifyReport, path: str, position: int) -> bool:
    """Return whether ``wal verify`` reports this byte, or a range around it."""
    name = os.path.basename(path)
    torn = report.torn
    return (
        any(one.name == name and one.position <= position < one.end for one in report.damages)
        or (torn is not None and torn.name == name and torn.position <= position)
        or any(bad.name == name for bad in (*report.bad_indexes, *report.bad_snapshots))
    )


def _unnoticed(region: Region) -> Judged:
    if (region.area, region.field) in CARRY_NOTHING:
        return Judged(Outcome.HARMLESS, "readers ignore it")
    return Judged(Outcome.UNNOTICED)


# -- Starting on it ------------------------------------------------------------------------------


class StartChecker:
    """Flips a byte, verifies, starts a broker, and reads everything."""

    def __init__(self, reference: Reference, is_wanted: Callable[[str], bool] = bool) -> None:
        self.disk = reference.disk
        self._records = reference.records
        self.bytemap = ByteMap(self.disk)
        self.live_bytes = {
            path: size for path, size in self.bytemap.live_bytes.items() if is_wanted(path)
        }
        self._last_commit = self.bytemap.last_commit
        self._sound = look(start(self.disk.fork()))
        if self._sound.records != self._records or self._sound.says_damaged:
            raise AssertionError("the directory without a flip is not as it was written")

    def check(self, path: str, position: int, mask: int) -> Judged:
        disk = self.disk.fork()
        disk.flip(path, position, mask)
        region = self.bytemap.at(path, position)
        try:
            is_named = names_place(verify(disk, WAL_DIR, STATE_DIR), path, position)
            seen = look(start(disk))
        except Exception as error:  # any error is the finding
            return Judged(Outcome.BROKEN, f"{type(error).__name__}: {error}")
        return self.judge(region, is_named, seen)

    def judge(self, region: Region, is_named: bool, seen: Sight) -> Judged:
        unit = self._last_commit if seen.cut else region.unit
        missing = [key for key in self._records if key not in seen.records]
        changed = self._changed(seen, missing)
        worst = (
            self._wrong(seen)
            or self._silent(seen, missing, changed)
            or _too_much(unit, missing, changed)
            or self._reused(seen)
        )
        if worst is not None:
            return worst
        is_told = seen.says_damaged
        is_rebuilt = bool(seen.damage["indexes"] or seen.damage["snapshots"])
        if (is_told or is_rebuilt) and not is_named:
            return Judged(Outcome.NOT_NAMED)
        if seen.cut:
            lies = Outcome.TORN_TAIL if region.is_last_commit else Outcome.TOO_MUCH
            return Judged(lies, f"{len(missing)} records cut")
        if is_told:
            return Judged(Outcome.DETECTED, f"{len(missing)} records lost")
        if is_rebuilt:
            return Judged(Outcome.REBUILT)
        return Judged(Outcome.UNUSED) if is_named else _unnoticed(region)

    def _wrong(self, seen: Sight) -> Judged | None:
        for key, record in seen.records.items():
            if record != self._records.get(key):
                return Judged(Outcome.WRONG_PAYLOAD, f"{key}: {record}")
        if seen.complaints:
            return Judged(Outcome.BROKEN, seen.complaints[0])
        return None

    def _silent(self, seen: Sight, missing: list[Key], changed: list[Changed]) -> Judged | None:
        if seen.cut:
            return None
        untold: list[object] = [key for key in missing if not seen.names_lost(key)]
        if not seen.says_damaged:
            untold += changed
        return Judged(Outcome.SILENT_LOSS, str(untold[0])) if untold else None

    def _reused(self, seen: Sight) -> Judged | None:
        if seen.cut:
            return None
        for place, end in self._sound.ends.items():
            if seen.ends.get(place, end) < end:
                return Judged(Outcome.REUSED, f"{place} goes on at {seen.ends[place]}, not {end}")
        if seen.next_topic_id < self._sound.next_topic_id:
            return Judged(Outcome.REUSED, f"topic id {seen.next_topic_id}")
        return None

    def _changed(self, seen: Sight, missing: list[Key]) -> list[Changed]:
        """Return topics and group partitions whose state changed; missing records do not count."""
        changed: list[Changed] = []
        for topic_id, name in self._sound.names.items():
            if seen.names.get(topic_id) != name:
                changed.append(topic_id)
        for group_partition, sound in self._sound.group_partitions.items():
            topic_id, partition, _ = group_partition
            lost = {key[2] for key in missing if key[:2] == (topic_id, partition)}
            end = self._sound.ends[topic_id, partition]
            now = seen.group_partitions.get(group_partition)
            if now is None or now.without(lost, end) != sound.without(lost, end):
                changed.append(group_partition)
        return changed


def _too_much(unit: Unit, missing: list[Key], changed: list[Changed]) -> Judged | None:
    for one in changed:
        if one not in unit.group_partitions and one not in unit.topics:
            return Judged(Outcome.TOO_MUCH, f"topic or group_partition {one} is not as it was")
    for topic_id, partition, offset in missing:
        if not any(
            batch[:2] == (topic_id, partition) and batch[2] <= offset < batch[3]
            for batch in unit.batches
        ):
            return Judged(Outcome.TOO_MUCH, f"{topic_id, partition, offset} is lost")
    return None


def _without_snapshots() -> StartChecker:
    reference = served()
    for name in reference.disk.list(STATE_DIR):
        reference.disk.unlink(f"{STATE_DIR}/{name}")
    return StartChecker(reference)


def _snapshot_last() -> StartChecker:
    reference = served(snapshot_last=True)
    last = f"{WAL_DIR}/{max(n for n in reference.disk.list(WAL_DIR) if n.endswith('.wal'))}"
    return StartChecker(reference, lambda path: path == last)


def start(disk: SimDisk) -> BareBroker:
    """Start a broker on the disk and return it."""
    return BareBroker(disk, START_OPTIONS, counting_ids(b"new"), START_SETTINGS)


# -- Under a broker that runs --------------------------------------------------------------------


class RunningChecker:
    """Flips a byte of a segment under the broker that wrote it, and reads every record.

    All checks share one broker: each flip is undone, and nothing stays in memory.
    """

    def __init__(self) -> None:
        reference = served()
        self._live = reference.live
        self._records = reference.records
        self.bytemap = ByteMap(reference.disk)
        self.live_bytes = {
            path: size for path, size in self.bytemap.live_bytes.items() if path.endswith(".wal")
        }

    def check(self, path: str, position: int, mask: int) -> Judged:
        region = self.bytemap.at(path, position)
        self._live.disk.flip(path, position, mask)
        try:
            return self._judge(region, self._read())
        except Exception as error:  # any error is the finding
            return Judged(Outcome.BROKEN, f"{type(error).__name__}: {error}")
        finally:
            self._live.disk.flip(path, position, mask)

    def _read(self) -> dict[Key, Record | Exception]:
        return {
            (partition.topic.topic_id, partition.index, offset): found
            for partition in self._live.partitions()
            for offset, found in self._live.read_all(partition).items()
        }

    def _judge(self, region: Region, found: dict[Key, Record | Exception]) -> Judged:
        lost = [key for key, one in found.items() if isinstance(one, DamagedData)]
        for key, record in self._records.items():
            one = found.get(key)
            if key not in lost and one != record:
                outcome = Outcome.SILENT_LOSS if one is None else Outcome.WRONG_PAYLOAD
                return Judged(outcome, f"{key}: {one!r}")
        worst = _too_much(region.unit, lost, [])
        if worst is not None or lost:
            return worst or Judged(Outcome.DETECTED, f"{len(lost)} records cannot be read")
        if region.area.endswith(" RECORDS"):
            return Judged(Outcome.UNNOTICED)
        return Judged(Outcome.UNUSED, "no read needs it")


class RunningIndexChecker:
    """Flips a byte of an index after a start, before any read has used it."""

    def __init__(self) -> None:
        reference = served()
        self._records = reference.records
        self.disk = reference.disk
        start(self.disk)  # seals the last segment, so that it has an index, too
        self.bytemap = ByteMap(self.disk)
        self.live_bytes = {
            path: size for path, size in self.bytemap.live_bytes.items() if path.endswith(".idx")
        }

    def check(self, path: str, position: int, mask: int) -> Judged:
        house = start(self.disk.fork())
        house.disk.flip(path, position, mask)
        try:
            seen = look(house)
        except Exception as error:  # any error is the finding
            return Judged(Outcome.BROKEN, f"{type(error).__name__}: {error}")
        for key, record in seen.records.items():
            if record != self._records.get(key):
                return Judged(Outcome.WRONG_PAYLOAD, f"{key}: {record}")
        if len(seen.records) < len(self._records) or seen.says_damaged:
            return Judged(Outcome.TOO_MUCH, "records are lost for an index")
        return Judged(Outcome.REBUILT if seen.damage["indexes"] else Outcome.UNNOTICED)


# -- The log alone -------------------------------------------------------------------------------


class LogChecker:
    """Flips a byte of a log with entries of all kinds, and replays it without a broker."""

    def __init__(self) -> None:
        self.disk, self._entries = reserved()
        self.bytemap = ByteMap(self.disk)
        self.live_bytes = self.bytemap.live_bytes

    def check(self, path: str, position: int, mask: int) -> Judged:
        disk = self.disk.fork()
        disk.flip(path, position, mask)
        region = self.bytemap.at(path, position)
        try:
            is_named = names_place(verify(disk, WAL_DIR, STATE_DIR), path, position)
            entries, report = _replay(disk)
        except Exception as error:  # any error is the finding
            return Judged(Outcome.BROKEN, f"{type(error).__name__}: {error}")
        return self._judge(region, is_named, entries, report)

    def _judge(
        self, region: Region, is_named: bool, entries: list[Entry], report: RecoveryReport
    ) -> Judged:
        missing = [entry for entry in self._entries if entry not in entries]
        if entries != [entry for entry in self._entries if entry in entries]:
            return Judged(Outcome.WRONG_PAYLOAD, f"entries {[entry.kind for entry in entries]}")
        is_told = bool(report.damages) or report.cut is not None
        if missing and not is_told:
            return Judged(Outcome.SILENT_LOSS, f"entries {[entry.kind for entry in missing]}")
        stood = region.entries if report.cut is None else self.bytemap.last_entries
        if len(missing) > stood:
            return Judged(Outcome.TOO_MUCH, f"entries {[entry.kind for entry in missing]}")
        if (is_told or report.bad_indexes) and not is_named:
            return Judged(Outcome.NOT_NAMED)
        if report.cut is not None:
            return Judged(Outcome.TORN_TAIL if region.is_last_commit else Outcome.TOO_MUCH)
        if is_told:
            return Judged(Outcome.DETECTED, f"{len(missing)} entries lost")
        if report.bad_indexes:
            return Judged(Outcome.REBUILT)
        return Judged(Outcome.UNUSED) if is_named else _unnoticed(region)


def _replay(disk: SimDisk) -> tuple[list[Entry], RecoveryReport]:
    """Return the entries of a log in order, and the report of opening it."""
    entries: list[Entry] = []
    log = BareLog(disk, OPTIONS, counting_ids(b"new"))
    report = log.wal.open(0, lambda frame: entries.extend(frame.entries))
    return entries, report


_CHECKERS: dict[str, Callable[[], Checker]] = {
    "with snapshots": lambda: StartChecker(served()),
    "without snapshots": _without_snapshots,
    "snapshot last": _snapshot_last,
    "running": RunningChecker,
    "running, index": RunningIndexChecker,
    "log alone": LogChecker,
}


def make_checker(variant: str) -> Checker:
    """Return the checker of one of the `VARIANTS`."""
    return _CHECKERS[variant]()
