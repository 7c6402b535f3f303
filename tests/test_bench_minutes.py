"""The benchmark of small lots, in small: it measures what it says it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.long_log import Shape, make_log
from benchmarks.minutes import _parse, measure
from brokerd.archive.journal.sealed import batches_of, open_sealed


def test_a_segment_has_the_records_of_a_lot(tmp_path: Path) -> None:
    make_log(tmp_path / "data", Shape(3_000, 200, segment_records=1_000))
    paths = sorted((tmp_path / "data" / "wal").glob("*.wal"))
    assert [batches_of(open_sealed(path).index).records for path in paths] == [1_000] * 3


@pytest.mark.slow
def test_both_parts_are_measured(tmp_path: Path) -> None:
    """Lots of 2,000 records, and a load of two seconds."""
    lines: list[str] = []
    small = ["--records", "2000", "--size", "1", "--rate", "10000", "--seconds", "3"]
    options = _parse([*small, "--set", "archive.follow_seconds=1"])
    report = measure(tmp_path, options, lines.append)
    (line,) = report["lots"]
    assert (line["size"], line["records"]) == (1, 2_000)
    assert 0 < line["median"] <= line["longest"]
    assert report["visible"]["records"] == 30_000
    assert 0 < report["visible"]["p50"] <= report["visible"]["p95"]
