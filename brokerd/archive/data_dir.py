# Tests: tests/archive/test_job.py
"""The inputs of the job in a data directory, and the locks on it and on its archive.

A lock is a file ``rollup.lock`` with an fcntl lock, which the kernel frees when the process ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brokerd.archive.contract.bounds import FILE_BYTES_MAX, FILE_NAME, Bounds, decode_bounds
from brokerd.archive.errors import JobFailed
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.regular_file import read_regular
from brokerd.archive.storage.store import open_store
from brokerd.errors import BrokerdError, DamagedData

WAL = "wal"
SCRATCH = "run/rollup"
"""The directory of a rollup's Spark, which removes it. A killed rollup leaves it."""
LOCK_NAME = "rollup.lock"


class RollupLocked(BrokerdError):
    """Another job holds the lock."""

    retryable = True


def check_data_dir(data_dir: Path) -> None:
    """Raise JobFailed if a directory is not the data directory of a broker."""
    if not (data_dir / WAL).is_dir():
        raise JobFailed(f"{data_dir} is not a broker's data directory; name one with --data-dir")


def read_bounds(data_dir: Path) -> tuple[Bounds, bytes]:
    """Read the bounds that the broker wrote last, and return their bytes too.

    :raises JobFailed: the file is missing or damaged; the text says what to do.
    :raises NewerFormat: a later version of brokerd wrote it.
    """
    check_data_dir(data_dir)
    path = data_dir / "state" / FILE_NAME
    try:
        data = read_regular(path, FILE_BYTES_MAX)
        return decode_bounds(data), data
    except FileNotFoundError:
        raise JobFailed(
            f"{path} does not exist: start a broker of this version once, which writes it"
        ) from None
    except DamagedData as error:
        raise JobFailed(
            f"{path} is damaged: {error}; start the broker, which writes it again"
        ) from None


@contextmanager
def rollup_lock(data_dir: Path) -> Iterator[None]:
    """Hold the lock of the job in a data directory, ``run/rollup.lock``.

    :raises RollupLocked: another process holds it; the text names its id.
    """
    directory = data_dir / "run"
    directory.mkdir(exist_ok=True)
    with _lock(directory, data_dir):
        yield


@contextmanager
def archive_lock(root: Place) -> Iterator[None]:
    """Hold the lock of the job in an archive. A copy of the data directory shares this lock.

    An absent directory is made. Its lock is the file ``rollup.lock``. A bucket has no lock.

    :raises RollupLocked: another process holds it; the text names its id.
    """
    if not isinstance(root, Path):
        yield
        return
    open_store(root).make_directory("")
    with _lock(root, root):
        yield


@contextmanager
def _lock(directory: Path, where: Path) -> Iterator[None]:
    """Hold the lock file of a directory. ``where`` names the directory in the error text."""
    path = directory / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        try:
            _acquire(descriptor, where)
        except OSError as error:  # a file system without locks, perhaps
            error.filename = str(path)
            raise
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, where: Path) -> None:
    """Lock an open file, and write the id of this process into it. Raises RollupLocked, OSError."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        raise RollupLocked(
            f"another brokerd-rollup is at work in {where}, process {owner}"
        ) from None
    os.ftruncate(descriptor, 0)
    try:
        os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
    except OSError as error:
        # The lock holds without the process id. A run on a full disk may free space.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
