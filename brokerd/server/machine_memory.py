# Tests: tests/test_machine_memory.py
"""The memory that this process may use, and what the allocator keeps of it.

A container limits memory by a cgroup, version 1 or 2. The limit of any cgroup above counts too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or the lowest limit of a cgroup of this process."""
    return min([_physical_bytes(), *_cgroup_limits(root)])


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Yield the limits of the cgroups of this process; none where there are no cgroups."""
    mount = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _limits(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits(mount / "memory", path, "memory.limit_in_bytes")


def _limits(mount: Path, path: str, name: str) -> Iterator[int]:
    group = PurePosixPath("/") / path
    for above in (group, *group.parents):
        text = _read(mount / str(above).lstrip("/") / name).strip()
        if text.isdigit():  # "max" is no limit
            yield int(text)


def _read(path: Path) -> str:
    """Return the text of a file of the kernel; "" if it is absent or not readable."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def trim_heap() -> bool:
    """Return free pages of the heap to the system; return False with another C library.

    After the first free of a large block, glibc takes further ones from its heap, and keeps their
    pages. A lower threshold for blocks with pages of their own (``M_MMAP_THRESHOLD``) would return
    them too, but then each megabyte takes half a millisecond of page faults.
    """
    trim = _function("malloc_trim")
    return trim is not None and bool(trim(0))


def _function(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None if the C library has none of this name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
    return function
