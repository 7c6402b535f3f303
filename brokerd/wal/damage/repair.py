# Tests: tests/wal/test_repair.py
"""Makes a damaged directory sound again without touching a sound byte, and says what is lost.

For a directory whose broker is stopped; the caller holds its lock. :func:`examine` only reads and
makes a :class:`Plan`; :func:`repair` carries one out. What a repair does, in this order:

1. Copies whatever it is going to change, and a list of it, to ``repair/<stamp>/``, synced.
2. Writes damaged header blocks again, removes files that are no use: strays, bad snapshots, bad
   indexes.
3. Puts the log in order as a start does: cuts the torn tail, makes indexes again.
4. Puts every damaged place on record, in a segment of its own at the end of the log
   (docs/wal-format.rst, section "Damage on record"). The places stay as they are.

Every step leaves a directory that a broker starts on, and a second repair goes on where one was cut
short: it looks at what is there, not at what was planned. The log is read once to examine it and
once when all is done, and little of it in between.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from brokerd.errors import DamagedData, NoSpace
from brokerd.wal.damage.backup import PIECE_BYTES, Copies, Source
from brokerd.wal.damage.verify import BadFile, VerifyReport, verify
from brokerd.wal.deletion.deleted_ranges import LSN_MAX
from brokerd.wal.disk import Disk, File, write_atomically
from brokerd.wal.index_files import load_spans
from brokerd.wal.recovery.directory import SegmentFile, segment_files
from brokerd.wal.recovery.loss_records import encode_loss, record_of
from brokerd.wal.recovery.report import Damage, Frame, LostRange
from brokerd.wal.recovery.segment_replay import read_segment_header
from brokerd.wal.recovery.startup import replay, tidy
from brokerd.wal.segment import Segment, segment_name
from brokerd.walformat import (
    ALIGNMENT,
    SEGMENT_HEADER_BYTES,
    Entry,
    EntryKind,
    FormatError,
    SegmentHeader,
    decode_segment_header,
    encode_frame,
    encode_segment_header,
    entry_size,
)

RECORD_FRAME_BYTES = 8 << 20
"""LOST entries are put into frames of about this size."""
MARGIN_BYTES = 1 << 20
"""What must be free besides the copies: directories, a list, a small segment."""


class Deed(StrEnum):
    """What a repair does about a file."""

    CUT = "cut"
    """Cut off its end: a torn tail, or bytes after the last frame."""
    MOVE = "move"
    """Take it out of its directory: a stray file or a bad snapshot."""
    REBUILD = "rebuild"
    """Make it again: a bad index."""
    RESTORE = "restore"
    """Write its header block again."""
    RECORD = "record"
    """Put damage on record; the file stays as it is."""


class Action(NamedTuple):
    """One thing to do about bytes ``position`` to ``end`` of a file."""

    deed: Deed
    room: str
    """The directory of the file inside the data directory: wal or state."""
    name: str
    position: int
    end: int
    problem: str
    lost: tuple[LostRange, ...] = ()
    """Records known to be lost."""
    is_counted: bool = True
    """No record is lost besides those."""

    def facts(self) -> dict[str, Any]:
        """As JSON shows it."""
        fields = self._asdict()
        return fields | {"lost": [lost._asdict() for lost in self.lost]}


@dataclass
class Plan:
    """What is to be done, in order, and what it was made from."""

    report: VerifyReport
    actions: list[Action]
    damages: list[Damage]
    """To be put on record."""
    log_end: int
    """LSN at which a start would go on: past the last frame and past the newest snapshot."""


class Rooms(NamedTuple):
    """The parts of a data directory that a repair works in."""

    wal: str
    state: str
    repair: str

    @classmethod
    def of(cls, data_dir: str) -> Rooms:
        return cls(*(os.path.join(data_dir, room) for room in cls._fields))


def _ignore(frame: Frame) -> None:
    """Frames that nobody wants to see."""


# -- examining -----------------------------------------------------------------------------------


def examine(disk: Disk, rooms: Rooms, see: Callable[[Frame], None] = _ignore) -> Plan:
    """Read everything and say what a repair would do. Changes nothing; ``see`` gets every frame.

    Raises NewerFormat, OSError, and DamagedData for what a repair had better not decide.
    """
    report = verify(disk, rooms.wal, rooms.state, see)
    files = list(segment_files(disk, rooms.wal, reached_lsn=report.reached_lsn))
    actions = list(_header_actions(files))
    actions += _stray_actions(files)
    actions += _bad_files(disk, rooms.state, "state", Deed.MOVE, report.bad_snapshots)
    actions += _bad_files(disk, rooms.wal, "wal", Deed.REBUILD, report.bad_indexes)
    actions += _cut_actions(disk, rooms.wal, files, report)
    done = {(action.name, action.position, action.end) for action in actions}
    damages = [
        replace(damage, lost=merged(damage.lost))
        for damage in report.damages
        if (damage.name, damage.position, damage.end) not in done
    ]
    actions += [
        Action(
            Deed.RECORD,
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
    log_end = max(report.next_lsn, report.reached_lsn)
    return Plan(report, actions, damages, log_end + -log_end % ALIGNMENT)


def _header_actions(files: list[SegmentFile]) -> Iterator[Action]:
    """Header blocks to write again. Raises DamagedData for a file with another's name."""
    for found in files:
        damage = found.damage
        if damage is None or found.is_stray:
            continue
        try:
            said = decode_segment_header(found.file.pread(SEGMENT_HEADER_BYTES, 0))
        except FormatError:
            if found.header is not None:
                yield Action(
                    Deed.RESTORE, "wal", found.name, 0, SEGMENT_HEADER_BYTES, damage.problem
                )
        else:
            raise DamagedData(
                f"{found.name} has a sound header block that says {segment_name(said.first_lsn)}: "
                "give it back its name, or move it out of the directory, before a repair"
            )


