"""The archive's benchmark, in small: it measures what it says it does."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.archive import measure
from benchmarks.long_log import Shape, make_log
from brokerd.wal import RealDisk
from brokerd.wal.damage.verify import verify


def test_the_log_that_is_rolled_up_is_sound(tmp_path: Path) -> None:
    """What the benchmark writes is a log as a broker's: every frame, every index."""
    end = make_log(tmp_path / "data", Shape(2_000, 200))
    wal, state = tmp_path / "data" / "wal", tmp_path / "data" / "state"
    report = verify(RealDisk(), str(wal), str(state))
    assert not (report.damages or report.bad_indexes or report.torn)
    assert (report.records, report.next_lsn) == (2_000, end)


@pytest.mark.slow
def test_everything_is_measured(tmp_path: Path) -> None:
    """A small log goes through all of it, into the archive and back over FlyMQ."""
    lines: list[str] = []
    report = measure(tmp_path, 0.002, [1], lines.append, frames=[200])
    assert [line["name"] for line in report["rollups"][:2]] == [
        "plain, decode and write",
        "job, warm",
    ]
    assert report["sequential"]["records_per_s"] > 0
    assert any("durability fsync" in line for line in lines)
    assert not list(tmp_path.iterdir())
