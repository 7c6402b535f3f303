# Tests: tests/admin/test_lease_calls.py
"""The API's calls about leases and dead letters of a group: list, release, peek, replay, purge."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brokerd.admin.calls.groups import existing_group
from brokerd.admin.calls.records import read_one
from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.shapes.common import (
    LetterQuery,
    NextPlace,
    OffsetPage,
    seconds_of,
    time_of,
    time_us_of,
    us_of,
)
from brokerd.admin.shapes.groups import (
    Changed,
    LeaseList,
    LeaseShape,
    LetterChoice,
    LetterList,
    LetterShape,
    LetterWithRecord,
    Release,
    Released,
)
from brokerd.broker import Broker, DeadLetter, GroupPartition, Lease
from brokerd.errors import InvalidRequest
from brokerd.security import ADMIN, READ, WRITE
from brokerd.security.audit import EventType

EXAMINED_MAX = 20_000
"""Most dead letters, or offsets of leases, that one request examines. The limit bounds the time of
a request. A filtered page may be short and still have a next page.
"""

# -- leases ---------------------------------------------------------------------------------------


def list_leases(call: Call) -> LeaseList:
    """Return a page of leases. Raises `UnknownTopic` and `UnknownGroup`."""
    broker, query = call.broker, call.query
    topic, group = call.path["topic"], call.path["group"]
    group_partitions = existing_group(broker, topic, group).partitions[query.partition :]
    now_us = broker.time.monotonic_us()
    page: list[LeaseShape] = []
    examined = 0
    for index, first, end in _ranges(group_partitions, query.partition, query.offset):
        if examined >= EXAMINED_MAX:
            return LeaseList(page, NextPlace(index, first))
        group_partition = group_partitions[index - query.partition]
        for lease in group_partition.store.leases(first, end):
            if len(page) == query.limit:
                return LeaseList(page, NextPlace(index, lease.offset))
            page.append(_lease(index, lease, now_us))
        examined += min(end - first, group_partition.store.leased)
    return LeaseList(page, None)


def _ranges(
    group_partitions: list[GroupPartition], partition: int, offset: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (partition, first, end) of ranges with at most `EXAMINED_MAX` leases each."""
    for group_partition in group_partitions:
        index, end = group_partition.partition.index, group_partition.partition.next_offset
        if not group_partition.position.leased:
            continue
        first = max(offset if index == partition else 0, group_partition.store.floor)
        while first < end and group_partition.store.leased:
            stop = (
                min(first + EXAMINED_MAX, end)
                if group_partition.store.leased > EXAMINED_MAX
                else end
            )
            yield index, first, stop
            first = stop


def _lease(partition: int, lease: Lease, now_us: int) -> LeaseShape:
    return LeaseShape(
        partition=partition,
        offset=lease.offset,
        client=lease.owner,
        token=lease.token,
        grants=lease.grants,
        failures=lease.failures,
        duration_seconds=seconds_of(lease.duration_us),
        remaining_seconds=seconds_of(max(0, lease.deadline_us - now_us)),
    )


async def release_leases(call: Call) -> Released:
    """Release leases. Raises `InvalidRequest`, and as `Broker.leases.release`."""
    release: Release = call.body
    if (release.client is None) == (release.offset is None):
        raise InvalidRequest("name either a client or an offset")
    if release.client is not None:
        return Released(await _release_client(call, release.client))
    return Released(await _release_one(call, release))


