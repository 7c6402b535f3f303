"""A broker with topics of every kind, and reads of them through wire formats and Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

import brokerd.spark
from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient, batch_message, split_message_id
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient
from tests.archive.test_with_broker import broker, brokerctl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS = ("flymq", "blipmq", "rustlog", "mega")
"""The formats besides Mamamia, which always has a listener."""
PAYLOADS: list[Any] = [
    None,
    True,
    -7,
    1 << 63,
    1.5,
    "text",
    "",
    b"bytes \xff",
    b"",
    [1, "two", b"3"],
    {"n": 1, "list": []},
    msgpack.Timestamp(1, 2),
]
SECONDS = 120.0
COMPACTED = "latest"
"""A topic of which the archive keeps only the latest record of a key."""

Location = tuple[str, int, int]
"""Topic, partition, offset."""


class Read(NamedTuple):
    """A record in the view of all formats with keys; FlyMQ's empty key means none."""

    key: bytes | None
    value: bytes


@contextmanager
def serving(data_dir: Path) -> Iterator[Callable[[], None]]:
    """Run a broker of all formats with a small journal that deletes archived segments.

    Yield a function that stops the broker and starts it again.
    """
    listen = [f"--listen={form}=tcp:0" for form in FORMATS]
    settings = ["wal.segment_bytes=1MiB", "archive.keep_wal_bytes=0", "archive.poll_seconds=1"]
    options = [*listen, *(f"--set={setting}" for setting in settings)]
    with ExitStack() as stack:
        stack.enter_context(broker(data_dir, *options))

        def restart() -> None:
            stack.pop_all().close()
            stack.enter_context(broker(data_dir, *options))

        yield restart


def let_go(data_dir: Path, restart: Callable[[], None]) -> None:
    """Let the broker delete the archived journal, which needs two snapshots.

    A stop writes a snapshot if there are new records; they go to a topic of their own.
    """
    for _ in range(2):
        append(data_dir, "filler", 1)
        restart()

    def is_let_go() -> bool:
        lsn = brokerctl(data_dir, "archive", "refresh")["records_lsn"]
        return all(int(path.stem) >= lsn > 0 for path in (data_dir / "wal").glob("*.wal"))

    wait_until(is_let_go)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for at most two minutes."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def addresses(data_dir: Path) -> dict[str, str]:
    """Return the address of each format."""
    found: dict[str, str] = json.loads((data_dir / "run" / "listeners.json").read_text())
    return found


# -- writing --------------------------------------------------------------------------------------


def fill(data_dir: Path) -> None:
    """Write records of every kind through every format; some topics lose some or all of them.

    A delayed record is there at the end, and those that expire are expired.
    """
    at = addresses(data_dir)
    with (
        MamamiaClient(at["mamamia"]) as mamamia,
        FlymqClient(at["flymq"]) as flymq,
        RustlogClient(at["rustlog"]) as rustlog,
        MegaClient(at["mega"]) as mega,
        BlipmqClient(at["blipmq"]) as blipmq,
    ):
        _write_mamamia(mamamia)
        _write_flymq(flymq)
        blipmq.publish("of blipmq", b"once", qos=0)
        blipmq.publish("of blipmq", b"", qos=1)
        blipmq.flush()
        rustlog.create_topic("of rustlog", 3)
        rustlog.produce("of rustlog", [b"", b"one", b"\x00" * 300], 2)
        mega.create_topic("of-mega")
        for timestamp in (-5, 0, 1 << 40):
            mega.produce("of-mega", b"at %d" % timestamp, timestamp=timestamp)
        for topic in ("trimmed", "deleted", "again"):
            for number in range(10):
                flymq.produce(topic, b"%s %d" % (topic.encode(), number))
        for number in range(10):
            flymq.produce_with_ttl("expired", b"soon gone", 1 if number % 2 else 0)
        brokerctl(data_dir, "topic", "trim", "trimmed", "--offset", "4", "--yes")
        flymq.delete_topic("deleted")
        flymq.delete_topic("again")
        flymq.produce("again", b"of the new one")
        wait_until(lambda: len(flymq.fetch("expired", 0, 0, 10).records) == 5)
    wait_until(lambda: ("later", 0, 0) in read_by_flymq(data_dir))
    append(data_dir, "orders", 8_000)
    wait_until((data_dir / "state" / "bounds").exists)


