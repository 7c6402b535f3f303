# Tests: tests/test_descriptors.py
"""The file descriptors of this process that are left."""

from __future__ import annotations

import errno
import os
import resource


def descriptors_left() -> int:
    """Return how many descriptors above the lowest free one the process may open.

    The system gives the lowest free number, so all below it are in use. Takes some microseconds.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        most = 1 << 20
    try:
        lowest = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return 0 if error.errno in (errno.EMFILE, errno.ENFILE) else most
    os.close(lowest)
    return most - lowest
