# Tests: tests/protocols/test_flymq_dead_letters.py
"""FlyMQ's dead letters (docs/protocols/flymq.rst, 0x20 to 0x22).

A topic has two kinds of dead letters: those of its groups, from leases of other formats, and the
records of its dead-letter topic ``NAME.dlq``, which FlyMQ's clients write. A replay returns the
first kind to their group, and produces the payload of the second kind to its original topic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from brokerd.broker import Broker, Congested, Partition, Topic
from brokerd.broker.records.cold_reader import Unreadable
from brokerd.broker.records.size import record_frame_bytes
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    DEAD_LETTER_BYTES,
    FETCHED_DLQ_BYTES,
    MAX_LENGTH,
    DeadLetter,
    FetchDlq,
    Opcode,
    PurgeDlq,
    ReplayDlq,
)
from brokerd.errors import InvalidRequest, LimitExceeded, escaped
from brokerd.protocols.base.steps import Steps, sorted_names
from brokerd.protocols.flymq.dead_letter_envelope import Envelope, envelope_of
from brokerd.protocols.flymq.produce import CONTENT_BYTES_MAX, too_large
from brokerd.protocols.flymq.request import RequestConnection
from brokerd.protocols.flymq.topics import named_topic
from brokerd.security import ADMIN, ANY, READ, WRITE
from brokerd.security.audit import EventType
from brokerd.values import Format, Record

SUFFIX = ".dlq"
LETTERS = 10
"""Dead letters of an answer to a FETCH_DLQ that asks for 0 or less."""
LETTERS_MAX = 10_000
ANSWER_BYTES = 4 << 20
"""Largest answer with more than one dead letter: the peer may not read it."""
STEP_LETTERS = 200
STEP_RECORDS = 500
STEP_BYTES = 1 << 20
SEARCH_RECORDS = 10_000
"""A search ends after this many records if the peer has closed its side."""
ERROR_LETTERS = 2_000
"""Longest reason of a dead letter in an answer."""
RETRIES_MAX = (1 << 31) - 1
OFFSET_BITS = 48
"""Bits of the offset in a message id. The partition is above them."""
DIGITS_MAX = 19

Take = Callable[[Partition, Record], bool]
"""Examines a record and returns True when no more are needed."""


# -- FETCH_DLQ --------------------------------------------------------------------------------


def fetch(connection: RequestConnection, request: FetchDlq) -> bytes:
    """FETCH_DLQ: dead letters of the groups, by name, then those of the dead-letter topic."""
    letters = connection.run_steps(request, partial(_collect, connection, request), ANSWER_BYTES)
    return flymq.fetched_dlq(letters)


def _collect(connection: RequestConnection, request: FetchDlq) -> Steps[list[DeadLetter]]:
    broker = connection.broker
    most = request.max_messages
    page = DeadLetterPage(min(most, LETTERS_MAX) if most > 0 else LETTERS)
    topic = named_topic(broker, request.topic)
    if topic is not None:
        yield from _of_groups(broker, topic, page)
    own = _own_topic(connection, READ, request.topic)
    if own is not None and not page.is_full:

        def take(partition: Partition, record: Record) -> bool:
            return page.take(partition, record, envelope_of(partition.index, record))

        yield from _walk(broker, own, take)
    return page.letters


class DeadLetterPage:
    """Dead letters of one answer: at most `ANSWER_BYTES` together, or a larger one alone."""

    def __init__(self, most: int) -> None:
        self.letters: list[DeadLetter] = []
        self.is_full = False
        self._most = most
        self._bytes = FETCHED_DLQ_BYTES

    def take(self, partition: Partition, record: Record, envelope: Envelope) -> bool:
        """Take a dead letter if there is room; return True if the page is full."""
        error = envelope.error[:ERROR_LETTERS]
        retries = min(max(envelope.retries, 0), RETRIES_MAX)
        letter = DeadLetter(envelope.message_id, envelope.payload, error, retries)
        if not self.letters and self._bytes + _size(letter) > MAX_LENGTH:
            why = (
                f"{error} (its {len(envelope.payload)} bytes are too large for this answer; FETCH "
            )
            why += f"offset {record.offset} of partition {partition.index})"
            letter = letter._replace(payload=b"", error=why.lstrip())
        self.is_full = bool(self.letters) and self._bytes + _size(letter) > ANSWER_BYTES
        if not self.is_full:
            self.letters.append(letter)
            self._bytes += _size(letter)
            self.is_full = len(self.letters) == self._most
        return self.is_full


def _size(letter: DeadLetter) -> int:
    texts = len(letter.message_id.encode()) + len(letter.error.encode())
    return DEAD_LETTER_BYTES + texts + len(letter.payload)


def _of_groups(broker: Broker, topic: Topic, page: DeadLetterPage) -> Steps[None]:
    for group in (yield from sorted_names(topic.groups)):
        partition_index = offset = 0
        while not topic.deleted and group in topic.groups:
            found = broker.leases.dead_letters(topic.name, group, partition_index, offset)
            some = list(islice(found, STEP_LETTERS))
            for partition_index, letter in some:
                offset = letter.offset + 1
                partition = topic.partition(partition_index)
                record, why = yield from _record(broker, partition, letter.offset)
                envelope = Envelope(
                    f"{partition_index}:{letter.offset}:{group}",
                    record.value,
                    escaped(letter.reason) + why,
                    max(letter.grants, letter.failures),
                )
                if page.take(partition, record, envelope):
                    return
            if len(some) < STEP_LETTERS:
                break
        yield None


def _record(broker: Broker, partition: Partition, offset: int) -> Steps[tuple[Record, str]]:
    """Return a dead letter's record and "", or an empty record and a text that says why."""
    records, _, error = yield partial(broker.reader.fetch, partition, offset, 1, 0)
    if records and records[0].offset == offset:
        return records[0], ""
    why = "removed or expired" if error is None else "unreadable"
    return Record(offset, b""), f" (its record is {why})"


