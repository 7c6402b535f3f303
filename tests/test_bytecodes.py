"""The counts of bytecode instructions a message repeat, and do not exceed the committed ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bytecodes
from benchmarks.bytecodes import (
    MARGIN,
    SHAPES,
    Shape,
    committed,
    compare,
    count,
    main,
    not_comparable,
)
from brokerd.cli.bench.formats import FORMATS
from brokerd.codecs.mamamia import FrameReader

NAMES = [shape.name for shape in SHAPES]
FAST = NAMES[0], "mamamia produce 4 x 64", "mamamia acquire-settle 1 x 1"
QUICK = Shape("mamamia", "produce", 1, 1, 3)


@pytest.mark.skipif(bool(not_comparable()), reason=not_comparable())
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=shape.name, marks=() if shape.name in FAST else pytest.mark.slow)
        for shape in SHAPES
    ],
)
def test_no_scenario_executes_more_instructions_than_committed(shape: Shape) -> None:
    """A change that makes the broker slower on purpose records the new counts: ``--record``."""
    assert compare({shape.name: count(shape)}, committed()) == []


def test_every_count_is_committed() -> None:
    found = json.loads(bytecodes.COUNTS_FILE.read_text())
    assert list(found["instructions"]) == NAMES
    assert {shape.format for shape in SHAPES} == FORMATS.keys()


def test_a_count_repeats_and_grows_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """By exactly the instructions that are added for each message."""
    before = count(QUICK)
    assert count(QUICK) == before > 100
    feed = FrameReader.feed

    def slower(self: FrameReader, data: bytes) -> object:
        sum(1 for _ in range(100))
        return feed(self, data)

    monkeypatch.setattr(FrameReader, "feed", slower)
    if not bytecodes.is_compiled():
        assert before + 500 < count(QUICK) < before + 2_000


def test_growth_beyond_the_margin_is_reported() -> None:
    known = {"a": 100.0, "b": 100.0}
    within = 100 * (1 + MARGIN)
    assert compare({"a": within, "b": 50.0, "new": 7.0}, known) == []
    assert compare({"a": within + 0.1, "b": 50.0}, known) == [
        "a: 104.1 bytecode instructions a message, 100.0 committed"
    ]


def test_the_command_shows_compares_and_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bytecodes, "SHAPES", (QUICK,))
    monkeypatch.setattr(bytecodes, "COUNTS_FILE", tmp_path / "counts.json")
    monkeypatch.setattr(bytecodes, "is_compiled", lambda: False)
    assert main(["--record"]) == 0
    found = json.loads((tmp_path / "counts.json").read_text())
    assert main([]) == 0
    assert f"{found['instructions'][QUICK.name]:,.1f}" in capsys.readouterr().out
    found["instructions"][QUICK.name] /= 2
    (tmp_path / "counts.json").write_text(json.dumps(found))
    assert main([]) == 1
    assert "committed" in capsys.readouterr().out.splitlines()[-1]
    (tmp_path / "counts.json").write_text(json.dumps({**found, "python": "2.7"}))
    capsys.readouterr()
    assert main([]) == 0, "counts of another Python are not compared"
    first = capsys.readouterr().out.splitlines()[0]
    assert first == (
        "no committed counts to compare with: the committed counts are of Python 2.7, "
        f"this is {bytecodes.python_version()}"
    )


def test_counts_of_compiled_modules_are_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are shown beside no committed ones, and not recorded."""
    monkeypatch.setattr(bytecodes, "SHAPES", (QUICK,))
    monkeypatch.setattr(bytecodes, "COUNTS_FILE", tmp_path / "counts.json")
    monkeypatch.setattr(bytecodes, "is_compiled", lambda: True)
    assert main([]) == 0
    first, _, line = capsys.readouterr().out.splitlines()
    assert first == (
        "no committed counts to compare with: compiled code has no bytecode instructions to count; "
        "these are of the modules that stay Python"
    )
    assert line.endswith(" -")
    with pytest.raises(SystemExit, match="2"):
        main(["--record"])
    assert "--record: compiled code has no bytecode" in capsys.readouterr().err
    assert not bytecodes.COUNTS_FILE.exists()


def test_processor_time_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For each message in microseconds; the time of clients does not count."""
    ticks = iter(range(0, 10**9, 70_000))
    monkeypatch.setattr(bytecodes.time, "thread_time_ns", lambda: next(ticks) + 1)
    monkeypatch.setattr(bytecodes, "SHAPES", (QUICK,))
    assert bytecodes.processor_time(QUICK, 1) == 70.0
    assert main(["--time"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("microseconds a message") and line.endswith(" 70.00")
