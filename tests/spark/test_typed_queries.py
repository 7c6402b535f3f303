"""``payload=schema``: a query or stream of one topic has the columns of its schema."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from brokerd.archive.contract import schemas
from brokerd.archive.typed import topic_schema
from brokerd.spark.location import open_location
from brokerd.spark.options import BadOption, parse_options
from brokerd.spark.plan.schemas import NoSchema, read_topic_schemas
from brokerd.spark.source import LogSource
from brokerd.spark.streaming import LogStreamReader
from tests.spark.logs import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = {
    "type": "object",
    "properties": {
        "country": {"type": "string"},
        "amount": {"type": "integer"},
        "key": {"type": "string"},
    },
    "required": ["country"],
}
LATER = {
    **ORDER,
    "properties": {
        **ORDER["properties"],  # type: ignore[dict-item]
        "amount": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
    },
}
TYPED = {"topics": "orders", "payload": "schema"}


def value(**fields: object) -> bytes:
    return json.dumps(fields).encode()


@pytest.fixture
def orders(tmp_path: Path) -> Log:
    """A log of orders: two versions, the first in the archive, the second after the bounds."""
    log = Log(tmp_path / "data")
    topic_id = log.create("orders")
    log.register("orders", 1, "json", json.dumps(ORDER).encode())
    log.append(topic_id, 0, value(country="de", amount=3, key="k"), b"no JSON")
    log.seal()
    log.publish()
    log.roll_up()
    log.register("orders", 2, "json", json.dumps(LATER).encode())
    log.append(topic_id, 1, value(country="fr", amount=1.5, paid=True), value(amount=2))
    return log


def test_rows_have_the_columns_of_all_versions(source: SparkSession, orders: Log) -> None:
    """Also of a version that was registered after the bounds; the reason is in a row that fails."""
    frame = source.read.format("brokerd").options(**TYPED).load(str(orders.path))
    shown = frame.select(
        *("partition", "offset", "schema_version", "schema_error"),
        *("country", "amount", "value_key", "paid"),
    )
    assert dict(shown.dtypes[4:]) == {
        "country": "string",
        "amount": "double",
        "value_key": "string",
        "paid": "boolean",
    }
    assert "value" not in frame.columns
    rows = [tuple(row) for row in shown.orderBy("partition", "offset").collect()]
    assert rows[0] == (0, 0, 1, None, "de", 3.0, "k", None)
    assert rows[1][2:] == (
        None,
        "version 1: invalid JSON message: Expecting value: line 1 column 1 (char 0)",
        *[None] * 4,
    )
    assert rows[2] == (1, 0, 2, None, "fr", 1.5, None, True)
    assert rows[3][2:4] == (None, "version 2: missing required field: country")
    summed = frame.groupBy("country").sum("amount").where("country IS NOT NULL").collect()
    assert sorted(map(tuple, summed)) == [("de", 3.0), ("fr", 1.5)]


def test_columns_selects_and_log_and_sql_have_the_same(source: SparkSession, orders: Log) -> None:
    """``columns`` names fields and columns of records, in any case."""
    import brokerd.spark

    part = {**TYPED, "columns": "Amount, offset,value"}
    frame = brokerd.spark.log(source, str(orders.path), **part)
    assert frame.columns == ["amount", "offset", "value"]
    assert frame.where("amount = 1.5").collect()[0].asDict() == {
        "amount": 1.5,
        "offset": 0,
        "value": bytearray(value(country="fr", amount=1.5, paid=True)),
    }
    try:
        source.sql(
            f"CREATE TABLE typed USING brokerd OPTIONS (path '{orders.path}', topics 'orders', "
            "payload 'schema')"
        )
        assert source.sql("SELECT country FROM typed WHERE amount > 2").collect()[0][0] == "de"
    finally:
        source.sql("DROP TABLE IF EXISTS typed")
    wrong = source.read.format("brokerd").options(**{**TYPED, "columns": "price"})
    with pytest.raises(Exception, match="columns: 'price' is not a column; the columns are topic"):
        wrong.load(str(orders.path))


def test_a_stream_keeps_its_columns_while_versions_come(orders: Log) -> None:
    """A new field does not disturb it; after a new start it has a column."""
    given = {**TYPED, "path": str(orders.path)}
    schema = LogSource(given).schema()

    def read(reader: LogStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        end = reader.latestOffset(start, ReadAllAvailable())
        batches = [
            batch
            for partition in reader.partitions(start, end)
            for batch in pickle.loads(pickle.dumps(reader)).read(
                pickle.loads(pickle.dumps(partition))
            )
        ]
        return end, [row for batch in batches for row in batch.to_pylist()]

    reader = LogStreamReader(given, schema)
    end, rows = read(reader, reader.initialOffset())
    assert [row["country"] for row in rows] == ["de", None, "fr", None]
    third = {**LATER, "properties": {**LATER["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]
    orders.register("orders", 3, "json", json.dumps(third).encode())
    orders.append(1, 0, value(country="it", note="n"))
    later, (row,) = read(reader, end)
    assert (row["country"], row["schema_version"], "note" in row) == ("it", 3, False)
    again = LogStreamReader(given, LogSource(given).schema())
    assert [row["note"] for row in read(again, end)[1]] == ["n"]
    assert read(again, later)[1] == []


def test_records_with_many_fields_come_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with the columns of its own record."""
    monkeypatch.setattr(topic_schema, "PART_CELLS", 4)
    log = Log(tmp_path / "data")
    topic_id = log.create("orders")
    items = {"type": "array", "items": {"type": "integer"}}
    text = {"type": "object", "properties": {"l": items}}
    log.register("orders", 1, "json", json.dumps(text).encode())
    log.append(topic_id, 0, *(value(l=[n] * (n % 4)) for n in range(20)))
    options = {**TYPED, "columns": "offset,l,schema_error", "path": str(log.path)}
    source = LogSource(options)
    reader = source.reader(source.schema())
    batches = [one for part in reader.partitions() for one in reader.read(part)]
    assert len(batches) == 5
    rows = [row for one in batches for row in one.to_pylist()]
    assert rows == [{"offset": n, "l": [n] * (n % 4), "schema_error": None} for n in range(20)]