# -- REPLAY_DLQ -------------------------------------------------------------------------------


def replay(connection: RequestConnection, request: ReplayDlq) -> bytes:
    """REPLAY_DLQ: replay a dead letter of a group, or produce a dead-letter record again."""
    topic, message = request.topic, request.message
    if isinstance(message, str) and _replay_named(connection, topic, message):
        return flymq.replayed(request)
    envelope = connection.run_steps(request, partial(_find, connection, request))
    if isinstance(envelope, Envelope):
        try:
            _produce_again(connection, topic, envelope)
        except Congested:  # the retry does not search again
            connection.keep_result(request, envelope)
            raise
    elif not envelope:
        raise InvalidRequest(f"message not found: {message}")
    return flymq.replayed(request)


def _replay_named(connection: RequestConnection, topic: str, message: str) -> bool:
    """Replay the dead letter ``PARTITION:OFFSET:GROUP``; return False if there is none."""
    place = message.split(":", 2)
    if len(place) < 3 or not all(map(_is_number, place[:2])):
        return False
    partition_index, offset, group = int(place[0]), int(place[1]), place[2]
    if not _is_dead(connection.broker, topic, group, partition_index, offset):
        return False
    _replay_letter(connection, topic, group, partition_index, offset)
    return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX


def _replay_at(connection: RequestConnection, topic: str, message_id: int) -> Steps[int]:
    """Replay a record to all groups in which it is a dead letter; return their number."""
    broker, count = connection.broker, 0
    place = broker.topics.find(topic)
    partition_index, offset = message_id >> OFFSET_BITS, message_id & (1 << OFFSET_BITS) - 1
    for group in (yield from sorted_names(() if place is None else place.groups)):
        if _is_dead(broker, topic, group, partition_index, offset):
            _replay_letter(connection, topic, group, partition_index, offset)
            count += 1
        yield None
    return count


def _is_dead(broker: Broker, topic: str, group: str, partition_index: int, offset: int) -> bool:
    if broker.topics.find(topic) is None:
        return False
    found = next(broker.leases.dead_letters(topic, group, partition_index, offset), None)
    return found is not None and (found[0], found[1].offset) == (partition_index, offset)


def _replay_letter(
    connection: RequestConnection, topic: str, group: str, partition_index: int, offset: int
) -> None:
    broker = connection.broker
    change = partial(
        broker.groups.replay_dead_letters, topic, group, partition_index, offset, offset + 1
    )
    _carry_out(connection, EventType.DEAD_LETTERS_REPLAYED, f"{topic}/{group}", change)


def _find(connection: RequestConnection, request: ReplayDlq) -> Steps[Envelope | int]:
    """Return the record of the dead-letter topic with this id, or at this offset of partition 0.

    If there is none, replay dead letters of groups and return their number.
    """
    own = _own_topic(connection, WRITE, request.topic)
    message = request.message
    if isinstance(message, str):
        return 0 if own is None else (yield from _search(connection, own, message))
    if own is not None:
        record, why = yield from _record(connection.broker, own.partition(0), message)
        if not why:
            return envelope_of(0, record)
    return (yield from _replay_at(connection, request.topic, message))


