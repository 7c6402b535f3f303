# Tests: tests/archive/test_regular_file.py
"""Opens files of which anything may have taken the place, without waiting for it.

Opening a pipe waits for somebody to write, and a device has no end: either would hold up its reader
for good.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: str | Path) -> int:
    """The descriptor of a file opened for reading. Raises OSError, also for what is no file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """All of a file. Raises OSError, EFBIG for one of more than ``bytes_max``."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            raise OSError(errno.EFBIG, f"it has {size} bytes", str(path))
        return file.read(bytes_max)
