# Tests: tests/test_assembly.py
"""The computer a broker runs on: its disk, threads, clocks and chance, as one argument.

`RealHost` is the operating system. The simulator has another, on which nothing happens by itself.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from brokerd.archive.contract.view import Archive
from brokerd.archive.serve.lazy import LazyArchive
from brokerd.archive.storage.address import Place
from brokerd.schemas.checker import CheckProcesses, CheckRunner
from brokerd.server.bounded_call import bounded_call
from brokerd.server.garbage import GarbageFreezer
from brokerd.wal import Committer, DirectoryLock, Disk, RealDisk, ThreadCommitter
from brokerd.wal.committer import STOP_SECONDS, Mutex

SWITCH_INTERVAL_SECONDS = 0.0005
"""Longest time for which a busy reactor keeps a thread with a finished sync waiting."""
RELEASE_SECONDS = 5.0
"""Longest time for which the release of the lock blocks the reactor. A hung disk never ends it."""


OpenArchive = Callable[[Place, str], Archive]


class Threads(Committer, Protocol):
    """Threads that run what is submitted, once started."""

    def start(self) -> None: ...

    def stop(self, seconds: float = STOP_SECONDS) -> list[str]:
        """Let the threads finish what was submitted, and wait for them ``seconds`` at most.

        Returns the names of the threads that are still at work.
        """


class Lock(Protocol):
    """The lock on a data directory."""

    def acquire(self, file_system: str = "", allow_network: bool = False) -> None:
        """Take it, or raise DirectoryLocked or UnsafeFileSystem."""

    def release(self) -> None: ...


class Host(Protocol):
    """What a broker needs of its computer."""

    @property
    def reactor(self) -> Any:
        """The clock and the calls into its own thread: ``seconds`` is monotonic."""

    @property
    def disk(self) -> Disk: ...

    def prepare(self) -> int:
        """Get the process ready; returns how many files it may have open."""

    def begin_replay(self) -> None:
        """The state is about to be rebuilt."""

    def begin_serving(self) -> None:
        """The state is rebuilt, and nearly all that there is in memory stays."""

    def end_serving(self) -> None:
        """Undo `begin_replay` and `begin_serving`, if they were called."""

    def lock(self, data_dir: Path) -> Lock: ...

    def threads(self, name: str, count: int = 1) -> Threads: ...

    def make_lock(self) -> Mutex:
        """A lock between those threads."""

    def random_bytes(self, count: int) -> bytes: ...

    def wall_seconds(self) -> float:
        """Seconds since the Unix epoch, as the wall clock has it; it may jump."""

    @property
    def open_archive(self) -> OpenArchive | None:
        """Gives the archive at a place, of the log with an id; None: there are no archives."""

    def schema_check_runner(self) -> CheckRunner:
        """Where schemas are looked at."""


class BoundedLock(DirectoryLock):
    """A `DirectoryLock` whose release does not block a stop: the kernel releases it at the exit."""

    def release(self) -> None:
        bounded_call(super().release, RELEASE_SECONDS)


class RealHost:
    """This process, its files and its threads."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.disk: Disk = RealDisk()
        self._garbage = GarbageFreezer()

    def prepare(self) -> int:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        return raise_descriptor_limit()

    def begin_replay(self) -> None:
        self._garbage.pause()

    def begin_serving(self) -> None:
        self._garbage.begin()

    def end_serving(self) -> None:
        self._garbage.end()

    def lock(self, data_dir: Path) -> Lock:
        return BoundedLock(str(data_dir))

    def threads(self, name: str, count: int = 1) -> Threads:
        return ThreadCommitter(self.reactor.callFromThread, count, name=name)

    def make_lock(self) -> Mutex:
        return threading.Lock()

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def wall_seconds(self) -> float:
        return time.time()

    @property
    def open_archive(self) -> OpenArchive | None:
        return LazyArchive

    def schema_check_runner(self) -> CheckRunner:
        return CheckProcesses()


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open files to the hard one; returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
