# Tests: tests/backup/test_source.py
"""Opens a consistent part of a data directory, whether or not its broker runs.

A broker appends to the last segment, begins new ones, writes snapshots and deletes segments in the
meantime. Open files survive deletion, so they stay readable until this process closes them or ends.
docs/backup.rst, section "How a consistent cut is made", has the order of the steps.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from brokerd.archive.contract import bounds as bounds_file
from brokerd.archive.contract import log_id as log_id_file
from brokerd.archive.contract import pin as pin_file
from brokerd.archive.contract.bounds import decode_bounds_head
from brokerd.archive.contract.log_id import decode_log_id
from brokerd.archive.contract.pin import Pin, decode_pin
from brokerd.backup.manifest import UNKNOWN_ID, BackupFailed, FileKey
from brokerd.errors import DamagedData
from brokerd.wal.deletion.deleted_ranges import LsnRange, deleted_ranges, named_range
from brokerd.wal.disk import Disk, File
from brokerd.wal.read.scanner import ScanFrame, ScanGap, SegmentScanner
from brokerd.wal.recovery.directory import SegmentFile, segment_files
from brokerd.wal.segment import index_name
from brokerd.wal.snapshot import SnapshotFile
from brokerd.walformat import SEGMENT_HEADER_BYTES, SegmentHeader

ATTEMPTS = 20
"""Each attempt fails only if the broker deletes a segment or a snapshot meanwhile."""
_TOO_MANY_FILES = (errno.EMFILE, errno.ENFILE)

IsStored = Callable[[FileKey, int], bool]
"""Whether the backups have a file, by its key and size."""


class OpenFile(NamedTuple):
    """A file of the data directory. ``file`` is None if the backups have it."""

    key: FileKey
    size: int
    file: File | None


class OpenSegment(NamedTuple):
    """A segment up to the end of the log."""

    header: SegmentHeader | None
    """None if nothing in it can be read."""
    name: str
    file: OpenFile
    index_file: OpenFile | None


class OpenSnapshot(NamedTuple):
    """A sound snapshot."""

    start_lsn: int
    reached_lsn: int
    file: OpenFile


class Source(NamedTuple):
    """A consistent part of a data directory: everything below ``lsn``."""

    log_id: str
    lsn: int
    time_us: int
    """Broker time of the last frame; 0 without frames."""
    segments: list[OpenSegment]
    deleted: list[LsnRange]
    snapshots: list[OpenSnapshot]
    bounds: OpenFile | None
    pin: Pin | None
    damage: list[str]
    """Damage that was found on the way."""


class _Changed(Exception):
    """The broker deleted files meanwhile."""


def open_source(disk: Disk, data_dir: str, is_stored: IsStored) -> Source:
    """Open the log and the state in a data directory.

    :param is_stored: files for which it returns True are not kept open.
    :raises BackupFailed: there is no log, or it changes all the time.
    :raises DamagedData: a file may or may not be a segment, or ``log_id`` is damaged.
    :raises NewerFormat: a later version of brokerd wrote a file.
    """
    wal_path = os.path.join(data_dir, "wal")
    problem = ""
    for _ in range(ATTEMPTS):
        try:
            return _open(disk, data_dir, wal_path, is_stored)
        except _Changed as error:
            problem = str(error)
        except FileNotFoundError as error:
            problem = f"{error.filename} is gone"
        except OSError as error:
            if error.errno not in _TOO_MANY_FILES:
                raise
            raise BackupFailed(
                f"{error.filename or wal_path}: too many open files. A backup holds open the "
                "journal files that earlier ones lack: raise the limit (ulimit -n)"
            ) from error
    raise BackupFailed(
        f"{data_dir} changed during each of {ATTEMPTS} attempts to list it: {problem}. "
        "Run the backup again; if it fails again, run brokerctl wal verify"
    )


def _open(disk: Disk, data_dir: str, wal_path: str, is_stored: IsStored) -> Source:
    state_path = os.path.join(data_dir, "state")
    # Everything in state/ is about a log that is in wal/ already, so it is read first.
    log_id = read_log_id(disk, data_dir)
    pin = _read_pin(disk, state_path)
    bounds, bounds_lsn = _open_bounds(disk, state_path, log_id)
    damage: list[str] = []
    snapshots = _open_snapshots(disk, state_path, damage, is_stored)
    before = disk.list(wal_path)
    last_lsn = max((int(name[:20]) for name in before if _is_segment(name)), default=-1)
    snapshot_lsn = max((one.reached_lsn for one in snapshots), default=0)
    reached_lsn = max(bounds_lsn, snapshot_lsn)
    segments: list[OpenSegment] = []
    lsn = time_us = 0
    previous: SegmentFile | None = None
    for found in segment_files(disk, wal_path, reached_lsn=reached_lsn):
        if found.damage is not None:
            damage.append(f"{found.name} at {found.damage.position}: {found.damage.problem}")
        if found.is_stray or found.is_missing:
            continue
        if found.first_lsn > last_lsn:
            break
        size = found.file.size()
        if found.expected_end is not None and found.first_lsn < last_lsn:
            size = min(size, found.expected_end)
        elif found.header is not None:
            # Its index, or a later file, says that it was synced up to its end.
            index_lsn = found.next_lsn or 0
            synced_lsn = max(reached_lsn, index_lsn)
            size, time_us = find_end(found.file, found.header, found.name, size, synced_lsn)
            if not time_us:
                # No frame is sound. A restored log proves its end by an index or a snapshot only.
                size = min(size, max(index_lsn, snapshot_lsn) - found.first_lsn)
                time_us = _last_time(previous)
            if size <= 0:
                break
        segments.append(_segment(disk, wal_path, found, size, before, is_stored))
        lsn = found.first_lsn + size
        previous = found
    deleted = deleted_ranges(disk, wal_path)
    if _fixed_names(before, last_lsn) != _fixed_names(disk.list(wal_path), last_lsn):
        raise _Changed("the broker deleted segments")
    if _read_pin(disk, state_path) != pin:
        raise _Changed("the broker wrote state/archived")
    if any(deleted.after(max((one.start_lsn for one in snapshots), default=0))):
        raise _Changed(f"no sound snapshot begins above the deleted segments (LSN {deleted.end})")
    lsn = max(lsn, deleted.end)
    if lsn < bounds_lsn:
        damage.append(
            f"the log ends at LSN {lsn}, and by state/bounds it was on the disk up to {bounds_lsn}"
        )
    return Source(
        log_id,
        lsn,
        time_us,
        segments,
        list(deleted),
        snapshots,
        bounds,
        pin,
        damage,
    )


def _is_segment(name: str) -> bool:
    return name.endswith(".wal") and len(name) == 24 and name[:20].isdigit()


def _fixed_names(names: list[str], last_lsn: int) -> list[str]:
    """Return the names that change only if segments up to ``last_lsn`` are deleted."""
    return [
        name
        for name in names
        if named_range(name) is not None or (_is_segment(name) and int(name[:20]) <= last_lsn)
    ]


def _segment(
    disk: Disk,
    wal_path: str,
    found: SegmentFile,
    size: int,
    names: list[str],
    is_stored: IsStored,
) -> OpenSegment:
    header = found.header
    segment_id = UNKNOWN_ID if header is None else header.segment_id.hex()
    key = FileKey("wal", found.first_lsn, segment_id)
    is_known = header is not None and is_stored(key, size)
    file = OpenFile(key, size, None if is_known else found.file)
    index = None
    name = index_name(found.first_lsn)
    if name in names and found.expected_end == size and header is not None:
        opened = disk.open(os.path.join(wal_path, name))
        key, index_size = FileKey("idx", found.first_lsn, segment_id), opened.size()
        index = OpenFile(key, index_size, None if is_stored(key, index_size) else opened)
    return OpenSegment(header, found.name, file, index)


def find_end(
    file: File, header: SegmentHeader, name: str, stop: int, reached_lsn: int
) -> tuple[int, int]:
    """Find the end of the last sound frame below ``stop``. Return its position and broker time.

    A frame that is being written is not sound. As a start does, leave out a torn tail: everything
    after bytes that are not sound, unless ``reached_lsn`` or a later frame says that they were
    synced. The result is 0, 0 if the tail begins before the first frame, so that a start deletes
    the segment. It is ``stop``, 0 if no frame is sound and there is no torn tail: the segment has
    only damage, and its end is unknown.
    """
    end = time_us = 0
    torn: tuple[int, int, int] | None = None
    """LSN of bytes that may begin a torn tail, and the result before them."""
    for found in SegmentScanner(file, header, name, stop).scan():
        lsn = header.first_lsn + found.position
        if isinstance(found, ScanFrame) and torn is not None and found.header.last_synced > torn[0]:
            torn = None
        if not isinstance(found, ScanFrame) or found.problem is not None:
            if torn is None and lsn >= reached_lsn:
                torn = lsn, end, time_us
            continue
        end, time_us = found.position + found.header.length, found.header.time_us
    return (end or stop, time_us) if torn is None else torn[1:]


def _last_time(segment: SegmentFile | None) -> int:
    """Return the broker time of the last sound frame of a complete segment; 0 without one."""
    if segment is None or segment.header is None or segment.next_lsn is None:
        return 0
    stop = min(segment.file.size(), segment.next_lsn - segment.first_lsn)
    return find_end(segment.file, segment.header, segment.name, stop, segment.next_lsn)[1]


def problems_in(file: File, header: SegmentHeader, name: str, stop: int) -> list[str]:
    """Return the damage below ``stop``, one line a place."""
    return [
        f"{name} at {found.position}: {found.problem}"
        for found in SegmentScanner(file, header, name, stop).scan(SEGMENT_HEADER_BYTES)
        if isinstance(found, ScanGap) or found.problem is not None
    ]


# -- state ---------------------------------------------------------------------------------------


def _read(disk: Disk, directory: str, name: str, bytes_max: int) -> bytes | None:
    """Read a small file, or return None if it is absent."""
    try:
        file = disk.open(os.path.join(directory, name))
    except FileNotFoundError:
        return None
    return file.pread(bytes_max, 0)


def read_log_id(disk: Disk, data_dir: str) -> str:
    """Read the id of a log. Raises BackupFailed if there is none, and DamagedData."""
    state_path = os.path.join(data_dir, "state")
    path = os.path.join(state_path, log_id_file.FILE_NAME)
    data = _read(disk, state_path, log_id_file.FILE_NAME, log_id_file.FILE_BYTES_MAX)
    if data is None:
        raise BackupFailed(
            f"{path} is not there: {data_dir} is no data directory, or its "
            "broker never started. Name the directory with --data-dir, or start the broker once"
        )
    try:
        return decode_log_id(data)
    except DamagedData as error:
        raise DamagedData(f"{path}: {error}; restart the broker, which repairs it") from None


def _read_pin(disk: Disk, state_path: str) -> Pin | None:
    data = _read(disk, state_path, pin_file.FILE_NAME, pin_file.FILE_BYTES_MAX)
    if data is None:
        return None
    try:
        return decode_pin(data)
    except DamagedData as error:
        path = os.path.join(state_path, pin_file.FILE_NAME)
        raise DamagedData(f"{path}: {error}; restart the broker, which removes it") from None


def _open_bounds(disk: Disk, state_path: str, log_id: str) -> tuple[OpenFile | None, int]:
    """Open the bounds, and return the LSN that the log had reached; None, 0 without sound ones."""
    try:
        file = disk.open(os.path.join(state_path, bounds_file.FILE_NAME))
    except FileNotFoundError:
        return None, 0
    size = min(file.size(), bounds_file.FILE_BYTES_MAX)
    try:
        head = decode_bounds_head(file.pread(size, 0))
    except DamagedData:  # the broker writes it again
        return None, 0
    if head.log_id != log_id:
        return None, 0
    return OpenFile(FileKey("bounds", head.synced_lsn, log_id), size, file), head.synced_lsn


def _open_snapshots(
    disk: Disk, state_path: str, damage: list[str], is_stored: IsStored
) -> list[OpenSnapshot]:
    """Open and verify the snapshots, and return the sound ones by LSN."""
    found = []
    for name in sorted(disk.list(state_path)):
        if not name.endswith(".snap"):
            continue
        try:
            snapshot = SnapshotFile.open(disk, state_path, name)
            reached_lsn = max(chunk.lsn for chunk in snapshot.chunks())
        except DamagedData as error:
            damage.append(str(error))
            continue
        key, size = FileKey("snap", snapshot.start_lsn, snapshot.id.hex()), snapshot.file.size()
        opened = OpenFile(key, size, None if is_stored(key, size) else snapshot.file)
        found.append(OpenSnapshot(snapshot.start_lsn, reached_lsn, opened))
    return found
