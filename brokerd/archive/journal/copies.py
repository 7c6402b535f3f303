# Tests: tests/archive/test_copies.py
"""Copies of journal files below an archive, for tasks on machines that do not have the journal.

Who runs the job sends them before tasks need them, and deletes them when both tables are past them:
docs/archive-format.rst, section "Copies for readers of the archive alone". A task fetches a copy
as a whole to a disk of its machine and compares checksums; there it stays for the tasks after it,
as long as there is room. So what a task reads is what the journal has.

The directory for that is one of Spark's own, which goes with the executor.
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
"""So much is in memory at once."""

_NAME = re.compile(rf"{WAL}/([0-9]{{20}})-[0-9a-f]{{32}}\.(?:wal|idx)")
_SUFFIXES = (".wal", ".idx")


class DamagedCopy(BrokerdError):
    """A copy is not what was sent; it is deleted, so that it is sent again."""


class SegmentCopy(NamedTuple):
    """A journal file and its index as they were sent."""

    path: str
    """Relative to the archive, without the suffix."""
    checksums: tuple[int, int]
    """Of the file and of its index."""


def send_copies(store: Store, segments: Sequence[Segment]) -> Mapping[bytes, SegmentCopy]:
    """Have copies of segments there; gives them by segment id.

    :raises FileNotFoundError: a segment is gone.
    :raises ArchiveUnavailable: the store refuses.
    """
    sizes = {entry.path: entry.size for entry in store.list(WAL)}
    return {one.segment_id: _send(store, one, sizes) for one in segments}


def _send(store: Store, segment: Segment, sizes: Mapping[str, int]) -> SegmentCopy:
    """The index last: where it stands, both are whole."""
    path = f"{WAL}/{segment.first_lsn:020d}-{segment.segment_id.hex()}"
    checksums = []
    for suffix in _SUFFIXES:
        source = Path(segment.path).with_suffix(suffix)
        checksums.append(_checksum(source))
        if sizes.get(path + suffix) != source.stat().st_size:
            store.upload(path + suffix, source)
    return SegmentCopy(path, (checksums[0], checksums[1]))


def delete_copies(store: Store, lsn: int) -> None:
    """Delete copies of what begins below an LSN. Raises ArchiveUnavailable."""
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
    """The segment on a disk of this machine, where it stays meanwhile.

    :param cache_bytes: so much of the disk is taken at most, but for what is in use.
    :raises DamagedCopy: the copy is not what was sent.
    :raises FileNotFoundError: there is none any more.
    :raises ArchiveUnavailable: the store does not answer.
    :raises OSError: the disk is full, say.
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
            fcntl.flock(lock, fcntl.LOCK_EX)  # which lets go of the other for a moment
            if not target.with_suffix(".idx").exists():
                _make_room(cache, cache_bytes - segment.bytes)
                _fetch(open_store(root), copy, target)
        os.utime(lock.fileno())
        yield segment._replace(path=str(target))


def _directory() -> Path:
    """Where Spark has its workers put what they write (pyspark.shuffle)."""
    default = Path(tempfile.gettempdir(), f"brokerd-{os.getuid()}")
    told = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(told or default, "brokerd-journal")


def _fetch(store: Store, copy: SegmentCopy, target: Path) -> None:
    """Have the file and then its index there, or nothing."""
    shutil.rmtree(target.parent, ignore_errors=True)
    target.parent.mkdir()
    try:
        _download(store, copy, target)
    except BaseException:
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
            raise DamagedCopy(f"{store.place / path} is not what was sent there")
        os.replace(unfinished, target.with_suffix(suffix))


def _make_room(cache: Path, bytes_left: int) -> None:
    """Remove what was used longest ago until no more than that is left; not what is in use."""
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
