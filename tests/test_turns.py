"""``python -m benchmarks.turns``: every server answers, and its figures are in the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import turns

ARGUMENTS = ["--rounds", "1", "--seconds", "0.05"]


def figures(path: Path, capsys: pytest.CaptureFixture[str], *only: str) -> dict[str, list[float]]:
    chosen = [word for name in only for word in ("--only", name)]
    assert turns.main([*ARGUMENTS, *chosen, "--directory", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert list(path.iterdir()) == []
    return {
        line[:34].strip(): [float(word.replace(",", "")) for word in line[34:].split()]
        for line in lines
    }


def test_a_server_has_time_and_rate_for_each_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("recv and send", "sync in a thread, waited for", "sync in a thread, wakes the poll")
    found = figures(tmp_path, capsys, *names)
    assert list(found) == list(names)
    assert all(len(row) == 4 and min(row) > 0 for row in found.values())


@pytest.mark.slow
def test_every_server_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(tmp_path, capsys)
    assert list(found) == list(turns.SERVERS)
    assert all(len(row) == 4 and min(row) > 0 for row in found.values())
