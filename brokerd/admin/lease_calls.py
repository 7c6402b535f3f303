# Tests: tests/admin/test_lease_calls.py
"""The API's calls about leases and dead letters of a group."""

from __future__ import annotations

from itertools import islice

from brokerd.admin.group_calls import existing_group
from brokerd.admin.record_calls import read_one
from brokerd.admin.routing import Call, NotFound, Route
from brokerd.admin.shapes import (
    LetterList,
    LetterQuery,
    LetterShape,
    LetterWithRecord,
    NextPlace,
)
from brokerd.broker import Broker, DeadLetter

GROUP = "/topics/{topic}/groups/{group}"


def list_dead_letters(call: Call) -> LetterList:
    """A page of dead letters. Raises `UnknownTopic` and `UnknownGroup`."""
    broker, query = call.broker, call.query
    topic, group = call.path["topic"], call.path["group"]
    existing_group(broker, topic, group)
    found = broker.dead_letters(topic, group, query.partition, query.offset)
    page = [_letter(broker, *one) for one in islice(found, query.limit + 1)]
    more = page[query.limit :]
    following = NextPlace(more[0].partition, more[0].offset) if more else None
    return LetterList(page[: query.limit], following)


async def peek_dead_letter(call: Call) -> LetterWithRecord:
    """One dead letter with its record. Raises `UnknownTopic`, `UnknownGroup` and `NotFound`."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    lane = existing_group(broker, topic, group)
    index, offset = call.number("partition"), call.number("offset")
    partition = lane.topic.partition(index)
    found = next(broker.dead_letters(topic, group, index, offset), None)
    if found is None or (found[0], found[1].offset) != (index, offset):
        raise NotFound(
            f"group {group!r} of topic {topic!r} has no dead letter at offset {offset} of "
            f"partition {index}; list its dead letters"
        )
    letter = _letter(broker, *found)
    record, error = await read_one(broker, partition, offset)
    return LetterWithRecord(
        letter.partition,
        letter.offset,
        letter.reason,
        letter.grants,
        letter.failures,
        letter.first_attempt,
        letter.last_attempt,
        record,
        error,
    )


def _letter(broker: Broker, partition: int, letter: DeadLetter) -> LetterShape:
    return LetterShape(
        partition=partition,
        offset=letter.offset,
        reason=letter.reason,
        grants=letter.grants,
        failures=letter.failures,
        first_attempt=None,
        last_attempt=None,
    )


ROUTES = [
    Route(
        "GET",
        f"{GROUP}/dead-letters",
        "A group's dead letters, by partition and offset",
        list_dead_letters,
        LetterList,
        query=LetterQuery,
    ),
    Route(
        "GET",
        f"{GROUP}/dead-letters/{{partition}}/{{offset}}",
        "A dead letter with its record",
        peek_dead_letter,
        LetterWithRecord,
    ),
]
