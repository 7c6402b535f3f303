"""A whole job with its archive in a bucket: the same tables as on a disk, wherever it stops."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokerd.archive.address import ObjectAddress, Place
from brokerd.archive.job import Job, Summary, run_job
from brokerd.archive.layout import LAYOUTS, arrow_schema
from brokerd.archive.plain import PlainFile
from brokerd.archive.running import Settings
from brokerd.archive.store import open_store
from brokerd.archive.table import Table
from tests.archive.data import MIB, NO_LIMIT, NOW_MS, Data
from tests.archive.making import LOG_ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = Settings(file_bytes=MIB, rewrite_percent=1)


class Stopped(Exception):
    """In place of a process that is killed."""


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def run(data: Data, spark: SparkSession, root: Place, **changes: Any) -> Summary:
    data.publish()
    given = {
        "data_dir": data.path,
        "root": root,
        "settings": SETTINGS,
        "open_spark": lambda: nullcontext(spark),
        "now_ms": lambda: NOW_MS,
        "free_bytes": lambda path: NO_LIMIT,
        **changes,
    }
    return run_job(Job(**given))


def rows(root: Place, name: str) -> list[tuple[Any, ...]]:
    """All rows of a table, in no order that means anything."""
    store = open_store(root)
    layout = LAYOUTS[name]
    found: list[tuple[Any, ...]] = []
    for path in Table(root, layout, LOG_ID).paths():
        file = PlainFile(store, f"{name}/{path}")
        for some in file.read(arrow_schema(layout)):
            found += zip(*(column.to_pylist() for column in some.columns), strict=True)
    return sorted(found, key=repr)


def work(data: Data, turn: int) -> None:
    """What happens between two runs."""
    data.fill(2)
    data.append(5, 0, *(b"%d of this key" % turn for _ in range(40)), keys=[b"key"] * 40)
    data.append(6, 0, *(b"record %d" % at for at in range(40)))
    data.lease(6, "workers", 40 * turn, "somebody")
    data.settle(6, "workers", 40 * turn)
    data.log.seal()
    if turn:
        data.starts[6] = 20
        data.compacted = {5}


def test_all_tables_are_those_of_an_archive_on_a_disk(
    data: Data, spark: SparkSession, bucket: ObjectAddress
) -> None:
    """Records, events, deliveries and hours, after a few runs that add, remove and merge."""
    on_disk = data.path / "archive"
    for turn in range(3):
        work(data, turn)
        for root in (on_disk, bucket):
            summary = run(data, spark, root)
            assert summary.problems == []
    for name in LAYOUTS:
        found = rows(bucket, name)
        assert found == rows(on_disk, name)
        assert found
    again = run(data, spark, bucket)
    assert (again.problems, again.has_committed) == ([], False)
    assert not list(open_store(bucket).list("staging", hidden=True))
