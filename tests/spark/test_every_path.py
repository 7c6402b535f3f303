"""One log, read on every path: each has the rows that a client of each wire format fetches.

`test_same_rows.py` has records of every kind and a journal that goes meanwhile; here all paths
stand side by side.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

import brokerd.spark
from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient, batch_message
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient
from tests.archive.test_with_broker import brokerctl, rollup
from tests.spark.brokers import SECONDS, addresses, read_by_flymq, read_by_mamamia, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

TOPIC = "orders"
COUNT = 20
"""Records by each format in each part."""
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "by": {"type": "string"}},
    "required": ["n", "by"],
}
_ROLLUP = [
    *(f"--set=archive.{step}=false" for step in ("derived", "retention", "compaction", "vacuum")),
    "--set=archive.typed=true",
    "--set=archive.iceberg=true",
]

Values = dict[int, bytes]
"""Values by offset, of one partition."""


def produce(data_dir: Path, part: int) -> None:
    """Write records by each format; each value names its format and a number."""
    at = addresses(data_dir)

    def values(name: str) -> list[bytes]:
        numbers = range(part * COUNT, part * COUNT + COUNT)
        return [json.dumps({"n": number, "by": name}).encode() for number in numbers]

    with MamamiaClient(at["mamamia"]) as mamamia:
        mamamia.produce_batch(TOPIC, [batch_message(one.decode()) for one in values("mamamia")])
    with RustlogClient(at["rustlog"]) as rustlog:
        rustlog.produce(TOPIC, values("rustlog"))
    with FlymqClient(at["flymq"]) as flymq:
        for value in values("flymq"):
            flymq.produce(TOPIC, value)
    with MegaClient(at["mega"]) as mega:
        mega.produce_many(TOPIC, values("mega"))
    with BlipmqClient(at["blipmq"]) as blipmq:
        for value in values("blipmq"):
            blipmq.publish(TOPIC, value)
        blipmq.flush()


def fetched(data_dir: Path, group: str) -> dict[str, Values]:
    """Return what clients of the formats with offsets read."""
    at = addresses(data_dir)
    with RustlogClient(at["rustlog"]) as rustlog, MegaClient(at["mega"]) as mega:
        return {
            "rustlog": dict(rustlog.read(TOPIC)),
            "mega": {one.next_offset - 1: one.payload for one in mega.read(TOPIC)},
            "flymq": {
                place[2]: read.value
                for place, read in read_by_flymq(data_dir).items()
                if place[0] == TOPIC
            },
            "mamamia": {
                place[2]: payload if isinstance(payload, bytes) else payload.encode()
                for place, (payload, _, _) in read_by_mamamia(data_dir, TOPIC, group).items()
            },
        }


def delivered(client: BlipmqClient, subscription: int, count: int) -> list[bytes]:
    """Return the messages that a BlipMQ client gets, which has no offsets; check their number."""
    found = []
    for _ in range(count):
        delivery = client.receive(subscription, timeout=SECONDS)
        assert delivery is not None, len(found)
        client.ack(delivery)
        found.append(delivery.message)
    assert client.receive(subscription, timeout=1.0) is None
    return found


def by_spark(source: SparkSession, data_dir: Path, work: Path) -> dict[str, Values]:
    """Return the rows of the source, as a batch and as a stream, and of ``log``."""
    stream = source.readStream.format("brokerd").options(topics=TOPIC).load(str(data_dir))
    query = (
        stream.writeStream.format("memory")
        .queryName("every_path")
        .option("checkpointLocation", str(work))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    frames = {
        "batch": source.read.format("brokerd").options(topics=TOPIC).load(str(data_dir)),
        "stream": source.table("every_path"),
        "log": brokerd.spark.log(source, str(data_dir), topics=TOPIC),
        "log, json": brokerd.spark.log(source, str(data_dir), payload="json").where(
            f"topic = '{TOPIC}'"
        ),
    }
    return {name: _values(frame.collect()) for name, frame in frames.items()}


def by_others(root: Path) -> dict[str, Values]:
    """Return the rows of other programs over the files of the archive."""
    records = str(root / "records")
    question = f"SELECT \"offset\", value FROM log WHERE topic = '{TOPIC}'"
    with duckdb.connect() as connection:
        connection.register("log", connection.read_parquet(DeltaTable(records).file_uris()))
        rows = connection.execute(question).fetchall()
    frame = polars.scan_delta(records).filter(polars.col("topic") == TOPIC).collect()
    iceberg = StaticTable.from_metadata(f"file://{records}").scan().to_arrow()
    return {
        "DuckDB": dict(rows),
        "Polars": _values(frame.to_dicts()),
        "Iceberg": _values(row for row in iceberg.to_pylist() if row["topic"] == TOPIC),
    }


def typed(root: Path) -> dict[int, tuple[int, str]]:
    """Return the typed columns of the topic by offset."""
    (rows,) = (root / "typed").glob("*/rows")
    table = DeltaTable(str(rows)).to_pyarrow_table()
    assert len(table) == len(set(table["offset"].to_pylist()))
    return {row["offset"]: (row["n"], row["by"]) for row in table.to_pylist()}


def _values(rows: Any) -> Values:
    """Return the values by offset; check that no offset is double."""
    found: Values = {}
    for row in rows:
        assert row["offset"] not in found
        value = row["value"]
        found[row["offset"]] = value.encode() if isinstance(value, str) else bytes(value)
    return found


def check_same(found: dict[str, Values], count: int) -> Values:
    """Check that all paths have the same values, of so many offsets. Return them."""
    first = found["rustlog"]
    assert sorted(first) == list(range(count))
    for name, values in found.items():
        assert values == first, name
    return first


def test_every_path_has_the_rows_that_each_format_fetches(
    source: SparkSession, tmp_path: Path
) -> None:
    """First all records are archived, then further ones are in the journal alone."""
    data_dir, schema = tmp_path / "data", tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    with serving(data_dir):
        brokerctl(data_dir, "topic", "create", TOPIC)
        brokerctl(data_dir, "schema", "register", TOPIC, str(schema), "--type", "json")
        with BlipmqClient(addresses(data_dir)["blipmq"]) as blipmq:
            subscription = blipmq.subscribe(TOPIC)
            produce(data_dir, 0)
            messages = delivered(blipmq, subscription, 5 * COUNT)
        assert rollup(data_dir, "--seal", *_ROLLUP)["problems"] == []
        root = data_dir / "archive"
        found = fetched(data_dir, "archived") | by_others(root)
        values = check_same(found | by_spark(source, data_dir, tmp_path / "checkpoint"), 5 * COUNT)
        assert messages == [values[offset] for offset in sorted(values)]
        assert typed(root) == {
            offset: tuple(json.loads(value).values()) for offset, value in values.items()
        }
        produce(data_dir, 1)
        found = fetched(data_dir, "both")
        check_same(found | by_spark(source, data_dir, tmp_path / "other checkpoint"), 10 * COUNT)
        assert by_others(root)["DuckDB"] == values, "the archive is as it was"
