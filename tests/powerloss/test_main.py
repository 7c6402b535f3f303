"""A short run finds nothing, tries points of all kinds, and tells what the machine lacks."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.crowd import Stage
from benchmarks.powerloss import kernel
from benchmarks.powerloss.__main__ import choose_losses, main
from benchmarks.powerloss.facts import Facts, TimedLedger
from benchmarks.powerloss.recording import Kind, Operation
from benchmarks.powerloss.replay import Model
from benchmarks.powerloss.workload import Worker

pytest.importorskip("pyspark")


def test_points_are_chosen_by_the_seed() -> None:
    """All models, in order, many before a sync ends and after names change."""
    kinds = [Kind.WRITE] * 50 + [Kind.SYNC] + [Kind.WRITE] * 50 + [Kind.RENAME]
    operations = [Operation(kind, 2) for kind in kinds]
    losses = choose_losses(operations, 60, 4)
    assert losses == choose_losses(operations, 60, 4) == sorted(losses)
    assert losses != choose_losses(operations, 60, 5)
    points = Counter(loss.point for loss in losses)
    assert points[50] >= 20
    assert points[102] >= 20
    assert {loss.model for loss in losses} == set(Model)


def test_an_empty_recording_has_a_point() -> None:
    assert {loss.point for loss in choose_losses([], 9, 1)} == {0}


def test_a_machine_that_cannot_mount_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernel, "DEVICE", tmp_path / "fuse")
    assert main(["--points", "1"]) == 0
    assert "modprobe fuse" in capsys.readouterr().out


def test_a_worker_begins_no_more_tasks_than_it_was_given(tmp_path: Path) -> None:
    """So a recording on a slow machine is as long as on a fast one."""
    stage = Stage({}, TimedLedger(Facts(1), int))
    done, more = threading.Event(), threading.Event()
    begun: list[int] = []

    def work(worker: Worker) -> None:
        if worker.may_begin():
            worker.begin()
            begun.append(len(begun))
            (done if len(begun) <= 3 else more).set()

    worker = Worker(stage, TimedLedger(Facts(1), int), work)
    worker.add_tasks(3)
    worker.start()
    assert done.wait(60) and not more.wait(0.3)
    stage.over.set()
    worker.join(60)
    assert begun == [0, 1, 2]


@pytest.mark.soak
@pytest.mark.skipif(bool(kernel.missing()), reason=kernel.missing() or "all is there")
def test_a_short_run_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--points", "6", "--rounds", "1", "--seed", "1"])
    assert code == 0, capsys.readouterr().out
