"""Plans run from beginning to audit: the same again each time, and violations are seen."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred, fail

from brokerd.broker.status.overview import Overview
from brokerd.groups import LeaseStore
from brokerd.protocols.base.connection import Connection, QueuedAnswers
from simulator import plan
from simulator.draw import generate
from simulator.machine.machine import Machine
from simulator.plan import ClientPlan, Plan, Topic
from simulator.run import Result, run

TOPICS = (Topic(name="orders"), Topic(name="wide", partitions=3))
SECOND = 1_000_000


def client(name: str, seed: int, **changes: Any) -> ClientPlan:
    values: dict[str, Any] = {
        "name": name,
        "identity": name,
        "role": "worker",
        "seed": seed,
        "operations": 240,
        "window": 4,
        "think_us": 100_000,
        "topics": TOPICS,
        "groups": ("g", "h"),
        "mix": {"produce": 3, "produce_batch": 2, "acquire": 3, "acquire_batch": 2, "settle": 4},
        "failure_permille": 200,
        "duration_us_min": SECOND,
        "duration_us_max": 5 * SECOND,
    }
    return ClientPlan(**{**values, **changes})


def plan_of(*faults: plan.AnyFault, seed: int = 1, **changes: Any) -> Plan:
    settings = plan.Settings(segment_bytes=65_536, snapshot_interval_bytes=20_000)
    values: dict[str, Any] = {
        "seed": seed,
        "end_us": 10 * SECOND,
        "settings": settings,
        "topics": TOPICS,
        "clients": (client("a", 1), client("b", 2), client("c", 3)),
        "faults": faults,
    }
    return Plan(**{**values, **changes})


def promises(result: Result) -> set[str]:
    return {violation.promise for violation in result.violations}


QUICK = plan_of(clients=(client("a", 1, operations=60, mix={"look": 1}),))
CRASHES = (
    plan.Kill(at_us=SECOND, at_call=3, down_us=1_000),
    plan.PowerLoss(at_us=2 * SECOND, at_call=2, model="drop", seed=1, down_us=1_000),
    plan.PowerLoss(at_us=3 * SECOND, model="reorder", seed=2, down_us=1_000),
)


def test_a_quiet_run_keeps_all_promises() -> None:
    """Nothing happens to the broker, and the audit finds what the clients did."""
    result = run(plan_of())
    assert result.violations == []
    assert [boot.end for boot in result.history.boots] == ["power", "stopped"]
    assert result.counts["operations"] > 600
    assert result.counts["unanswered"] == 0
    assert result.counts["leases_granted"] > 20


def test_crashes_strike_and_are_survived() -> None:
    """Each begins another life of the broker."""
    result = run(plan_of(*CRASHES))
    assert result.violations == []
    ends = [boot.end for boot in result.history.boots]
    assert ends == ["killed", "power", "power", "power", "stopped"]
    assert result.counts["unanswered"] > 0


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            plan.DiskError(
                at_us=SECOND,
                call="sync",
                at_call=1,
                error="EIO",
                seed=1,
                down_us=1_000,
                power="tear",
            ),
            "boot 0 failed",
        ),
        (plan.NoSpace(at_us=SECOND, for_us=SECOND), "the disk has space again"),
        (plan.SlowDisk(at_us=SECOND, for_us=SECOND, factor=50), "50 times slower"),
        (plan.Drop(at_us=SECOND, client="a"), "a#1 is cut"),
        (plan.Stall(at_us=SECOND, for_us=SECOND, client="a"), "a#1 stalls"),
        (plan.StopReading(at_us=SECOND, for_us=SECOND, client="a"), "a#1 reads nothing"),
        (plan.ClockStep(at_us=SECOND, by_us=-3_600 * SECOND), "the wall clock is set"),
        (plan.Stop(at_us=SECOND, down_us=SECOND), "boot 0 stopped"),
        (plan.Rot(at_us=SECOND, seed=3), "rots"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, plan.Fault) else "",
)
def test_every_fault_strikes_and_is_survived(fault: plan.AnyFault, said: str) -> None:
    """The trace says what was done, and the broker keeps its promises."""
    result = run(plan_of(fault))
    assert result.violations == []
    assert any(said in line for line in result.lines)


def test_a_crash_strikes_in_a_recovery() -> None:
    """When the count of calls begins with the next boot."""
    again = plan.Kill(at_us=SECOND, at_call=8, from_boot=True, down_us=1_000)
    result = run(plan_of(CRASHES[0], again))
    assert result.violations == []
    assert [boot.end for boot in result.history.boots[:2]] == ["killed", "killed"]
    assert result.history.boots[1].ready_us < 0


SHORT = [1_000_000 + seed for seed in (5, 6, 7, 8, 9)]
"""Seeds of runs that take a second or less."""
SEEDS = f"""
from simulator.draw import generate
from simulator.run import run
print([run(generate(seed)).digest for seed in {SHORT[:3]}])
"""


@pytest.mark.slow
def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    """To the byte, whatever the hash seed of the interpreter."""
    root = Path(__file__).resolve().parents[2]
    said = [
        subprocess.run(
            [sys.executable, "-c", SEEDS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert len(set(eval(said[0]))) == 3


# -- what it would find --------------------------------------------------------------------------


def test_an_answer_before_its_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the crash that follows."""

    put = Connection._put

    def put_as_durable(self: Connection, answers: QueuedAnswers) -> None:
        if answers.ticket is not None:
            answers.ticket = 0
        put(self, answers)

    monkeypatch.setattr(Connection, "_put", put_as_durable)
    slow = plan.DiskTimes(sync_us_min=5_000, sync_us_max=9_000)
    result = run(plan_of(*CRASHES, disk=slow))
    assert promises(result) & {"P1-kept", "P2-reuse", "P2-content"}


