# Tests: tests/backup/test_manifest.py
"""The manifest of a backup, and the names of its files. The format is docs/backup.rst.

A manifest names every file that a restore needs, with size and checksum. Backups share files.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from brokerd.errors import BrokerdError, DamagedData, NewerFormat

VERSION = 1
MAGIC = b"brokerd backup "
MANIFEST_BYTES_MAX = 1 << 30
UNKNOWN_ID = "0" * 32
"""The id of a segment of which nothing can be read."""

_NAME = re.compile(
    r"(?P<directory>wal|state)/(?P<lsn>[0-9]{20})-(?P<id>[0-9a-f]{32})-(?P<size>[0-9]{1,19})-"
    r"(?P<checksum>[0-9a-f]{16})\.(?P<kind>wal|idx|snap|bounds)",
    re.ASCII,
)
_DIRECTORIES = {"wal": "wal", "idx": "wal", "snap": "state", "bounds": "state"}


class BackupFailed(BrokerdError):
    """A backup or a restore cannot be made. The text says where, why and what to do."""


class FileKey(NamedTuple):
    """What a stored file is a copy of. Files with the same key and size have the same bytes."""

    kind: str
    """``wal``, ``idx``, ``snap`` or ``bounds``."""
    lsn: int
    id: str
    """32 hexadecimal digits."""


class StoredFile(Struct, frozen=True):
    """A file below the address of the backups."""

    path: str
    size: int
    checksum: str
    """XXH3 of its bytes, 16 hexadecimal digits."""

    @property
    def key(self) -> FileKey:
        """Return the key. `decode_manifest` has checked that the path has one."""
        match = _NAME.fullmatch(self.path)
        assert match is not None, self.path
        return FileKey(match["kind"], int(match["lsn"]), match["id"])


def stored_file(key: FileKey, size: int, checksum: str) -> StoredFile:
    """Return a file with its path."""
    directory = _DIRECTORIES[key.kind]
    path = f"{directory}/{key.lsn:020d}-{key.id}-{size}-{checksum}.{key.kind}"
    return StoredFile(path, size, checksum)


def parse_path(path: str) -> StoredFile | None:
    """Return the file that a path names, or None if it is no path of a file of a backup."""
    match = _NAME.fullmatch(path)
    if match is None or _DIRECTORIES[match["kind"]] != match["directory"]:
        return None
    return StoredFile(path, int(match["size"]), match["checksum"])


class StoredSegment(Struct, frozen=True):
    """The part of a segment that a backup has."""

    first_lsn: int
    end_lsn: int
    id: str
    """The segment id: 32 hexadecimal digits."""
    created_us: int
    """Broker time of the first frame; 0 if unknown."""
    file: StoredFile
    index: StoredFile | None = None


class StoredSnapshot(Struct, frozen=True):
    """A snapshot. It reflects the log below ``reached_lsn``, and replay begins at ``start_lsn``."""

    start_lsn: int
    reached_lsn: int
    file: StoredFile


class ArchiveVersion(Struct, frozen=True):
    """The archive of the log at the time of the backup."""

    address: str
    id: str
    lsn: int
    """The table ``records`` holds the log below this LSN."""
    versions: dict[str, int]
    """The version of each table."""


class Manifest(Struct, frozen=True):
    """One backup."""

    log_id: str
    created_us: int
    """Wall-clock time, microseconds since 1970."""
    brokerd: str
    """The version of brokerd."""
    lsn: int
    """The backup ends here."""
    time_us: int
    """Broker time of the last frame; 0 without frames."""
    segments: list[StoredSegment]
    deleted: list[tuple[int, int]]
    snapshots: list[StoredSnapshot]
    bounds: StoredFile | None = None
    pin: tuple[str, int] | None = None
    """The archive id and the LSN of ``state/archived``."""
    archive: ArchiveVersion | None = None
    damage: list[str] = msgspec.field(default_factory=list)

    def files(self) -> list[StoredFile]:
        """Return all files, in the order of their copies."""
        found = [segment.file for segment in self.segments]
        found += [segment.index for segment in self.segments if segment.index is not None]
        found += [snapshot.file for snapshot in self.snapshots]
        return found if self.bounds is None else [*found, self.bounds]


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest: a line with version and checksum, then JSON."""
    body = msgspec.json.encode(manifest) + b"\n"
    return MAGIC + f"{VERSION} {xxh3_64_hexdigest(body)}\n".encode() + body


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raises DamagedData, and NewerFormat for a later version."""
    head, _, body = data.partition(b"\n")
    words = head.removeprefix(MAGIC).split(b" ")
    if not (head.startswith(MAGIC) and len(words) == 2 and words[0].isdigit() and int(words[0])):
        raise DamagedData("the first line is not that of a backup")
    if int(words[0]) > VERSION:
        raise NewerFormat(f"backup version {int(words[0])}; upgrade brokerd to read it")
    if words[1] != xxh3_64_hexdigest(body).encode():
        raise DamagedData("the checksum does not match")
    try:
        manifest = msgspec.json.decode(body, type=Manifest)
    except msgspec.MsgspecError as error:
        raise DamagedData(f"the content is invalid: {error}") from None
    for file in manifest.files():
        if parse_path(file.path) != file:
            raise DamagedData(f"{file.path!r} is not the path of a file of {file.size} bytes")
    return manifest
