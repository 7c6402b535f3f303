"""A rollup into real files without Spark: plan, tasks and commits of the job, in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc

from brokerd.archive.contract.layout import RECORDS, Range
from brokerd.archive.data_dir import read_bounds
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table
from brokerd.archive.ingest.ingest import IngestReport
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.parquet.writer import FileWriter
from brokerd.archive.storage.address import Place
from tests.archive.inline import NOW_MS, ingest_inline


def roll_up_all(data_dir: Path, root: Place | None = None) -> IngestReport:
    """Archive all sealed segments of a broker's log; the broker may run."""
    bounds, _ = read_bounds(data_dir)
    done = ingest_inline(root or data_dir / "archive", data_dir / "wal", bounds)
    assert done.stop is not None and not done.stop.is_problem, done.stop
    return done


def remove(data_dir: Path, topic_id: int, removed: Callable[[int], bool]) -> int:
    """Rewrite the files of partition 0 of a topic without some offsets; return the removed number.

    The replaced files are deleted at once, as vacuum does a day later.
    """
    bounds, _ = read_bounds(data_dir)
    table = Table(data_dir / "archive", RECORDS, bounds.log_id)
    gone = 0
    for path in table.paths():
        file = open_file(table.path, path)
        ranges = [Range(*one) for one in file.ranges.tolist()]
        if not any(one[:2] == (topic_id, 0) for one in ranges):
            continue
        rows = file.read_table()
        kept = [
            not (place[:2] == (topic_id, 0) and removed(place[2]))
            for place in zip(*(rows[name].to_pylist() for name in KEY), strict=True)
        ]
        gone += kept.count(False)
        with FileWriter(table.path, RECORDS, bounds.log_id, ranges) as writer:
            if any(kept):
                writer.write(rows.filter(pc.scalar(True) if all(kept) else kept))
            info = writer.close()
        table.commit([add_file(info)], [path], now_ms=NOW_MS)
        (table.path / path).unlink()
    return gone


KEY = ("topic_id", "partition", "offset")
