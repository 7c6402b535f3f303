"""``df.write`` and ``df.writeStream`` to a broker, as a user has them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient, split_message_id
from brokerd.spark.sink.sender import Refused
from brokerd.spark.sink.writer import batch_sink
from tests.certificates import Authority
from tests.spark.brokers import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NOBODY = "127.0.0.1:1"
"""An address at which nothing listens: a job would fail there, late and otherwise."""


class Broker(BrokerProcess):
    """A broker with the records of its topics."""

    def records(self, topic: str) -> list[tuple[int, Any, Any, Any]]:
        """Return partition, key, payload and metadata of each record, by partition and offset."""
        found = []
        with MamamiaClient(self.address) as client:
            group = f"reader {time.monotonic_ns()}"
            while leased := client.acquire_batch(topic, group, "me", 5_000, 600.0):
                found += [
                    (split_message_id(one.id), one.key, one.payload, one.metadata) for one in leased
                ]
        found.sort(key=lambda one: one[0])
        return [(place[0], key, payload, metadata) for place, key, payload, metadata in found]

    def values(self, topic: str) -> list[Any]:
        return sorted(payload for _, _, payload, _ in self.records(topic))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    process = Broker(tmp_path / "data", tmp_path / "log", formats=("mamamia", "flymq"))
    with process:
        process.start()
        yield process


def input_of(source: SparkSession, path: Path, first: int, count: int) -> None:
    """Add a file of lines to the input of a stream."""
    source.range(first, first + count, 1, 1).selectExpr("CAST(id AS string) AS value").write.mode(
        "append"
    ).text(str(path))


class Stream:
    """A stream of lines to the topic ``lines``; a process of its own could run it each time."""

    def __init__(self, source: SparkSession, path: Path, server: str) -> None:
        self.source = source
        self.input = path / "input"
        self.checkpoint = path / "checkpoint"
        self.server = server

    def run(self, partitions: int = 2, **options: Any) -> None:
        """Take what is there, in micro-batches of one file."""
        self.start(partitions, **options).awaitTermination()

    def start(self, partitions: int = 2, **options: Any) -> StreamingQuery:
        """Begin to take what is there."""
        lines = self.source.readStream.format("text").option("maxFilesPerTrigger", 1)
        rows = lines.load(str(self.input)).repartition(partitions)
        given = {"server": self.server, "topic": "lines", "batchRecords": 10, **options}
        return (
            rows.writeStream.format("brokerd")
            .options(**given)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    def forget_commit(self, epoch: int) -> None:
        """Let Spark repeat a micro-batch, as if it had been killed before it noted the commit."""
        for name in (str(epoch), f".{epoch}.crc"):
            (self.checkpoint / "commits" / name).unlink()


def lines(count: int, first: int = 0) -> list[str]:
    return sorted(str(number) for number in range(first, first + count))


# -- Before a job --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("id AS value", {"topic": "a"}, "BadColumns: the column value has the type bigint"),
        ("'x' AS value", {}, "BadColumns: no topic is given"),
        ("'x' AS value, id", {"topic": "a"}, "BadColumns: the sink cannot write the column 'id'"),
        ("'x' AS value", {"topics": "a"}, "BadOption: unknown option 'topics'"),
        ("'x' AS value", {"topic": "a", "password": "hush"}, "BadOption: unknown option 'password"),
        ("'x' AS value", {"topic": "a", "tlsCaFile": "/no.pem"}, "TLS cannot use /no.pem"),
    ],
)
def test_what_is_wrong_is_said_before_a_job(
    source: SparkSession, columns: str, options: dict[str, str], said: str
) -> None:
    """In one line, without a traceback and without what may be a secret."""
    rows = source.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match="PYTHON_DATA_SOURCE_ERROR") as refused:
        rows.write.format("brokerd").mode("append").option("server", NOBODY).options(
            **options
        ).save()
    assert said in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_log_is_not_overwritten(source: SparkSession, tmp_path: Path) -> None:
    rows = source.range(3).selectExpr("'x' AS value")
    with pytest.raises(Exception, match=r"the sink only appends.*use mode.'append'"):
        rows.write.format("brokerd").mode("overwrite").options(server=NOBODY, topic="a").save()


def test_a_stream_says_it_before_its_first_job(source: SparkSession, tmp_path: Path) -> None:
    input_of(source, tmp_path / "input", 0, 3)
    stream = Stream(source, tmp_path, NOBODY)
    with pytest.raises(Exception, match="STREAM_FAILED") as refused:
        stream.run(writeId="one")
    assert "BadOption: writeId is for df.write" in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert not (stream.checkpoint / "brokerd").exists()


# -- Batches --------------------------------------------------------------------------------


def whole(source: SparkSession) -> DataFrame:
    """Return rows with all columns."""
    return source.sql(
        """
        SELECT CAST(id % 3 AS string) AS key, encode(concat('v', id), 'utf-8') AS value,
               IF(id % 2 = 0, array(named_struct('key', 'n', 'value', encode('h', 'utf-8'))), NULL)
                   AS headers,
               IF(id < 90, 'many', 'few') AS topic, IF(id < 30, 1, NULL) AS partition
        FROM range(0, 100, 1, 4)
        """
    )


@pytest.mark.slow
def test_all_columns_arrive(source: SparkSession, broker: Broker) -> None:
    """In the partitions of the rows; else a key has one partition."""
    from brokerd.client.flymq import FlymqClient

    with FlymqClient(broker.address_of("flymq")) as client:
        client.create_topic("many", 3)
    rows = whole(source)
    rows.write.format("brokerd").mode("append").options(
        server=broker.address, batchRecords=7
    ).save()
    many, few = broker.records("many"), broker.records("few")
    assert Counter(value for _, _, value, _ in many) == Counter(b"v%d" % n for n in range(90))
    assert [value for _, _, value, _ in few] == [b"v%d" % n for n in range(90, 100)]
    places: dict[Any, set[int]] = {}
    for partition, key, value, metadata in many + few:
        number = int(value[1:])
        assert key == b"%d" % (number % 3)
        assert metadata == (None if number % 2 else {"n": b"h"})
        if number < 30:
            assert partition == 1
        elif number < 90:
            places.setdefault(key, set()).add(partition)
    assert all(len(found) == 1 for found in places.values())


@pytest.mark.slow
def test_a_write_with_an_id_is_stored_once(
    source: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """However often it is repeated, and however its rows are cut."""
    rows = source.range(100).selectExpr("CAST(id AS string) AS value")
    options = {"server": broker.address, "topic": "lines", "stagingDirectory": str(tmp_path / "st")}
    for write_id, partitions in (("one", 1), ("one", 3), ("two", 2)):
        writer = rows.repartition(partitions).write.format("brokerd").mode("append")
        writer.options(**options, writeId=write_id).save()
    assert Counter(broker.values("lines")) == Counter(lines(100) * 2)
    for write_id in ("one", "two"):
        assert list((tmp_path / "st" / f"write-{write_id}" / "rows").iterdir()) == []


@pytest.mark.slow
def test_a_row_that_is_refused_ends_the_write(source: SparkSession, broker: Broker) -> None:
    rows = source.range(3).selectExpr("'x' AS value", "7 AS partition")
    with pytest.raises(Exception, match="has no partition 7") as refused:
        rows.write.format("brokerd").mode("append").options(
            server=broker.address, topic="lines"
        ).save()
    assert "Refused: " in str(refused.value)


# -- Streams --------------------------------------------------------------------------------


@pytest.mark.slow
def test_micro_batches_arrive_once_also_if_spark_repeats_them(
    source: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """With other partitions than before; and a new checkpoint stores everything again."""
    stream = Stream(source, tmp_path, broker.address)
    for number in range(3):
        input_of(source, stream.input, 100 * number, 100)
    stream.run()
    assert broker.values("lines") == lines(300)
    stream.forget_commit(2)
    stream.run(partitions=5)
    input_of(source, stream.input, 300, 50)
    stream.run(partitions=3)
    assert broker.values("lines") == lines(350)
    (query,) = (stream.checkpoint / "brokerd").iterdir()
    metadata = json.loads((stream.checkpoint / "metadata").read_text())
    assert query.name == f"query-{metadata['id']}"
    stream.checkpoint = tmp_path / "another"
    stream.run()
    assert Counter(broker.values("lines")) == Counter(lines(350) * 2)


@pytest.mark.slow
def test_a_stream_waits_for_a_broker_that_is_killed(
    source: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """It goes on when the broker is back. If that takes too long it fails, and goes on later."""
    stream = Stream(source, tmp_path, broker.address)
    input_of(source, stream.input, 0, 100)
    stream.run()
    broker.kill()
    input_of(source, stream.input, 100, 100)
    query = stream.start()
    wait_until((stream.checkpoint / "offsets" / "1").exists)
    time.sleep(2.0)
    assert not (stream.checkpoint / "commits" / "1").exists()
    broker.start()
    query.awaitTermination()
    assert broker.values("lines") == lines(200)
    broker.kill()
    input_of(source, stream.input, 200, 100)
    with pytest.raises(Exception, match="STREAM_FAILED") as refused:
        stream.run(retrySeconds=1)
    assert "NotReachable: " in str(refused.value)
    assert "Connection refused" in str(refused.value)
    broker.start()
    stream.run(partitions=7)
    assert broker.values("lines") == lines(300)


# -- TLS and security ------------------------------------------------------------------------------


def write_rows(options: dict[str, str], *values: str) -> None:
    """Write rows as a task of a write does, without Spark."""
    schema = StructType([StructField("value", StringType())])
    rows = pa.record_batch([pa.array(values, pa.string())], names=["value"])
    batch_sink(options, schema, False).write(iter([rows]))


@pytest.mark.slow
def test_a_certificate_is_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, or for a topic that its account may not write, the refusal is told at once."""
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    servers, clients = Authority(tmp_path, "servers"), Authority(tmp_path, "clients")
    server, sink = servers.issue("broker"), clients.issue("sink")
    password = tmp_path / "password"
    password.write_text("a long password\n")
    settings = [
        "security.auth=on",
        f"security.admin_password_file={password}",
        f"tls.certificate_file={server.certificate}",
        f"tls.key_file={server.key}",
        f"tls.client_ca_file={clients.certificate}",
        "tls.client_auth=optional",
    ]
    process = TlsBroker(tmp_path / "data", tmp_path / "log", settings, formats=("mamamia",))
    with process:
        process.start()
        plain = {"server": process.address, "topic": "lines", "retrySeconds": "5"}
        trusting = {**plain, "tlsCaFile": str(servers.certificate)}
        certified = {
            **trusting,
            "tlsCertificateFile": str(sink.certificate),
            "tlsKeyFile": str(sink.key),
        }
        for options, said in (
            (trusting, "authentication required"),
            (certified, "authentication required|unauthorized"),
            (
                {**certified, "tlsServerName": "elsewhere"},
                "is not the broker that the sink expects",
            ),
            ({**plain, "tls": "true"}, "is not the broker that the sink expects"),
        ):
            with pytest.raises(Refused, match=said):
                write_rows(options, "x" * 300_000)
        admin = clients.issue("admin")
        admitted = {
            **certified,
            "tlsCertificateFile": str(admin.certificate),
            "tlsKeyFile": str(admin.key),
        }
        write_rows(admitted, "a", "b" * 300_000)
        write_rows({**admitted, "topic": "other"}, "c")
        context = servers.client_context(admin)
        with MamamiaClient(process.address, ssl_context=context) as client:
            found = client.acquire_batch("lines", "g", "me", 10)
            assert [one.payload for one in found] == ["a", "b" * 300_000]


class TlsBroker(BrokerProcess):
    """A broker whose Mamamia listener has TLS and asks for certificates."""

    def command(self) -> list[str]:
        listen = "--listen=mamamia=ssl:0:interface=127.0.0.1"
        return [
            listen if part.startswith("--listen=mamamia=") else part for part in super().command()
        ]
