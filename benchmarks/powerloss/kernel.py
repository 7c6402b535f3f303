# Tests: tests/powerloss/test_filesystem.py
"""The part of the FUSE kernel protocol that a recording file system needs (Linux 5.1 and newer).

Layouts and numbers are those of ``linux/fuse.h``, protocol 7.31. A library (mfusepy, pyfuse3) needs
libfuse on the machine; this module needs ``/dev/fuse`` and the right to mount. With ``NO_OPEN``
requests name files by number alone, without handles.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from enum import IntEnum
from pathlib import Path

DEVICE = Path("/dev/fuse")
MAX_WRITE_BYTES = 1 << 20
REQUEST_BYTES = MAX_WRITE_BYTES + 4096

REQUEST_HEADER = struct.Struct("<IIQQIIIHH")
ANSWER_HEADER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4Q2I")
ATTRIBUTES_ANSWER = struct.Struct("<Q2I")
SET_ATTRIBUTES = struct.Struct("<2I6Q8I")
MKNOD = struct.Struct("<4I")
MKDIR = struct.Struct("<2I")
RENAME = struct.Struct("<Q")
RENAME2 = struct.Struct("<Q2I")
LINK = struct.Struct("<Q")
READ = struct.Struct("<2Q2IQ2I")
WRITTEN = struct.Struct("<2I")
FSYNC = struct.Struct("<Q2I")
FORGET = struct.Struct("<Q")
FORGET_COUNT = struct.Struct("<2I")
FORGET_ONE = struct.Struct("<2Q")
DIRECTORY_ENTRY = struct.Struct("<2Q2I")
STATFS = struct.Struct("<5Q4I6I")
INIT = struct.Struct("<4I")
INIT_ANSWER = struct.Struct("<4I2H2I2HI7I")

SET_MODE, SET_OWNER, SET_GROUP, SET_SIZE, SET_ACCESS_TIME, SET_CHANGE_TIME = (
    1 << bit for bit in range(6)
)
_FOREVER_SECONDS = 1 << 30
_MS_NODEV_NOSUID = 4 | 2
_MNT_DETACH = 2
_CAP_SYS_ADMIN = 21
_BIG_WRITES, _NO_OPEN, _MAX_PAGES, _NO_OPENDIR = 1 << 5, 1 << 17, 1 << 22, 1 << 24


class Opcode(IntEnum):
    """The served requests; all others are answered with ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    READ = 15
    WRITE = 16
    STATFS = 17
    FSYNC = 20
    INIT = 26
    READDIR = 28
    FSYNCDIR = 30
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    RENAME2 = 45


def missing() -> str:
    """Name what this machine lacks for a user-space file system; return "" if it has all."""
    if not DEVICE.exists():
        return f"there is no {DEVICE}: load the kernel module (modprobe fuse)"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"this user may not open {DEVICE}: run as root, or chmod 666 {DEVICE}"
    if not _capabilities() >> _CAP_SYS_ADMIN & 1:
        return "this process may not mount: run as root, or: unshare --map-root-user --mount"
    return ""


def _capabilities() -> int:
    """Return the capabilities of this process, one bit each."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line[7:], 16) for line in lines if line.startswith("CapEff:")), 0)


def mount(directory: Path) -> int:
    """Mount a file system on a directory; return the descriptor that its requests come from.

    :raises OSError: the system does not let this process mount.
    """
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={descriptor},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (b"powerloss", bytes(directory), b"fuse.powerloss", _MS_NODEV_NOSUID)
    if libc.mount(*arguments, options.encode()):
        error = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(error, os.strerror(error), str(directory))
    return descriptor


def unmount(directory: Path) -> None:
    """Unmount; users of its files get errors. Do nothing if nothing is mounted there."""
    ctypes.CDLL(None, use_errno=True).umount2(bytes(directory), _MNT_DETACH)


def init_answer(body: bytes) -> bytes:
    """Answer the kernel's first request."""
    _, _, read_ahead, offered = INIT.unpack_from(body)
    flags = offered & (_BIG_WRITES | _NO_OPEN | _MAX_PAGES | _NO_OPENDIR)
    if not flags & _NO_OPEN or not flags & _NO_OPENDIR:
        raise OSError(errno.EPROTO, "this kernel wants open files; Linux 5.1 does not")
    pages = MAX_WRITE_BYTES // os.sysconf("SC_PAGE_SIZE")
    return INIT_ANSWER.pack(
        *(7, 31, read_ahead, flags, 16, 12, MAX_WRITE_BYTES, 1, pages, 0, 0), *([0] * 7)
    )


def attributes(number: int, found: os.stat_result) -> bytes:
    """Pack the attributes of a file from its stat result."""
    seconds = [ns // 10**9 for ns in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    rest = [ns % 10**9 for ns in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)]
    owner = (found.st_mode, found.st_nlink, found.st_uid, found.st_gid)
    return ATTRIBUTES.pack(
        *(number, found.st_size, found.st_blocks, *seconds, *rest, *owner, 0, 4096, 0)
    )


def attributes_answer(number: int, found: os.stat_result) -> bytes:
    """Answer GETATTR and SETATTR. The kernel may cache: all changes pass through it."""
    return ATTRIBUTES_ANSWER.pack(_FOREVER_SECONDS, 0, 0) + attributes(number, found)


def entry_answer(number: int, found: os.stat_result) -> bytes:
    """Answer a request that looks up or makes a name."""
    times = (_FOREVER_SECONDS, _FOREVER_SECONDS, 0, 0)
    return ENTRY.pack(number, 0, *times) + attributes(number, found)


def directory_entry(number: int, name: bytes, mode: int, following: int) -> bytes:
    """Pack an entry of a READDIR answer; ``following`` is the place of the next one."""
    head = DIRECTORY_ENTRY.pack(number, following, len(name), stat.S_IFMT(mode) >> 12)
    return (head + name).ljust(-(-(len(head) + len(name)) // 8) * 8, b"\0")


def statfs_answer(found: os.statvfs_result) -> bytes:
    """Answer STATFS."""
    blocks = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
    return STATFS.pack(*blocks, found.f_bsize, found.f_namemax, found.f_frsize, 0, *([0] * 6))
