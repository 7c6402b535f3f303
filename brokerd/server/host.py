# Tests: tests/test_assembly.py
"""The computer of a broker as one argument: disk, threads, clocks, randomness.

`RealHost` is the operating system. The simulator has a deterministic one.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from brokerd.archive.contract.view import Archive
from brokerd.archive.serve.lazy import LazyArchive
from brokerd.archive.storage.address import Place
from brokerd.protocols.base.connection import account_of
from brokerd.protocols.base.transport import DirectReads, read_directly
from brokerd.schemas.checker import CheckProcesses, CheckRunner
from brokerd.server.bounded_call import bounded_call
from brokerd.server.descriptors import descriptors_left
from brokerd.server.garbage import GarbageFreezer
from brokerd.server.machine_memory import memory_bytes, trim_heap
from brokerd.server.time_slices import ask_for_slices
from brokerd.wal import DirectoryLock, Disk, RealDisk
from brokerd.worker_pool import STOP_SECONDS, CommitPool, Mutex, ThreadPool

SWITCH_INTERVAL_SECONDS = 0.0005
"""Longest time for which a busy reactor keeps a thread with a finished sync waiting."""
RELEASE_SECONDS = 5.0
"""Longest time for which the release of the lock blocks the reactor. A hung disk never ends it."""


OpenArchive = Callable[[Place, str], Archive]


class Threads(CommitPool, Protocol):
    """Threads that run submitted work, once started."""

    def start(self) -> None: ...

    def stop(self, seconds: float = STOP_SECONDS) -> list[str]:
        """Let the threads finish the submitted work; wait ``seconds`` at most.

        Returns the names of the threads that still run.
        """


class Lock(Protocol):
    """The lock on a data directory."""

    def acquire(self, file_system: str = "", allow_network: bool = False) -> None:
        """Take the lock, or raise DirectoryLocked or UnsafeFileSystem."""

    def release(self) -> None: ...


class Host(Protocol):
    """The interface between a broker and its computer."""

    @property
    def reactor(self) -> Any:
        """The reactor; its ``seconds`` is monotonic."""

    @property
    def disk(self) -> Disk: ...

    def prepare(self) -> int:
        """Prepare the process; return its limit on open files."""

    def memory_bytes(self) -> int:
        """Return the memory that the process may use."""

    def trim_memory(self) -> None:
        """Return memory that is free in the process to the system."""

    def descriptors_left(self) -> int:
        """Return how many more files the process may open."""

    def begin_replay(self) -> None:
        """Prepare for the replay."""

    def call_at_turn_end(self, function: Callable[[], None]) -> None:
        """Call ``function`` in the reactor's thread when the events of this turn are handled."""

    def begin_serving(self, before_heavy: Callable[[], None]) -> Callable[[], bool]:
        """Prepare for serving: nearly all objects in memory are long-lived now.

        The reactor calls ``before_heavy`` before a heavy read that follows a light one soon.
        Return a function that tells whether a light request is to be read.
        """

    def records_kept(self, count: int) -> None:
        """Note that so many records in memory are complete: they change no more."""

    def end_serving(self) -> None:
        """Undo `begin_replay` and `begin_serving`, if they were called."""

    def lock(self, data_dir: Path) -> Lock: ...

    def threads(self, name: str, count: int = 1, *, is_awaited: bool = False) -> Threads:
        """Make threads. Clients wait for the work of those that ``is_awaited``."""

    def make_lock(self) -> Mutex:
        """Make a lock between those threads."""

    def random_bytes(self, count: int) -> bytes: ...

    def wall_seconds(self) -> float:
        """Return wall clock seconds since the Unix epoch; they may jump."""

    @property
    def open_archive(self) -> OpenArchive | None:
        """Opens the archive of a log id at a place; None: this host has no archives."""

    def schema_check_runner(self) -> CheckRunner:
        """Make the runner of schema checks."""


class BoundedLock(DirectoryLock):
    """A `DirectoryLock` whose release does not block a stop: the kernel releases it at the exit."""

    def release(self) -> None:
        with suppress(OSError):
            bounded_call(super().release, RELEASE_SECONDS)


class RealHost:
    """This process, its files and its threads."""

    def __init__(self, reactor: Any) -> None:
        self.reactor = reactor
        self.disk: Disk = RealDisk()
        self._garbage = GarbageFreezer()
        self._reads = DirectReads(reactor)

    def prepare(self) -> int:
        sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
        return raise_descriptor_limit()

    def memory_bytes(self) -> int:
        return memory_bytes()

    def trim_memory(self) -> None:
        trim_heap()

    def descriptors_left(self) -> int:
        return descriptors_left()

    def begin_replay(self) -> None:
        self._garbage.pause()

    def call_at_turn_end(self, function: Callable[[], None]) -> None:
        self._reads.call_at_turn_end(function)

    def begin_serving(self, before_heavy: Callable[[], None]) -> Callable[[], bool]:
        self._garbage.begin()
        ask_for_slices()
        self._reads = read_directly(self.reactor, before_heavy, account_of=account_of)
        return lambda: self._reads.light_arrives()

    def records_kept(self, count: int) -> None:
        self._garbage.records_kept(count)

    def end_serving(self) -> None:
        self._garbage.end()
        ask_for_slices(0)
        self._reads.undo()

    def lock(self, data_dir: Path) -> Lock:
        return BoundedLock(str(data_dir))

    def threads(self, name: str, count: int = 1, *, is_awaited: bool = False) -> Threads:
        begin = ask_for_slices if is_awaited else None
        return ThreadPool(self.reactor.callFromThread, count, name=name, begin=begin)

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
    """Raise the soft limit on open files to the hard one; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
