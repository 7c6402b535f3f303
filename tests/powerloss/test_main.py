"""A short run finds nothing, tries points of all kinds, and tells what the machine lacks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.powerloss import kernel
from benchmarks.powerloss.__main__ import choose_losses, main
from benchmarks.powerloss.recording import Kind, Operation
from benchmarks.powerloss.replay import Model

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


@pytest.mark.soak
@pytest.mark.skipif(bool(kernel.missing()), reason=kernel.missing() or "all is there")
def test_a_short_run_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--points", "6", "--rounds", "1", "--seed", "1"])
    assert code == 0, capsys.readouterr().out
