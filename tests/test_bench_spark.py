"""The benchmark of the Spark source, in small: it measures what it says it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.spark import measure

pytestmark = pytest.mark.soak


def test_every_question_is_asked_of_the_journal_and_of_the_archive(tmp_path: Path) -> None:
    """Each has its line for both, with what was read and what was left out."""
    lines: list[str] = []
    report = measure(tmp_path, 0.005, 2, lines.append, tries=1)
    names = [[line["name"] for line in report[where]["lines"]] for where in ("journal", "archive")]
    assert names[0] == names[1] and len(names[0]) == 6
    assert all(line["records_per_s"] > 0 for line in report["journal"]["lines"])
    assert "journal files" in report["journal"]["lines"][0]["read"]
    narrow = report["archive"]["lines"][4]["read"]
    read, _, rest = narrow.partition(" of ")
    assert 0 < int(read) < int(rest.split()[0]), narrow
    assert any("nothing is written" in line for line in lines)
    engines = report["engines"]
    assert engines["programs"] == ["plain", "log", "format", "DuckDB", "Polars"]
    for line in engines["lines"]:
        assert all(seconds > 0 for seconds in line["seconds"].values())
        assert all(0 < opened <= files for opened, files in line["files"].values())
    assert next(line["name"] for line in engines["lines"]) == "count"
    assert any("files opened" in line for line in lines)
