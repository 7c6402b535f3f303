# Tests: tests/backup/test_restore.py
"""Makes a data directory from a backup, up to its end or to an earlier point.

The files go to a directory beside the target, are verified there, and the directory gets the
target's name last. So an interrupted restore leaves no data directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from brokerd.archive.contract import bounds as bounds_file
from brokerd.archive.contract import log_id as log_id_file
from brokerd.archive.contract import pin as pin_file
from brokerd.archive.contract.log_id import encode_log_id
from brokerd.archive.contract.pairing import SegmentEnd
from brokerd.archive.contract.pin import Pin, encode_pin
from brokerd.archive.storage.address import Place, place_of
from brokerd.backup.archive import check_archive
from brokerd.backup.create import Progress
from brokerd.backup.manifest import UNKNOWN_ID, BackupFailed, Manifest, StoredFile, StoredSegment
from brokerd.backup.points import (
    END,
    BackupEnd,
    Choice,
    Point,
    choose,
    segments_of,
    snapshots_of,
    time_text,
    was_continued,
)
from brokerd.backup.repository import Repository
from brokerd.errors import DamagedData
from brokerd.wal.damage.verify import VerifyReport, verify
from brokerd.wal.deletion.deleted_ranges import LsnRange, deleted_name
from brokerd.wal.disk import Disk, write_atomically
from brokerd.wal.lock import DirectoryLock
from brokerd.wal.read.scanner import ScanFrame, SegmentScanner
from brokerd.wal.recovery.segment_replay import read_segment_header
from brokerd.wal.segment import index_name, segment_name
from brokerd.wal.snapshot import snapshot_name
from brokerd.walformat import SEGMENT_HEADER_BYTES

DAMAGES_SHOWN = 5
DIRECTORY_MODE = 0o700
"""Mode of a data directory, as the broker makes it: the log has password hashes."""


class Identity(NamedTuple):
    """The identity of the restored log."""

    new_id: str
    """A random id, 32 hexadecimal digits; "": the log keeps its id and its archive."""
    archive: Place | None = None
    """The archive of a log that keeps its id; None: the archive that the backup names."""


class Restored(NamedTuple):
    """The result of a restore."""

    directory: str
    choice: Choice
    log_id: str
    lsn: int
    """The log ends here."""
    time_us: int
    """Broker time of its last frame; 0 without frames."""
    report: VerifyReport


class _Cut(NamedTuple):
    """The end of the log, and the segments before it."""

    lsn: int
    time_us: int
    segments: list[StoredSegment]
    is_whole: bool
    """Whether nothing was cut off."""


def restore(
    disk: Disk,
    repository: Repository,
    target: str,
    identity: Identity,
    point: Point = END,
    number: int | None = None,
    allow_damage: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Restored:
    """Restore a log into a directory that is absent or empty.

    :param number: the newest backup to use; None: the newest.
    :param allow_damage: restore a log although it has damage that is not on record.
    :raises BackupFailed: the target has files, or the backups lack the point.
    :raises DamagedData: a file is missing or has wrong bytes, or the log is damaged.
    """
    target = os.path.abspath(target)
    _require_empty(target)
    choice = choose_backup(repository, point, number)
    staging = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.restoring")
    disk.make_directory(staging)
    os.chmod(staging, DIRECTORY_MODE)
    lock = DirectoryLock(staging)
    lock.acquire(claim=False)
    try:
        restored = restore_files(
            disk, repository, staging, choice, identity, point, allow_damage, on_progress
        )
        restored = restored._replace(directory=target)
        try:
            disk.rename(staging, target)
        except OSError as error:
            raise BackupFailed(
                f"{staging} is complete, but cannot be renamed to {target}: {error.strerror}. "
                "Has another program written there? Rename it yourself, or restore to another "
                "directory"
            ) from error
        disk.sync_directory(os.path.dirname(target))
    finally:
        lock.release()
    return restored


def restore_files(
    disk: Disk,
    repository: Repository,
    directory: str,
    choice: Choice,
    identity: Identity,
    point: Point = END,
    allow_damage: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Restored:
    """Restore the files of a log into a directory that only the caller uses.

    The files of an interrupted restore are replaced. After an error the directory has no files.
    Raises the errors of `restore`.

    :param choice: the result of `choose_backup` for the same point.
    """
    run = _Restore(disk, repository, directory, choice, on_progress)
    try:
        return run.run(identity, point, allow_damage)
    except BaseException:
        run.clear()
        raise


def _require_empty(target: str) -> None:
    """Raise BackupFailed if a path has anything but an empty directory that can be replaced."""
    if os.path.ismount(target):
        raise BackupFailed(
            f"{target} is a mount point, which a restore cannot replace; restore to a directory "
            f"inside of it, such as {os.path.join(target, 'data')}"
        )
    try:
        names = os.listdir(target)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise BackupFailed(f"{target} is not a directory; restore to another path") from None
    if names or os.path.islink(target):
        content = f"has {sorted(names)[0]!r}" if names else "is a symbolic link"
        raise BackupFailed(
            f"{target} is not an empty directory: it {content}. Restore to another directory; "
            "nothing was changed"
        )


def choose_backup(repository: Repository, point: Point, number: int | None) -> Choice:
    """Read the manifests that a restore needs. The arguments and errors are those of `restore`."""
    numbers = repository.numbers()
    if number is not None:
        repository.read(number)  # raises if there is none
    numbers = [one for one in numbers if number is None or one <= number]
    if not numbers:
        raise BackupFailed(f"{repository.store.place} holds no backups")
    if point == END:
        newest = repository.read(numbers[-1])
        return Choice(newest, newest)
    ends: list[BackupEnd] = []
    newer: Manifest | None = None
    for one in reversed(numbers):
        manifest = repository.read(one).manifest
        if newer is None or was_continued(manifest, newer):
            ends.insert(0, BackupEnd(one, manifest.lsn, manifest.time_us, manifest.created_us))
            newer = manifest
    holder, base = (repository.read(one.number) for one in choose(ends, point))
    return Choice(holder, base)


class _Restore:
    """One restore into a staging directory whose lock the caller holds."""

    def __init__(
        self,
        disk: Disk,
        repository: Repository,
        staging: str,
        choice: Choice,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._disk = disk
        self._repository = repository
        self._staging = staging
        self._wal_path = os.path.join(staging, "wal")
        self._state_path = os.path.join(staging, "state")
        self._choice = choice
        self._on_progress = on_progress
        self._progress = Progress(0, 0, 0, 0)

    def run(self, identity: Identity, point: Point, allow_damage: bool) -> Restored:
        """Write and verify all files."""
        base = self._choice.base.manifest
        self.clear()
        segments = segments_of(self._choice, point)
        files = [one.file for one in segments]
        files += [one.index for one in segments if one.index is not None]
        files += [one.file for one in base.snapshots]
        self._progress = Progress(0, len(files), 0, sum(file.size for file in files))
        self._require_space()
        self._disk.make_directory(self._wal_path)
        self._disk.make_directory(self._state_path)
        for segment in segments:
            self._copy(segment.file, self._wal_path, segment_name(segment.first_lsn))
        cut = self._cut(segments, point)
        for segment in cut.segments:
            if segment.index is not None:
                self._copy(segment.index, self._wal_path, index_name(segment.first_lsn))
        for first, end in base.deleted:
            name = deleted_name(LsnRange(first, end))
            self._disk.create(os.path.join(self._wal_path, name)).close()
        for snapshot in snapshots_of(self._choice, cut.lsn):
            self._copy(snapshot.file, self._state_path, snapshot_name(snapshot.start_lsn))
        pin = None if base.pin is None else Pin(base.pin[0], min(base.pin[1], cut.lsn))
        log_id = identity.new_id or base.log_id
        self._write_identity(log_id, pin)
        if not identity.new_id:
            if base.bounds is not None and cut.is_whole:
                self._copy(base.bounds, self._state_path, bounds_file.FILE_NAME)
            self._check_archive(identity, pin, cut)
        self._disk.sync_directory(self._wal_path)
        self._disk.sync_directory(self._state_path)
        self._disk.sync_directory(self._staging)
        report = self._verify(cut, allow_damage)
        return Restored(self._staging, self._choice, log_id, cut.lsn, cut.time_us, report)

    # -- files -----------------------------------------------------------------------------------

    def clear(self) -> None:
        """Delete the files of this restore, or of an interrupted one."""
        for name in ("wal", "state"):
            directory = os.path.join(self._staging, name)
            for file in self._disk.list(directory):
                self._disk.unlink(os.path.join(directory, file))

    def _require_space(self) -> None:
        free = self._disk.free_bytes(self._staging)
        if free < self._progress.bytes_all:
            raise BackupFailed(
                f"{os.path.dirname(self._staging)} has {free} bytes of free space, and the restore "
                f"needs {self._progress.bytes_all}; free some space, or restore elsewhere"
            )

    def _copy(self, file: StoredFile, directory: str, name: str) -> None:
        """Copy a stored file, and check its checksum. Raises DamagedData."""
        path = os.path.join(directory, name)
        output = self._disk.create(path)
        try:
            position = 0
            for data in self._repository.pieces(file):
                output.pwrite(data, position)
                position += len(data)
                done = self._progress
                self._progress = done._replace(bytes=done.bytes + len(data))
                self._on_progress(self._progress)
            output.sync()
        except DamagedData as error:
            raise DamagedData(
                f"{error}. Nothing was restored: bring that file back, or restore another backup"
            ) from None
        finally:
            output.close()
        self._progress = self._progress._replace(files=self._progress.files + 1)
        self._on_progress(self._progress)

    def _write_identity(self, log_id: str, pin: Pin | None) -> None:
        write_atomically(
            self._disk, self._state_path, log_id_file.FILE_NAME, [encode_log_id(log_id)]
        )
        if pin is not None:
            write_atomically(self._disk, self._state_path, pin_file.FILE_NAME, [encode_pin(pin)])

    # -- the end of the log ----------------------------------------------------------------------

    def _cut(self, segments: Sequence[StoredSegment], point: Point) -> _Cut:
        """Cut the copied segments off after the last frame that the point has.

        Raises BackupFailed if no frame is left.
        """
        base = self._choice.base.manifest
        kept = list(segments)
        while kept:
            segment = kept[-1]
            path = os.path.join(self._wal_path, segment_name(segment.first_lsn))
            end, time_us, is_whole = self._end_in(segment, path, point)
            if is_whole or end > SEGMENT_HEADER_BYTES:
                if not is_whole:
                    file = self._disk.open(path, write=True)
                    file.truncate(end)
                    file.sync()
                    file.close()
                    kept[-1] = _without_index(segment)
                lsn = segment.first_lsn + end
                whole = lsn == base.lsn and self._choice.is_whole
                return _Cut(max(lsn, _deleted_end(base.deleted)), time_us, kept, whole)
            self._disk.unlink(path)
            kept.pop()
        if not base.segments and point == END:
            return _Cut(base.lsn, base.time_us, [], True)
        first = self._choice.holder.manifest.segments
        since = (
            f": its log begins at LSN {first[0].first_lsn}, at {time_text(first[0].created_us)}"
            if first
            else ""
        )
        raise BackupFailed(
            f"backup {self._choice.holder.number} has no frame up to the given point{since}. "
            "Give a later point"
        )

    def _end_in(self, segment: StoredSegment, path: str, point: Point) -> tuple[int, int, bool]:
        """Return the position after the last frame that the point has, its time, and whether no
        frame follows it.
        """
        size = segment.end_lsn - segment.first_lsn
        if segment.id == UNKNOWN_ID:
            return size, 0, True
        name = segment_name(segment.first_lsn)
        file = self._disk.open(path)
        header, _ = read_segment_header(file, name)
        end, time_us = SEGMENT_HEADER_BYTES, 0
        for found in SegmentScanner(file, header, name, size).scan():
            if not isinstance(found, ScanFrame):
                continue
            after = found.position + found.header.length
            if not point.has(segment.first_lsn + after, found.header.time_us):
                return end, time_us, False
            end, time_us = after, found.header.time_us
        return size, time_us, True

    # -- checks ----------------------------------------------------------------------------------

    def _check_archive(self, identity: Identity, pin: Pin | None, cut: _Cut) -> None:
        """Check the archive of a log that keeps its id. Raises the errors of `check_archive`."""
        named = self._choice.base.manifest.archive
        place = identity.archive
        if place is None and named is not None:
            place = place_of(named.address)
        if place is None:
            if pin is not None:
                raise BackupFailed(
                    f"the log relies on the archive {pin.archive_id or '-'} up to LSN {pin.lsn}, "
                    "and the backup does not name its address: give --archive URI"
                )
            return

        def segment_at(lsn: int) -> SegmentEnd | None:
            for segment in cut.segments:
                if segment.first_lsn < lsn <= segment.end_lsn:
                    end = min(segment.end_lsn, cut.lsn)
                    return SegmentEnd(end, bytes.fromhex(segment.id))
            return None

        check_archive(place, self._choice.base.manifest, pin, cut.lsn, segment_at)

    def _verify(self, cut: _Cut, allow_damage: bool) -> VerifyReport:
        """Read every byte of the log as a start would. Raises DamagedData."""
        report = verify(self._disk, self._wal_path, self._state_path)
        problems = [f"{one.name} at {one.position}: {one.problem}" for one in report.damages]
        problems += map(str, report.bad_snapshots)
        if problems and not allow_damage:
            shown = "; ".join(problems[:DAMAGES_SHOWN])
            more = len(problems) - DAMAGES_SHOWN
            raise DamagedData(
                f"the log is damaged: {shown}{f'; and {more} more' if more > 0 else ''}. Nothing "
                "was restored: restore another backup, or restore this one with --allow-damage"
            )
        if not problems and (report.torn is not None or report.next_lsn != cut.lsn):
            raise DamagedData(
                f"the restored log ends at LSN {report.next_lsn}, not at {cut.lsn}: nothing was "
                "restored; restore another backup"
            )
        return report


def _deleted_end(deleted: Sequence[tuple[int, int]]) -> int:
    return max((end for _, end in deleted), default=0)


def _without_index(segment: StoredSegment) -> StoredSegment:
    return StoredSegment(
        segment.first_lsn, segment.end_lsn, segment.id, segment.created_us, segment.file
    )
