# Tests: tests/wal/test_lock.py
"""The lock on a data directory, which one broker holds.

The lock is ``fcntl`` on ``DATA_DIR/lock``, which the system releases when the process ends. The
file holds the process id of the owner, for operators, if the disk had room for it. It is never
deleted: after that, two processes could hold locks on two files.
"""

from __future__ import annotations

import fcntl
import os

from brokerd.errors import DirectoryLocked, UnsafeFileSystem
from brokerd.wal.disk import is_full

NETWORK_FILE_SYSTEMS = frozenset(
    ("9p", "afs", "ceph", "cifs", "coda", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2")
    + ("glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs", "vboxsf")
)
"""Types of file systems whose locks or syncs may not hold."""


class DirectoryLock:
    """The lock on a data directory, held from :meth:`acquire` to :meth:`release`."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._descriptor = -1

    def acquire(
        self, file_system: str = "", allow_network: bool = False, claim: bool = True
    ) -> None:
        """Take the lock. ``file_system`` is the directory's type, from `Disk.file_system`.

        ``claim`` writes the id of this process to the lock file if the disk has room. Raises
        UnsafeFileSystem for a network file system unless ``allow_network``, DirectoryLocked with
        the process id of another broker, and OSError.
        """
        if file_system in NETWORK_FILE_SYSTEMS and not allow_network:
            raise UnsafeFileSystem(
                f"{self._data_dir} is on {file_system}, a network file system, where locks and "
                "syncs may not hold; use a local disk, or set wal.allow_network_fs = true"
            )
        path = os.path.join(self._data_dir, "lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise DirectoryLocked(
                f"{self._data_dir} is in use by another broker, process {owner}; stop it first, "
                "or choose another --data-dir"
            ) from None
        if claim:
            _write_owner(descriptor)
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock, if it is held."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _write_owner(descriptor: int) -> None:
    """Write the id of this process if the disk has room: a start must not need a free block."""
    owner = f"{os.getpid()}\n".encode("ascii")
    try:
        os.pwrite(descriptor, owner, 0)
    except OSError as error:
        if not is_full(error):
            raise
        owner = b""
    os.ftruncate(descriptor, len(owner))
