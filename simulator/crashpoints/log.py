# Tests: tests/simulator/test_crashpoints.py
"""The fixed workload of the log alone: entries of every kind, frames of many sizes, snapshots.

The broker writes no SCHEDULE entries, only a repair writes LOST, and SECURITY and SCHEMA entries
have unknown contents here; the log carries all of them. Five lives on one directory end by two
clean closes, one SIGKILL and two losses of power, the last three during commits. Each life deletes
segments, some in the middle of the log; later starts begin at the newest snapshot.

A frame must stay, byte for byte and in order, once `Wal.on_durable` has reported it or a start has
replayed it. A snapshot must stay once `Snapshots.write` has returned. The log must open without the
newest snapshot, too.

`killed_run` adds a life to the run at a crash point: SIGKILL there, which loses nothing, a start, a
few drawn steps, and a loss of power at a drawn call.
"""

from __future__ import annotations

import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle
from random import Random
from typing import NamedTuple

import msgpack

from brokerd.errors import DamagedData
from brokerd.wal import Frame, RecoveryReport, SnapshotChunk, Snapshots, WalOptions
from brokerd.wal.damage.verify import verify
from brokerd.wal.snapshot import KEPT_SNAPSHOTS
from brokerd.walformat import (
    SEGMENT_BYTES_MIN,
    Entry,
    EntryKind,
    EventKind,
    RecordColumns,
    encode_group_events,
    encode_records,
)
from simulator.crashpoints.points import CHANGING, LOST, Point, require
from simulator.machine.bare import STATE_DIR, WAL_DIR, BareLog
from simulator.machine.crash import CrashModel
from simulator.machine.disk import Call, PowerLost, SimDisk

SEED = 2
STEPS_MAX = 6
"""The most steps of a life after a SIGKILL."""
CALLS_MAX = 160
"""The power goes at the latest at this changing call of a life after a SIGKILL."""
SIZES = (0, 1, 7, 8, 9, 430, 512, 3_900, 4_096, 9_000, 20_000)
"""Sizes of bodies: around the alignment, a sector, a block, and parts of a segment."""
LARGE_BYTES = 150_000
"""Size of a body whose frame needs a larger segment than usual."""
OPTIONS = WalOptions(segment_bytes=SEGMENT_BYTES_MIN, free_bytes_min=0)

Entries = Sequence[Entry]

FOREIGN_KIND = 1_000
"""A kind of chunk that no broker writes or reads."""


class Snapshot(NamedTuple):
    start_lsn: int
    chunks: list[SnapshotChunk]


class Log(BareLog):
    """One life of a log. Its threads run by hand."""

    def __init__(self, disk: SimDisk, random_bytes: Callable[[int], bytes]) -> None:
        super().__init__(disk, OPTIONS, random_bytes)
        self.snapshots = Snapshots(disk, STATE_DIR, random_bytes)
        self.frames: list[Frame] = []
        """The frames that the start replayed."""
        self.from_lsn = 0
        deleted_lsn = self.wal.deleted_lsn()
        loaded = self.snapshots.load_newest(oldest_lsn=deleted_lsn) if deleted_lsn else None
        if loaded is not None:
            self.from_lsn = loaded.start_lsn
        self.report: RecoveryReport = self.wal.open(self.from_lsn, self.frames.append)


