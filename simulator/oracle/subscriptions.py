# Tests: tests/simulator/test_oracle_subscriptions.py
"""Check deliveries to BlipMQ subscriptions: promises 1, 3, 4 and 5.

A message of QoS 1 is a lease of the subscription, and its record has a place. A message of QoS 0 is
known by its value only. docs/protocols/blipmq.rst, section Delivery, has the contract.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from simulator.history.operations import NEVER, History, Letters, Message, Place, Produce
from simulator.history.registry import READ
from simulator.history.subscriptions import (
    UNKNOWN_DELIVERY,
    Acknowledge,
    Poll,
    Subscribe,
    group_of,
)
from simulator.oracle.groups.lease_model import SLACK_US
from simulator.oracle.permissions import Permissions
from simulator.oracle.records.records import Record, Records
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, falling
from simulator.oracle.timeline.topic_lives import has_ended
from simulator.oracle.violation import Violation, violation
from simulator.payloads import value_of


class SubscriptionDelivery(NamedTuple):
    """A delivery of a record and its time."""

    poll: Poll
    span: Span


class GroupPartition:
    """All requests to one subscription."""

    def __init__(self, subscribe: Subscribe) -> None:
        self.subscribe = subscribe
        self.polls: list[Poll] = []
        self.acks: dict[Place, list[Acknowledge]] = defaultdict(list)
        self.letters: dict[Place, str] | None = None
        """Its dead letters when the audit was over; None: not asked."""

    @property
    def name(self) -> str:
        return f"subscription {self.subscribe.subscription} of {self.subscribe.topic}"


class Subscriptions:
    """Judge of the subscriptions of a history."""

    def __init__(
        self,
        history: History,
        lives: Lives,
        records: Records,
        removal: Removal,
        permissions: Permissions,
    ) -> None:
        self._history = history
        self._lives = lives
        self._records = records
        self._removal = removal
        self._permissions = permissions
        self._rules = history.subscriptions
        operations = history.operations
        self._subscribes = [op for op in operations if isinstance(op, Subscribe) and op.succeeded]
        self._group_partitions = {
            (op.topic, op.subscription): GroupPartition(op) for op in self._subscribes
        }
        for op in operations:
            if isinstance(op, Poll | Acknowledge):
                group_partition = self._group_partitions.get((op.topic, op.subscription))
                if group_partition is not None and isinstance(op, Poll):
                    group_partition.polls.append(op)
                elif group_partition is not None and isinstance(op, Acknowledge):
                    group_partition.acks[op.place].append(op)
        letters = [op for op in operations if isinstance(op, Letters) and op.succeeded]
        for group_partition in self._group_partitions.values():
            group = group_of(group_partition.subscribe.subscription)
            for op in letters:
                if (op.topic, op.group) == (group_partition.subscribe.topic, group):
                    group_partition.letters = {letter.place: letter.reason for letter in op.letters}
        self._by_value = self._values() if self._group_partitions else {}

    def _values(self) -> dict[tuple[str, bytes], list[tuple[Produce, Message]]]:
        """Return the sent messages by value."""
        sent: dict[tuple[str, bytes], list[tuple[Produce, Message]]] = defaultdict(list)
        for produce in self._records.produces:
            for message in produce.messages:
                sent[produce.topic, value_of(message.payload)].append((produce, message))
        return sent

    # -- checks ---------------------------------------------------------------------------------

    def check(self) -> Iterator[Violation]:
        """Return all violations of the subscriptions."""
        yield from self._check_ids()
        if self._records.damaged or self._lives.any_loss:
            return
        for group_partition in self._group_partitions.values():
            yield from self._check_values(group_partition)
            yield from self._check_leases(group_partition)
            yield from self._check_begin(group_partition)
            yield from self._check_refusals(group_partition)
            yield from self._check_complete(group_partition)

    def _check_ids(self) -> Iterator[Violation]:
        """P2: check that ids rise and never repeat."""
        told = [(self._lives.span(op), op.subscription, op) for op in self._subscribes]
        for (before, earlier), (after, later) in falling(told):
            if after < before and not self._history.rotted:
                text = f"subscription {after} was given after {before}"
                yield violation("P2-subscription", text, earlier, later)
        given: dict[int, Subscribe] = {}
        for op in self._subscribes:
            other = given.setdefault(op.subscription, op)
            if other.number != op.number:
                text = f"subscription {op.subscription} was given twice"
                yield violation("P2-subscription", text, other, op)

    def _check_values(self, group_partition: GroupPartition) -> Iterator[Violation]:
        """P2, P8: check that each delivery was sent, with its QoS, at QoS 0 at most once."""
        topic, qos = group_partition.subscribe.topic, group_partition.subscribe.qos
        times: Counter[bytes] = Counter()
        for poll in group_partition.polls:
            if poll.handed is None:
                continue
            value = poll.handed.value
            senders = self._by_value.get((topic, value), [])
            if poll.handed.qos == 0 and not any(not produce.error for produce, _ in senders):
                text = f"{group_partition.name} was given what nobody stored there: {value[:40]!r}"
                yield violation("P8-produce" if senders else "P2-content", text, poll)
            if len(senders) != 1:
                continue
            expected = min(qos, _qos(senders[0][1]))
            if poll.handed.qos != expected:
                text = (
                    f"{group_partition.name} was given a message as QoS {poll.handed.qos}: "
                    f"{value[:40]!r}"
                )
                yield violation("P1-content", text, senders[0][0], poll)
            times[value] += not expected
            if times[value] > 1:
                text = f"{group_partition.name} was given a message of QoS 0 twice: {value[:40]!r}"
                yield violation("P3-once", text, senders[0][0], poll)

    def _check_leases(self, group_partition: GroupPartition) -> Iterator[Violation]:
        """P3, P4: check the number and overlap of deliveries, and that an ACK ends them."""
        most = max(1, self._rules.max_deliveries)
        for place, deliveries in self._deliveries(group_partition).items():
            name = f"{group_partition.name}, offset {place.offset} of partition {place.partition}"
            if len(deliveries) > most:
                polls = [each.poll for each in deliveries]
                text = f"{name} was delivered {len(deliveries)} times; {most} is the limit"
                yield violation("P4-dead", text, *polls)
            for one, other in combinations(deliveries, 2):
                if not self._are_apart(deliveries, one, other):
                    text = f"{name} was delivered again while it was in flight"
                    yield violation("P3-one-lease", text, one.poll, other.poll)
            for ack in group_partition.acks.get(place, ()):
                span = self._lives.span(ack)
                again = [each.poll for each in deliveries if span.is_before(each.span)]
                if again and self._settled_for_sure(deliveries, ack):
                    text = f"{name} was acknowledged, and delivered after that"
                    yield violation("P1-settled", text, ack, again[0])

    def _settled_for_sure(self, all_of_it: list[SubscriptionDelivery], ack: Acknowledge) -> bool:
        """Return whether the delivery was in flight at the ACK. A slow reader may miss the NACK."""
        span = self._lives.span(ack)
        return ack.succeeded and any(
            each.span.is_before(span) and span.last_us < self._flies_until(all_of_it, each)
            for each in all_of_it
        )

    def _deliveries(
        self, group_partition: GroupPartition
    ) -> dict[Place, list[SubscriptionDelivery]]:
        found: dict[Place, list[SubscriptionDelivery]] = defaultdict(list)
        for poll in group_partition.polls:
            if poll.handed is not None and poll.handed.place is not None:
                found[poll.handed.place].append(SubscriptionDelivery(poll, self._lives.span(poll)))
        return found

    def _are_apart(
        self,
        all_of_it: list[SubscriptionDelivery],
        one: SubscriptionDelivery,
        other: SubscriptionDelivery,
    ) -> bool:
        """Return whether the second delivery may have come after the end of the first."""
        return self._may_follow(all_of_it, one, other) or self._may_follow(all_of_it, other, one)

    def _may_follow(
        self,
        all_of_it: list[SubscriptionDelivery],
        one: SubscriptionDelivery,
        other: SubscriptionDelivery,
    ) -> bool:
        return other.span.last_us >= self._flies_until(all_of_it, one) - SLACK_US

    def _flies_until(self, all_of_it: list[SubscriptionDelivery], one: SubscriptionDelivery) -> int:
        """Return the earliest end of an unacknowledged delivery, by the number before it."""
        before = sum(each.span.is_before(one.span) for each in all_of_it)
        return one.span.first_us + self._rules.flight_us(before + 1)

    def _check_begin(self, group_partition: GroupPartition) -> Iterator[Violation]:
        """P3: check that no record is older than the begin of the subscription."""
        begun = self._begin(group_partition)
        if begun is None:
            return
        for poll in group_partition.polls:
            record = self._record(group_partition, poll)
            if record is not None and record.stored.is_before(begun):
                text = f"{group_partition.name} was given {record.name}, which is older"
                yield violation(
                    "P3-from-now", text, record.sent.produce, group_partition.subscribe, poll
                )

    def _begin(self, group_partition: GroupPartition) -> Span | None:
        """Return the bounds of the time from which on it gets records.

        It looks back in broker time. None if a step of the wall clock may have changed the age of
        records.
        """
        begun = self._lives.span(group_partition.subscribe)
        back_us = self._rules.look_back_us
        if not back_us:
            return begun
        if self._history.clock_steps != []:
            return None
        return Span(begun.first_us - back_us - SLACK_US, begun.last_us - back_us + SLACK_US)

    def _record(self, group_partition: GroupPartition, poll: Poll) -> Record | None:
        """Return the record of a delivery, if its place is known and unique."""
        if poll.handed is None or poll.handed.place is None:
            return None
        records = self._records.by_place.get(
            (group_partition.subscribe.topic, poll.handed.place), []
        )
        return records[0] if len(records) == 1 else None

    def _check_refusals(self, group_partition: GroupPartition) -> Iterator[Violation]:
        """P3: check that an ACK is refused only when nothing is in flight."""
        for place, deliveries in self._deliveries(group_partition).items():
            acks = group_partition.acks.get(place, [])
            for ack in acks:
                if UNKNOWN_DELIVERY not in ack.error:
                    continue
                span = self._lives.span(ack)
                if self._permissions.may_lack(READ, ack.topic, span):
                    continue  # the subscription looks unknown
                for each in deliveries:
                    if self._flew(deliveries, each, span) and not self._was_dealt_with(
                        group_partition, place, ack, span
                    ):
                        text = (
                            f"{group_partition.name} refused to acknowledge what was in flight: "
                            f"{place}"
                        )
                        yield violation("P3-refusal", text, each.poll, ack)
                        break

    def _flew(
        self, all_of_it: list[SubscriptionDelivery], each: SubscriptionDelivery, during: Span
    ) -> bool:
        """Return whether the delivery was in flight all the time, unless something ended it."""
        return (
            each.span.is_before(during)
            and during.last_us < self._flies_until(all_of_it, each) - SLACK_US
            and during.last_us < each.span.first_us + self._rules.grace_us
        )

    def _was_dealt_with(
        self, group_partition: GroupPartition, place: Place, refused: Acknowledge, span: Span
    ) -> bool:
        """Return whether another ACK, or the end of the record, may have ended the delivery."""
        if has_ended(group_partition.subscribe.topic):
            return True
        others = (
            ack for ack in group_partition.acks[place] if ack is not refused and not ack.error
        )
        if any(self._lives.span(other).first_us <= span.last_us for other in others):
            return True
        records = self._records.by_place.get((group_partition.subscribe.topic, place), [])
        return not records or not all(self._removal.is_there(each, span) for each in records)

    # -- at the end -----------------------------------------------------------------------------

    def _check_complete(self, group_partition: GroupPartition) -> Iterator[Violation]:
        """P5: check that each later message was delivered and acknowledged, or given up."""
        topic = group_partition.subscribe.topic
        if (
            group_partition.letters is None
            or has_ended(topic)
            or self._may_have_expired(group_partition)
        ):
            return
        drained_us = max(self._lives.span(poll).last_us for poll in group_partition.polls)
        deliveries = self._deliveries(group_partition)
        values = {poll.handed.value for poll in group_partition.polls if poll.handed is not None}
        may_have_more = any(poll.answered_us == NEVER for poll in group_partition.polls)
        begun = self._begin(group_partition) or self._lives.span(group_partition.subscribe)
        for record in self._records.of_topic.get(topic, ()):
            message = record.sent.message
            if not begun.is_before(record.stored) or not self._records.is_known(record):
                continue
            until = Span(record.stored.first_us, drained_us)
            if record.stored.last_us >= drained_us or not self._removal.is_there(record, until):
                continue
            if min(group_partition.subscribe.qos, _qos(message)) == 0:
                is_lost = value_of(message.payload) not in values and not may_have_more
            else:
                is_lost = not self._is_over(
                    group_partition, record.place, bool(deliveries.get(record.place))
                )
            if is_lost:
                text = f"{group_partition.name} was never given {record.name}, or lost it"
                yield violation(
                    "P5-eventually", text, record.sent.produce, group_partition.subscribe
                )

    def _is_over(self, group_partition: GroupPartition, place: Place, was_delivered: bool) -> bool:
        """Return whether a message of QoS 1 is acknowledged for sure, or a dead letter."""
        if place in (group_partition.letters or {}):
            return True
        return was_delivered and any(not ack.error for ack in group_partition.acks.get(place, ()))

    def _may_have_expired(self, group_partition: GroupPartition) -> bool:
        """Return whether a gap between requests may have let the subscription expire."""
        moments = [self._lives.span(group_partition.subscribe).first_us]
        moments += [boot.ready_us for boot in self._lives.boots if boot.ready_us != NEVER]
        moments += [
            self._lives.span(poll).first_us
            for poll in group_partition.polls
            if poll.answered_us != NEVER and self._counts(poll)
        ]
        moments = sorted(moment for moment in moments if moment >= moments[0])
        last_us = max(
            (self._lives.span(poll).last_us for poll in group_partition.polls), default=EVER_US
        )
        gaps = zip(moments, [*moments[1:], last_us], strict=True)
        return any(after - before >= self._rules.grace_us for before, after in gaps)

    def _counts(self, poll: Poll) -> bool:
        """Return whether a poll surely delayed the expiry: it had the permission."""
        if poll.handed is not None:
            return True
        return not self._permissions.may_lack(READ, poll.topic, self._lives.span(poll))


def _qos(message: Message) -> int:
    """Return the QoS of a message: 0 if its metadata says so, else 1."""
    return 0 if message.metadata == QOS_0 else 1


QOS_0 = b"\x81\xa3qos\x00"
"""The metadata of a message of QoS 0, ``{"qos": 0}`` in MessagePack."""
