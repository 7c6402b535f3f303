# Tests: tests/admin/test_record_calls.py
"""The API's calls about records and delayed messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from twisted.internet.defer import Deferred

from brokerd.admin.http.bodies import ListBody
from brokerd.admin.http.routing import Call, NotFound, ReadFailed, Route
from brokerd.admin.record_values import Payload, payload, preview, record_shape
from brokerd.admin.shapes.common import (
    RecordQuery,
    ScheduleQuery,
    TimeQuery,
    time_of,
    time_us_of,
    us_of,
)
from brokerd.admin.shapes.topics import (
    Appended,
    AppendedList,
    Cancelled,
    NewRecord,
    NewRecords,
    OffsetAtTime,
    RecordList,
    RecordShape,
    ScheduledList,
    ScheduledShape,
)
from brokerd.broker import Broker, Partition, Topic
from brokerd.broker.delayed.schedule import check_delay, delays_frame_bytes
from brokerd.broker.records.append import Rows
from brokerd.errors import BrokerdError, DamagedData, InvalidRequest, RecordTooLarge
from brokerd.security import READ, WRITE
from brokerd.values import ADMIN_RECORD_BYTES, Format, Record

PRODUCE_BODY_BYTES_MAX = 16 << 20
"""Bytes of a body with the largest record in base64."""
SCHEDULED_MAX = 1_000
"""Most delayed messages of a page, also if a request asks for more: 10,000 take 65 ms."""
POSITIONS_PER_STEP = 100
"""Positions of new records that a step of an answer makes: 20 us."""
READ_BYTES_MAX = 512 << 10
"""Most bytes of records of one read, also if a request asks for more: the JSON of 1 MB of
MessagePack takes 90 ms.
"""


class _RecordOptions(NamedTuple):
    """The options that a request gives for a record."""

    partition: int | None = None
    delay_seconds: float = 0
    ttl_seconds: float | None = None
    producer_time: int | None = None


_NO_OPTIONS = _RecordOptions()


class Batch:
    """New records, and what their admission needs to know."""

    def __init__(self) -> None:
        self.options: list[_RecordOptions] = []
        self.rows = Rows()
        """The bytes of the records. They have no expiry."""
        self.is_plain = True
        """Whether no record has a delay, a time of its producer, or another partition than 0."""
        self.has_ttl = False
        self.delayed = 0
        self.highest_partition = 0

    def add(self, record: NewRecord) -> None:
        """Check and add a record. Raises `InvalidRequest` and `RecordTooLarge`."""
        one = payload(record)
        _check_size(one)
        options = _RecordOptions(
            record.partition, record.delay_seconds, record.ttl_seconds, record.producer_time
        )
        if options == _NO_OPTIONS:
            options = _NO_OPTIONS
        else:
            self._check(options)
        self.options.append(options)
        self.rows.add(one.value, one.encoding, one.key, one.metadata, None)

    def _check(self, options: _RecordOptions) -> None:
        if options.delay_seconds:
            check_delay(us_of(options.delay_seconds))
            if options.producer_time is not None:
                raise InvalidRequest("a delayed message has no producer_time")
            self.delayed += 1
        if options.delay_seconds or options.partition or options.producer_time is not None:
            self.is_plain = False
        self.has_ttl |= options.ttl_seconds is not None
        self.highest_partition = max(self.highest_partition, options.partition or 0)


async def append_records(call: Call) -> AppendedList:
    """Append records, all or none. Raises as `Broker.records.produce`, and `InvalidRequest`.

    The records of the request are freed one by one. Positions in a topic of one partition are made
    in slices; those of several partitions and schedule ids are made by the append.
    """
    new: NewRecords = call.body
    batch, pace, name = Batch(), call.pace(), call.path["topic"]
    records = new.records[::-1]
    new.records.clear()
    while records:
        batch.add(records.pop())
        await pace.rest()
    await pace.next_slice()
    positions = await call.when_admitted(lambda: _append(call, name, batch))
    await pace.next_slice()
    appended: list[Appended] = []
    while some := list(islice(positions, POSITIONS_PER_STEP)):
        appended += some
        await pace.rest()
    await pace.next_slice()
    return AppendedList(appended)


def _append(call: Call, name: str, batch: Batch) -> Iterator[Appended]:
    """Append records that are due now and schedule the others, in one frame."""
    broker, rows = call.broker, batch.rows
    expiries: list[int | None] = rows.expires_at_us
    if batch.has_ttl:
        expiries = [
            None if one.ttl_seconds is None else _expiry_us(broker, one.ttl_seconds)
            for one in batch.options
        ]
    size = rows.size + delays_frame_bytes(batch.delayed)
    topic = broker.topic_writer.topic(
        call.access, name, size, highest_partition=batch.highest_partition
    )
    if batch.delayed:
        broker.group_commit.admit(size)
        broker.delayed.ensure_internal_topic(topic)
    if batch.is_plain and len(topic.partitions) == 1:
        broker.group_commit.admit(size)
        rows.expires_at_us = expiries
        offset = broker.appender.append_rows(topic.partitions[0], rows, Format.UNKNOWN)
        return (Appended(0, offset + number) for number in range(len(batch.options)))
    partitions = [
        topic.choose(key, one.partition) for key, one in zip(rows.keys, batch.options, strict=True)
    ]
    broker.group_commit.admit(size, len(set(partitions)))
    return iter(_append_each(broker, topic, partitions, batch, expiries))


def _append_each(
    broker: Broker,
    topic: Topic,
    partitions: Sequence[Partition],
    batch: Batch,
    expiries: Sequence[int | None],
) -> list[Appended]:
    appended = []
    rows = batch.rows
    for partition, options, value, encoding, key, metadata, expires_at_us in zip(
        partitions,
        batch.options,
        rows.values,
        rows.encodings,
        rows.keys,
        rows.metadata,
        expiries,
        strict=True,
    ):
        if options.delay_seconds:
            schedule_id = broker.delayed.append(
                topic,
                value,
                encoding,
                key,
                metadata,
                Format.UNKNOWN,
                options.partition,
                us_of(options.delay_seconds),
                expires_at_us,
            )
            appended.append(Appended(schedule_id=schedule_id))
        else:
            offset = broker.appender.append(
                partition,
                value,
                encoding,
                key,
                metadata,
                producer_time=options.producer_time,
                expires_at_us=expires_at_us,
            )
            appended.append(Appended(partition.index, offset))
    return appended


def _expiry_us(broker: Broker, ttl_seconds: float) -> int:
    """Return the expiry time of a record in broker time; 0 never."""
    return broker.appender.expiry_us(us_of(ttl_seconds)) if ttl_seconds else 0


def _check_size(one: Payload) -> None:
    if _size(one) > ADMIN_RECORD_BYTES:
        raise RecordTooLarge(
            f"a record has {_size(one)} bytes of value, key and metadata; at most "
            f"{ADMIN_RECORD_BYTES} can be delivered"
        )


def _size(one: Payload) -> int:
    return len(one.value) + len(one.key or b"") + len(one.metadata or b"")


async def read_records(call: Call) -> RecordList:
    """Return records of a partition from an offset. Raises `UnknownTopic`, `UnknownPartition`."""
    query: RecordQuery = call.query
    topic = call.broker.topics.existing(call.path["topic"])
    partition = topic.partition(query.partition)
    records, next_offset, error = await fetch(
        call.broker, partition, query.offset, query.limit, min(query.bytes_max, READ_BYTES_MAX)
    )
    if error is not None and not isinstance(error, DamagedData):
        raise ReadFailed(f"partition {partition.index} of topic {topic.name!r}: {error}; try again")
    damage = None if error is None else str(error)
    return RecordList(await _shapes(call, records, partition.index), next_offset, damage)


async def _shapes(call: Call, records: Sequence[Record], partition: int) -> list[RecordShape]:
    """Convert records to their shapes, in slices of the reactor's turns."""
    pace = call.pace()
    shapes = []
    for record in records:
        shapes.append(record_shape(record, partition))
        await pace.rest()
    return shapes