class LogScript:
    """One run of the workload. Its attributes give the required contents of the disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.frames: list[Entries] = []
        """All frames that may be there, in order."""
        self.ends: list[int] = []
        """End LSN of each frame."""
        self.durable = 0
        """Number of frames that must be there."""
        self.snapshots: list[Snapshot] = []
        """All snapshots, finished or not."""
        self.snapshots_done = 0
        """Number of finished snapshots."""
        self._chance = Random(SEED)
        self._kinds = cycle(EntryKind)
        self._sizes = cycle(SIZES)

    def play(self) -> None:
        """Run from the first start on an empty disk to the last close. Raises WorkloadFailure."""
        self._live().close()
        self._leave_unsynced(self._live())
        self.disk.kill()
        self._leave_under_way(self._live())
        self.disk.crash(CrashModel.REORDER, self._chance)
        self._leave_unsynced(self._live())
        self.disk.crash(CrashModel.KEEP)
        self._live().close()

    def digest(self) -> str:
        """Return a hash that is equal for equal runs."""
        return self.disk.digest()

    # -- one life -------------------------------------------------------------------------------

    def _start(self) -> Log:
        """Start the log. The frames that it replays must stay from now on."""
        log = Log(self.disk, self._chance.randbytes)
        before = self.below(log.from_lsn) + len(log.frames)
        del self.frames[before:], self.ends[before:]
        self.durable = before
        log.wal.on_durable = lambda ticket: self._is_durable(before + ticket)
        log.run()
        return log

    def _live(self) -> Log:
        log = self._start()
        self._append_in_turn(log, 8)
        self._write_snapshot(log)
        self._append_together(log, 14)
        self._seal(log)
        self._append_large(log)
        self._append_in_turn(log, 4)
        self._write_snapshot(log)
        self._write_snapshot(log)
        self._append_in_turn(log, 1)
        self._write_snapshot(log)
        require(self._delete_segments(log) > 0, "a life leaves segments to delete")
        return log

    def killed_run(self, model: CrashModel, chance: Random) -> LogScript:
        """Return a copy of this run that is killed now, starts, and then loses its power."""
        run = self.copy(self.disk.fork())
        run.disk.kill()
        run.live_on(model, chance)
        return run

    def copy(self, disk: SimDisk) -> LogScript:
        """Return a run that goes on with ``disk`` from here."""
        run = LogScript()
        run.disk = disk
        run.frames, run.ends, run.durable = [*self.frames], [*self.ends], self.durable
        run.snapshots, run.snapshots_done = [*self.snapshots], self.snapshots_done
        return run

    def live_on(self, model: CrashModel, chance: Random) -> None:
        """Start, do a few drawn steps, and lose the power at a drawn call."""
        self._chance = chance
        left = chance.randint(1, CALLS_MAX)

        def enter(call: Call) -> None:
            nonlocal left
            left -= call.name in CHANGING
            if left < 0:
                raise PowerLost

        self.disk.enter = enter
        with suppress(PowerLost):
            self._take_steps()
        self.disk.enter = lambda call: None
        self.disk.crash(model, chance)

    def _take_steps(self) -> None:
        log = self._start()
        steps: list[Callable[[Log], object]] = [
            lambda log: self._append_in_turn(log, 2),
            self._seal,
            self._write_snapshot,
            self._delete_segments,
        ]
        for step in self._chance.choices(steps, k=self._chance.randint(1, STEPS_MAX)):
            step(log)

    def below(self, lsn: int) -> int:
        """Return how many frames end at or below an LSN."""
        return bisect_right(self.ends, lsn)

    def _is_durable(self, count: int) -> None:
        self.durable = count

    def _append(self, log: Log, entries: Entries) -> None:
        self.frames.append(entries)
        log.wal.append(entries, len(self.frames))
        self.ends.append(log.wal.appended_lsn)

    def _append_in_turn(self, log: Log, count: int) -> None:
        """Append frames, each in a commit of its own."""
        for _ in range(count):
            self._append(log, [self._entry()])
            log.run()

    def _append_together(self, log: Log, count: int) -> None:
        """Append frames, the first in one commit, the others in the next, some of many entries."""
        for number in range(count):
            self._append(log, [self._entry() for _ in range(1 + number % 3)])
            log.background.run()
        log.run()

    def _seal(self, log: Log) -> None:
        log.wal.seal()
        log.run()

    def _append_large(self, log: Log) -> None:
        log.wal.request_room(LARGE_BYTES)
        log.run()
        self._append(log, [self._entry(LARGE_BYTES)])
        log.run()

    def _write_snapshot(self, log: Log) -> None:
        """Write a snapshot of two chunks of kinds that no broker writes."""
        lsn, number = log.wal.durable_lsn, len(self.snapshots)
        chunks = [
            SnapshotChunk(FOREIGN_KIND, b"", lsn, b"%d" % number),
            SnapshotChunk(FOREIGN_KIND + 1, b"key", lsn, b"state" * 900),
        ]
        self.snapshots.append(Snapshot(lsn, chunks))
        log.snapshots.write(lsn, chunks)
        self.snapshots_done = len(self.snapshots)

    def _delete_segments(self, log: Log) -> int:
        """Delete the segments that the older snapshot covers, except every third.

        Returns their number.
        """
        below_lsn = log.snapshots.second_newest()
        removables = log.wal.deleter.plan_removal({}, (), below_lsn or 0).run()
        gone = [one for number, one in enumerate(removables) if number % 3]
        log.wal.deleter.delete(gone)
        log.run()
        return len(gone)

    def _leave_under_way(self, log: Log) -> None:
        """Append frames in two segments; only the first segment is durable when this life ends."""
        for _ in range(3):
            self._append(log, [self._entry(), self._entry()])
        log.writer.step()
        log.wal.seal()
        self._append(log, [self._entry()])

    def _leave_unsynced(self, log: Log) -> None:
        """Append frames that are written and not synced when this life ends."""
        self._append(log, [self._entry(), self._entry()])
        self._append(log, [self._entry()])
        hook = self.disk.enter

        def enter(call: Call) -> None:
            if call.name == "sync":
                raise PowerLost
            hook(call)

        self.disk.enter = enter
        try:
            log.run()
        except PowerLost:
            self.disk.enter = hook
        require(self.disk.enter is hook, "frames became durable without a sync")

    def _entry(self, size: int | None = None) -> Entry:
        """Return an entry of the next kind, with a body of the next size, or of about ``size``."""
        kind = next(self._kinds) if size is None else EntryKind.RECORDS
        filling = self._chance.randbytes(next(self._sizes) if size is None else size)
        number = len(self.frames)
        if kind is EntryKind.RECORDS:
            body = encode_records(RecordColumns([b"%d" % number, filling]))
            return Entry(kind, 1, 0, 2 * number, 2, body)
        if kind is EntryKind.GROUP_EVENTS:
            event = (EventKind.COMMITTED, number, 0, 0, 0, "", filling.hex())
            return Entry(kind, 1, 0, 0, 1, encode_group_events("g", [event]))
        if kind is EntryKind.MARK:
            return Entry(kind, 0, 0, 0, 0, b"")
        if kind is EntryKind.LOST:
            return Entry(kind, 0, 0, 0, 0, _loss(filling))
        if kind is EntryKind.TOPIC:
            return _topic(number, filling)
        return Entry(kind, number, 0, 0, 0, filling)


def _topic(number: int, filling: bytes) -> Entry:
    """Make a TOPIC entry of the page's layout, of about any size."""
    body = msgpack.packb({"op": "created", "name": filling.hex(), "partitions": 1})
    return Entry(EntryKind.TOPIC, number, 0, 0, 0, body)


