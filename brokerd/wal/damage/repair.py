# Tests: tests/wal/test_repair.py
"""Repairs a damaged directory without changing a sound byte, and records the losses.

The broker of the directory is stopped, and the caller holds its lock. A repair does this, in order:

1. It copies the bytes that it will change, and a list of them, to ``repair/<stamp>/``, and syncs.
2. It writes damaged header blocks again. It removes stray files, bad snapshots and bad indexes.
3. It puts the log in order as a start does: it cuts the torn tail and makes indexes again.
4. It records every damaged place in a segment of its own at the end of the log
   (docs/wal-format.rst, section "Damage on record"). The places stay as they are.

After every step a broker can start on the directory. A second repair continues an interrupted one,
because it plans from the directory. A repair reads the log once to plan, once at the end, and
little of it in between.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from brokerd.errors import DamagedData, NoSpace
from brokerd.wal.damage.backup import BackupWriter, ByteRange
from brokerd.wal.damage.repair_plan import (
    Action,
    ActionKind,
    DataPaths,
    RepairPlan,
    ignore_frame,
    plan_repair,
)
from brokerd.wal.deletion.deleted_ranges import LSN_MAX
from brokerd.wal.disk import Disk, write_atomically
from brokerd.wal.recovery.loss_records import encode_loss, make_loss
from brokerd.wal.recovery.segment_replay import read_segment_header
from brokerd.wal.recovery.startup import clean_up, replay
from brokerd.wal.segment import segment_name
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    SegmentHeader,
    encode_frame,
    encode_segment_header,
    entry_size,
)

REPAIR_FRAME_BYTES = 8 << 20
"""The usual size of a frame of LOST entries."""
MARGIN_BYTES = 1 << 20
"""Free bytes that a repair needs besides the copies: directories, a list, a small segment."""


def repair(
    disk: Disk,
    paths: DataPaths,
    plan: RepairPlan,
    stamp: str,
    random_bytes: Callable[[int], bytes],
) -> str | None:
    """Carry out a plan. Returns the directory of the copies, None for a plan without actions.

    ``stamp`` names that directory. Raises NoSpace before anything is changed, OSError, and
    DamagedData if something is still wrong afterwards.
    """
    if not plan.actions:
        return None
    directory = _copy(disk, paths, plan, stamp)
    for action in plan.actions:
        if action.kind == ActionKind.RESTORE:
            _restore_header(disk, paths.wal, action.name)
    for name, path in (("wal", paths.wal), ("state", paths.state)):
        _remove(disk, path, [action for action in plan.actions if action.directory == name])
    _clean_up(disk, paths.wal, plan)
    _record_damages(disk, paths, plan, random_bytes)
    left = plan_repair(disk, paths)
    if left.actions:
        action = left.actions[0]
        raise DamagedData(f"{action.name} at {action.position} is still wrong: {action.problem}")
    return directory


def _clean_up(disk: Disk, path: str, plan: RepairPlan) -> None:
    """Put the log in order as a start does. Segments with an index are not read."""
    reached_lsn, known = plan.report.reached_lsn, plan.report.known_end
    result = replay(disk, path, LSN_MAX, ignore_frame, reached_lsn=reached_lsn, known=known)
    clean_up(disk, path, result)


def _copy(disk: Disk, paths: DataPaths, plan: RepairPlan, stamp: str) -> str:
    """Copy the bytes that will change. Returns the directory. Raises NoSpace, OSError."""
    copied = [action for action in plan.actions if action.kind != ActionKind.RECORD]
    needed = sum(action.end - action.position for action in copied) + MARGIN_BYTES
    free = disk.free_bytes(paths.wal)
    if free < needed:
        raise NoSpace(
            f"a repair needs {needed} bytes for copies of what it changes, and {free} are free; "
            "nothing was changed: make room and run it again"
        )
    directory = os.path.join(paths.repair, stamp)
    number = 1
    while disk.list(directory):
        number += 1
        directory = os.path.join(paths.repair, f"{stamp}-{number}")
    copies = BackupWriter(disk, directory)
    for number, action in enumerate(plan.actions, 1):
        if action.kind == ActionKind.RECORD:
            copies.list_only(action.facts())
        else:
            path = os.path.join(getattr(paths, action.directory), action.name)
            name = f"{number:04d}-{action.kind}-{action.name}"
            copies.copy(ByteRange(path, action.position, action.end), name, action.facts())
    copies.finish(stamp)
    return directory


def _restore_header(disk: Disk, path: str, name: str) -> None:
    file = disk.open(os.path.join(path, name), write=True)
    header, _ = read_segment_header(file, name)
    file.pwrite(encode_segment_header(header), 0)
    file.sync()


def _remove(disk: Disk, path: str, actions: list[Action]) -> None:
    removed = [a for a in actions if a.kind in (ActionKind.MOVE, ActionKind.REBUILD)]
    for action in removed:
        disk.unlink(os.path.join(path, action.name))
    if removed:
        disk.sync_directory(path)


def _record_damages(
    disk: Disk, paths: DataPaths, plan: RepairPlan, random_bytes: Callable[[int], bytes]
) -> None:
    """Add a segment of LOST entries for the damaged places."""
    if plan.log_end > plan.report.next_lsn:
        # The log must continue after the missing part. Then the damaged places are final.
        mark = Entry(EntryKind.MARK, 0, 0, 0, 0, b"")
        _add_segment(disk, paths.wal, plan, [[mark]], random_bytes)
        _remove(disk, paths.wal, plan_repair(disk, paths).actions)  # an index with another end
        _clean_up(disk, paths.wal, plan)
        plan = plan_repair(disk, paths)
    entries = [encode_loss(make_loss(disk, paths.wal, damage)) for damage in plan.damages]
    if entries:
        _add_segment(disk, paths.wal, plan, _split_frames(entries), random_bytes)


def _split_frames(entries: list[Entry]) -> list[list[Entry]]:
    """Split entries into frames of about ``REPAIR_FRAME_BYTES``."""
    frames: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        size += entry_size(len(entry.body))
        if size > REPAIR_FRAME_BYTES and frames[-1]:
            frames.append([])
            size = entry_size(len(entry.body))
        frames[-1].append(entry)
    return frames


def _add_segment(
    disk: Disk,
    path: str,
    plan: RepairPlan,
    frames: list[list[Entry]],
    random_bytes: Callable[[int], bytes],
) -> None:
    """Write a segment at the end of the log, whole or not at all. Raises OSError."""
    first_lsn, time_us = plan.log_end, plan.report.last_time_us
    name = segment_name(first_lsn)
    if name in disk.list(path):
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), os.path.join(path, name))
    segment_id = random_bytes(16)
    parts = [b""]
    size = SEGMENT_HEADER_BYTES
    for entries in frames:
        frame = encode_frame(entries, first_lsn + size, segment_id, first_lsn, time_us)
        parts.append(frame)
        size += len(frame)
    parts[0] = encode_segment_header(SegmentHeader(segment_id, first_lsn, size, time_us))
    write_atomically(disk, path, name, parts)