async def _release_client(call: Call, client: str) -> int:
    """Release all leases of a client, with full frames as commits."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    released, more = 0, True
    while more:
        count, more = await call.carry_out(
            EventType.LEASES_RELEASED,
            lambda: broker.groups.release_owner(topic, group, client),
            client=client,
        )
        released += count
    return released


async def _release_one(call: Call, release: Release) -> int:
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    offset = release.offset
    assert offset is not None

    def end() -> None:
        existing_group(broker, topic, group)
        group_partition = broker.leases.group_partition(topic, group, release.partition, offset)
        broker.leases.release(group_partition, offset, delay_us=us_of(release.delay_seconds))

    place = f"{release.partition}:{offset}"
    await call.carry_out(EventType.LEASES_RELEASED, end, record=place)
    return 1


# -- dead letters ---------------------------------------------------------------------------------


def list_dead_letters(call: Call) -> LetterList:
    """Return a page of the matching dead letters. Raises `UnknownTopic` and `UnknownGroup`."""
    broker, query = call.broker, call.query
    topic, group = call.path["topic"], call.path["group"]
    existing_group(broker, topic, group)
    matches = _matcher(broker, query)
    page: list[LetterShape] = []
    found = broker.leases.dead_letters(topic, group, query.partition, query.offset)
    for examined, (partition, letter) in enumerate(found):
        if len(page) == query.limit or examined == EXAMINED_MAX:
            return LetterList(page, NextPlace(partition, letter.offset))
        if matches(letter):
            page.append(_letter(broker, partition, letter))
    return LetterList(page, None)


def _matcher(broker: Broker, query: LetterQuery) -> Callable[[DeadLetter], bool]:
    """Return a predicate for the dead letters that match the query."""
    reason, before_us = query.reason, None
    if query.before is not None:
        before_us = time_us_of(query.before) - _epoch_us(broker)

    def matches(letter: DeadLetter) -> bool:
        return (reason is None or letter.reason == reason) and (
            before_us is None or letter.last_attempt_us < before_us
        )

    return matches


def _epoch_us(broker: Broker) -> int:
    """Return the broker time at which the monotonic clock of attempts was zero."""
    return broker.time.time_us() - broker.time.monotonic_us()


async def peek_dead_letter(call: Call) -> LetterWithRecord:
    """Return a dead letter with its record. Raises `UnknownTopic`, `UnknownGroup`, `NotFound`."""
    broker, topic, group = call.broker, call.path["topic"], call.path["group"]
    index, offset = call.number("partition"), call.number("offset")
    partition = existing_group(broker, topic, group).topic.partition(index)
    found = next(broker.leases.dead_letters(topic, group, index, offset), None)
    if found is None or (found[0], found[1].offset) != (index, offset):
        raise NotFound(
            f"group {group!r} of topic {topic!r} has no dead letter at offset {offset} of "
            f"partition {index}; list its dead letters"
        )
    letter = _letter(broker, *found)
    record, error = await read_one(broker, partition, offset)
    return LetterWithRecord(
        partition=letter.partition,
        offset=letter.offset,
        reason=letter.reason,
        grants=letter.grants,
        failures=letter.failures,
        first_attempt=letter.first_attempt,
        last_attempt=letter.last_attempt,
        record=record,
        record_error=error,
    )


def _letter(broker: Broker, partition: int, letter: DeadLetter) -> LetterShape:
    epoch_us = _epoch_us(broker)
    return LetterShape(
        partition=partition,
        offset=letter.offset,
        reason=letter.reason,
        grants=letter.grants,
        failures=letter.failures,
        first_attempt=time_of(epoch_us + letter.first_attempt_us),
        last_attempt=time_of(epoch_us + letter.last_attempt_us),
    )


async def replay_dead_letters(call: Call) -> Changed:
    """Replay dead letters. Raises as `Broker.groups.replay_dead_letters`."""
    return await _change(
        call, EventType.DEAD_LETTERS_REPLAYED, call.broker.groups.replay_dead_letters
    )


async def purge_dead_letters(call: Call) -> Changed:
    """Purge dead letters. Raises as `Broker.groups.purge_dead_letters`."""
    return await _change(call, EventType.DEAD_LETTERS_PURGED, call.broker.groups.purge_dead_letters)


async def _change(call: Call, kind: EventType, change: Callable[..., int]) -> Changed:
    choice: LetterChoice = call.body
    topic, group = call.path["topic"], call.path["group"]
    before_us = None if choice.before is None else time_us_of(choice.before)
    count = await call.carry_out(
        kind,
        lambda: change(
            topic,
            group,
            partition=choice.partition,
            first=choice.first,
            end=choice.end,
            reason=choice.reason,
            before_us=before_us,
        ),
    )
    return Changed(count)


GROUP = "/topics/{topic}/groups/{group}"
LETTERS = f"{GROUP}/dead-letters"
ROUTES = [
    Route(
        "GET",
        f"{GROUP}/leases",
        READ,
        "List a group's leases, by partition and offset",
        list_leases,
        LeaseList,
        query=OffsetPage,
    ),
    Route(
        "POST",
        f"{GROUP}/leases/release",
        ADMIN,
        "End leases without a failure",
        release_leases,
        Released,
        body=Release,
    ),
    Route(
        "GET",
        LETTERS,
        READ,
        "List a group's dead letters, by partition and offset",
        list_dead_letters,
        LetterList,
        query=LetterQuery,
    ),
    Route(
        "GET",
        f"{LETTERS}/{{partition}}/{{offset}}",
        READ,
        "Show a dead letter with its record",
        peek_dead_letter,
        LetterWithRecord,
    ),
    Route(
        "POST",
        f"{LETTERS}/replay",
        WRITE,
        "Make dead letters ready again",
        replay_dead_letters,
        Changed,
        body=LetterChoice,
    ),
    Route(
        "POST",
        f"{LETTERS}/purge",
        ADMIN,
        "Delete dead letters",
        purge_dead_letters,
        Changed,
        body=LetterChoice,
    ),
]