def _stray_actions(files: list[SegmentFile]) -> Iterator[Action]:
    """Strays to move away. Raises DamagedData for one that is no file."""
    for found in files:
        if not found.is_stray or found.damage is None:
            continue
        try:
            found.file.pread(1, 0)
        except OSError as error:  # a directory, or the like
            raise DamagedData(
                f"{found.name}: {found.damage.problem} ({error.strerror}); move it out of the "
                "directory before a repair"
            ) from None
        yield Action(Deed.MOVE, "wal", found.name, 0, found.file.size(), found.damage.problem)


def _bad_files(
    disk: Disk, path: str, room: str, deed: Deed, bad: Iterable[BadFile]
) -> Iterator[Action]:
    for name, problem in bad:
        size = disk.open(os.path.join(path, name)).size()
        yield Action(deed, room, name, 0, size, problem)


def _cut_actions(
    disk: Disk, path: str, files: list[SegmentFile], report: VerifyReport
) -> Iterator[Action]:
    """What putting the log in order cuts off, unless it is zeros."""
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
            yield Action(Deed.CUT, "wal", found.name, position, end, problem)


def _has_index(disk: Disk, path: str, found: SegmentFile) -> bool:
    """Whether a start takes the segment's index file for sound, and so leaves the segment alone."""
    assert found.header is not None and found.next_lsn is not None, "it is a sealed segment"
    try:
        load_spans(disk, path, Segment(found.header), found.next_lsn)
    except (DamagedData, FileNotFoundError):
        return False
    return True


def _end_of_content(file: File, position: int) -> int:
    """The position after the last byte from ``position`` on that is not zero."""
    end = position
    for start in range(position, file.size(), PIECE_BYTES):
        data = file.pread(PIECE_BYTES, start).rstrip(b"\0")
        if data:
            end = start + len(data)
    return end


def merged(ranges: Iterable[LostRange]) -> list[LostRange]:
    """Ranges in order, with those that touch made one."""
    result: list[LostRange] = []
    for lost in sorted(ranges):
        last = result[-1] if result else None
        if last is not None and last[:2] == lost[:2] and lost.first <= last.end:
            result[-1] = last._replace(end=max(last.end, lost.end))
        else:
            result.append(lost)
    return result


# -- repairing -----------------------------------------------------------------------------------


