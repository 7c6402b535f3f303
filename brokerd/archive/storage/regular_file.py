# Tests: tests/archive/test_regular_file.py
"""Opens only regular files, so that a pipe or a device in their place does not block the reader.

Opening a pipe waits for a writer, and a device has no end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: str | Path) -> int:
    """Open a file for reading, and return the descriptor.

    Raises OSError; the error is EINVAL if it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_regular(path: str | Path, bytes_max: int) -> bytes:
    """Read a whole file. Raises OSError; the error is EFBIG if it exceeds ``bytes_max``."""
    with open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > bytes_max:
            raise OSError(errno.EFBIG, f"it has {size} bytes", str(path))
        return file.read(bytes_max)
