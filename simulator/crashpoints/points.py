# Tests: tests/simulator/test_crashpoints.py
"""Crash points: the moments just before and just after each call that changes the disk.

A workload runs once for each process that checks a share of its points. A visitor sees the disk as
it is at a loss of power, and must work on forks only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection
from random import Random
from typing import Any, NamedTuple, Protocol

from brokerd.errors import BrokerdError
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk

CHANGING = ("create", "pwrite", "sync", "truncate", "rename", "unlink", "sync_directory")
"""Calls that change the disk, or the data that survives a loss of power."""
TREE_CHANGING = (*CHANGING, "mkdir", "link")
"""The same of a disk with directories."""

LOST = "LOST: "
"""First word of the text about an acknowledged loss."""


class AnyCall(Protocol):
    """A call of a disk, or a request to a bucket."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...


class Hooked(Protocol):
    """A disk or bucket that calls ``enter`` before and ``leave`` after the effect of each call."""

    enter: Callable[[Any], None]
    leave: Callable[[Any], None]


class WorkloadFailure(BrokerdError):
    """The workload failed by itself, before any crash."""


def require(condition: object, text: object) -> None:
    """Raise WorkloadFailure with ``text`` unless ``condition`` is true."""
    if not condition:
        raise WorkloadFailure(str(text))


class Point(NamedTuple):
    """One crash point. The same number is the same moment in every run of its workload."""

    workload: str
    number: int
    """Number of the point, from 1."""
    side: str
    """``before`` or ``after`` the call's effect."""
    call: str
    name: str
    """Name of the file or directory."""

    def __str__(self) -> str:
        return f"{self.workload}:{self.number} ({self.side} {self.call} of {self.name})"

    def crashed(self, disk: SimDisk, model: CrashModel) -> SimDisk:
        """Return a new disk with the data that survives a loss of power at this point."""
        left = disk.fork()
        left.crash(model, self.chance(model))
        return left

    def chance(self, model: CrashModel) -> Random:
        """Return the random numbers of one check, the same in every run."""
        return Random(f"{self.workload}/{self.number}/{model.value}")


class Points:
    """The crash points of one run. Counts all, and calls ``visit(point)`` at selected ones."""

    def __init__(
        self,
        workload: str,
        wanted: Callable[[int], bool],
        visit: Callable[[Point], None],
        changing: Collection[str] = CHANGING,
    ) -> None:
        self.calls: Counter[str] = Counter()
        """Number of changing calls by name; each is two points."""
        self.count = 0
        self._workload = workload
        self._wanted = wanted
        self._visit = visit
        self._changing = changing

    def watch(self, watched: Hooked) -> None:
        """Count the calls of a disk or bucket from now on. Its hooks are called as before."""
        enter, leave = watched.enter, watched.leave

        def entered(call: AnyCall) -> None:
            enter(call)
            if call.name in self._changing:
                self.calls[call.name] += 1
                self._pass(call, "before")

        def left(call: AnyCall) -> None:
            if call.name in self._changing:
                self._pass(call, "after")
            leave(call)

        watched.enter, watched.leave = entered, left

    def _pass(self, call: AnyCall, side: str) -> None:
        self.count += 1
        if self._wanted(self.count):
            name = os.path.basename(call.path)
            self._visit(Point(self._workload, self.count, side, call.name, name))
