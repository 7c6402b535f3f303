# Tests: tests/simulator/test_crashpoints.py
"""Run a workload and check the state after a crash at selected points.

Each workload runs twice: first to record its requests and answers, then to crash. Both runs must be
the same to the byte.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

from brokerd.errors import BrokerdError
from simulator.crashpoints import archive, changes
from simulator.crashpoints.backup import Backups
from simulator.crashpoints.bucket import (
    BucketScript,
    fault_problems,
    requests_of,
    throttled_problems,
)
from simulator.crashpoints.check import PROBLEMS_MAX, check_broker
from simulator.crashpoints.drawn import DRAWN, DrawnPlay
from simulator.crashpoints.expect import RecordedRun
from simulator.crashpoints.log import LogScript, check_log
from simulator.crashpoints.points import CHANGING, LOST, TREE_CHANGING, Hooked, Point, Points
from simulator.crashpoints.rollup import RollupScript, SealedLog, check_rollup
from simulator.crashpoints.runs import Strike, problems, problems_after_kill, strikes
from simulator.crashpoints.script import Script
from simulator.machine.bucket import CHANGING as BUCKET_CHANGING
from simulator.machine.crash import CrashModel
from simulator.machine.tree_disk import TreeDisk
from simulator.plan import Plan

Visit = Callable[[Point, CrashModel], list[str]]


class Workload(Protocol):
    """One play of a fixed workload on a simulated disk."""

    def play(self) -> None: ...

    def digest(self) -> str:
        """Return a text that is the same for the same play."""


class Finding(NamedTuple):
    """A fault. ``point`` is None if the workload itself failed."""

    point: Point | None
    model: CrashModel | None
    text: str


class Outcome(NamedTuple):
    """The result of a sweep over a workload or a share of it."""

    workload: str
    calls: Counter[str]
    """Changing disk calls of the whole workload by name; each has one or two points."""
    points: int
    """The number of all points, checked or not."""
    checks: Counter[str]
    """Number of checks, points times models, by name of the call."""
    findings: list[Finding]

    @property
    def losses(self) -> int:
        """Number of checks that found an acknowledged loss."""
        lost = (f for f in self.findings if f.text.startswith(LOST))
        return len({(finding.point, finding.model) for finding in lost})


def sweep(
    workload: str,
    wanted: Callable[[int], bool],
    models: Iterable[CrashModel] = tuple(CrashModel),
) -> Outcome:
    """Check the points that ``wanted(number)`` accepts, with each of the models."""
    return WORKLOADS[workload](wanted, tuple(models))


def _sweep_broker(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    known, script = Script(), Script()
    problem = _play(known)
    expected = lru_cache(maxsize=1)(RecordedRun(known).at)

    def check(point: Point, model: CrashModel) -> list[str]:
        left = point.crashed(script.disk, model)
        return check_broker(left, point, model, expected(script.world.now_us))

    return _sweep("broker", known, script, problem, _Share(wanted, models, check, script.disk))


def _sweep_log(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    known, script = LogScript(), LogScript()
    problem = _play(known)

    def check(point: Point, model: CrashModel) -> list[str]:
        return check_log(point.crashed(script.disk, model), point, model, script)

    return _sweep("log", known, script, problem, _Share(wanted, models, check, script.disk))


def _sweep_killed_log(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    """Kill the process at each point, start again, and lose the power a few steps later."""
    known, script = LogScript(), LogScript()
    problem = _play(known)

    def check(point: Point, model: CrashModel) -> list[str]:
        try:
            run = script.killed_run(model, point.chance(model))
        except Exception:
            return [traceback.format_exc()]  # any error: the log should have gone on
        return check_log(run.disk, point, model, run)

    share = _Share(wanted, models, check, script.disk)
    return _sweep("killed-log", known, script, problem, share)


def _sweep_backup(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    """Make backups at each point and restore one. No power is lost during the workload."""
    known, script = LogScript(), LogScript()
    problem = _play(known)
    backups = Backups(script)

    def noted(number: int) -> bool:
        backups.note(number)
        return wanted(number)

    share = _Share(noted, models, backups.check, script.disk)
    return _sweep("backup", known, script, problem, share)


def _sweep_rollup(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    log = SealedLog()
    known, script = RollupScript(log), RollupScript(log)
    problem = _play(known)

    def check(point: Point, model: CrashModel) -> list[str]:
        left = point.crashed(script.disk, model)
        assert isinstance(left, TreeDisk)
        again = RollupScript(log, left, chance=point.chance(model))
        return check_rollup(again, script.acknowledged)

    share = _Share(wanted, models, check, script.disk, TREE_CHANGING)
    return _sweep("rollup", known, script, problem, share)


def _sweep_bucket(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    """Kill the job at each request that changes the bucket. The disk loses nothing by it."""
    log = SealedLog()
    known, script = BucketScript(log), BucketScript(log)
    problem = _play(known)

    def check(point: Point, model: CrashModel) -> list[str]:
        return check_rollup(script.fork(point.chance(model)), script.acknowledged)

    share = _Share(wanted, models[:1], check, script.bucket, BUCKET_CHANGING)
    return _sweep("bucket", known, script, problem, share)


def _sweep_requests(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    """Let one request to the bucket fail in each play. No power is lost."""
    log = SealedLog()
    requests = requests_of(log)
    checks: Counter[str] = Counter()
    findings: list[Finding] = []
    number = 0
    for nth, request in enumerate(requests, 1):
        for side in ("before", "after") if request.name in BUCKET_CHANGING else ("before",):
            number += 1
            if wanted(number):
                checks[request.name] += 1
                point = Point("requests", number, side, request.name, request.path)
                texts = fault_problems(log, nth, is_lost=side == "after")
                findings += (Finding(point, models[0], text) for text in texts[:PROBLEMS_MAX])
    calls = Counter(request.name for request in requests)
    return Outcome("requests", calls, number, checks, findings)


def _sweep_throttled(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    """Throttle the bucket from one request on in each play. No power is lost."""
    log = SealedLog()
    requests = requests_of(log)
    checks: Counter[str] = Counter()
    findings: list[Finding] = []
    for number, request in enumerate(requests, 1):
        if wanted(number):
            checks[request.name] += 1
            point = Point("throttled", number, "before", request.name, request.path)
            texts = throttled_problems(log, number)
            findings += (Finding(point, models[0], text) for text in texts[:PROBLEMS_MAX])
    calls = Counter(request.name for request in requests)
    return Outcome("throttled", calls, len(requests), checks, findings)


def _sweep_drawn(wanted: Callable[[int], bool], models: tuple[CrashModel, ...]) -> Outcome:
    """Play archives of their own, each drawn from its number."""
    checks: Counter[str] = Counter()
    findings: list[Finding] = []
    calls: Counter[str] = Counter()
    for number in range(1, DRAWN + 1):
        play = DrawnPlay(number)
        calls[play.place] += 1
        if wanted(number):
            checks[play.place] += 1
            point = Point("drawn", number, "before", play.place, "its end")
            findings += (Finding(point, models[0], text) for text in play.problems()[:PROBLEMS_MAX])
    return Outcome("drawn", calls, DRAWN, checks, findings)


def _sweep_power_losses(
    workload: str, plan: Plan, wanted: Callable[[int], bool], models: tuple[CrashModel, ...]
) -> Outcome:
    def check(strike: Strike, point: Point, model: CrashModel) -> list[str]:
        return problems(plan, strike, model)

    return _sweep_runs(workload, plan, check, wanted, models)


def _sweep_kills(
    workload: str, plan: Plan, wanted: Callable[[int], bool], models: tuple[CrashModel, ...]
) -> Outcome:
    """Kill the process at each point, start again, and lose the power in that life."""

    def check(strike: Strike, point: Point, model: CrashModel) -> list[str]:
        return problems_after_kill(plan, strike, model, point.chance(model))

    return _sweep_runs(workload, plan, check, wanted, models)


def _sweep_runs(
    workload: str,
    plan: Plan,
    check: Callable[[Strike, Point, CrashModel], list[str]],
    wanted: Callable[[int], bool],
    models: tuple[CrashModel, ...],
) -> Outcome:
    """Play the plan once for each point and model."""
    checks: Counter[str] = Counter()
    findings: list[Finding] = []
    found = strikes(plan)
    for number, strike in enumerate(found, 1):
        for model in models if wanted(number) else ():
            checks[strike.call] += 1
            point = Point(workload, number, "before", strike.call, f"call {strike.nth}")
            texts = check(strike, point, model)
            findings += (Finding(point, model, text) for text in texts[:PROBLEMS_MAX])
    calls = Counter[str](strike.call for strike in found)
    return Outcome(workload, calls, len(found), checks, findings)


WORKLOADS: dict[str, Callable[[Callable[[int], bool], tuple[CrashModel, ...]], Outcome]] = {
    "broker": _sweep_broker,
    "log": _sweep_log,
    "killed-log": _sweep_killed_log,
    "backup": _sweep_backup,
    "changes": partial(_sweep_power_losses, "changes", changes.PLAN),
    "killed-changes": partial(_sweep_kills, "killed-changes", changes.PLAN),
    "archive": partial(_sweep_power_losses, "archive", archive.PLAN),
    "killed-archive": partial(_sweep_kills, "killed-archive", archive.PLAN),
    "rollup": _sweep_rollup,
    "bucket": _sweep_bucket,
    "requests": _sweep_requests,
    "throttled": _sweep_throttled,
    "drawn": _sweep_drawn,
}


class _Share(NamedTuple):
    wanted: Callable[[int], bool]
    models: tuple[CrashModel, ...]
    check: Visit
    watched: Hooked
    """The disk or bucket whose calls are crash points."""
    changing: Collection[str] = CHANGING
    """The names of these calls."""


def _sweep(
    workload: str,
    known: Workload,
    script: Workload,
    problem: str | None,
    share: _Share,
) -> Outcome:
    checks: Counter[str] = Counter()
    findings: list[Finding] = []

    def visit(point: Point) -> None:
        for model in share.models:
            checks[point.call] += 1
            findings.extend(Finding(point, model, text) for text in share.check(point, model))

    points = Points(workload, share.wanted, visit, share.changing)
    points.watch(share.watched)
    again = _play(script)
    if problem is not None:
        findings.append(Finding(None, None, f"the workload fails: {problem}"))
    if again != problem or script.digest() != known.digest():
        findings.append(Finding(None, None, "the workload is not the same when played again"))
    return Outcome(workload, points.calls, points.count, checks, findings)


def _play(script: Workload) -> str | None:
    """Play a workload to its end; return None, or the reason of its failure."""
    try:
        script.play()
    except (BrokerdError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return None
