# Tests: tests/test_time_slices.py
"""Short time slices for threads for which clients wait.

Linux (6.12 and newer) lets a thread ask for the length of its time slices: ``sched_runtime`` of
sched_setattr(2), as its EEVDF scheduler reads it. A thread with short slices gets no more of the
processor. It runs sooner when it wakes: it need not wait for the end of another thread's slice,
which is 1.4 ms or more. Older kernels accept the call and ignore it.
"""

from __future__ import annotations

import ctypes
import platform
from struct import Struct

SHORT_SLICE_NS = 100_000
"""The shortest slice that the kernel grants."""

_ATTRIBUTES = Struct("=IIQiIQQQ")
"""``struct sched_attr``: size, policy, flags, nice, priority, runtime, deadline, period. The
runtime of an ordinary thread is its slice in nanoseconds; 0 asks for the default."""

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""Numbers of ``sched_setattr`` and ``sched_getattr``, by machine."""

_ORDINARY = 0
"""``SCHED_OTHER``. Other policies are an operator's choice and stay as they are."""


def ask_for_slices(slice_ns: int = SHORT_SLICE_NS) -> bool:
    """Ask for slices of this length for the calling thread, 0 for the default.

    Threads and processes that it starts later inherit them. Return False where the system has no
    such call, or the thread is not an ordinary one.
    """
    attributes = _attributes()
    if attributes is None or attributes[1] != _ORDINARY:
        return False
    asked = _ATTRIBUTES.pack(*attributes[:5], slice_ns, *attributes[6:])
    return _call(0, ctypes.create_string_buffer(asked, len(asked)), 0)


def _attributes() -> tuple[int, ...] | None:
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if not _call(1, found, _ATTRIBUTES.size, 0):
        return None
    return _ATTRIBUTES.unpack(found.raw)


def _call(which: int, *arguments: object) -> bool:
    """Make a system call about the calling thread; return whether it succeeds."""
    if platform.system() != "Linux" or platform.machine() not in _CALLS:
        return False
    number = _CALLS[platform.machine()][which]
    return bool(ctypes.CDLL(None).syscall(number, 0, *arguments) == 0)
