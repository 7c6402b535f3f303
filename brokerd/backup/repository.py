# Tests: tests/backup/test_repository.py
"""The backups at one address: their manifests and files, in a directory or a bucket.

A file gets its name when it is complete. A backup counts when its manifest is written. So a process
that is killed leaves only files that no manifest names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from xxhash import xxh3_64

from brokerd.archive.storage.store import Store
from brokerd.backup.manifest import (
    MANIFEST_BYTES_MAX,
    BackupFailed,
    FileKey,
    Manifest,
    StoredFile,
    decode_manifest,
    encode_manifest,
    parse_path,
    stored_file,
)
from brokerd.errors import DamagedData, NewerFormat
from brokerd.wal.disk import File
from brokerd.walformat import FormatError
from brokerd.walformat.index import INDEX_HEADER_BYTES, decode_index_header

MANIFESTS = "backups"
DIRECTORIES = ("wal", "state")
PIECE_BYTES = 1 << 20
AHEAD_BYTES = 8 << 20
"""Bytes of an object that one request fetches."""

_SUFFIX = ".backup"
_UNFINISHED = ("unfinished-", ".commit-", ".put-")


class Backup(NamedTuple):
    """A manifest and its number."""

    number: int
    manifest: Manifest


class Verified(NamedTuple):
    """The result of a verification."""

    files: int
    bytes: int
    problems: list[str]


class Pruned(NamedTuple):
    """What a prune has deleted."""

    backups: list[int]
    files: int
    bytes: int


def _manifest_path(number: int) -> str:
    return f"{MANIFESTS}/{number:08d}{_SUFFIX}"


class Repository:
    """The backups in a store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of a directory, so that one process writes. Raises BackupFailed.

        A bucket has no lock.
        """
        self.store.make_directory("")
        with self.store.exclusive("") as is_alone:
            if not is_alone:
                raise BackupFailed(
                    f"another brokerctl writes to {self.store.place}; try again when it has ended"
                )
            yield

    # -- manifests -------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """Return the numbers of all backups, oldest first."""
        stems = (
            name.removesuffix(_SUFFIX)
            for name in self.store.names(MANIFESTS)
            if name.endswith(_SUFFIX)
        )
        return sorted(int(s) for s in stems if len(s) == 8 and s.isascii() and s.isdigit())

    def read(self, number: int) -> Backup:
        """Read a manifest.

        :raises BackupFailed: there is no such backup.
        :raises DamagedData: the manifest is damaged.
        :raises NewerFormat: a later version of brokerd wrote it.
        """
        path = _manifest_path(number)
        where = self.store.place / path
        try:
            return Backup(number, decode_manifest(self.store.read(path, MANIFEST_BYTES_MAX)))
        except FileNotFoundError:
            raise BackupFailed(
                f"{self.store.place} has no backup {number}: brokerctl backup list "
                f"{self.store.place} shows those that it has"
            ) from None
        except DamagedData as error:
            raise DamagedData(
                f"{where} is damaged: {error}. Use another backup, and delete this file"
            ) from None
        except NewerFormat as error:
            raise NewerFormat(f"{where}: {error}") from None

    def newest(self) -> Backup | None:
        """Return the newest backup, or None. Raises the errors of `read`."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def write(self, manifest: Manifest) -> int:
        """Write a manifest, and return its number. The files must be there.

        Raises BackupFailed if one of them is gone, because another process deleted it.
        """
        stored = self.files()
        for file in manifest.files():
            if file.path not in stored:
                raise BackupFailed(
                    f"{self.store.place / file.path} is gone: another process deletes backups "
                    "here. Run the backup again, and prune from one place only"
                )
        self.store.make_directory(MANIFESTS)
        data = encode_manifest(manifest)
        number = (self.numbers() or [0])[-1] + 1
        while not self.store.put_if_absent(_manifest_path(number), data):
            number += 1
        self.store.sync_directory(MANIFESTS)
        return number

    # -- files -----------------------------------------------------------------------------------

    def files(self) -> dict[str, StoredFile]:
        """Return the complete files of all backups, and of interrupted runs, by path."""
        found = {}
        for directory in DIRECTORIES:
            for entry in self.store.list(directory):
                file = parse_path(entry.path)
                if file is not None and file.size == entry.size:
                    found[file.path] = file
        return found

    def add(
        self, key: FileKey, source: File, size: int, on_bytes: Callable[[int], None]
    ) -> StoredFile:
        """Copy the first ``size`` bytes of an open file, and return the durable copy.

        Raises DamagedData if the file is shorter, OSError and the errors of the store.
        """
        output = self.store.create("wal" if key.kind in ("wal", "idx") else "state")
        try:
            checksum = xxh3_64()
            for position in range(0, size, PIECE_BYTES):
                length = min(PIECE_BYTES, size - position)
                data = source.pread(length, position)
                if len(data) < length:
                    raise DamagedData(
                        f"the {key.kind} file of LSN {key.lsn} has {position + len(data)} bytes, "
                        f"not {size}: something cut it off during the backup. Run it again; if it "
                        "fails again, run brokerctl wal verify"
                    )
                checksum.update(data)
                output.write(data)
                on_bytes(length)
            file = stored_file(key, size, checksum.hexdigest())
            output.publish(file.path)
        finally:
            output.discard()
        return file

    def index_end(self, file: StoredFile) -> int | None:
        """Return the end LSN in the header of a stored index, None for a damaged one.

        Raises the errors of the store.
        """
        try:
            head = self.store.open(file.path).read(0, INDEX_HEADER_BYTES)
            return decode_index_header(head).end_lsn
        except (FormatError, FileNotFoundError):
            return None

    def pieces(self, file: StoredFile) -> Iterator[bytes]:
        """Read a file in pieces, and check size and checksum at its end.

        Raises DamagedData if it is missing or differs.
        """
        where = self.store.place / file.path
        try:
            source = self.store.open(file.path, AHEAD_BYTES)
        except FileNotFoundError:
            raise self._missing(file) from None
        checksum, position = xxh3_64(), 0
        while data := source.read(position, PIECE_BYTES):
            checksum.update(data)
            position += len(data)
            yield data
        self._check_size(file, position)
        if checksum.hexdigest() != file.checksum:
            raise DamagedData(f"{where} has wrong bytes: its checksum is {checksum.hexdigest()}")

    def verify(self, numbers: Iterable[int], quick: bool = False) -> Verified:
        """Check the manifests and files of backups, each file once.

        :param quick: check only that the files exist, with their sizes.
        """
        problems: list[str] = []
        sizes = {
            entry.path: entry.size
            for directory in DIRECTORIES
            for entry in self.store.list(directory)
        }
        files: dict[str, StoredFile] = {}
        for number in numbers:
            try:
                files.update((one.path, one) for one in self.read(number).manifest.files())
            except DamagedData as error:
                problems.append(str(error))
        for file in files.values():
            try:
                self._check_size(file, sizes.get(file.path))
                for _ in () if quick else self.pieces(file):
                    pass
            except DamagedData as error:
                problems.append(str(error))
        return Verified(len(files), sum(file.size for file in files.values()), problems)

    def _check_size(self, file: StoredFile, size: int | None) -> None:
        """Raise DamagedData if a file has another size; None: if it is missing."""
        if size is None:
            raise self._missing(file)
        if size != file.size:
            raise DamagedData(f"{self.store.place / file.path} has {size} bytes, not {file.size}")

    def _missing(self, file: StoredFile) -> DamagedData:
        return DamagedData(f"{self.store.place / file.path} is missing")

    # -- deletion --------------------------------------------------------------------------------

    def remove_unfinished(self) -> None:
        """Delete the unfinished files of interrupted runs. The caller holds the lock."""
        self.store.delete(
            f"{directory}/{name}"
            for directory in (*DIRECTORIES, MANIFESTS)
            for name in self.store.names(directory)
            if name.startswith(_UNFINISHED)
        )

    def prune(self, keep: int) -> Pruned:
        """Delete all but the newest backups, then the files that no other backup names.

        A manifest goes before its files. Raises the errors of `read`, before it deletes files.

        :param keep: the number of backups to keep, 1 or more.
        """
        if keep < 1:
            raise ValueError(f"{keep} backups cannot be kept")
        numbers = self.numbers()
        kept, old = numbers[-keep:], numbers[:-keep]
        self.remove_unfinished()
        needed = {file.path for number in kept for file in self.read(number).manifest.files()}
        self.store.delete(_manifest_path(number) for number in old)
        if old:
            self.store.sync_directory(MANIFESTS)
        unneeded = [
            entry
            for directory in DIRECTORIES
            for entry in self.store.list(directory)
            if entry.path not in needed and parse_path(entry.path) is not None
        ]
        self.store.delete(entry.path for entry in unneeded)
        return Pruned(old, len(unneeded), sum(entry.size for entry in unneeded))
