# Tests: tests/simulator/test_crashpoints.py
"""Crash points: the moments just before and just after each call that changes the disk.

A workload runs once for each process that checks a share of its points. A visitor sees the disk as
it is at a loss of power, and must work on forks only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from brokerd.errors import BrokerdError
from simulator.machine.crash import CrashModel
from simulator.machine.disk import Call, SimDisk

CHANGING = ("create", "pwrite", "sync", "truncate", "rename", "unlink", "sync_directory")
"""Calls that change the disk, or the data that survives a loss of power."""


LOST = "LOST: "
"""First word of the text about an acknowledged loss."""


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
        self, workload: str, wanted: Callable[[int], bool], visit: Callable[[Point], None]
    ) -> None:
        self.calls: Counter[str] = Counter()
        """Number of changing calls by name; each is two points."""
        self.count = 0
        self._workload = workload
        self._wanted = wanted
        self._visit = visit

    def watch(self, disk: SimDisk) -> None:
        """Count the calls of ``disk`` from now on; its hooks are still called."""
        enter, leave = disk.enter, disk.leave

        def entered(call: Call) -> None:
            enter(call)
            if call.name in CHANGING:
                self.calls[call.name] += 1
                self._pass(call, "before")

        def left(call: Call) -> None:
            if call.name in CHANGING:
                self._pass(call, "after")
            leave(call)

        disk.enter, disk.leave = entered, left

    def _pass(self, call: Call, side: str) -> None:
        self.count += 1
        if self._wanted(self.count):
            name = os.path.basename(call.path)
            self._visit(Point(self._workload, self.count, side, call.name, name))
