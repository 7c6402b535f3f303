# Tests: tests/archive/test_copies.py
"""Copies of segments below an archive, for tasks on machines without the journal.

The job sends copies before tasks need them, and deletes them once both tables hold the segments
(docs/archive-format.rst, section "Copies for readers of the archive alone"). A task downloads a
copy, verifies its checksum, and leaves it in a cache for later tasks. The cache is in a directory
of Spark, which is deleted with the executor.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64

from brokerd.archive.journal.sealed import Segment
from brokerd.archive.storage.store import Place, Store, open_store
from brokerd.errors import BrokerdError

WAL = "wal"
"""The directory of the copies."""
PIECE_BYTES = 8 << 20
"""The largest number of bytes in memory."""

_NAME = re.compile(rf"{WAL}/([0-9]{{20}})-[0-9a-f]{{32}}\.(?:wal|idx)")
_SUFFIXES = (".wal", ".idx")


class DamagedCopy(BrokerdError):
    """A copy has wrong bytes. The reader deletes it, so that the job sends it again."""


class SegmentCopy(NamedTuple):
    """The copy of a segment and its index."""

    path: str
    """The path relative to the archive, without the suffix."""
    checksums: tuple[int, int]
    """The checksums of the file and of its index."""


def send_copies(store: Store, segments: Sequence[Segment]) -> Mapping[bytes, SegmentCopy]:
    """Copy segments that have no copy, and return all copies by segment id.

    :raises FileNotFoundError: a segment was deleted.
    :raises ArchiveUnavailable: the store reports an error.
    """
    sizes = {entry.path: entry.size for entry in store.list(WAL)}
    return {one.segment_id: _send(store, one, sizes) for one in segments}


def _send(store: Store, segment: Segment, sizes: Mapping[str, int]) -> SegmentCopy:
    """Copy a segment, and its index last. An existing index proves that both are complete."""
    path = f"{WAL}/{segment.first_lsn:020d}-{segment.segment_id.hex()}"
    checksums = []
    for suffix in _SUFFIXES:
        source = Path(segment.path).with_suffix(suffix)
        checksums.append(_checksum(source))
        if sizes.get(path + suffix) != source.stat().st_size:
            store.upload(path + suffix, source)
    return SegmentCopy(path, (checksums[0], checksums[1]))


def delete_copies(store: Store, lsn: int) -> None:
    """Delete copies of segments that begin below an LSN. Raises ArchiveUnavailable."""
    paths = _below(store, lsn)
    for suffix in reversed(_SUFFIXES):
        store.delete([path for path in paths if path.endswith(suffix)])


def _below(store: Store, lsn: int) -> list[str]:
    names = (_NAME.fullmatch(entry.path) for entry in store.list(WAL))
    return [name[0] for name in names if name is not None and int(name[1]) < lsn]


def _checksum(path: Path) -> int:
    checksum = xxh3_64()
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            checksum.update(piece)
    return checksum.intdigest()


# -- On the machine of a task --------------------------------------------------------------------


@contextmanager
def fetch_copy(
    root: Place, segment: Segment, copy: SegmentCopy, cache_bytes: int
) -> Iterator[Segment]:
    """Download a segment to this machine, and yield it. It stays there during the ``with`` block.

    :param cache_bytes: the limit of the cache, without the segments in use.
    :raises DamagedCopy: the copy has wrong bytes.
    :raises FileNotFoundError: the copy was deleted.
    :raises ArchiveUnavailable: the store reports an error.
    :raises OSError: the local disk reports an error.
    """
    cache = _directory()
    cache.mkdir(parents=True, exist_ok=True)
    name = segment.segment_id.hex()
    target = cache / name / Path(segment.path).name
    with open(cache / f"{name}.lock", "ab") as lock:
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if target.with_suffix(".idx").exists():
                break
            fcntl.flock(lock, fcntl.LOCK_EX)  # this frees the shared lock for a moment
            if not target.with_suffix(".idx").exists():
                _make_room(cache, cache_bytes - segment.bytes)
                _fetch_files(open_store(root), copy, target)
        os.utime(lock.fileno())
        yield segment._replace(path=str(target))


def _directory() -> Path:
    """Return the cache's directory, below that of Spark's local files (pyspark.shuffle)."""
    default = Path(tempfile.gettempdir(), f"brokerd-{os.getuid()}")
    configured = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(configured or default, "brokerd-journal")


def _fetch_files(store: Store, copy: SegmentCopy, target: Path) -> None:
    """Download the file and then its index. Delete both after an error."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    try:
        _download(store, copy, target)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(target.parent)
        shutil.rmtree(target.parent, ignore_errors=True)
        raise


def _download(store: Store, copy: SegmentCopy, target: Path) -> None:
    for suffix, expected in zip(_SUFFIXES, copy.checksums, strict=True):
        unfinished = target.with_name("unfinished")
        path = copy.path + suffix
        checksum = xxh3_64()
        file = store.open(path)
        with open(unfinished, "wb") as local:
            for position in range(0, file.size, PIECE_BYTES):
                piece = file.read(position, PIECE_BYTES)
                checksum.update(piece)
                local.write(piece)
        if checksum.intdigest() != expected:
            store.delete([copy.path + one for one in reversed(_SUFFIXES)])
            raise DamagedCopy(f"{store.place / path} has wrong bytes; the job sends it again")
        os.replace(unfinished, target.with_suffix(suffix))


def _make_room(cache: Path, bytes_left: int) -> None:
    """Delete the least recently used segments down to ``bytes_left``. Skip segments in use."""
    used = sorted(cache.glob("*.lock"), key=lambda path: path.stat().st_mtime_ns)
    sizes = {path: _size(path.with_suffix("")) for path in used}
    total = sum(sizes.values())
    for path in used:
        if total <= bytes_left:
            return
        with open(path, "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            total -= sizes[path]


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*"))
