# Tests: tests/admin/test_record_calls.py
"""The API's calls about records: append some, read some."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from brokerd.admin.record_values import Payload, payload, shown
from brokerd.admin.routing import Call, Route
from brokerd.admin.shapes import (
    Appended,
    AppendedList,
    NewRecord,
    NewRecords,
    RecordList,
    RecordQuery,
    RecordShape,
    us_of,
)
from brokerd.broker import Broker, Partition, Topic
from brokerd.broker.asking import ask
from brokerd.broker.journal import RECORD_FRAME_BYTES
from brokerd.errors import BrokerdError, DamagedData, RecordTooLarge, UnknownPartition
from brokerd.values import Record

RECORD_BYTES_MAX = (10 << 20) - (64 << 10)
"""Largest record: with it a frame of the Mamamia format is full."""
PRODUCE_BODY_BYTES_MAX = 16 << 20
"""Room for the largest record in base64."""


class ReadFailed(BrokerdError):
    """The disk could not be read now."""

    retryable = True


async def append_records(call: Call) -> AppendedList:
    """Append records, all or none. Raises as `Broker.produce`, and `InvalidRequest`."""
    new: NewRecords = call.body
    batch = [(record, payload(record)) for record in new.records]
    for _, one in batch:
        _check_size(one)
    name = call.path["topic"]
    places = await ask(call.broker, lambda: _append(call.broker, name, batch))
    return AppendedList([Appended(partition, offset) for partition, offset in places])


def _append(
    broker: Broker, name: str, batch: list[tuple[NewRecord, Payload]]
) -> list[tuple[int, int]]:
    size = sum(_size(one) + RECORD_FRAME_BYTES for _, one in batch)
    topic = broker.topic(name)
    if topic is None:
        broker.admit(size)
        topic = _create(broker, name, batch)
    partitions = [topic.choose(one.key, record.partition) for record, one in batch]
    broker.admit(size, len(set(partitions)))
    now_us = broker.time.time_us()
    places = []
    for partition, (record, one) in zip(partitions, batch, strict=True):
        expires_at_us = now_us + us_of(record.ttl_seconds) if record.ttl_seconds else 0
        offset = broker.append(
            partition,
            one.value,
            one.encoding,
            one.key,
            one.metadata,
            expires_at_us=expires_at_us,
        )
        places.append((partition.index, offset))
    return places


def _create(broker: Broker, name: str, batch: list[tuple[NewRecord, Payload]]) -> Topic:
    """The first record of a topic creates it, unless it cannot be appended."""
    asked = next((record.partition for record, _ in batch if record.partition), None)
    if asked is not None:
        raise UnknownPartition(
            f"topic {name!r} does not exist; created by its first record it would have one "
            f"partition, number 0, and no partition {asked}; create it first"
        )
    return broker.create_topic(name)


def _check_size(one: Payload) -> None:
    if _size(one) > RECORD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record has {_size(one)} bytes of value, key and metadata; at most "
            f"{RECORD_BYTES_MAX} can be delivered"
        )


def _size(one: Payload) -> int:
    return len(one.value) + len(one.key or b"") + len(one.metadata or b"")


async def read_records(call: Call) -> RecordList:
    """Records of a partition from an offset on. Raises `UnknownTopic`, `UnknownPartition`."""
    query: RecordQuery = call.query
    topic = call.broker.existing_topic(call.path["topic"])
    partition = topic.partition(query.partition)
    records, next_offset, error = await fetch(
        call.broker, partition, query.offset, query.limit, query.bytes_max
    )
    if error is not None and not isinstance(error, DamagedData):
        raise ReadFailed(f"partition {partition.index} of topic {topic.name!r}: {error}; try again")
    damage = None if error is None else str(error)
    return RecordList([shown(one, partition.index) for one in records], next_offset, damage)


def fetch(
    broker: Broker, partition: Partition, offset: int, max_records: int, max_bytes: int
) -> Deferred[tuple[list[Record], int, Exception | None]]:
    """`Fetcher.fetch` as a Deferred."""
    fetched: Deferred[tuple[list[Record], int, Exception | None]] = Deferred()
    broker.fetch(partition, offset, max_records, max_bytes, lambda *found: fetched.callback(found))
    return fetched


async def read_one(
    broker: Broker, partition: Partition, offset: int
) -> tuple[RecordShape | None, str | None]:
    """(the record at an offset, why there is none)."""
    records, _, error = await fetch(broker, partition, offset, 1, 0)
    if records and records[0].offset == offset:
        return shown(records[0], partition.index), None
    return None, "it is removed or expired" if error is None else str(error)


RECORDS = "/topics/{topic}/records"
ROUTES = [
    Route(
        "POST",
        RECORDS,
        "Append records, all or none; create the topic",
        append_records,
        AppendedList,
        body=NewRecords,
        body_bytes_max=PRODUCE_BODY_BYTES_MAX,
    ),
    Route("GET", RECORDS, "Read records", read_records, RecordList, query=RecordQuery),
]
