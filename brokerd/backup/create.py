# Tests: tests/backup/test_create.py
"""Makes a backup: copies the files of a consistent cut that the backups lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd import __version__
from brokerd.backup.manifest import (
    ArchiveVersion,
    BackupFailed,
    FileKey,
    Manifest,
    StoredFile,
    StoredSegment,
    StoredSnapshot,
)
from brokerd.backup.repository import Backup, Repository
from brokerd.backup.source import (
    OpenFile,
    OpenSegment,
    Source,
    open_source,
    problems_in,
    read_log_id,
)
from brokerd.wal.disk import Disk


class Progress(NamedTuple):
    """How far a run is, in bytes and files."""

    files: int
    files_all: int
    bytes: int
    bytes_all: int


class Created(NamedTuple):
    """A new backup."""

    backup: Backup
    copied: Progress


def create_backup(
    disk: Disk,
    data_dir: str,
    repository: Repository,
    now_us: int,
    read_archive: Callable[[str], ArchiveVersion | None] = lambda log_id: None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Created:
    """Make a backup of a data directory. The caller holds `Repository.lock`.

    :param now_us: wall-clock time, for the manifest only.
    :param read_archive: reads the version of the archive of a log id.
    :raises BackupFailed: there is no log, the backups are those of another log, or files are gone.
    :raises DamagedData: the newest manifest or a file that decides is damaged.
    """
    log_id = read_log_id(disk, data_dir)
    newest = repository.newest()
    if newest is not None and newest.manifest.log_id != log_id:
        raise BackupFailed(
            f"{repository.store.place} holds backups of log {newest.manifest.log_id}, and "
            f"{data_dir} has log {log_id}; give each log a place of its own"
        )
    repository.remove_unfinished()
    stored = {(file.key, file.size): file for file in repository.files().values()}
    named = {} if newest is None else {one.first_lsn: one for one in newest.manifest.segments}
    # Before the cut, because the archive may not be ahead of the backup.
    archive = read_archive(log_id)
    source = open_source(disk, data_dir, lambda key, size: (key, size) in stored)
    copier = _Copier(repository, stored, named, source, on_progress)
    segments = [
        StoredSegment(
            segment.file.key.lsn,
            segment.file.key.lsn + segment.file.size,
            segment.file.key.id,
            0 if segment.header is None else segment.header.created_us,
            copier.copy(segment.file),
            None if segment.index_file is None else copier.copy_index(segment, segment.index_file),
        )
        for segment in source.segments
    ]
    snapshots = [
        StoredSnapshot(one.start_lsn, one.reached_lsn, copier.copy(one.file))
        for one in source.snapshots
    ]
    manifest = Manifest(
        log_id,
        now_us,
        __version__,
        source.lsn,
        source.time_us,
        segments,
        [(one.first, one.end) for one in source.deleted],
        snapshots,
        None if source.bounds is None else copier.copy(source.bounds),
        None if source.pin is None else (source.pin.archive_id, source.pin.lsn),
        archive,
        [*source.damage, *copier.damage],
    )
    return Created(Backup(repository.write(manifest), manifest), copier.progress)


class _Copier:
    """Copies files, and closes each when it is copied."""

    def __init__(
        self,
        repository: Repository,
        stored: dict[tuple[FileKey, int], StoredFile],
        named: dict[int, StoredSegment],
        source: Source,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._repository = repository
        self._stored = stored
        self._named = named
        """The segments of the newest backup, by first LSN."""
        self._on_progress = on_progress
        self._names = {one.file.key: one for one in source.segments}
        files = [one.file for one in source.segments]
        files += [one.index_file for one in source.segments if one.index_file is not None]
        files += [one.file for one in source.snapshots]
        files += [] if source.bounds is None else [source.bounds]
        new = [one.size for one in files if one.file is not None]
        self.progress = Progress(0, len(new), 0, sum(new))
        self.damage: list[str] = []

    def copy(self, source: OpenFile) -> StoredFile:
        """Return the stored copy of a file. Raises the errors of `Repository.add`."""
        if source.file is None:
            return self._stored[source.key, source.size]
        copied = self._repository.add(source.key, source.file, source.size, self._add_bytes)
        segment = self._names.get(source.key)
        if segment is not None and segment.header is not None:
            self.damage += problems_in(source.file, segment.header, segment.name, source.size)
        source.file.close()
        self.progress = self.progress._replace(files=self.progress.files + 1)
        self._on_progress(self.progress)
        return copied

    def copy_index(self, segment: OpenSegment, index: OpenFile) -> StoredFile | None:
        """Return the stored copy of the index of a segment. Raises the errors of `copy`.

        None if only an index of another length of the segment is stored: a restore may have taken
        the segment back, and both indexes may have one size. A broker makes it again.
        """
        found = self.copy(index)
        if index.file is not None:
            return found
        end_lsn = index.key.lsn + segment.file.size
        named = self._named.get(index.key.lsn)
        if named is not None and named.index == found:
            return found if named.end_lsn == end_lsn else None
        return found if self._repository.index_end(found) == end_lsn else None

    def _add_bytes(self, count: int) -> None:
        self.progress = self.progress._replace(bytes=self.progress.bytes + count)
        self._on_progress(self.progress)