def _search(connection: RequestConnection, own: Topic, message: str) -> Steps[Envelope | int]:
    """Return the first record of the dead-letter topic with this id; 0 if there is none."""
    found: list[Envelope] = []
    count = 0

    def take(partition: Partition, record: Record) -> bool:
        nonlocal count
        count += 1
        envelope = envelope_of(partition.index, record)
        if envelope.message_id == message:
            found.append(envelope)
        return bool(found) or (count > SEARCH_RECORDS and connection.ending)

    yield from _walk(connection.broker, own, take)
    return found[0] if found else 0


def _produce_again(connection: RequestConnection, name: str, envelope: Envelope) -> None:
    """Produce a dead letter's payload to the topic that it names, and create that if missing."""
    broker, access = connection.broker, connection.access
    target = envelope.topic or name
    access.require(WRITE, target)
    if len(envelope.payload) > CONTENT_BYTES_MAX:  # other formats store such records
        raise too_large(len(envelope.payload))
    topic = named_topic(broker, target)
    if topic is None:
        size = record_frame_bytes(envelope.payload)
        topic = broker.topic_writer.topic(access, target, size, connection.new_partitions)
    produce = partial(
        broker.appender.produce, topic.choose(None), envelope.payload, producer_format=Format.FLYMQ
    )
    details = {"message": envelope.message_id, "topic": target}
    _carry_out(connection, EventType.DEAD_LETTERS_REPLAYED, name + SUFFIX, produce, details)
    connection.wrote()


# -- PURGE_DLQ --------------------------------------------------------------------------------


def purge(connection: RequestConnection, request: PurgeDlq) -> bytes:
    """PURGE_DLQ: purge the dead letters of all groups and delete the dead-letter topic."""
    connection.run_steps(request, partial(_purge_all, connection, request.topic))
    return flymq.ok(Opcode.PURGE_DLQ, "OK")


def _purge_all(connection: RequestConnection, name: str) -> Steps[None]:
    broker = connection.broker
    dead_letter_topic_name = name + SUFFIX
    own = broker.topics.find(dead_letter_topic_name)
    if own is not None and connection.access.may(ANY, dead_letter_topic_name):
        connection.access.require(ADMIN, dead_letter_topic_name)
    topic = named_topic(broker, name)
    for group_name in (yield from sorted_names(() if topic is None else topic.groups)):
        group = None if topic is None else topic.groups.get(group_name)
        if group is not None and any(
            group_partition.position.dead for group_partition in group.used()
        ):
            _purge_group(connection, name, group_name)
        yield None
    if _own_topic(connection, ADMIN, name) is not None:
        delete = partial(broker.topics.delete, dead_letter_topic_name)
        _carry_out(connection, EventType.TOPIC_DELETED, dead_letter_topic_name, delete)


def _purge_group(connection: RequestConnection, topic: str, group: str) -> None:
    change = partial(connection.broker.groups.purge_dead_letters, topic, group)
    try:
        _carry_out(connection, EventType.DEAD_LETTERS_PURGED, f"{topic}/{group}", change)
    except LimitExceeded:
        raise LimitExceeded(
            f"group {group!r} has more dead letters than one request may purge; purge ranges of "
            "offsets with brokerctl dlq purge"
        ) from None


ANSWERS: dict[type[Any], Callable[[Any, Any], bytes]] = {
    FetchDlq: fetch,
    ReplayDlq: replay,
    PurgeDlq: purge,
}


# -- parts ------------------------------------------------------------------------------------


def _own_topic(connection: RequestConnection, permission: int, name: str) -> Topic | None:
    """Return the dead-letter topic ``NAME.dlq``, or None if missing or not permitted."""
    own = connection.broker.topics.find(name + SUFFIX)
    return own if own is not None and connection.access.may(permission, own.name) else None


def _walk(broker: Broker, topic: Topic, take: Take) -> Steps[None]:
    """Pass all readable records of a topic to ``take`` until it returns True."""
    for partition in topic.partitions:
        offset = partition.start_offset
        while not topic.deleted:
            records, _, error = yield partial(
                broker.reader.fetch, partition, offset, STEP_RECORDS, STEP_BYTES
            )
            for record in records:
                if take(partition, record):
                    return
                yield None
            if records:
                offset = records[-1].offset + 1
            elif isinstance(error, Unreadable):
                offset = error.end
            elif error is not None:
                raise InvalidRequest(f"the record cannot be read now: {error}; try again")
            else:
                break


def _carry_out(
    connection: RequestConnection,
    kind: EventType,
    resource: str,
    change: Callable[[], object],
    details: dict[str, str] | None = None,
) -> None:
    actor = connection.access.actor
    connection.broker.audit.carry_out(actor, kind, resource, change, details)
