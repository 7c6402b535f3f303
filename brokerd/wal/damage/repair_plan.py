# Tests: tests/wal/test_repair.py
"""Plans the repair of a damaged directory, without changing it.

The broker of the directory is stopped, and the caller holds its lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from brokerd.errors import DamagedData
from brokerd.wal.damage.backup import PIECE_BYTES
from brokerd.wal.damage.verify import BadFile, VerifyReport, verify
from brokerd.wal.disk import Disk, File
from brokerd.wal.index_files import load_spans
from brokerd.wal.recovery.directory import SegmentFile, segment_files
from brokerd.wal.recovery.report import Damage, Frame, LostRange
from brokerd.wal.segment import Segment, segment_name
from brokerd.walformat import (
    SEGMENT_HEADER_BYTES,
    FormatError,
    decode_segment_header,
)


class ActionKind(StrEnum):
    """The kinds of change that a repair makes to a file."""

    CUT = "cut"
    """Cut off the end: a torn tail, or bytes after the last frame."""
    MOVE = "move"
    """Move the file out of its directory: a stray file or a bad snapshot."""
    REBUILD = "rebuild"
    """Make the file again: a bad index."""
    RESTORE = "restore"
    """Write the header block again."""
    RECORD = "record"
    """Record damage in the log. The file stays as it is."""


class Action(NamedTuple):
    """One action on bytes ``position`` to ``end`` of a file."""

    kind: ActionKind
    directory: str
    """``wal`` or ``state``, inside the data directory."""
    name: str
    position: int
    end: int
    problem: str
    lost: tuple[LostRange, ...] = ()
    """Records that are known to be lost."""
    is_counted: bool = True
    """No other record is lost."""

    def facts(self) -> dict[str, Any]:
        """Return the action for JSON."""
        kind, directory, *_ = self
        facts = {"deed": kind, "room": directory, **self._asdict()}
        del facts["kind"], facts["directory"]
        return facts | {"lost": [lost._asdict() for lost in self.lost]}


@dataclass
class RepairPlan:
    """The actions of a repair in order, and the report that they follow from."""

    report: VerifyReport
    actions: list[Action]
    damages: list[Damage]
    """The damage to record in the log."""
    log_end: int
    """LSN at which a start would continue: after the last frame and the newest snapshot."""


class DataPaths(NamedTuple):
    """The parts of a data directory that a repair uses."""

    wal: str
    state: str
    repair: str

    @classmethod
    def of(cls, data_dir: str) -> DataPaths:
        return cls(*(os.path.join(data_dir, name) for name in cls._fields))


def ignore_frame(frame: Frame) -> None:
    """Do nothing with a frame."""


def plan_repair(
    disk: Disk, paths: DataPaths, on_frame: Callable[[Frame], None] = ignore_frame
) -> RepairPlan:
    """Read everything and plan a repair. Changes nothing. ``on_frame`` gets every frame.

    Raises NewerFormat, OSError, and DamagedData for a case that an operator must decide.
    """
    report = verify(disk, paths.wal, paths.state, on_frame)
    files = list(segment_files(disk, paths.wal, reached_lsn=report.reached_lsn))
    actions = list(_header_actions(files))
    actions += _stray_actions(files)
    actions += _bad_files(disk, paths.state, "state", ActionKind.MOVE, report.bad_snapshots)
    actions += _bad_files(disk, paths.wal, "wal", ActionKind.REBUILD, report.bad_indexes)
    actions += _cut_actions(disk, paths.wal, files, report)
    done = {(action.name, action.position, action.end) for action in actions}
    damages = [
        replace(damage, lost=merge_ranges(damage.lost))
        for damage in report.damages
        if (damage.name, damage.position, damage.end) not in done
    ]
    actions += [
        Action(
            ActionKind.RECORD,
            "wal",
            damage.name,
            damage.position,
            damage.end,
            damage.problem,
            tuple(damage.lost),
            damage.is_counted,
        )
        for damage in damages
    ]
    return RepairPlan(report, actions, damages, report.log_end)


def _header_actions(files: list[SegmentFile]) -> Iterator[Action]:
    """Yield header blocks to write again. Raises DamagedData for a file with a wrong name."""
    for found in files:
        damage = found.damage
        if damage is None or found.is_stray:
            continue
        try:
            header = decode_segment_header(found.file.pread(SEGMENT_HEADER_BYTES, 0))
        except FormatError:
            if found.header is not None:
                yield Action(
                    ActionKind.RESTORE, "wal", found.name, 0, SEGMENT_HEADER_BYTES, damage.problem
                )
        else:
            raise DamagedData(
                f"{found.name} has a sound header block that says "
                f"{segment_name(header.first_lsn)}: give it back its name, or move it out of the "
                "directory, before a repair"
            )


def _stray_actions(files: list[SegmentFile]) -> Iterator[Action]:
    """Yield an action for each stray file. Raises DamagedData if one is not a regular file."""
    for found in files:
        if not found.is_stray or found.damage is None:
            continue
        try:
            found.file.pread(1, 0)
        except OSError as error:
            raise DamagedData(
                f"{found.name}: {found.damage.problem} ({error.strerror}); move it out of the "
                "directory before a repair"
            ) from None
        yield Action(ActionKind.MOVE, "wal", found.name, 0, found.file.size(), found.damage.problem)


def _bad_files(
    disk: Disk, path: str, directory: str, kind: ActionKind, bad: Iterable[BadFile]
) -> Iterator[Action]:
    for name, problem in bad:
        size = disk.open(os.path.join(path, name)).size()
        yield Action(kind, directory, name, 0, size, problem)


def _cut_actions(
    disk: Disk, path: str, files: list[SegmentFile], report: VerifyReport
) -> Iterator[Action]:
    """Yield the ends of files that a start cuts off, unless they are zeros."""
    for found in files:
        if found.header is None:
            continue
        position, problem = found.expected_end, "bytes after the last frame of the segment"
        if position is None and report.torn is not None:
            position, problem = report.torn.position, report.torn.problem
        elif position is None or _has_index(disk, path, found):
            continue
        end = _end_of_content(found.file, position)
        if end > position or found.expected_end is None:
            yield Action(ActionKind.CUT, "wal", found.name, position, end, problem)


def _has_index(disk: Disk, path: str, found: SegmentFile) -> bool:
    """Whether the segment has a sound index file, so that a start does not touch the segment."""
    assert found.header is not None and found.next_lsn is not None, "it is a sealed segment"
    try:
        load_spans(disk, path, Segment(found.header), found.next_lsn)
    except (DamagedData, FileNotFoundError):
        return False
    return True


def _end_of_content(file: File, position: int) -> int:
    """Return the position after the last byte from ``position`` on that is not zero."""
    end = position
    for start in range(position, file.size(), PIECE_BYTES):
        data = file.pread(PIECE_BYTES, start).rstrip(b"\0")
        if data:
            end = start + len(data)
    return end


def merge_ranges(ranges: Iterable[LostRange]) -> list[LostRange]:
    """Return the ranges in order. Ranges that touch are joined."""
    result: list[LostRange] = []
    for lost in sorted(ranges):
        last = result[-1] if result else None
        if last is not None and last[:2] == lost[:2] and lost.first <= last.end:
            result[-1] = last._replace(end=max(last.end, lost.end))
        else:
            result.append(lost)
    return result
