# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Collect the records of a history and check that all sights agree: promises 1, 2 and 8.

A record is known by the answer to its produce or by a delivery. Its place is final, unless a power
loss without fsync took it (`Lives.loses`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from simulator.history.offsets import Read
from simulator.history.operations import NEVER, Acquire, Delivery, History, Message, Place, Produce
from simulator.history.subscriptions import Poll
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, falling
from simulator.oracle.violation import Violation, violation
from simulator.payloads import payload_of, value_of

SLACK_US = 5
"""Tolerance: seconds on the wire are floats and lose a microsecond or two."""


Shown = Acquire | Read | Poll
"""Operations that deliver records."""
Asked = TypeVar("Asked", bound=Shown)


class Sight(NamedTuple, Generic[Asked]):
    """A record as a client received it."""

    acquire: Asked
    delivery: Delivery


class SentMessage(NamedTuple):
    """A message as a client sent it."""

    produce: Produce
    position: int
    """Index of the message in ``produce``."""

    @property
    def message(self) -> Message:
        return self.produce.messages[self.position]

    @property
    def is_placed(self) -> bool:
        """Return whether an answer gave the place."""
        places = self.produce.places
        return self.produce.succeeded and (
            self.position >= len(places) or places[self.position] is not None
        )


@dataclass(eq=False)
class Record:
    """A stored record at its place in a topic."""

    topic: str
    place: Place
    sent: SentMessage
    stored: Span
    sights: list[Sight[Shown]] = field(default_factory=list)
    first_boot: int = NEVER
    last_boot: int = EVER_US
    """The boots in which this place is this record's."""
    durable_us: int = EVER_US
    """When an answer or a sight showed that it was durable. The end of a connection shows only
    that the broker had the record in memory."""
    is_value: bool = False
    """Whether only its value was seen, which messages with different payloads have."""

    @property
    def is_acknowledged(self) -> bool:
        """Return whether the record is acknowledged at its place."""
        return self.sent.is_placed

    @property
    def boot(self) -> int:
        return self.sent.produce.boot

    @property
    def name(self) -> str:
        return f"record {self.place.offset} of {self.topic}/{self.place.partition}"


class Records:
    """All records of a history by topic and place, and the ``violations`` found on the way."""

    def __init__(self, history: History, lives: Lives) -> None:
        self.violations: list[Violation] = []
        self.produces = [op for op in history.operations if isinstance(op, Produce)]
        self.by_place: dict[tuple[str, Place], list[Record]] = {}
        """Oldest first; several only after a power loss without fsync took records."""
        self.damaged = history.rotted or any(boot.damages for boot in history.boots)
        """Whether recovery reported damage, so that records may be missing."""
        self.of_topic: dict[str, list[Record]] = defaultdict(list)
        self._lives = lives
        self._senders: dict[tuple[str, bytes], list[SentMessage]] = defaultdict(list)
        self._claims: dict[tuple[str, Place, bytes], Record] = {}
        for produce in self.produces:
            for index, message in enumerate(produce.messages):
                self._senders[produce.topic, message.payload].append(SentMessage(produce, index))
        for produce in self.produces:
            if produce.succeeded:
                self._add_answered(produce)
        for operation in history.operations:
            if isinstance(operation, Acquire) and operation.succeeded:
                for delivery in operation.deliveries:
                    self._add_sight(Sight(operation, delivery))
        self._values = _Values(self.produces, self._claims)
        for operation in history.operations:
            if isinstance(operation, Read | Poll) and operation.succeeded:
                for delivery in self._values.deliveries(operation):
                    is_value = self._values.is_ambiguous(operation.topic, delivery.payload)
                    self._add_sight(Sight(operation, delivery), is_value)
        self._join_transactions()
        self._sort()

    def __iter__(self) -> Iterator[Record]:
        for records in self.by_place.values():
            yield from records

    def senders(self, topic: str, payload: bytes) -> int:
        """Return how often this payload was sent to the topic."""
        return len(self._senders.get((topic, payload), ()))

    def possible(self, record: Record) -> list[SentMessage]:
        """Return the messages that the record may be; several only for equal ones without an
        answer."""
        if self.is_known(record):
            return [record.sent]
        return self._equal(record.topic, record.sent.message.payload, record.is_value)

    def is_unique(self, record: Record) -> bool:
        """Return whether what was seen of the record was sent to the topic once."""
        payload = record.sent.message.payload
        return len(self._equal(record.topic, payload, record.is_value)) == 1

    def _equal(self, topic: str, payload: bytes, is_value: bool) -> list[SentMessage]:
        """Return the messages with this payload, or with its value."""
        if is_value:
            return self._values.sent(topic, value_of(payload))
        return self._senders.get((topic, payload), [])

    def is_known(self, record: Record) -> bool:
        """Return whether the message of the record is certain."""
        return record.is_acknowledged or self.is_unique(record)

    def may_be_lost(self, record: Record) -> bool:
        """Return whether the record may be lost after the boot that stored it."""
        return self._lives.loses(record.boot) and not any(
            sight.acquire.boot > record.boot for sight in record.sights
        )

    def may_be_unseen(self, topic: str) -> bool:
        """Return whether unknown records may be stored there."""
        return any(
            produce.topic == topic and (produce.answered_us == NEVER or None in produce.places)
            for produce in self.produces
        )

    def _add_answered(self, produce: Produce) -> None:
        if len(produce.places) != len(produce.messages):
            self.violations.append(
                violation(
                    "P2-batch",
                    f"{len(produce.messages)} messages were answered with "
                    f"{len(produce.places)} places",
                    produce,
                )
            )
            return
        stored = self._lives.span(produce)
        for index, place in enumerate(produce.places):
            if place is None:
                continue
            claim = produce.topic, place, produce.messages[index].payload
            known = self._claims.get(claim)
            if known is not None:
                self.violations.append(
                    violation(
                        "P2-reuse", f"{known.name} was given twice", known.sent.produce, produce
                    )
                )
            else:
                record = Record(produce.topic, place, SentMessage(produce, index), stored)
                record.durable_us = stored.last_us
                self._claims[claim] = record

    def _add_sight(self, sight: Sight[Shown], is_value: bool = False) -> None:
        delivery, topic = sight.delivery, sight.acquire.topic
        claim = topic, delivery.place, delivery.payload
        record = self._claims.get(claim)
        if record is None:
            possible = self._possible(sight, is_value)
            if not possible:
                return
            seen = (sent for sent in possible if sent.message.payload == delivery.payload)
            stored = self._stored(possible, sight)
            record = Record(topic, delivery.place, next(seen), stored, is_value=is_value)
            self._claims[claim] = record
        if record.stored.last_us > (written_us := self._lives.span(sight.acquire).last_us):
            record.stored = Span(record.stored.first_us, written_us)
        record.durable_us = min(record.durable_us, written_us)
        record.sights.append(sight)

    def _join_transactions(self) -> None:
        """Bound the records of a transaction: when one was seen, all were stored."""
        same: dict[int, list[Record]] = defaultdict(list)
        for record in self._claims.values():
            if record.sent.produce.in_transaction and self.is_unique(record):
                same[record.sent.produce.number].append(record)
        for records in same.values():
            last_us = min(record.stored.last_us for record in records)
            durable_us = min(record.durable_us for record in records)
            for record in records:
                record.stored = Span(record.stored.first_us, last_us)
                record.durable_us = durable_us

    def _stored(self, possible: list[SentMessage], sight: Sight[Shown]) -> Span:
        """Return when a message that was seen without a known place can have been stored."""
        spans = [self._stored_alone(sent, sight) for sent in possible]
        return Span(min(s.first_us for s in spans), max(s.last_us for s in spans))

    def _stored_alone(self, sent: SentMessage, sight: Sight[Shown]) -> Span:
        span = self._lives.span(sent.produce)
        delay_us = sent.message.delay_us
        if delay_us is None:
            return span
        seen_us = self._lives.span(sight.acquire).last_us
        early_us = self._lives.forward_us(Span(span.first_us, seen_us)) + SLACK_US
        return Span(max(span.first_us + delay_us - early_us, span.first_us), EVER_US)

    def _possible(self, sight: Sight[Shown], is_value: bool) -> list[SentMessage]:
        """Return the possible senders of a record at a place that no answer gave."""
        delivery, topic = sight.delivery, sight.acquire.topic
        where = f"{topic}/{delivery.place.partition} offset {delivery.place.offset}"
        senders = self._equal(topic, delivery.payload, is_value)
        possible = [sent for sent in senders if not sent.produce.error]
        unanswered = [sent for sent in possible if not sent.is_placed]
        if unanswered:
            return unanswered
        if possible:
            text = f"{where} shows a payload that was answered with another place"
            self.violations.append(
                violation("P2-once", text, sight.acquire, *(sent.produce for sent in possible))
            )
        elif senders:
            text = f"{where} shows a payload whose produce was refused"
            produces = (sent.produce for sent in senders)
            self.violations.append(violation("P8-produce", text, sight.acquire, *produces))
        else:
            text = f"{where} shows a payload that nobody sent there: {delivery.payload[:40]!r}"
            self.violations.append(violation("P2-content", text, sight.acquire))
        return []

    def _sort(self) -> None:
        """Set the boots in which each record has its place, and collect shared places."""
        grouped: dict[tuple[str, Place], list[Record]] = defaultdict(list)
        for (topic, place, _), record in self._claims.items():
            grouped[topic, place].append(record)
        for claim in sorted(grouped):
            records = sorted(grouped[claim], key=lambda record: record.boot)
            self.by_place[claim] = records
            self.of_topic[claim[0]] += records
            for record in records:
                if record is not records[0] or self._lives.epoch(record.boot):
                    record.first_boot = record.boot
                if record is not records[-1] or self.may_be_lost(record):
                    record.last_boot = record.boot


class _Values:
    """Payloads by value, for formats that show values only."""

    def __init__(
        self, produces: list[Produce], claims: dict[tuple[str, Place, bytes], Record]
    ) -> None:
        self._produces = produces
        self._sent: dict[tuple[str, bytes], list[SentMessage]] | None = None
        self._ambiguous: set[tuple[str, bytes]] = set()
        """The values that different payloads have."""
        self._at: dict[tuple[str, Place], list[bytes]] = defaultdict(list)
        for topic, place, payload in claims:
            self._at[topic, place].append(payload)

    def deliveries(self, operation: Read | Poll) -> Iterator[Delivery]:
        """Return all deliveries of payloads that have a place."""
        topic = operation.topic
        if isinstance(operation, Poll):
            handed = operation.handed
            if handed is not None and handed.place is not None:
                payload = self._payload(topic, handed.place, handed.value, operation.answered_us)
                yield Delivery(handed.place, payload)
            return
        for place, value, key, tells_key, timestamp in operation.readings:
            yield Delivery(
                place,
                self._payload(topic, place, value, operation.answered_us),
                key=key,
                tells_key=tells_key,
                timestamp=timestamp,
            )

    def _payload(self, topic: str, place: Place, value: bytes, seen_us: int) -> bytes:
        """Return the payload that was seen or sent."""
        known = self._at[topic, place]
        for payload in known:
            if value_of(payload) == value:
                return payload
        sent = self.sent(topic, value)
        payload = _likeliest(sent, seen_us) if sent else payload_of(value)
        known.append(payload)
        return payload

    def sent(self, topic: str, value: bytes) -> list[SentMessage]:
        """Return the messages with this value; their payloads may differ."""
        if self._sent is None:
            self._sent = self._by_value()
        return self._sent.get((topic, value), [])

    def is_ambiguous(self, topic: str, payload: bytes) -> bool:
        """Return whether messages with another payload have the value of this one."""
        return (topic, value_of(payload)) in self._ambiguous

    def _by_value(self) -> dict[tuple[str, bytes], list[SentMessage]]:
        """Return the sent messages by topic and value."""
        sent: dict[tuple[str, bytes], list[SentMessage]] = defaultdict(list)
        for produce in self._produces:
            for index, message in enumerate(produce.messages):
                key = produce.topic, value_of(message.payload)
                if key in sent and sent[key][0].message.payload != message.payload:
                    self._ambiguous.add(key)
                sent[key].append(SentMessage(produce, index))
        return sent


def _likeliest(sent: list[SentMessage], seen_us: int) -> bytes:
    """Return the likeliest payload seen by then: one without a known place that was due."""

    def rank(one: SentMessage) -> tuple[bool, bool, bool]:
        due_us = one.produce.sent_us + (one.message.delay_us or 0)
        return bool(one.produce.error), one.is_placed, due_us > seen_us

    return min(sent, key=rank).message.payload


def check_places(records: Records, lives: Lives) -> Iterator[Violation]:
    """P2: check that a place belongs to one record, unless a power loss took the earlier one."""
    for (topic, place), sharing in records.by_place.items():
        for older, newer in pairwise(sharing):
            if older.boot < newer.boot and records.may_be_lost(older):
                continue
            text = f"offset {place.offset} of {topic}/{place.partition} has two payloads"
            produces = older.sent.produce, newer.sent.produce
            sights = [sight.acquire for record in (older, newer) for sight in record.sights[:1]]
            yield violation("P2-reuse", text, *produces, *sights)


def check_content(records: Records) -> Iterator[Violation]:
    """P1: check that every sight has the metadata and the key that were sent."""
    for record in records:
        message, produce = record.sent.message, record.sent.produce
        if not records.is_known(record):
            continue
        if message.partition is not None and message.partition != record.place.partition:
            text = f"{record.name} was sent to partition {message.partition}"
            yield violation("P2-partition", text, produce, *(s.acquire for s in record.sights[:1]))
        if record.stored.last_us < record.stored.first_us:
            shown = [sight.acquire for sight in record.sights]
            if message.delay_us is None:
                text = f"{record.name} was seen before it was sent"
                yield violation("P2-content", text, produce, *shown)
            else:
                text = f"{record.name} was not to be stored before {record.stored.first_us}"
                yield violation("P5-early", text, produce, *shown)
        for sight in record.sights:
            wrong = _wrong_part(message, sight.delivery)
            if wrong:
                yield violation(
                    "P1-content", f"{record.name} shows {wrong}", produce, sight.acquire
                )


def _wrong_part(message: Message, delivery: Delivery) -> str:
    tells_all = delivery.token is not None
    for name, sent, seen, is_told in (
        ("metadata", message.metadata, delivery.metadata, tells_all),
        ("key", message.key, delivery.key, tells_all or delivery.tells_key),
    ):
        if sent != seen and (seen is not None or is_told):
            return f"{name} {_short(seen)}, sent was {_short(sent)}"
    if None not in (message.timestamp, delivery.timestamp) and (
        message.timestamp != delivery.timestamp
    ):
        return f"time {delivery.timestamp}, sent was {message.timestamp}"
    return ""


def _short(value: bytes | None) -> str:
    return "none" if value is None else repr(value[:40])


def check_once(records: Records) -> Iterator[Violation]:
    """P2: check that a message is stored once."""
    first: dict[tuple[str, bytes], Record] = {}
    for record in records:
        if not records.is_unique(record):
            continue
        other = first.setdefault((record.topic, record.sent.message.payload), record)
        if other is not record:
            text = f"one message stands twice: as {other.name} and as {record.name}"
            shown = [s.acquire for r in (other, record) for s in r.sights[:1]]
            yield violation("P2-once", text, record.sent.produce, *shown)


def check_keys(records: Records) -> Iterator[Violation]:
    """P2: check that a key always leads to the same partition of a topic."""
    chosen: dict[tuple[str, bytes], Record] = {}
    for record in records:
        message = record.sent.message
        if message.key is None or message.partition is not None or not records.is_known(record):
            continue
        other = chosen.setdefault((record.topic, message.key), record)
        if other.place.partition != record.place.partition:
            text = f"{other.name} and {record.name} have the same key {message.key[:40]!r}"
            yield violation("P2-partition", text, other.sent.produce, record.sent.produce)


def check_order(records: Records, lives: Lives) -> Iterator[Violation]:
    """P2: check that messages sent later are stored later in a partition.

    Later means: in the same request, on the same connection, or after the other answer. Equal
    payloads without an answer are exempt. A delayed message is stored when it is due.
    """
    group_partitions: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in records:
        if records.is_known(record):
            epoch = lives.epoch(record.boot)
            group_partitions[record.topic, record.place.partition, epoch].append(record)
    for group_partition in group_partitions.values():
        yield from _check_group_partition_by_time(group_partition)
        yield from _check_group_partition_by_connection(group_partition)


def _check_group_partition_by_time(group_partition: list[Record]) -> Iterator[Violation]:
    for (_, earlier), (_, later) in falling((r.stored, r.place.offset, r) for r in group_partition):
        text = f"{later.name} was sent after {earlier.name} had been stored"
        yield violation("P2-order", text, earlier.sent.produce, later.sent.produce)


def _check_group_partition_by_connection(group_partition: list[Record]) -> Iterator[Violation]:
    last: dict[int, Record] = {}
    at_once = (record for record in group_partition if record.sent.message.delay_us is None)
    for record in sorted(at_once, key=lambda r: (r.sent.produce.number, r.sent.position)):
        produce = record.sent.produce
        line = produce.connection if produce.connection != NEVER else -2 - produce.number
        before = last.get(line)
        if before is not None and before.place.offset > record.place.offset:
            text = f"{record.name} was sent after {before.name} on the same connection"
            yield violation("P2-order", text, before.sent.produce, produce)
        else:
            last[line] = record
