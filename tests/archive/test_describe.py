"""Files of older versions get the statistics by which other programs skip files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import LAYOUTS, Layout
from brokerd.archive.delta.log_files import COMMITS, commit_name, encode_commit
from brokerd.archive.delta.tables import open_tables
from brokerd.archive.job import run_job
from brokerd.archive.run import Settings
from tests.archive.adding import NOW_MS, open_to_writers
from tests.archive.data import MIB, Data
from tests.archive.making import LOG_ID
from tests.archive.test_follow import job_of

pytestmark = pytest.mark.spark_tasks

SETTINGS = Settings(file_bytes=MIB, local_lot_bytes=MIB, derived=False, merge=False)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Return a log and its archive, as an older version wrote them."""
    data = Data(tmp_path / "data")
    data.fill(2)
    data.roll_up()
    for layout in LAYOUTS.values():
        open_to_writers(data.root / layout.name)
        for path in sorted((data.root / layout.name / COMMITS).glob("*.json")):
            _make_old(path, layout)
    return data


def _make_old(path: Path, layout: Layout) -> None:
    """Remove what older versions did not write from a commit."""
    info, *lines = map(json.loads, path.read_bytes().splitlines())
    for line in lines:
        if "metaData" in line:
            properties = line["metaData"]["configuration"]
            properties["delta.dataSkippingStatsColumns"] = ",".join(layout.statistics)
        if "add" in line:
            add = line["add"]
            stats = json.loads(add["stats"])
            for values in (stats["minValues"], stats["maxValues"]):
                for name in layout.texts:
                    del values[name]
            add["stats"] = json.dumps({**stats, "nullCount": {}})
            add["tags"]["brokerd"] = ",".join(add["tags"]["brokerd"].split(",")[:9])
    path.write_bytes(encode_commit(lines, info["commitInfo"]["operation"], NOW_MS))


def scanned(data: Data, topic: str) -> tuple[int, int]:
    """Return the files that pyarrow and deltalake look at for a topic."""
    table = DeltaTable(data.root / "records")
    condition = pc.field("topic") == topic
    found = list(table.to_pyarrow_dataset().get_fragments(filter=condition))
    return len(found), len(table.file_uris(file_pruning_predicate=f"topic = '{topic}'"))


def counted(data: Data, topic: str) -> tuple[int, int]:
    """Return the rows of a topic that pyarrow and Polars find."""
    path = data.root / "records"
    found = DeltaTable(path).to_pyarrow_dataset().count_rows(filter=pc.field("topic") == topic)
    lazy = polars.scan_delta(str(path)).filter(polars.col("topic") == topic)
    return found, lazy.collect().height


def operations(data: Data, table: str) -> list[str]:
    history = DeltaTable(data.root / table).history()
    return [str(one["operation"]) for one in reversed(history)]


def test_an_older_archive_gets_statistics_once(data: Data) -> None:
    rows = sum(row[0] == 17 for row in data.appended)
    assert scanned(data, "topic-17")[1] > scanned_after(data)
    assert counted(data, "topic-17") == (rows, rows)
    assert counted(data, "topic-99") == (0, 0)
    assert scanned(data, "topic-99") == (0, 0)
    before = {name: operations(data, name) for name in LAYOUTS}
    assert before["records"][-2:] == ["COMPUTE STATS", "SET TBLPROPERTIES"]
    assert before["hourly"][-1] == "SET TBLPROPERTIES", "it has no files"
    assert run_job(job_of(data, SETTINGS, is_small=False)).problems == []
    assert {name: operations(data, name) for name in LAYOUTS} == before
    data.check()


def scanned_after(data: Data) -> int:
    """Run the job; return the files that deltalake looks at afterwards."""
    report = run_job(job_of(data, SETTINGS, is_small=False))
    assert report.problems == []
    assert any("older file" in line for step in report.steps for line in step.lines)
    return scanned(data, "topic-17")[1]


def test_statistics_are_those_of_new_files(data: Data, tmp_path: Path) -> None:
    new = Data(tmp_path / "new")
    new.fill(2)
    new.roll_up()
    run_job(job_of(data, SETTINGS, is_small=False))
    for name in ("records", "events"):
        assert statistics(data, name) == statistics(new, name)
        tables = open_tables(data.root, LOG_ID), open_tables(new.root, LOG_ID)
        columns = [
            pa.table(one[name].files).drop_columns(["path", "text"]).to_pylist() for one in tables
        ]
        assert sorted(map(str, columns[0])) == sorted(map(str, columns[1]))


def statistics(data: Data, name: str) -> list[str]:
    rows: list[dict[str, Any]] = pa.table(
        DeltaTable(data.root / name).get_add_actions(flatten=True)
    ).to_pylist()
    left_out = ("path", "modification_time", "data_change", "size_bytes")
    found = [{key: value for key, value in row.items() if key not in left_out} for row in rows]
    return sorted(str(sorted(row.items(), key=str)) for row in found)


def test_columns_are_named_only_when_all_files_have_statistics(data: Data) -> None:
    """Programs would skip the files that lack them."""
    settings = SETTINGS._replace(lot_bytes=1)
    rows = sum(row[0] == 17 for row in data.appended)
    count = len(list((data.root / "records").glob("*/*.parquet")))
    assert count == 2
    for number in range(1, count + 1):
        assert run_job(job_of(data, settings, is_small=False)).problems == []
        assert counted(data, "topic-17") == (rows, rows)
        is_named = "topic" in open_tables(data.root, LOG_ID)["records"].snapshot.configuration[
            "delta.dataSkippingStatsColumns"
        ].split(",")
        assert is_named == (number == count)


@pytest.mark.parametrize(("missing_bytes", "left"), [(0, 0), (1, 1)])
def test_a_run_reads_files_up_to_the_limit(data: Data, missing_bytes: int, left: int) -> None:
    size = sum(path.stat().st_size for path in (data.root / "records").glob("*/*.parquet"))
    settings = SETTINGS._replace(lot_bytes=size - missing_bytes)
    assert run_job(job_of(data, settings, is_small=False)).problems == []
    files = open_tables(data.root, LOG_ID)["records"].files
    assert files["described"].to_pylist().count(0) == left


def test_a_damaged_file_is_told_and_the_others_are_described(data: Data) -> None:
    path = next((data.root / "records").glob("bucket=2/*.parquet"))
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    problems = run_job(
        job_of(data, SETTINGS._replace(compaction=False, retention=False), is_small=False)
    ).problems
    assert len(problems) == 1
    assert path.name in problems[0]
    files = open_tables(data.root, LOG_ID)["records"].files
    assert sorted(files["described"].to_pylist()) == [0, *[1] * (len(files) - 1)]


def test_commit_of_an_older_version_is_read(data: Data) -> None:
    newest = max((data.root / "records" / COMMITS).glob("*.json"))
    assert newest.name > commit_name(0)
    files = open_tables(data.root, LOG_ID)["records"].files
    assert set(files["described"].to_pylist()) == {0}
    assert min(files["rows"].to_pylist()) > 0
