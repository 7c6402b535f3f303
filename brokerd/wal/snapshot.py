# Tests: tests/wal/test_snapshot.py
"""Snapshots of the broker's state, in chunks. A snapshot is read back before it counts.

The layout is docs/wal-format.rst, section "Snapshot". The broker defines the content of chunks, and
makes several chunks of a large part. A write needs memory for one chunk, a read for the largest
chunk and `READ_BYTES`.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from twisted.logger import Logger
from xxhash import xxh3_64_intdigest

from brokerd.errors import DamagedData, NewerFormat, error_text
from brokerd.wal.disk import Disk, File
from brokerd.wal.recovery.damage_fingerprint import NOT_A_FILE
from brokerd.wal.recovery.known_end import read_known_end
from brokerd.wal.recovery.report import KnownEnd
from brokerd.walformat import FORMAT_VERSION, segment_salt

SNAPSHOT_MAGIC = b"BRKDSNP\0"
CHUNK_MAGIC = b"BKch"
END_KIND = 0xFFFF
SNAPSHOT_HEADER_BYTES = 56
CHUNK_HEADER_BYTES = 48
CHUNK_BYTES_MAX = 1 << 30
KEPT_SNAPSHOTS = 2
READ_BYTES = 1 << 20
"""The usual size of a disk read. A larger chunk makes a larger one."""

_UNREADABLE = (errno.EIO, *NOT_A_FILE)
"""Errors of a snapshot, and not of the process or of the whole disk."""

_MORE = 1
"""The flag of a chunk whose body continues in the next chunk."""

_NAME = re.compile(r"[0-9]{20}\.snap")
_HEADER = struct.Struct("<8sHHI16sQq")
_CHUNK = struct.Struct("<4sHHIIQQ")
_U64 = struct.Struct("<Q")
_U64_PAIR = struct.Struct("<QQ")


class SnapshotChunk(NamedTuple):
    """The state of the part that ``key`` names, with all events below ``lsn`` applied."""

    kind: int
    """Defined by the broker, 0 to 65534."""
    key: bytes
    lsn: int
    body: bytes
    more: bool = False
    """Whether the body continues in the next chunk, which has the same kind, key and LSN."""


class LoadedSnapshot(NamedTuple):
    """A verified snapshot. ``chunks`` iterates once. Replay begins at ``start_lsn``.

    A read of ``chunks`` raises OSError if the file has become damaged since it was verified. A new
    start then verifies it again, and uses an older one.
    """

    start_lsn: int
    chunks: Iterator[SnapshotChunk]


def snapshot_name(start_lsn: int) -> str:
    """Return the file name of a snapshot."""
    return f"{start_lsn:020d}.snap"


def encode_snapshot_header(snapshot_id: bytes, start_lsn: int, time_us: int) -> bytes:
    """Encode the first 56 bytes of a snapshot."""
    head = _HEADER.pack(SNAPSHOT_MAGIC, FORMAT_VERSION, 0, 0, snapshot_id, start_lsn, time_us)
    return head + _U64.pack(xxh3_64_intdigest(head, 0))


def encode_chunk(chunk: SnapshotChunk, position: int, salt: int) -> bytes:
    """Encode a chunk for a position in the file. Raises ValueError for a chunk over the limit."""
    kind, key, lsn, body, more = chunk
    if len(key) + len(body) > CHUNK_BYTES_MAX:
        raise ValueError(f"a chunk of {len(key) + len(body)} bytes is over {CHUNK_BYTES_MAX}")
    flags = _MORE if more else 0
    head = _CHUNK.pack(CHUNK_MAGIC, kind, flags, len(key), len(body), lsn, position)
    checksum = xxh3_64_intdigest(head, salt)
    content = key + body
    return b"".join(
        (
            head,
            _U64_PAIR.pack(checksum, xxh3_64_intdigest(content, checksum)),
            content,
            bytes(-len(content) % 8),
        )
    )


class _ReadAhead:
    """Reads a file forward in large reads. ``pread`` reads the file."""

    def __init__(self, pread: Callable[[int, int], bytes]) -> None:
        self._pread = pread
        self._data = b""
        self._start = 0

    def pread(self, length: int, position: int) -> bytes:
        """Return ``length`` bytes, fewer at the end of the file."""
        at = position - self._start
        data = self._data[at : at + length]
        if len(data) < length:
            self._data = self._pread(max(length, READ_BYTES), position)
            self._start = position
            data = self._data[:length]
        return data


class SnapshotFile:
    """Reads one snapshot and verifies it. DamagedData names file and position.

    A file that the disk cannot read (EIO), or that is not a regular file, is damaged.
    """

    def __init__(self, file: File, name: str) -> None:
        self._file = file
        self._name = name
        data = self._pread(SNAPSHOT_HEADER_BYTES, 0)
        if len(data) < SNAPSHOT_HEADER_BYTES:
            raise self._damaged(0, "the header is cut short")
        magic, version, flags, _, self.id, self.start_lsn, self.time_us = _HEADER.unpack_from(data)
        if magic != SNAPSHOT_MAGIC:
            raise self._damaged(0, "wrong magic")
        if _U64.unpack_from(data, _HEADER.size)[0] != xxh3_64_intdigest(data[: _HEADER.size], 0):
            raise self._damaged(0, "the header checksum does not match")
        if version > FORMAT_VERSION or flags:
            raise NewerFormat(f"{name}: snapshot version {version}; upgrade brokerd to read it")
        if name != snapshot_name(self.start_lsn):
            raise self._damaged(0, f"it says it begins at LSN {self.start_lsn}")
        self._salt = segment_salt(self.id)

    @classmethod
    def open(cls, disk: Disk, path: str, name: str) -> SnapshotFile:
        """Open a snapshot of the directory ``path``. Raises DamagedData, NewerFormat, OSError."""
        try:
            file = disk.open(os.path.join(path, name))
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            raise DamagedData(f"{name}: it cannot be opened: {error_text(error)}") from error
        return cls(file, name)

    @property
    def file(self) -> File:
        """The open file."""
        return self._file

    def _pread(self, length: int, position: int) -> bytes:
        try:
            return self._file.pread(length, position)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            raise self._damaged(position, f"it cannot be read: {error_text(error)}") from error

    def _damaged(self, position: int, problem: str) -> DamagedData:
        return DamagedData(f"{self._name} at {position}: {problem}")

    def chunks(self) -> Iterator[SnapshotChunk]:
        """Yield all chunks up to the end chunk. Raises DamagedData, NewerFormat."""
        file = _ReadAhead(self._pread)
        position = SNAPSHOT_HEADER_BYTES
        count = 0
        begun: tuple[int, bytes, int] | None = None
        while True:
            chunk, size = self._chunk(file, position)
            if begun is not None and chunk[:3] != begun:
                raise self._damaged(position, "the chunk before does not continue here")
            begun = chunk[:3] if chunk.more else None
            position += size
            if chunk.kind == END_KIND:
                if chunk.lsn != count:
                    raise self._damaged(position, f"{count} chunks of {chunk.lsn}")
                if count == 0:  # to trust it would be to forget everything before it
                    raise self._damaged(position, "it holds no state at all")
                return
            count += 1
            yield chunk

    def verified_chunks(self) -> Iterator[SnapshotChunk]:
        """Yield all chunks once more, after they were verified. Raises OSError for damage."""
        try:
            yield from self.chunks()
        except DamagedData as error:
            problem = f"it was sound a moment ago: {error}; start again to use an older one"
            raise OSError(errno.EIO, problem, self._name) from error

    def _chunk(self, file: _ReadAhead, position: int) -> tuple[SnapshotChunk, int]:
        data = file.pread(CHUNK_HEADER_BYTES, position)
        if len(data) < CHUNK_HEADER_BYTES:
            raise self._damaged(position, "the file ends before its end chunk")
        magic, kind, flags, key_bytes, body_bytes, lsn, said = _CHUNK.unpack_from(data)
        checksum, content_checksum = _U64_PAIR.unpack_from(data, _CHUNK.size)
        if checksum != xxh3_64_intdigest(data[: _CHUNK.size], self._salt):
            raise self._damaged(position, "a chunk's header checksum does not match")
        if magic != CHUNK_MAGIC or said != position:
            raise self._damaged(position, f"a chunk says it is at {said}")
        if flags & ~_MORE:
            raise NewerFormat(
                f"{self._name} at {position}: chunk flags {flags:#x}; upgrade brokerd"
            )
        content = file.pread(key_bytes + body_bytes, position + CHUNK_HEADER_BYTES)
        if xxh3_64_intdigest(content, checksum) != content_checksum:
            raise self._damaged(position, "a chunk's content checksum does not match")
        size = CHUNK_HEADER_BYTES + len(content) + -len(content) % 8
        key, body = content[:key_bytes], content[key_bytes:]
        return SnapshotChunk(kind, key, lsn, body, flags == _MORE), size


class Snapshots:
    """The snapshots in one directory. Methods block and run outside of the reactor's thread.

    ``random_bytes(n)`` makes ids. ``time_us()`` is wall-clock time, for the header only.
    """

    _log = Logger()

    def __init__(
        self,
        disk: Disk,
        path: str,
        random_bytes: Callable[[int], bytes],
        time_us: Callable[[], int] = lambda: 0,
    ) -> None:
        self._disk = disk
        self._path = path
        self._random_bytes = random_bytes
        self._time_us = time_us
        self.damaged = 0
        """Number of damaged snapshots that :meth:`load_newest` found."""
        self._bad_names: set[str] = set()
        """File names of snapshots that were damaged when they were last read."""
        self.reached_lsn = 0
        """The highest LSN in all sound snapshots that :meth:`load_newest` read."""
        self._durable_names: set[str] = set()
        """Snapshots whose names are durable. A killed process may leave others."""
        self._doubtful_names: set[str] = set()
        """Snapshots whose names a failed sync covered. A later sync does not make them durable."""

    def write(self, start_lsn: int, chunks: Iterable[SnapshotChunk]) -> int:
        """Write a snapshot, read it back, and delete all below the two newest. Returns its bytes.

        Snapshots that were found damaged do not count as one of the two.

        Raises OSError, and DamagedData if it does not read back. Then the new file is deleted, and
        older snapshots stay. If the sync of the directory failed, the new file stays too, but does
        not count as one of the two.
        """
        self._disk.make_directory(self._path)
        name = snapshot_name(start_lsn)
        temporary = os.path.join(self._path, name + ".tmp")
        for left in self._disk.list(self._path):
            if left.endswith(".snap.tmp"):
                with suppress(IsADirectoryError):  # not a snapshot
                    self._disk.unlink(os.path.join(self._path, left))
        file = self._disk.create(temporary)
        try:
            size = self._write(file, start_lsn, chunks)
            file.sync()
            for _ in SnapshotFile(file, name).chunks():
                pass
        except Exception:
            file.close()
            self._disk.unlink(temporary)
            raise
        self._durable_names.discard(name)
        self._disk.rename(temporary, os.path.join(self._path, name))
        self._doubtful_names.discard(name)
        self._bad_names.discard(name)
        self._sync_names()
        self._delete_old()
        return size

    def _sync_names(self) -> None:
        """Make the names of all snapshots durable, unless an earlier sync of them failed."""
        names = set(self.names()) - self._doubtful_names - self._durable_names
        try:
            self._disk.sync_directory(self._path)
        except OSError:
            self._doubtful_names |= names
            raise
        self._durable_names |= names

    def _write(self, file: File, start_lsn: int, chunks: Iterable[SnapshotChunk]) -> int:
        snapshot_id = self._random_bytes(16)
        salt = segment_salt(snapshot_id)
        header = encode_snapshot_header(snapshot_id, start_lsn, self._time_us())
        file.pwrite(header, 0)
        position = len(header)
        count = 0
        for chunk in chunks:
            data = encode_chunk(chunk, position, salt)
            file.pwrite(data, position)
            position += len(data)
            count += 1
        end = encode_chunk(SnapshotChunk(END_KIND, b"", count, b""), position, salt)
        file.pwrite(end, position)
        return position + len(end)

    def names(self) -> list[str]:
        """Return the file names of all snapshots, newest first."""
        found = (name for name in self._disk.list(self._path) if _NAME.fullmatch(name))
        return sorted(found, reverse=True)

    def _kept_names(self) -> list[str]:
        """Return the file names of the two newest snapshots that are neither bad nor doubtful."""
        unusable = self._bad_names | self._doubtful_names
        return [name for name in self.names() if name not in unusable][:KEPT_SNAPSHOTS]

    def _delete_old(self) -> None:
        kept = self._kept_names()
        if len(kept) < KEPT_SNAPSHOTS:
            return
        for name in self.names():
            if name >= kept[-1]:
                continue
            with suppress(IsADirectoryError):  # not a snapshot
                self._disk.unlink(os.path.join(self._path, name))
            self._durable_names.discard(name)
            self._doubtful_names.discard(name)

    def load_newest(
        self,
        outdated_reason: Callable[[SnapshotChunk], str | None] = lambda chunk: None,
        oldest_lsn: int = 0,
    ) -> LoadedSnapshot | None:
        """Return the newest sound snapshot that is not outdated, or None.

        ``outdated_reason(chunk)`` returns why a snapshot with this chunk is outdated, or None. The
        log below ``oldest_lsn`` is deleted. If only an outdated snapshot begins above that, the
        newest such one is used. Unused snapshots are logged. Raises NewerFormat, OSError.
        """
        outdated: SnapshotFile | None = None
        for name in self.names():
            try:
                snapshot = SnapshotFile.open(self._disk, self._path, name)
                problem = self._verify(snapshot, outdated_reason)
            except DamagedData as error:
                self.damaged += 1
                self._bad_names.add(name)
                self._log.error(
                    "a snapshot is damaged and not used: {problem}",
                    problem=str(error),
                    event_id="snapshot-damaged",
                )
                continue
            if problem is None:
                if outdated is None or snapshot.start_lsn >= oldest_lsn:
                    return LoadedSnapshot(snapshot.start_lsn, snapshot.verified_chunks())
                break
            if outdated is None and 0 < oldest_lsn <= snapshot.start_lsn:
                outdated = snapshot
            self._log.warn(
                "the snapshot {name} is outdated: {problem}",
                name=name,
                problem=problem,
                event_id="snapshot-outdated",
            )
        if outdated is None:
            return None
        self._log.error(
            "the snapshot at {lsn} is used although it is outdated, since the log before {oldest} "
            "is deleted: what was damaged when it was taken stays lost",
            lsn=outdated.start_lsn,
            oldest=oldest_lsn,
            event_id="outdated-state-used",
        )
        return LoadedSnapshot(outdated.start_lsn, outdated.verified_chunks())

    def known_end(self) -> KnownEnd:
        """Read how far the log was synced, from the files beside the snapshots.

        Raises NewerFormat, OSError.
        """
        return read_known_end(self._disk, self._path)

    def second_newest(self) -> int | None:
        """Return the start LSN of the second-newest snapshot, or None if none is sound.

        Reads and verifies the snapshot, and makes the names of both durable. A start from either
        snapshot does not need the log below that LSN, so segments that end there may be deleted.
        Raises NewerFormat, OSError.
        """
        names = self._kept_names()
        if len(names) < KEPT_SNAPSHOTS:
            return None
        if not self._durable_names.issuperset(names):
            self._sync_names()
        name = names[-1]
        try:
            snapshot = SnapshotFile.open(self._disk, self._path, name)
            for _ in snapshot.chunks():
                pass
        except (DamagedData, FileNotFoundError) as error:
            self._bad_names.add(name)
            self._log.error(
                "a snapshot is damaged, and no segment is deleted until there are two sound ones: "
                "{problem}",
                problem=str(error),
                event_id="snapshot-damaged",
            )
            return None
        start_lsn: int = snapshot.start_lsn
        return start_lsn

    def _verify(
        self, snapshot: SnapshotFile, outdated_reason: Callable[[SnapshotChunk], str | None]
    ) -> str | None:
        """Read all of a snapshot. Returns why it is outdated, or None. Raises DamagedData."""
        problem: str | None = None
        reached_lsn = 0
        for chunk in snapshot.chunks():
            reached_lsn = max(reached_lsn, chunk.lsn)
            problem = problem or outdated_reason(chunk)
        self.reached_lsn = max(self.reached_lsn, reached_lsn)
        return problem
