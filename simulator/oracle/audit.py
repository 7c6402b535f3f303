# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Check the audit at the end of a run: complete, dense, drained. Promises 1, 2 and 5."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from simulator.history.operations import (
    NEVER,
    Acquire,
    Cancel,
    Describe,
    History,
    Message,
    Place,
    Produce,
)
from simulator.oracle.groups.group_partitions import AUDIT, GroupPartition
from simulator.oracle.groups.lease_model import LATE_US
from simulator.oracle.records.records import Record, Records, SentMessage
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span
from simulator.oracle.timeline.topic_lives import has_ended
from simulator.oracle.timeline.transactions import by_transaction
from simulator.oracle.violation import Violation, violation


class Audit:
    """The results of the auditor's reads, by topic."""

    def __init__(
        self,
        history: History,
        lives: Lives,
        records: Records,
        removal: Removal,
        group_partitions: dict[tuple[str, str], GroupPartition],
    ) -> None:
        self._history = history
        self._lives = lives
        self._records = records
        self._removal = removal
        self._group_partitions = group_partitions
        self._read: dict[str, Acquire] = {}
        """The last acquire of each reader of a topic."""
        self._places: dict[str, set[Place]] = {}
        for (topic, group), group_partition in group_partitions.items():
            last = group_partition.last_acquire(history.audit_us)
            if not group.startswith(AUDIT) or last is None:
                continue
            self._read[topic] = last
            self._places.setdefault(topic, set()).update(group_partition.sights)

    def check(self) -> Iterator[Violation]:
        """Return all violations; none for a run without an audit."""
        if self._history.audit_us == NEVER:
            return
        yield from self._check_complete()
        yield from self._check_waiting()
        for topic in self._read:
            yield from self._check_kept(topic)
            yield from self._check_silent(topic)
            if not self._records.damaged:
                yield from self._check_fired(topic)
                yield from self._check_suffix(topic)
                yield from self._check_dense(topic)
                yield from self._check_next(topic)
        yield from self._check_batches()
        yield from self._check_transactions()

    def _has(self, record: Record) -> bool:
        return any(
            isinstance(sight.acquire, Acquire) and sight.acquire.group.startswith(AUDIT)
            for sight in record.sights
        )

    def _check_complete(self) -> Iterator[Violation]:
        """Check that the audit read each topic to its end and drained each group."""
        for topic in self._records.of_topic:
            if topic not in self._read and not has_ended(topic):
                yield Violation("audit", f"topic {topic} was not read", (), self._history.audit_us)
        for (topic, group), group_partition in self._group_partitions.items():
            if has_ended(topic):
                continue
            last = group_partition.last_acquire(self._history.audit_us)
            if last is None and topic in self._records.of_topic and group_partition.acquires:
                text = f"group {group} of {topic} was not drained"
                yield violation("audit", text, group_partition.acquires[-1])
            elif last is not None and last.deliveries:
                text = f"group {group} of {topic} was not drained to the end"
                yield violation("audit", text, last)

    def _check_kept(self, topic: str) -> Iterator[Violation]:
        """P1: check that every acknowledged or seen record is in the audit."""
        for record in self._records.of_topic[topic]:
            if record.last_boot < EVER_US or self._has(record) or self._records.damaged:
                continue
            read = self._lives.span(self._read[topic])
            if not record.stored.is_before(read):
                continue
            if self._removal.may_be_gone(record, read.last_us):
                continue
            how = "acknowledged" if record.is_acknowledged else "seen"
            shown = [sight.acquire for sight in record.sights[:1]]
            text = f"{record.name} was {how} and is not there"
            yield violation("P1-kept", text, record.sent.produce, *shown)

    def _check_silent(self, topic: str) -> Iterator[Violation]:
        """P1: check messages that were acknowledged without a place."""
        if self._records.damaged or self._lives.any_loss:
            return
        read = self._lives.span(self._read[topic])
        seen = {
            (record.sent.produce.number, record.sent.position)
            for record in self._records.of_topic[topic]
            if self._has(record)
        }
        for produce in self._records.produces:
            if produce.topic != topic or not (produce.is_silent and produce.is_promised):
                continue
            if not produce.succeeded or not self._lives.span(produce).is_before(read):
                continue
            for position, message in enumerate(produce.messages):
                if (produce.number, position) in seen or not self._must_stay(
                    produce, message, read
                ):
                    continue
                text = f"message {position} was acknowledged and is not in {topic}"
                yield violation("P1-kept", text, produce)

    def _must_stay(self, produce: Produce, message: Message, read: Span) -> bool:
        """Return whether a message must be stored when the audit reads, at any place."""
        return (
            self._records.senders(produce.topic, message.payload) == 1
            and not self._removal.may_be_removed_unseen(produce)
            and self._removal.expires_of(produce, message).first_us > read.last_us
        )

    def _check_fired(self, topic: str) -> Iterator[Violation]:
        """P5: check that each scheduled message is stored when due, unless it was cancelled."""
        read = self._lives.span(self._read[topic])
        sent_as = (record.sent for record in self._records.of_topic[topic])
        seen = {(sent.produce.number, sent.position) for sent in sent_as}
        for produce in self._records.produces:
            if produce.topic != topic or not produce.succeeded or self._lives.any_loss:
                continue
            if produce.is_silent:
                continue
            for position, place in enumerate(produce.places):
                sent = SentMessage(produce, position)
                if place is not None or (produce.number, position) in seen:
                    continue
                if self._records.senders(topic, sent.message.payload) > 1:
                    continue
                text = f"message {position} was scheduled, was due, and is not there"
                if self._was_due(sent, read.first_us):
                    yield violation("P5-fired", text, produce, self._read[topic])

    def _check_waiting(self) -> Iterator[Violation]:
        """P5: check that no message waits after all delays are over."""
        last: dict[str, Describe] = {}
        for op in self._history.operations:
            if not isinstance(op, Describe) or op.topic not in self._read:
                continue
            if op.succeeded and self._read[op.topic].answered_us < op.sent_us:
                last[op.topic] = op
        for topic, op in last.items():
            if op.view is not None and op.view.waiting and not self._records.damaged:
                text = f"{op.view.waiting} messages of {topic} wait, and all delays are over"
                yield violation("P5-fired", text, op)

    def _was_due(self, sent: SentMessage, read_us: int) -> bool:
        """Return whether a message must have been stored by then and must still exist."""
        produce, message = sent.produce, sent.message
        span = self._lives.span(produce)
        begun = [span.last_us, *(c.ready_us for c in self._lives.crossings if c.ready_us < EVER_US)]
        if max(begun) + (message.delay_us or 0) + LATE_US > read_us:
            return False
        if self._removal.expires_of(produce, message).first_us <= read_us:
            return False
        if self._removal.may_be_removed_unseen(produce):
            return False
        schedule_id = produce.schedules[sent.position]
        return not any(
            isinstance(op, Cancel)
            and (op.topic, op.schedule_id) == (produce.topic, schedule_id)
            and (op.cancelled or op.answered_us == NEVER)
            for op in self._history.operations
        )

    def _check_dense(self, topic: str) -> Iterator[Violation]:
        """P2: check that offsets run from 0 without a hole."""
        partitions: dict[int, set[int]] = defaultdict(set)
        for partition, offset in self._places[topic]:
            partitions[partition].add(offset)
        for partition, offsets in sorted(partitions.items()):
            start = self._removal.start(topic, partition)
            holes = sorted(
                offset
                for offset in set(range(start, max(offsets))) - offsets
                if not self._may_have_expired(topic, Place(partition, offset))
            )
            if holes:
                text = f"{topic}/{partition} ends with {max(offsets)} and has no {holes[:5]}"
                yield violation("P2-dense", text, self._read[topic])

    def _may_have_expired(self, topic: str, place: Place) -> bool:
        """Return whether the record at a place may have expired, as far as it is known."""
        known = self._records.by_place.get((topic, place), ())
        read_us = self._lives.span(self._read[topic]).last_us
        if known:
            return any(self._removal.may_be_gone(record, read_us) for record in known)
        return self._removal.removes(topic) and self._records.may_be_unseen(topic)

    def _check_next(self, topic: str) -> Iterator[Violation]:
        """P2: check that the next offset is the number of records."""
        if self._removal.removes(topic):
            return
        count = len(self._places[topic])
        late = sum(
            len(produce.messages)
            for produce in self._records.produces
            if produce.topic == topic
            and self._lives.span(produce).last_us >= self._history.audit_us
        )
        for (of, _), group_partition in self._group_partitions.items():
            for look in group_partition.looks if of == topic else ():
                if look.sent_us < self._read[topic].sent_us or look.view is None:
                    continue
                if not count <= look.view.next <= count + late:
                    text = f"{topic} has {count} records and tells {look.view.next}"
                    yield violation("P2-next", text, look)

    def _check_suffix(self, topic: str) -> Iterator[Violation]:
        """P1 without fsync: check that a power loss took only the last acknowledged records."""
        lost: dict[int, list[Record]] = defaultdict(list)
        read_us = self._lives.span(self._read[topic]).last_us
        for record in self._records.of_topic[topic]:
            if self._removal.may_be_gone(record, read_us):
                continue
            if record.is_acknowledged and self._lives.loses(record.boot) and not self._has(record):
                lost[record.boot].append(record)
        if not lost:
            return
        for record in self._records.of_topic[topic]:
            if not self._has(record):
                continue
            for other in lost.get(record.boot, ()):
                if other.stored.is_before(record.stored):
                    text = f"{other.name} is lost, and {record.name} after it is not"
                    yield violation("P1-suffix", text, other.sent.produce, record.sent.produce)
                    return

    def _check_batches(self) -> Iterator[Violation]:
        """P2: check that all messages of a produce are stored, or none."""
        seen: dict[int, set[int]] = defaultdict(set)
        for record in self._records:
            if self._has(record):
                seen[record.sent.produce.number].add(record.sent.position)
        for produce in self._records.produces:
            stored = len(seen.get(produce.number, ()))
            if produce.in_transaction:
                continue
            if 0 < stored < len(produce.messages) and self._can_tell(produce):
                text = f"{stored} of {len(produce.messages)} messages were stored"
                yield violation("P2-batch", text, produce)

    def _check_transactions(self) -> Iterator[Violation]:
        """P2: check that all topics of a transaction store it, or none."""
        seen: dict[tuple[int, str], set[int]] = defaultdict(set)
        for record in self._records:
            if self._has(record):
                produce = record.sent.produce
                seen[produce.number, produce.topic].add(record.sent.position)
        for produces in by_transaction(self._records.produces):
            told = [produce for produce in produces if self._can_tell(produce)]
            stored = sum(len(seen[produce.number, produce.topic]) for produce in told)
            count = sum(len(produce.messages) for produce in told)
            if 0 < stored < count:
                text = f"{stored} of {count} messages of a transaction were stored"
                yield violation("P2-transaction", text, *told)

    def _can_tell(self, produce: Produce) -> bool:
        if self._records.damaged or produce.topic not in self._read:
            return False
        if self._removal.removes(produce.topic) or any(m.delay_us for m in produce.messages):
            return False
        if self._lives.span(produce).last_us >= self._history.audit_us and not produce.succeeded:
            return False
        payloads = [message.payload for message in produce.messages]
        return produce.succeeded or all(
            self._records.senders(produce.topic, payload) == 1 for payload in payloads
        )