def fetch(
    broker: Broker, partition: Partition, offset: int, max_records: int, max_bytes: int
) -> Deferred[tuple[Sequence[Record], int, Exception | None]]:
    """Return `RecordReader.fetch` as a Deferred."""
    fetched: Deferred[tuple[Sequence[Record], int, Exception | None]] = Deferred()
    broker.reader.fetch(
        partition, offset, max_records, max_bytes, lambda *found: fetched.callback(found)
    )
    return fetched


async def read_one(
    broker: Broker, partition: Partition, offset: int
) -> tuple[RecordShape | None, str | None]:
    """Return (the record at an offset, the reason if there is none)."""
    records, _, error = await fetch(broker, partition, offset, 1, 0)
    if records and records[0].offset == offset:
        return record_shape(records[0], partition.index), None
    return None, "it is removed or expired" if error is None else str(error)


async def offset_at_time(broker: Broker, partition: Partition, time_us: int) -> int:
    """Return `Broker.reader.offset_at_time`. Raises `ReadFailed` if the log is unreadable."""
    found: Deferred[tuple[int | None, Exception | None]] = Deferred()
    broker.reader.offset_at_time(partition, time_us, lambda *answer: found.callback(answer))
    offset, error = await found
    if isinstance(error, BrokerdError):
        raise error
    if offset is None:
        raise ReadFailed(f"the log cannot be read: {error}; try again")
    return offset


