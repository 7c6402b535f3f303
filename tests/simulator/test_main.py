"""The simulator from the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator import __main__ as sim
from simulator.oracle import Violation
from simulator.plan import Drop, Plan, Stall
from tests.simulator.test_run import client, plan_of

SEED = 1_000_001
"""A run of half a second, as is the one before."""


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share one process, and its log belongs to all of them."""
    monkeypatch.setattr(sim, "keep_no_log", lambda: None)


def test_seeds_are_run_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Both ends are included, and the exit code tells that all was well."""
    assert sim.main(["--seeds", f"{SEED - 1}..{SEED}", "--jobs", "1"]) == 0
    said = capsys.readouterr().out
    assert "2 seeds, 0 with a violation" in said
    assert "operations" in said


def test_a_campaign_shows_the_end_of_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line names the error."""
    calls = "".join(f'  File "broker.py", line {n}, in call\n' for n in range(50))
    traceback = f"Traceback (most recent call last):\n{calls}RuntimeError: as asked for\n"
    whole: Any = sim.run

    def faulty(plan: Plan) -> Any:
        result = whole(plan)
        result.violations.append(Violation("own fault", traceback, (), 0))
        return result

    monkeypatch.setattr(sim, "run", faulty)
    assert sim.main(["--seeds", str(SEED), "--jobs", "1"]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"seed {SEED}: own fault: Traceback")
    assert line.endswith("RuntimeError: as asked for")
    assert len(line) < 500


def test_jobs_say_the_same_as_one_process() -> None:
    """In the order of the seeds."""
    seeds = range(SEED - 1, SEED + 1)
    assert list(sim.outcomes(seeds, 2)) == list(sim.outcomes(seeds, 1))


def test_endless_seeds_are_taken_as_they_are_needed() -> None:
    """Also with several processes, which may be ahead of a slow seed."""

    def endless() -> Iterator[int]:
        yield from range(SEED, SEED + 2 * sim.AHEAD_SEEDS)
        pytest.fail("a seed is taken far ahead of the first one")

    assert next(sim.outcomes(endless(), 2)).seed == SEED


def test_a_replay_prints_the_trace_and_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    """The same digest each time."""
    assert sim.main(["--replay", str(SEED)]) == 0
    said = capsys.readouterr().out
    assert "boot 0" in said and "no violation" in said
    assert sim.main(["--replay", str(SEED), "--quiet"]) == 0
    quiet = capsys.readouterr().out
    assert "boot 0" not in quiet
    assert quiet.splitlines()[0] == said.splitlines()[-2]


def test_a_plan_is_printed_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of it is as good as its seed."""
    assert sim.main(["--plan", str(SEED)]) == 0
    path = tmp_path / "plan.json"
    path.write_text(capsys.readouterr().out)
    sim.main(["--replay", str(SEED), "--quiet"])
    said = capsys.readouterr().out
    assert sim.main(["--replay", str(path), "--quiet"]) == 0
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("text", ["", "a..b", "5..4", "-1..3", "1..2..3"])
def test_seeds_that_are_none_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what is wanted."""
    with pytest.raises(SystemExit) as stopped:
        sim.main([f"--seeds={text}"])
    assert stopped.value.code == 2
    assert "A..B" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot read the plan"), ("{}", "is not a plan")]
)
def test_a_file_that_is_no_plan_is_named(tmp_path: Path, content: str | None, said: str) -> None:
    """In one line."""
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit, match=said) as stopped:
        sim.main(["--replay", str(path)])
    assert "plan.json" in str(stopped.value)


@pytest.mark.parametrize(
    "given",
    [["--soak", "nan"], ["--soak", "-1"], ["--plan", "-1"], ["--from", "x"], ["--shrink"]],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(
    given: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is run."""
    with pytest.raises(SystemExit) as stopped:
        sim.main(given)
    assert stopped.value.code == 2
    assert capsys.readouterr().out == ""


def test_a_run_in_which_nothing_was_asked_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No violation would be no news."""
    path = tmp_path / "plan.json"
    path.write_text('{"seed": 1, "end_us": 1}')
    sim.main(["--replay", str(path), "--quiet"])
    assert "nothing was judged" in capsys.readouterr().out


def test_a_fault_of_a_client_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With its place in the plan."""
    path = tmp_path / "plan.json"
    path.write_bytes(plan_of(Drop(at_us=1, client="nobody")).to_json())
    with pytest.raises(SystemExit, match=r"faults\[0\] is of a client 'nobody'"):
        sim.main(["--replay", str(path)])


def test_a_failure_is_told_and_cut_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is left is a plan in a file, smaller than before, that still fails."""
    whole: Any = sim.run

    def fails_with_a_stall(plan: Plan) -> Any:
        result = whole(plan)
        if any(type(fault).__name__ == "Stall" for fault in plan.faults):
            result.violations.append(Violation("P0", "there was a stall", (), 0))
        return result

    monkeypatch.setattr(sim, "run", fails_with_a_stall)
    faults = (Stall(at_us=900_000, for_us=1, client="a"), Drop(at_us=1_900_000, client="b"))
    clients = tuple(client(name, seed, operations=30) for seed, name in enumerate("abc"))
    big = plan_of(*faults, clients=clients, end_us=2_000_000)
    path = tmp_path / "big.json"
    path.write_bytes(big.to_json())
    out = tmp_path / "out"
    code = sim.main(["--replay", str(path), "--quiet", "--shrink", "--out", str(out)])
    assert code == 1
    assert "VIOLATION of P0: there was a stall" in capsys.readouterr().out
    small = Plan.from_json((out / "seed-1.json").read_bytes())
    assert [type(fault).__name__ for fault in small.faults] == ["Stall"]
    assert len(small.clients) < len(big.clients)
