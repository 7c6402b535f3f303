"""The archive's other tables through the source: the rows that any reader of Delta tables gets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import LAYOUTS
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.errors import DamagedData
from brokerd.spark.options import BadOption, parse_options, stream_request
from brokerd.spark.read.tables import TABLES, NoTable, plan_table, read_table
from brokerd.walformat import EventKind
from tests.archive.plain import Happened
from tests.archive.world import World, record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

derived = pytest.importorskip("brokerd.archive.derive.deliveries", reason="needs pyspark")
hours = pytest.importorskip("brokerd.archive.derive.hourly", reason="needs pyspark")

KINDS = (EventKind.LEASED, EventKind.SETTLED)
RECORDS = 300
TURNS = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> World:
    """An archive with some rows in each of its tables, in several files where that may be."""
    world = World(tmp_path_factory.mktemp("world"), spark)
    world.topic(1, (0, 0))
    for turn in range(TURNS):
        first = turn * RECORDS // TURNS
        lsns = range(first, first + RECORDS // TURNS)
        events = [
            Happened(1, 0, "g", 2 * lsn + at, 0, (int(kind), lsn, 0, 0, 1, "o", ""))
            for lsn in lsns
            for at, kind in enumerate(KINDS)
        ]
        world.roll_records([[record(lsn) for lsn in lsns]], 2 * lsns.stop)
        world.roll_events(events, 2 * lsns.stop)
        world.lsn = 2 * lsns.stop
        derived.derive_deliveries(world.run())
    hours.derive_hourly(world.run())
    return world


def expected(world: World, table: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = DeltaTable(str(world.root / table)).to_pyarrow_table(columns=list(columns))
    return sorted(tuple(row.values()) for row in rows.to_pylist())


def found(world: World, table: str, *columns: str, bytes_max: int = 1) -> list[tuple[Any, ...]]:
    splits = plan_table(str(world.root), table, columns, bytes_max)
    rows = [row for split in splits for batch in read_table(split) for row in batch.to_pylist()]
    return sorted(tuple(row.values()) for row in rows)


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_those_of_any_other_reader(world: World, table: str) -> None:
    names = [column.name for column in LAYOUTS[table].file_columns()]
    wanted = [name for name in names if name not in ("owner", "reason", "latency_us")]
    rows = found(world, table, *wanted)
    assert rows == expected(world, table, *wanted) and rows


def test_small_files_are_read_together(world: World) -> None:
    """A split is about as large as it may be, and never without a file."""
    files = len(world.files("deliveries"))
    assert files == TURNS
    columns = ("offset",)
    assert len(plan_table(str(world.root), "deliveries", columns, 1)) == files
    assert len(plan_table(str(world.root), "deliveries", columns, 1 << 30)) == 1


def test_spark_reads_them_and_joins_them_with_records(world: World, source: SparkSession) -> None:
    def load(**options: str) -> Any:
        return source.read.format("brokerd").options(**options).load(str(world.root))

    deliveries = load(table="deliveries", columns="topic_id,partition,offset,outcome")
    assert deliveries.columns == ["topic_id", "partition", "offset", "outcome"]
    joined = load(topics="t1").join(deliveries, ["topic_id", "partition", "offset"])
    assert joined.where("outcome = 'settled'").count() == RECORDS
    assert load(table="hourly").where("group_name = 'g'").agg({"settled": "sum"}).first()[0] == (
        RECORDS
    )
    assert load(table="events").where("kind = 'LEASED'").count() == RECORDS


def test_a_damaged_or_missing_file_is_named(world: World, tmp_path: Path) -> None:
    path = world.files("deliveries")[0]
    root = shutil.copytree(world.root, tmp_path / "archive")
    (split, *_) = plan_table(str(root), "deliveries", ("offset",), 1)
    file = root / "deliveries" / path
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    with pytest.raises(DamagedData, match=path):
        list(read_table(split))
    for at in range(4, len(whole), 7):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :])
        try:
            rows = list(read_table(split))
        except DamagedData as error:
            assert path in str(error)
        else:
            assert sum(map(len, rows)) == RECORDS // TURNS
    file.unlink()
    with pytest.raises(ArchiveUnavailable, match=f"{path} is gone"):
        list(read_table(split))


def test_where_nothing_was_archived_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(NoTable, match="brokerd-rollup, which creates the table"):
        plan_table(str(tmp_path), "hourly", ("hour",), 1)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"table": "sales"}, "table='sales' is unknown: give records, events, deliveries, hourly"),
        ({"table": "hourly", "topics": "a"}, "topics is for the table records, not for hourly"),
        (
            {"table": "hourly", "columns": "offset"},
            "'offset' is not a column; the columns are hour, topic",
        ),
    ],
)
def test_options_that_mean_nothing_of_a_table_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        parse_options({"path": "/p", **given})


def test_a_table_is_no_stream() -> None:
    with pytest.raises(BadOption, match="hourly cannot be streamed"):
        stream_request(parse_options({"path": "/p", "table": "Hourly"}))
