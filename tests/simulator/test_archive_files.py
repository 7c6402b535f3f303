"""An archive of real files in a run: the job's real steps, killed and without power at any call."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from simulator import plan
from simulator.run import Result, run
from tests.simulator.test_archive import SECOND, SETTINGS, client, plan_of

FILED = replace(SETTINGS, archive_files=True)


def play(*faults: plan.AnyFault) -> Result:
    return run(plan_of(*faults, settings=FILED))


def test_the_log_shrinks_and_all_is_read_from_the_files() -> None:
    result = play(plan.Rollup(at_us=9 * SECOND, vacuums=True, lot_segments=1))
    assert result.violations == []
    assert result.counts["archive deleted_segments"] >= 5
    assert result.counts["archive reads"] >= 5
    assert any("rollup after records commit" in line for line in result.lines)


def test_a_run_with_files_is_the_same_run_twice() -> None:
    one, other = play(), play()
    assert one.lines == other.lines
    assert one.digest == other.digest


@pytest.mark.parametrize("steps", [2, 6, 12])
def test_a_job_that_is_killed_anywhere_is_made_good_by_the_next(steps: int) -> None:
    result = play(plan.Rollup(at_us=5 * SECOND, steps_max=steps, lot_segments=2))
    assert result.violations == []
    assert any("rollup killed at" in line for line in result.lines)
    assert result.counts["archive deleted_segments"] >= 5


@pytest.mark.parametrize("model", ["drop", "reorder"])
def test_a_power_loss_during_the_job_takes_no_archived_record(model: plan.PowerModel) -> None:
    job = plan.Rollup(at_us=5 * SECOND, step_us=400_000, lot_segments=1)
    loss = plan.PowerLoss(at_us=5 * SECOND + 900_000, model=model, seed=5, down_us=SECOND)
    result = play(job, loss)
    assert result.violations == []
    assert any("rollup killed" in line for line in result.lines)


@pytest.mark.parametrize("at_seconds", [3, 5])
def test_an_older_copy_of_the_files_is_filled_up_again(at_seconds: int) -> None:
    """The next rollup archives again what the copy lacks, under versions that were there before."""
    archived = {}
    for older in (False, True):
        away = plan.ArchiveAway(at_us=at_seconds * SECOND, for_us=14 * SECOND, older=older)
        rollup = plan.Rollup(at_us=21 * SECOND, vacuums=True)
        result = run(
            plan_of(
                away,
                rollup,
                settings=FILED,
                end_us=22 * SECOND,
                clients=(client("a", 1, think_us=300_000),),
            )
        )
        assert result.violations == []
        lines = iter(result.lines)
        assert any(line.endswith("is back") or "is back, with" in line for line in lines)
        counts = (re.search("rollup done: .* ([0-9]+) records, ", line) for line in lines)
        archived[older] = next(int(found[1]) for found in counts if found)
    assert archived[True] > archived[False]