def repair(
    disk: Disk, rooms: Rooms, plan: Plan, stamp: str, random_bytes: Callable[[int], bytes]
) -> str | None:
    """Do what ``plan`` says; returns the directory of the copies, None if nothing was to be done.

    ``stamp`` names that directory. Raises NoSpace before anything is changed, OSError, and
    DamagedData if something is still wrong afterwards.
    """
    if not plan.actions:
        return None
    directory = _copy(disk, rooms, plan, stamp)
    for action in plan.actions:
        if action.deed == Deed.RESTORE:
            _restore_header(disk, rooms.wal, action.name)
    for room, path in (("wal", rooms.wal), ("state", rooms.state)):
        _remove(disk, path, [action for action in plan.actions if action.room == room])
    _tidy(disk, rooms.wal, plan)
    _put_on_record(disk, rooms, plan, random_bytes)
    left = examine(disk, rooms)
    if left.actions:
        action = left.actions[0]
        raise DamagedData(f"{action.name} at {action.position} is still wrong: {action.problem}")
    return directory


def _tidy(disk: Disk, path: str, plan: Plan) -> None:
    """Put the log in order as a start does. Of what has an index no more is read than that."""
    tidy(disk, path, replay(disk, path, LSN_MAX, _ignore, reached_lsn=plan.report.reached_lsn))


def _copy(disk: Disk, rooms: Rooms, plan: Plan, stamp: str) -> str:
    """Copy everything that is going to change. Raises NoSpace, OSError."""
    copied = [action for action in plan.actions if action.deed != Deed.RECORD]
    needed = sum(action.end - action.position for action in copied) + MARGIN_BYTES
    free = disk.free_bytes(rooms.wal)
    if free < needed:
        raise NoSpace(
            f"a repair needs {needed} bytes for copies of what it changes, and {free} are free; "
            "nothing was changed: make room and run it again"
        )
    directory = os.path.join(rooms.repair, stamp)
    number = 1
    while disk.list(directory):
        number += 1
        directory = os.path.join(rooms.repair, f"{stamp}-{number}")
    copies = Copies(disk, directory)
    for number, action in enumerate(plan.actions, 1):
        if action.deed == Deed.RECORD:
            copies.note(action.facts())
        else:
            path = os.path.join(getattr(rooms, action.room), action.name)
            name = f"{number:04d}-{action.deed}-{action.name}"
            copies.add(Source(path, action.position, action.end), name, action.facts())
    copies.finish(stamp)
    return directory


def _restore_header(disk: Disk, path: str, name: str) -> None:
    file = disk.open(os.path.join(path, name), write=True)
    header, _ = read_segment_header(file, name)
    file.pwrite(encode_segment_header(header), 0)
    file.sync()


def _remove(disk: Disk, path: str, actions: list[Action]) -> None:
    removed = [action for action in actions if action.deed in (Deed.MOVE, Deed.REBUILD)]
    for action in removed:
        disk.unlink(os.path.join(path, action.name))
    if removed:
        disk.sync_directory(path)


def _put_on_record(
    disk: Disk, rooms: Rooms, plan: Plan, random_bytes: Callable[[int], bytes]
) -> None:
    """Add the segment of LOST entries, if there is damage."""
    if plan.log_end > plan.report.next_lsn:
        # The log has to go on past what is missing. Then its places are what they will be for ever.
        mark = Entry(EntryKind.MARK, 0, 0, 0, 0, b"")
        _add_segment(disk, rooms.wal, plan, [[mark]], random_bytes)
        _remove(disk, rooms.wal, examine(disk, rooms).actions)  # an index that ends elsewhere now
        _tidy(disk, rooms.wal, plan)
        plan = examine(disk, rooms)
    entries = [encode_loss(record_of(disk, rooms.wal, damage)) for damage in plan.damages]
    if entries:
        _add_segment(disk, rooms.wal, plan, _framed(entries), random_bytes)


def _framed(entries: list[Entry]) -> list[list[Entry]]:
    frames: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        size += entry_size(len(entry.body))
        if size > RECORD_FRAME_BYTES and frames[-1]:
            frames.append([])
            size = entry_size(len(entry.body))
        frames[-1].append(entry)
    return frames


def _add_segment(
    disk: Disk,
    path: str,
    plan: Plan,
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
