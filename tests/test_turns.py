"""``python -m benchmarks.turns``: every server answers, and its figures are in the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import turns
from brokerd.cli.bench.machine import describe
from tests.compiled import COMPILED

ARGUMENTS = ["--rounds", "1", "--seconds", "0.05"]


def figures(path: Path, capsys: pytest.CaptureFixture[str], *only: str) -> dict[str, list[float]]:
    chosen = [word for name in only for word in ("--only", name)]
    assert turns.main([*ARGUMENTS, *chosen, "--directory", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert list(path.iterdir()) == []
    return {
        line.split()[0]: [float(word.replace(",", "")) for word in line[50:].split()]
        for line in lines
    }


def test_a_server_has_time_and_rate_for_each_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("loop", "thread-waited", "thread-wakes")
    found = figures(tmp_path, capsys, *names)
    assert list(found) == list(names)
    assert all(len(row) == 4 and min(row) > 0 for row in found.values())


def test_the_names_are_short_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        turns.main(["--help"])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name, server in turns.SERVERS.items():
        assert len(name) < 15 and " " not in name
        assert [name, *server.what.split()] in lines


def test_the_figures_and_the_machine_are_one_json_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*ARGUMENTS, "--only", "loop", "--json", "--directory", str(tmp_path)]
    assert turns.main(arguments) == 0
    text, table = capsys.readouterr()
    found = json.loads(text)
    assert found["machine"]["compiled"] is COMPILED
    assert [(one["server"], one["connections"]) for one in found["servers"]] == [
        ("loop", 1),
        ("loop", 64),
    ]
    assert all(one["us"] > 0 and one["msgs_per_s"] > 0 for one in found["servers"])
    assert f"; {describe(tmp_path).text()}\n" in table


@pytest.mark.slow
def test_every_server_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(tmp_path, capsys)
    assert list(found) == list(turns.SERVERS)
    assert all(len(row) == 4 and min(row) > 0 for row in found.values())
