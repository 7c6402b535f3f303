"""``python -m benchmarks.targets``: every part gives figures of a broker that runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import targets


@pytest.mark.slow
def test_every_part_measures_its_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runs", "1", "--seconds", "0.2", "--scale", "0.001", "--json"]
    assert targets.main([*arguments, "--directory", str(tmp_path)]) == 0
    text, table = capsys.readouterr()
    found = json.loads(text)
    assert found["durability"] == "fsync"
    names = [target["name"] for target in found["targets"]]
    assert "produce 16 x 64 to 10 topics, 1 groups" in names
    assert all(target["value"] > 0 for target in found["targets"])
    assert all(name in table for name in names)
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_the_median_and_the_spread() -> None:
    runs = [targets.Target("a", "of b's", ">= 1.0", value) for value in (0.5, 0.1, 0.3)]
    words = ["a", "0.30", "(0.10", "to", "0.50)", "of", "b's", ">=", "1.0"]
    assert targets._line(runs).split() == words