def test_avro_of_an_older_version_in_the_archive_alone(source: SparkSession, orders: Log) -> None:
    """The copy of the schemas in the archive keeps what the broker has deleted."""
    old = {"type": "record", "name": "o", "fields": [{"name": "n", "type": "int"}]}
    topic_id = orders.create("numbers")
    orders.register("numbers", 1, "avro", json.dumps(old).encode())
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(old), {"n": 7})
    orders.append(topic_id, 0, out.getvalue())
    orders.seal()
    orders.publish()
    orders.roll_up()
    (orders.root / schemas.FILE_NAME).write_bytes((orders.path / "state/schemas").read_bytes())
    options = {**TYPED, "topics": "numbers"}
    frame = source.read.format("brokerd").options(**options).load(str(orders.root))
    assert [(row.n, row.schema_version) for row in frame.collect()] == [(7, 1)]


def test_schemas_come_from_bounds_journal_and_archive(orders: Log) -> None:
    """Each version once; a file of another log does not count."""
    location = open_location(str(orders.path))

    def versions() -> list[int]:
        return [one.version for one in read_topic_schemas(location, "orders")]

    assert versions() == [1, 2]
    orders.publish()
    assert versions() == [1, 2]
    gone = schemas.StoredSchema("orders", 3, "json", b"{}", 5)
    other = schemas.StoredSchemas("f" * 32, [gone])
    (orders.root / schemas.FILE_NAME).write_bytes(schemas.encode_schemas(other))
    assert versions() == [1, 2]
    own = schemas.StoredSchemas(orders.bounds.log_id, [gone])
    (orders.root / schemas.FILE_NAME).write_bytes(schemas.encode_schemas(own))
    assert versions() == [3, 1, 2]
    with pytest.raises(NoSchema, match="the topic 'none' has no schema: register one"):
        read_topic_schemas(location, "none")


@pytest.mark.parametrize("topics", [None, "a,b", "a*"])
def test_a_schema_is_of_one_topic(topics: str | None) -> None:
    """More topics have more columns."""
    given = {"payload": "schema"} if topics is None else {"payload": "schema", "topics": topics}
    with pytest.raises(BadOption, match="payload=schema has the columns of one topic"):
        parse_options(given)
