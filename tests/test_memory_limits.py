"""A real broker whose memory runs out, under clients of each wire format."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.memory_limits import FORMATS, Run, make_value, number_of


def test_a_damaged_value_is_seen() -> None:
    value = make_value(1, 7, 2048)
    assert number_of(value) == 7
    assert number_of(value[:-1] + b"\0") is None


@pytest.mark.slow
def test_a_few_steps(tmp_path: Path) -> None:
    run = Run("flymq", 3, tmp_path)
    run.run(4)
    assert run.findings == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("form", FORMATS)
def test_many_steps(form: str, seed: int, tmp_path: Path) -> None:
    run = Run(form, seed, tmp_path)
    run.run(40)
    assert run.findings == []
