# Tests: tests/protocols/test_flymq_fetch.py
"""FlyMQ's reads: CONSUME, FETCH and their binary variants (docs/protocols/flymq.rst).

They return durable records, and wait for earlier produces of their own connection. An answer is at
most as large as a frame, and holds at least one record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from brokerd.broker.records.cold_reader import Unreadable
from brokerd.broker.slices import SliceQueue
from brokerd.codecs import flymq
from brokerd.codecs.flymq import FETCHED_BYTES, MAX_LENGTH, RECORD_BYTES, Consume, Fetch
from brokerd.errors import (
    AuthenticationRequired,
    Denied,
    RecordRemoved,
    UnknownPartition,
    UnknownTopic,
)
from brokerd.protocols.base.fetching import FetchConnection
from brokerd.protocols.flymq.filter import compile_filter
from brokerd.protocols.flymq.filtered_fetch import FilteredFetch
from brokerd.protocols.flymq.topics import existing_partition, existing_topic
from brokerd.values import Record

FETCH_RECORDS = 10
"""Records of an answer to a FETCH that asks for 0 or less."""
FETCH_RECORDS_MAX = 10_000
"""Largest number of records in one answer, which bounds its time."""

Refuse = Callable[[str], bytes]
"""Returns the ERROR frame of a text."""


def consume(connection: FetchConnection, request: Consume, refuse: Refuse) -> None:
    """CONSUME and CONSUME_ZERO_COPY: the record at an offset, or an error."""
    partitions = existing_topic(connection.broker, request.topic).partitions
    if not 0 <= request.partition < len(partitions):
        raise UnknownPartition(f"partition {request.partition} out of range")
    partition = partitions[request.partition]
    if request.offset < partition.start_offset:
        raise RecordRemoved(
            f"offset {request.offset} is removed; the records begin at {partition.start_offset}"
        )
    connection.fetch(partition, request.offset, 1, 0, partial(_consume_answer, request, refuse))


def _consume_answer(
    request: Consume,
    refuse: Refuse,
    records: Sequence[Record],
    next_offset: int,
    error: Exception | None,
) -> bytes | tuple[bytes, ...]:
    offset = request.offset
    if error is not None:
        return refuse(_why_unreadable(error))
    if records and records[0].offset == offset:
        record = records[0]
        if _is_too_large(record):
            return refuse(_why_too_large(record))
        return flymq.consumed_parts(record.key, record.value, request.opcode)
    if next_offset == offset:
        return refuse(f"offset {offset} out of range")
    return refuse(f"offset {offset} has no record: it was removed or has expired")


def fetch(connection: FetchConnection, request: Fetch, refuse: Refuse, slices: SliceQueue) -> None:
    """Answer FETCH and FETCH_BINARY with records from an offset on, all or filtered ones."""
    partition = existing_partition(connection.broker, request.topic, request.partition)
    most = min(request.max_messages, FETCH_RECORDS_MAX)
    if most <= 0:
        most = FETCH_RECORDS
    room = MAX_LENGTH - FETCHED_BYTES - most * RECORD_BYTES
    answer = partial(_fetch_answer, request, refuse)
    if request.filter:
        chosen = compile_filter(request.filter)
        filtered = FilteredFetch(connection, slices, partition, request.offset, most, room, chosen)
        connection.read(partition.topic, filtered, answer, room)
    else:
        connection.fetch(partition, request.offset, most, room, answer)


def _fetch_answer(
    request: Fetch,
    refuse: Refuse,
    records: Sequence[Record],
    next_offset: int,
    error: Exception | None,
) -> bytes | tuple[bytes, ...]:
    if error is not None:
        return refuse(_why_unreadable(error))
    if len(records) == 1 and _is_too_large(records[0]):
        return refuse(_why_too_large(records[0]))
    return flymq.fetched_parts(request, records, next_offset)


def _is_too_large(record: Record) -> bool:
    """Return whether a record of another format does not fit an answer to FETCH."""
    return flymq.fetched_size(record) > MAX_LENGTH - FETCHED_BYTES


def _why_too_large(record: Record) -> str:
    return (
        f"the record at offset {record.offset} is too large for this format: its key and value "
        f"have {flymq.fetched_size(record) - RECORD_BYTES} bytes; go on at {record.offset + 1}"
    )


def _why_unreadable(error: Exception) -> str:
    if isinstance(error, Unreadable):
        return (
            f"offsets {error.first} to {error.end - 1} are damaged and cannot be read ({error}); "
            f"go on at {error.end}"
        )
    if isinstance(error, RecordRemoved | UnknownTopic | Denied | AuthenticationRequired):
        return str(error)
    return f"the record cannot be read now: {error}; try again"
