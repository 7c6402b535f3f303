# Tests: tests/admin/test_history_calls.py
"""The API's call about the life of one record."""

from __future__ import annotations

from brokerd.admin.calls.records import read_one
from brokerd.admin.http.routing import Call, ReadFailed, Route
from brokerd.admin.shapes.common import seconds_of, time_of
from brokerd.admin.shapes.history import History, HistoryEvent, HistoryQuery
from brokerd.broker.status.record_history import EventInfo
from brokerd.errors import UnknownOffset
from brokerd.security import READ


async def describe_history(call: Call) -> History:
    """Return a record and a page of the events about it. Raises `UnknownOffset`."""
    query: HistoryQuery = call.query
    topic = call.broker.topics.existing(call.path["topic"])
    partition = topic.partition(call.number("partition"))
    offset = call.number("offset")
    if offset >= partition.next_offset:
        raise UnknownOffset(
            f"partition {partition.index} of topic {topic.name!r} has no record {offset} yet: the "
            f"next one is {partition.next_offset}"
        )
    record, record_error = await read_one(call.broker, partition, offset)
    try:
        found = await call.broker.record_history.read(
            partition, offset, query.first, query.limit, exists=record is not None
        )
    except OSError as error:
        raise ReadFailed(f"the journal cannot be read: {error}; try again") from error
    return History(
        topic=topic.name,
        partition=partition.index,
        offset=offset,
        record=record,
        record_error=record_error,
        events=list(map(_shape, found.events)),
        next=None if found.is_last else query.first + len(found.events),
        from_lsn=found.from_lsn,
        archive_lsn=found.archive_lsn,
        problems=found.problems,
    )


def _shape(info: EventInfo) -> HistoryEvent:
    return HistoryEvent(
        time=time_of(info.time_us),
        lsn=info.lsn,
        group=info.group,
        event=info.event,
        client=info.client,
        token=info.token,
        count=info.count,
        seconds=None if info.amount_us is None else seconds_of(info.amount_us),
        reason=info.reason,
        first=info.first,
        end=info.end,
    )


ROUTES = [
    Route(
        "GET",
        "/topics/{topic}/records/{partition}/{offset}",
        READ,
        "Show the events of all groups about a record",
        describe_history,
        History,
        query=HistoryQuery,
    ),
]