async def find_offset(call: Call) -> OffsetAtTime:
    """Return the first offset appended at or after a time. Raises as `offset_at_time`."""
    query: TimeQuery = call.query
    partition = call.broker.topics.existing(call.path["topic"]).partition(query.partition)
    offset = await offset_at_time(call.broker, partition, time_us_of(query.time))
    return OffsetAtTime(partition.index, offset)


def list_scheduled(call: Call) -> ScheduledList:
    """Return a page of delayed messages. Raises `UnknownTopic`."""
    query: ScheduleQuery = call.query
    limit = min(query.limit, SCHEDULED_MAX)
    found = call.broker.delayed.scheduled(call.path["topic"], query.first_id)
    page = [
        ScheduledShape(
            one.id,
            time_of(one.due_us),
            one.partition,
            one.size,
            None if one.key is None else one.key.decode("utf-8", "backslashreplace"),
            None if one.preview is None else preview(one.preview, one.encoding),
        )
        for one in islice(found, limit + 1)
    ]
    more = page[limit:]
    return ScheduledList(page[:limit], more[0].schedule_id if more else None)


async def cancel_scheduled(call: Call) -> Cancelled:
    """Cancel a delayed message. Raises `UnknownTopic`, and `NotFound` if it is not waiting."""
    broker, name, schedule_id = call.broker, call.path["topic"], call.number("schedule_id")
    if not await call.when_admitted(lambda: broker.delayed.cancel(name, schedule_id)):
        raise NotFound(
            f"topic {name!r} has no delayed message {schedule_id}: it was delivered or cancelled "
            "already, or never existed"
        )
    return Cancelled(schedule_id)


RECORDS = "/topics/{topic}/records"
SCHEDULED = "/topics/{topic}/scheduled"
ROUTES = [
    Route(
        "POST",
        RECORDS,
        WRITE,
        "Append records, all or none; create the topic if it does not exist",
        append_records,
        AppendedList,
        body=NewRecords,
        body_bytes_max=PRODUCE_BODY_BYTES_MAX,
        body_list=ListBody(NewRecords, "records", NewRecord),
    ),
    Route("GET", RECORDS, READ, "Read records", read_records, RecordList, query=RecordQuery),
    Route(
        "GET",
        "/topics/{topic}/offset",
        READ,
        "Find the first record appended at or after a time",
        find_offset,
        OffsetAtTime,
        query=TimeQuery,
    ),
    Route(
        "GET",
        SCHEDULED,
        READ,
        "List delayed messages",
        list_scheduled,
        ScheduledList,
        query=ScheduleQuery,
    ),
    Route(
        "DELETE",
        f"{SCHEDULED}/{{schedule_id}}",
        WRITE,
        "Cancel a delayed message",
        cancel_scheduled,
        Cancelled,
    ),
]
