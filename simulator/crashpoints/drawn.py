# Tests: tests/simulator/test_drawn.py
"""Archives of their own, each drawn from a number: its log, its place, its runs and their faults.

The fixed workload of `simulator.crashpoints.rollup` runs with the same log and settings again and
again. Here numbers draw the batches of each segment, a directory or a bucket, the settings, the
steps of each run, and the end of the run: a kill, a loss of power, one failed call, a full disk, a
throttled bucket, or none. After each run, table and journal together must hold every record. A run
without an error must complete the archive.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from brokerd.archive.run import Settings
from brokerd.errors import BrokerdError
from simulator.crashpoints.bucket import BucketScript, Throttling, draw_throttle
from simulator.crashpoints.points import TREE_CHANGING, AnyCall, Hooked, require
from simulator.crashpoints.rollup import RollupScript, SealedLog, Steps
from simulator.machine.bucket import CHANGING as BUCKET_CHANGING
from simulator.machine.bucket import Request, lose_answer, refuse
from simulator.machine.crash import CrashModel
from simulator.machine.disk import PowerLost

DRAWN = 400
"""The archives of a sweep."""
KIB = 1 << 10
RUNS_MAX = 6
CALLS_MAX = 300
"""The last call that a fault may strike. A run makes about as many."""
_SPAN_MAX = 40
"""The most calls that a full disk refuses."""


class Fault(NamedTuple):
    """The end of a run."""

    kind: str
    """``none``, ``kill``, ``power``, ``error``, ``full``, ``lost``, ``throttled``."""
    nth: int = 0
    """The call or request that it strikes, counted from 1 in the run."""
    is_before: bool = True
    """Whether a kill or a loss of power comes before the effect of that call."""
    model: CrashModel = CrashModel.DROP
    calls: int = 1
    """The number of calls that a full disk refuses."""


class DrawnRun(NamedTuple):
    """A run of the job."""

    seals: int
    """The number of segments that are sealed before it."""
    steps: Steps
    fault: Fault


class DrawnPlay:
    """One archive, from its first segment to its last run."""

    def __init__(self, number: int) -> None:
        self._chance = Random(f"drawn/{number}")
        self.place = self._chance.choice(("directory", "bucket"))
        self.runs = self._draw_runs()
        self.ends: list[str] = []
        """The fault of each run that struck."""
        self.found: list[str] = []
        """The broken promises."""
        self._is_dead = False

    def problems(self) -> list[str]:
        """Play, and return the broken promises."""
        try:
            self.play()
        except Exception:
            self.found.append(traceback.format_exc())  # any error: only a fault may end a run
        return self.found

    def digest(self) -> str:
        """Return a text that is the same for the same play."""
        return f"{self.ends} {self.script.digest()}"

    def play(self) -> None:
        """Make all runs, and two whole ones around a loss of power.

        Raises the error of a run without a fault.
        """
        script = self.script = self._script()
        with script.simulated():
            script.make_journal()
        sealed = iter(script.log.segments)
        for run in self.runs:
            # A loss of power may leave nothing of the job's own directories.
            with script.simulated():
                for _ in range(run.seals):
                    script.seal(next(sealed))
                self._run(run)
        with script.simulated():
            script.run_job()
            self._judge(is_complete=True)
            script.disk.crash(CrashModel.DROP)
            self._judge(is_complete=True)
            script.run_job()
            self._judge(is_complete=True)

    # -- drawing -----------------------------------------------------------------------------------

    def _draw_runs(self) -> list[DrawnRun]:
        chance = self._chance
        count = chance.randint(1, RUNS_MAX)
        settings = Settings(
            lot_bytes=chance.choice((1, 4 * KIB, 1 << 30)),
            file_bytes=chance.choice((KIB, 64 * KIB, 128 << 20)),
            vacuum_hours=chance.choice((0, 1, 24)),
        )
        return [
            DrawnRun(
                chance.choice((0, 1, 1, 2, 3)) if number else chance.randint(1, 3),
                Steps(
                    settings,
                    merges=chance.random() < 0.3,
                    merges_by_policy=chance.random() < 0.6,
                    vacuums=chance.random() < 0.7,
                    deletes=chance.random() < 0.8,
                    hours=chance.choice((0, 1, 20, 200)),
                ),
                self._draw_fault(),
            )
            for number in range(count)
        ]

    def _draw_fault(self) -> Fault:
        chance = self._chance
        kinds = {
            "directory": ("none", "kill", "power", "power", "error", "full"),
            "bucket": ("none", "kill", "error", "lost", "throttled", "throttled"),
        }
        return Fault(
            chance.choice(kinds[self.place]),
            chance.randint(1, CALLS_MAX if chance.random() < 0.5 else CALLS_MAX // 6),
            chance.random() < 0.5,
            chance.choice(list(CrashModel)),
            chance.randint(1, _SPAN_MAX),
        )

    def _script(self) -> RollupScript:
        chance = self._chance
        topics = chance.randint(1, 4)

        def values() -> list[bytes]:
            count = chance.choice((0, 1, 2, 5))
            return [chance.randbytes(chance.choice((0, 10, 300, 3_000))) for _ in range(count)]

        segments = sum(run.seals for run in self.runs)
        batches = [[[b"first"], *(values() for _ in range(1, topics))] for _ in range(segments)]
        log = SealedLog(batches)
        names = Random(chance.getrandbits(64))
        in_bucket = self.place == "bucket"
        script = BucketScript(log, chance=names) if in_bucket else RollupScript(log, chance=names)
        script.every_commits = chance.choice((1, 2, 5))
        return script

    # -- running -----------------------------------------------------------------------------------

    def _run(self, run: DrawnRun) -> None:
        fault, script, before = run.fault, self.script, len(self.ends)
        end = self._arm(fault)
        failed: BaseException | None = None
        try:
            script.run_job(run.steps)
        except (PowerLost, BrokerdError, OSError) as error:
            failed = error
        end()
        require(failed is None or len(self.ends) > before, f"a run without a fault: {failed!r}")
        if self._is_dead:
            self._is_dead = False
            script.disk.kill()
            if fault.kind == "power":
                script.disk.crash(fault.model, self._chance)
        stop = script.report.stop
        is_whole = failed is None and (stop is None or not stop.is_problem)
        self._judge(is_complete=is_whole)
        script.remove_unsealed()

    def _judge(self, is_complete: bool) -> None:
        runs = ", ".join(self.ends) or "none"
        for text in self.script.problems(self.script.acknowledged, is_complete=is_complete):
            self.found.append(f"{text}; faults so far: {runs}")

    def _arm(self, fault: Fault) -> Callable[[], None]:
        """Let a fault strike from now on; return a function that ends it."""
        script = self.script
        watched: Hooked = script.bucket if isinstance(script, BucketScript) else script.disk
        if fault.kind == "throttled":
            assert isinstance(script, BucketScript)
            throttle = draw_throttle(self._chance, fault.nth)
            throttling = Throttling(script.bucket, throttle, self._chance)
            throttling.begin()
            return partial(self._end_throttling, throttling)
        quiet = watched.enter, watched.leave
        changing = BUCKET_CHANGING if self.place == "bucket" else TREE_CHANGING
        count = 0

        def enter(call: AnyCall) -> None:
            nonlocal count
            self._stay_dead()
            count += call.name in changing
            is_met = call.name in changing and count == fault.nth
            if fault.kind in ("kill", "power") and is_met and fault.is_before:
                self._die(fault, call)
            if fault.kind == "error" and is_met:
                self._fail(call, errno.EIO)
            in_span = fault.nth <= count < fault.nth + fault.calls
            if fault.kind == "full" and in_span and call.name in ("create", "pwrite", "mkdir"):
                self._fail(call, errno.ENOSPC)

        def leave(call: AnyCall) -> None:
            is_met = call.name in changing and count == fault.nth
            if fault.kind in ("kill", "power") and is_met and not fault.is_before:
                self._die(fault, call)
            if fault.kind == "lost" and is_met:
                self.ends.append(f"lost answer of {call.name} of {call.path}")
                lose_answer(Request(call.name, call.path))

        def end() -> None:
            watched.enter, watched.leave = quiet

        if fault.kind != "none":
            watched.enter, watched.leave = enter, leave
        return end

    def _end_throttling(self, throttling: Throttling) -> None:
        throttling.end()
        if throttling.failed:
            self.ends.append(f"{throttling.failed} throttled requests")

    def _fail(self, call: AnyCall, error: int) -> None:
        self.ends.append(f"{errno.errorcode[error]} of {call.name} of {call.path}")
        if self.place == "bucket":
            refuse(Request(call.name, call.path))
        raise OSError(error, os.strerror(error), call.path)

    def _die(self, fault: Fault, call: AnyCall) -> None:
        side = "before" if fault.is_before else "after"
        self.ends.append(f"{fault.kind} {side} {call.name} of {call.path}")
        self._is_dead = True
        self._stay_dead()

    def _stay_dead(self) -> None:
        """Raise PowerLost if the process is dead: what it does to clean up has no effect."""
        if self._is_dead:
            raise PowerLost("the process has ended")