def _loss(filling: bytes) -> bytes:
    """Return recorded damage of a file that does not exist."""
    fields = {
        "file": "none",
        "position": 0,
        "end": 8,
        "checksum": 0,
        "problem": filling.hex(),
        "lost": [],
    }
    body: bytes = msgpack.packb(fields)
    return body


# -- checking --------------------------------------------------------------------------------------


def check_log(disk: SimDisk, point: Point, model: CrashModel, script: LogScript) -> list[str]:
    """Return the faults of ``disk`` after a crash. The check changes the disk."""
    chance = point.chance(model)
    try:
        problems = list(_older_problems(disk.fork(), script, chance))
        log = Log(disk, chance.randbytes)
        log.run()
        problems += _recovery_problems(log)
        below = script.below(log.from_lsn)
        problems += _frame_problems(log, script.frames[below:], script.durable - below)
        problems += _snapshot_problems(log, script)
        before = [frame.entries for frame in log.frames]
        added = [_topic(9, b"one more")]
        log.wal.append(added, 1)
        log.run()
        disk.crash(CrashModel.DROP)
        again = Log(disk, chance.randbytes)
        again.run()
        problems += _recovery_problems(again)
        problems += _frame_problems(again, [*before, added], len(before) + 1)
        problems += _snapshot_problems(again, script)
        again.close()
        report = verify(disk, WAL_DIR, STATE_DIR)
        problems += map(str, (*report.damages, *report.bad_indexes, *report.bad_snapshots))
        problems += map(str, (*log.failures, *again.failures))
    except Exception:
        return [traceback.format_exc()]  # any error: the log should have opened
    return problems


def _older_problems(disk: SimDisk, script: LogScript, chance: Random) -> Iterator[str]:
    """Check that the log opens without its newest snapshot. Changes the disk."""
    names = Snapshots(disk, STATE_DIR, chance.randbytes).names()
    if len(names) < KEPT_SNAPSHOTS:
        return
    disk.unlink(f"{STATE_DIR}/{names[0]}")
    try:
        log = Log(disk, chance.randbytes)
    except DamagedData as error:
        yield f"without the snapshot {names[0]}: {error}"
        return
    below = script.below(log.from_lsn)
    yield from _frame_problems(log, script.frames[below:], script.durable - below)


def _recovery_problems(log: Log) -> Iterator[str]:
    """Check that recovery after a power loss reports no damaged segment, index or snapshot."""
    yield from (f"recovery reports damage: {damage}" for damage in log.report.damages)
    yield from (f"recovery reports a bad index: {problem}" for problem in log.report.bad_indexes)


def _frame_problems(log: Log, frames: Sequence[Entries], durable: int) -> Iterator[str]:
    """Check that the replayed frames are the first appended ones, and all durable ones."""
    replayed = [frame.entries for frame in log.frames]
    for index, (found, appended) in enumerate(zip(replayed, frames, strict=False)):
        if found != list(appended):
            yield f"frame {index} holds {found!r:.200}, appended was {appended!r:.200}"
    if len(replayed) < durable:
        yield f"{LOST}{durable} frames were durable, {len(replayed)} are there"
    if len(replayed) > len(frames):
        yield f"{len(frames)} frames were appended, {len(replayed)} are there"


def _snapshot_problems(log: Log, script: LogScript) -> Iterator[str]:
    """Check that the newest snapshot is the last finished one, or a later unfinished one."""
    loaded = log.snapshots.load_newest()
    done = script.snapshots_done
    if log.snapshots.damaged:
        yield "a snapshot is damaged"
    if loaded is None:
        if done:
            yield f"{LOST}{done} snapshots were written, none is there"
        return
    found = Snapshot(loaded.start_lsn, list(loaded.chunks))
    if found not in script.snapshots[max(done - 1, 0) :]:
        yield f"the newest snapshot is {found!r:.200}, of {done} completed"