def _write_mamamia(client: MamamiaClient) -> None:
    for number, payload in enumerate(PAYLOADS):
        key = [None, b"", b"key", b"\xff"][number % 4]
        client.produce("of mamamia", payload, [None, {}, {"trace": number}][number % 3], key=key)
        client.produce("", payload)
    client.produce("later", b"by and by", delay=0.05)
    client.produce("later", b"not in this test", delay=100_000)
    for number in range(5):
        client.produce("dead", b"%d" % number)
    for _ in range(2):
        message = client.acquire("dead", "workers", "me")
        assert message is not None
        client.settle("dead", "workers", message.id, "me", False, dead=True, reason="no good")
    client.produce("dead.dlq", b"a topic like any other")


def _write_flymq(client: FlymqClient) -> None:
    client.create_topic("of flymq", 3)
    for number in range(30):
        key = None if number % 3 == 0 else b"k%d" % number
        client.produce("of flymq", b"" if number % 5 == 0 else b"v%d" % number, key)
    with client.transaction() as transaction:
        for number in range(5):
            transaction.produce("of flymq", b"together %d" % number)
    undone = client.transaction()
    undone.produce("of flymq", b"never")
    undone.rollback()


def append(data_dir: Path, topic: str, count: int) -> None:
    """Append ``count`` records with different values to a topic."""
    with MamamiaClient(addresses(data_dir)["mamamia"]) as client:
        now = time.time_ns()
        values = [b"%d %06d " % (now, number) * 5 for number in range(count)]
        for first in range(0, count, 500):
            client.produce_batch(topic, map(batch_message, values[first : first + 500]))


def compact(data_dir: Path) -> None:
    """Fill a topic in which most records are superseded."""
    with FlymqClient(addresses(data_dir)["flymq"]) as client:
        for number in range(40):
            client.produce(COMPACTED, b"%d" % number, b"key %d" % (number % 7))
    brokerctl(data_dir, "topic", "configure", COMPACTED, "--compact", "yes")


# -- reading --------------------------------------------------------------------------------------


def read_by_flymq(data_dir: Path) -> dict[Location, Read]:
    """Return all records of all topics that FlyMQ can name."""
    at = addresses(data_dir)
    found: dict[Location, Read] = {}
    with RustlogClient(at["rustlog"]) as rustlog, FlymqClient(at["flymq"]) as flymq:
        for topic, partitions in rustlog.topics().items():
            for partition in range(partitions if topic else 0):
                offset = 0
                while (fetched := flymq.fetch(topic, partition, offset, 5_000)).records:
                    for record in fetched.records:
                        place = (topic, partition, record.offset)
                        found[place] = Read(record.key or None, record.value)
                    offset = fetched.next_offset
    return found


def read_by_mamamia(data_dir: Path, topic: str, group: str) -> dict[Location, tuple[Any, Any, Any]]:
    """Return payload, key and metadata of each record of a topic, through a new group."""
    found = {}
    with MamamiaClient(addresses(data_dir)["mamamia"]) as client:
        while leased := client.acquire_batch(topic, group, "me", 5_000):
            for message in leased:
                place = (topic, *split_message_id(message.id))
                found[place] = (message.payload, message.key, message.metadata)
    return found


def load(spark: SparkSession, data_dir: Path, **options: str) -> list[Any]:
    """Return the rows of a batch by topic id, partition and offset; check that none is double."""
    return _in_order(spark.read.format("brokerd").options(**options).load(str(data_dir)).collect())


def load_log(spark: SparkSession, data_dir: Path) -> list[Any]:
    """Return the rows of `brokerd.spark.log` in the form of `load`."""
    return _in_order(brokerd.spark.log(spark, str(data_dir)).collect())


def _in_order(rows: list[Any]) -> list[Any]:
    found = {(row["topic_id"], row["partition"], row["offset"]): row for row in rows}
    assert len(found) == len(rows)
    return [found[key] for key in sorted(found)]


def as_flymq(rows: list[Any]) -> dict[Location, Read]:
    """Return rows of Spark in the form of `read_by_flymq`, without the topic ""."""
    return {
        (row["topic"], row["partition"], row["offset"]): Read(
            None if not row["key"] else bytes(row["key"]), bytes(row["value"])
        )
        for row in rows
        if row["topic"]
    }


def as_mamamia(rows: list[Any], topic: str) -> dict[Location, tuple[Any, Any, Any]]:
    """Return rows of Spark in the form of `read_by_mamamia`."""
    unpack: Any = {0: bytes, 1: lambda value: bytes(value).decode(), 2: msgpack.unpackb}
    return {
        (topic, row["partition"], row["offset"]): (
            unpack[row["encoding"]](row["value"]),
            None if row["key"] is None else bytes(row["key"]),
            None if row["metadata"] is None else msgpack.unpackb(row["metadata"]),
        )
        for row in rows
        if row["topic"] == topic
    }
