"""Programs other than brokerd skip files by the statistics in the Delta log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import DELIVERIES, RECORDS, Range, arrow_schema
from brokerd.archive.delta.actions import add_file, add_plain_file
from brokerd.archive.delta.log_files import COMMITS, commit_name
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.parquet.plain_file import PlainFileWriter
from brokerd.archive.storage.store import open_store
from tests.archive.adding import LOG_ID, NOW_MS, Row, write_records

TOPICS = (1, 17, 33, 2)
"""The first three are in one bucket."""
FILES_A_TOPIC = 2
ROWS = 10
"""Rows of a file."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Return a table of records; each topic has two files, and each second file has keys."""
    root = tmp_path_factory.mktemp("world") / "archive"
    table = ensure_tables(root, LOG_ID, NOW_MS)[RECORDS.name]
    for topic_id in TOPICS:
        for number in range(FILES_A_TOPIC):
            first = ROWS * number
            rows = [
                Row(topic_id, 0, offset, key=b"k" if number else None, time_us=offset * 1_000_000)
                for offset in range(first, first + ROWS)
            ]
            info = write_records(table, [Range(topic_id, 0, first, first + ROWS)], rows)
            table.commit([add_file(info)], now_ms=NOW_MS)
    return table


CONDITIONS = [
    ("topic", "=", "t17", 2),
    ("topic", "=", "t9", 0),
    ("topic_id", "=", 33, 2),
    ("topic_id", "=", 99, 0),
    ("offset", ">=", 15, 4),
    ("partition", "=", 1, 0),
]
"""Column, operator, value, and the number of files that may have such rows."""


@pytest.mark.parametrize(("column", "operator", "value", "files"), CONDITIONS)
def test_delta_rs_skips_files(
    table: Table, column: str, operator: str, value: Any, files: int
) -> None:
    literal = f"'{value}'" if isinstance(value, str) else value
    found = DeltaTable(table.path).file_uris(
        file_pruning_predicate=f"{column} {operator} {literal}"
    )
    assert len(found) == files


@pytest.mark.parametrize(("column", "operator", "value", "files"), CONDITIONS)
def test_pyarrow_skips_files(
    table: Table, column: str, operator: str, value: Any, files: int
) -> None:
    """DuckDB reads a data set of pyarrow with the same conditions."""
    field = pc.field(column)
    condition = field == value if operator == "=" else field >= value
    found = DeltaTable(table.path).to_pyarrow_dataset()
    assert len(list(found.get_fragments(filter=condition))) == files


@pytest.mark.parametrize(("column", "operator", "value", "files"), CONDITIONS)
def test_polars_skips_files(
    table: Table, column: str, operator: str, value: Any, files: int
) -> None:
    field = polars.col(column)
    condition = field == value if operator == "=" else field >= value
    plan = polars.scan_delta(str(table.path)).filter(condition)
    assert _scanned_files(plan.explain()) == files
    assert plan.collect().height <= files * ROWS


def _scanned_files(plan: str) -> int:
    """Return the number of Parquet files in a plan of Polars, which prints the first one or two."""
    scan = re.search(r"Parquet SCAN \[(.*)\]", plan)
    assert scan is not None, plan
    more = re.search(r"(\d+) other sources", scan[1])
    return scan[1].count(".parquet") + (int(more[1]) if more else 0)


def test_commit_has_the_nulls_of_each_column(table: Table) -> None:
    """Delta Spark skips no file without them."""
    for version, (keys, others) in {1: (ROWS, ROWS), 2: (0, ROWS)}.items():
        found = _stats(table, version)
        nullable = {"key": keys, "metadata": others, "producer_time": others}
        every = dict.fromkeys(arrow_schema(RECORDS).names, 0)
        assert found["nullCount"] == every | nullable


def test_plain_file_has_them_too(tmp_path: Path) -> None:
    table = ensure_tables(tmp_path / "archive", LOG_ID, NOW_MS)[DELIVERIES.name]
    schema = arrow_schema(DELIVERIES)
    rows = [
        dict.fromkeys(schema.names, 0)
        | {"topic": topic, "group_name": "g", "outcome": "settled", "reason": reason, "owner": None}
        for topic, reason in (("ä", None), ("b", "failed"))
    ]
    with PlainFileWriter(
        open_store(table.path), "", schema, DELIVERIES.statistics, DELIVERIES.texts
    ) as writer:
        writer.write(pa.Table.from_pylist(rows, schema))
        info = writer.close("d-1.parquet")
    table.commit([add_plain_file(info, "outcome_time")], now_ms=NOW_MS)
    found = _stats(table, 1)
    assert (found["minValues"]["topic"], found["maxValues"]["topic"]) == ("b", "ä")
    expected = dict.fromkeys(schema.names, 0) | {"reason": 1, "owner": 2}
    assert found["nullCount"] == expected


def _stats(table: Table, version: int) -> dict[str, Any]:
    """Return the statistics of the file that a commit added."""
    data = open_store(table.path).read(f"{COMMITS}/{commit_name(version)}", 1 << 20)
    (added,) = (one["add"] for one in map(json.loads, data.splitlines()) if "add" in one)
    found: dict[str, Any] = json.loads(added["stats"])
    return found