def test_a_lease_lost_by_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else is given the record while the first may still hold it."""

    def all_over(self: LeaseStore, now_us: int, behind_us: int = 0) -> None:
        for lease in list(self.leases()):
            self.release(now_us, lease.offset, lease.owner, lease.token)

    monkeypatch.setattr(LeaseStore, "resume", all_over)
    assert "P3-one-lease" in promises(run(plan_of(*CRASHES)))


def test_a_fault_of_our_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """However well the broker went on after it."""
    whole = Overview.group_info

    def faulty(self: Overview, topic: str, group: str) -> Any:
        if group == "h":
            raise RuntimeError("as asked for")
        return whole(self, topic, group)

    monkeypatch.setattr(Overview, "group_info", faulty)
    result = run(plan_of(clients=(client("a", 1, mix={"look": 1}),)))
    assert "own fault" in promises(result)
    assert "as asked for" in str(result.violations)


def test_an_error_that_nobody_handles_is_found_in_its_own_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in the next run, although the machine refers to it until the end."""
    whole = Machine.boot

    def forgetful(self: Machine) -> None:
        whole(self)
        errors: Any = self
        errors.forgotten = fail(RuntimeError("as asked for"))

    with monkeypatch.context() as patched:
        patched.setattr(Machine, "boot", forgetful)
        found = run(QUICK)
    assert promises(found) == {"own fault"}
    assert "as asked for" in str(found.violations)
    assert run(QUICK).violations == []


def test_no_collection_runs_code_of_ended_processes_during_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The collection after a run closes their coroutines, and what fails in them is no fault."""
    whole = Overview.group_info
    closed: list[bool] = []
    had_closed: list[bool] = []

    async def wait_for_ever() -> None:
        try:
            await Deferred[None]()
        finally:
            closed.append(True)
            fail(RuntimeError("after the end of its process"))

    def waiting(self: Overview, topic: str, group: str) -> Any:
        had_closed.append(bool(closed))
        Deferred.fromCoroutine(wait_for_ever())
        return whole(self, topic, group)

    monkeypatch.setattr(Overview, "group_info", waiting)
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:
        result = run(QUICK)
    finally:
        gc.set_threshold(*threshold)
    assert gc.isenabled()
    assert len(had_closed) > 5 and not any(had_closed)
    assert len(closed) == len(had_closed)
    assert result.violations == []


def test_a_broker_that_never_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit has an end, or it is said."""
    monkeypatch.setattr(Connection, "_send", lambda self: None)
    assert promises(run(plan_of())) >= {"liveness"}


# -- what was found once -------------------------------------------------------------------------

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_was_found_once_stays_mended(path: Path) -> None:
    """docs/simulator.rst, section "Kept plans", says what each plan showed."""
    result = run(Plan.from_json(path.read_bytes()))
    assert result.violations == []


def test_some_seeds_as_they_come() -> None:
    """``make sim`` runs many more."""
    for seed in SHORT[3:]:
        result = run(generate(seed))
        assert result.violations == [], f"python -m simulator --replay {seed}"
