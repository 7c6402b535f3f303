"""Two jobs on one archive at once, from two copies of a data directory.

A bucket has no lock that the other machine could see.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.delta.vacuum import HOUR_MS
from brokerd.archive.erase import EraseReport
from brokerd.archive.job import run_job
from brokerd.archive.storage.address import ObjectAddress
from brokerd.archive.storage.store import open_store
from tests.archive.data import Data
from tests.archive.inline import ingest_inline, map_here
from tests.archive.making import LOG_ID
from tests.archive.test_erase import KEY, SETTINGS, erase, fill, is_of_key, rows
from tests.archive.test_job import job_of
from tests.archive.test_typed_tables import TYPED, Orders


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path / "data")


def erasing_at(point: str, data: Data, root: ObjectAddress) -> Callable[[str], None]:
    """Return a failpoint at which another machine, with a copy of the data, erases the key once."""
    other = copy.copy(data)
    other.path = data.path.with_name("copy")
    shutil.copytree(data.path, other.path)
    done: list[EraseReport] = []

    def failpoint(name: str) -> None:
        if name == point and not done:
            done.append(erase(other, root))
            assert done[0].erased

    return failpoint


def test_an_erasure_deletes_no_file_that_a_rollup_commits_later(
    data: Data, bucket: ObjectAddress
) -> None:
    """The rollup has written its files, and the erasure does not know them."""
    before = fill(data, bucket)
    left = [row for row in before if not is_of_key(row)]
    data.append(1, 0, b"new", keys=[b"other"])
    data.log.seal()
    data.publish()
    meanwhile = erasing_at("before records commit", data, bucket)
    with pytest.raises(TableConflict, match="`brokerctl archive erase` of another machine"):
        ingest_inline(bucket, data.wal, data.bounds(), SETTINGS, meanwhile)
    assert rows(bucket) == left
    ingest_inline(bucket, data.wal, data.bounds(), SETTINGS)
    found = rows(bucket)
    assert len(found) == len(left) + 1
    assert [row for row in found if row in left] == left


def test_a_vacuum_deletes_no_file_that_a_rollup_commits_later(
    data: Data, bucket: ObjectAddress
) -> None:
    """Also with 0 hours. Files of a day ago go: no run holds files without a commit so long."""
    before = fill(data, bucket)
    data.append(1, 0, b"new", keys=[b"other"])
    data.log.seal()
    data.publish()
    rival = Table(bucket, RECORDS, LOG_ID)
    store = open_store(rival.path)

    def vacuum(name: str) -> None:
        if name == "before records commit":
            newest_ms = max(entry.changed_ms for entry in store.list())
            assert rival.vacuum(0, newest_ms + 1) == []

    ingest_inline(bucket, data.wal, data.bounds(), SETTINGS, vacuum)
    assert len(rows(bucket)) == len(before) + 1
    path = "bucket=1/unfinished.parquet"
    store.put(path, b"")
    changed_ms = store.stat(path).changed_ms
    assert rival.vacuum(0, changed_ms + 24 * HOUR_MS) == []
    assert rival.vacuum(0, changed_ms + 24 * HOUR_MS + 1) == [path]


def test_an_erasure_deletes_no_file_of_a_typed_table_that_a_rollup_commits_later(
    tmp_path: Path, bucket: ObjectAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkRunner, "map", map_here)
    orders = Orders(tmp_path / "data")
    orders.register(n="integer")

    def typed() -> list[Any]:
        options = open_store(bucket).deltalake_options
        table = DeltaTable(f"{bucket}/typed/1/rows", storage_options=options)
        found: list[Any] = table.to_pyarrow_table(columns=["n"])["n"].to_pylist()
        return sorted(found)

    orders.append(1, 0, b'{"n": 0}', b'{"n": 1}', keys=[KEY, b"other"])
    orders.log.seal()
    orders.roll(root=bucket)
    orders.append(1, 0, b'{"n": 2}', keys=[b"other"])
    orders.log.seal()
    orders.publish()
    meanwhile = erasing_at("before typed rows commit", orders, bucket)
    report = run_job(job_of(orders, None, settings=TYPED, root=bucket, failpoint=meanwhile))
    (problem,) = report.problems
    assert "`brokerctl archive erase` of another machine" in problem
    assert typed() == [1]
    orders.roll(root=bucket)
    assert typed() == [1, 2]
