"""Drawn archives: their draws, and the planted faults that they find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from simulator.crashpoints.drawn import DRAWN, DrawnPlay
from simulator.crashpoints.rollup import JOURNAL, WHOLE, RollupScript, Steps
from simulator.crashpoints.sweep import sweep
from simulator.machine.disk import SimFile


def broken(numbers: range) -> Iterator[int]:
    """The plays that break a promise."""
    return (number for number in numbers if DrawnPlay(number).problems())


def test_the_numbers_draw_all_places_steps_and_faults() -> None:
    plays = [DrawnPlay(number) for number in range(1, DRAWN + 1)]
    faults = Counter((play.place, run.fault.kind) for play in plays for run in play.runs)
    both = {("directory", kind) for kind in ("none", "kill", "power", "error", "full")}
    both |= {("bucket", kind) for kind in ("none", "kill", "error", "lost", "throttled")}
    assert faults.keys() == both
    assert min(faults.values()) > 50
    steps = {run.steps[1:5] for play in plays for run in play.runs}
    assert len(steps) == 2**4
    assert {len(play.runs) for play in plays} == {1, 2, 3, 4, 5, 6}


def test_a_number_is_the_same_play_each_time() -> None:
    one, other = DrawnPlay(2), DrawnPlay(2)
    assert one.problems() == other.problems() == []
    assert one.ends
    assert one.digest() == other.digest()


def test_a_sweep_plays_the_wanted_numbers() -> None:
    outcome = sweep("drawn", lambda number: number == 3)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.checks.total() == 1
    assert outcome.points == outcome.calls.total() == DRAWN


@pytest.mark.slow
def test_no_record_is_lost_or_doubled() -> None:
    """`python -m simulator.crashpoints --workload drawn` plays all numbers."""
    assert not list(broken(range(5, 35)))


def test_a_file_that_is_never_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda file: None)
    assert any(broken(range(1, 20)))


def test_journal_files_that_go_before_the_commit_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_job = RollupScript.run_job

    def delete_first(script: RollupScript, how: Steps = WHOLE) -> None:
        for path in script.disk.paths(JOURNAL):
            script.disk.unlink(path)
        run_job(script, how)

    monkeypatch.setattr(RollupScript, "run_job", delete_first)
    assert any(broken(range(1, 10)))
