"""A rollup is killed at a named step, another one each time, at the latest at its last step."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from benchmarks.powerloss.workload import KILL_STEPS, LAST_STEP, kill_at_step, kill_steps

VACUUMS = [f"before vacuum of {table}" for table in ("records", "events", "deliveries", "hourly")]


class FakeJob:
    """A run with these steps."""

    def __init__(self, *steps: str) -> None:
        self._steps = iter(steps)
        self.is_held = False
        self.went_on = 0
        self.is_killed = False

    def next_point(self) -> str | None:
        assert not self.is_held, "it has not gone on"
        point = next(self._steps, None)
        self.is_held = point is not None
        return point

    def go_on(self) -> None:
        self.is_held = False
        self.went_on += 1

    def kill(self) -> None:
        self.is_killed = True


def test_a_run_is_killed_when_it_reaches_its_step() -> None:
    job = FakeJob("planned", "records written", "before records commit", *VACUUMS)
    assert kill_at_step(job, "records written") == "records written"
    assert job.is_killed and job.went_on == 1


def test_a_run_without_work_for_its_step_is_killed_at_its_last_step() -> None:
    job = FakeJob("planned", *VACUUMS)
    assert kill_at_step(job, "before hourly commit") == LAST_STEP == VACUUMS[-1]
    assert job.is_killed


def test_a_run_that_ends_before_is_told_apart() -> None:
    job = FakeJob("planned", "records written")
    assert kill_at_step(job, "before hourly commit") is None
    assert not job.is_killed


@pytest.mark.parametrize("seed", [1, 2])
def test_all_steps_come_before_one_comes_again(seed: int) -> None:
    drawn = list(islice(kill_steps(random.Random(seed)), 2 * len(KILL_STEPS)))
    assert (
        sorted(drawn[: len(KILL_STEPS)]) == sorted(drawn[len(KILL_STEPS) :]) == sorted(KILL_STEPS)
    )
    assert drawn == list(islice(kill_steps(random.Random(seed)), len(drawn)))
