# Tests: tests/simulator/test_oracle_changes.py
"""Check start offsets, retention and expiry: promises 2 and 5.

A record is removed when the start offset of its partition passes it, by a trim or by retention. An
expired record is not delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from simulator.history.offsets import Position
from simulator.history.operations import (
    NEVER,
    ConfigureTopic,
    Describe,
    History,
    Message,
    Operation,
    Place,
    Produce,
    TopicRules,
    Trim,
)
from simulator.oracle.records.records import Record, Records, SentMessage, Shown
from simulator.oracle.timeline.broker_time import BrokerTime
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, falling, possible
from simulator.oracle.violation import Violation, violation

RECORD_BYTES_MAX = 500
"""The most bytes of a record in the log besides its own."""
LATE_US = 1_000


class ReportedStart(NamedTuple):
    """A start offset in an answer."""

    span: Span
    start: int
    operation: Operation


class Removal:
    """Judge of removed records, and bounds for the other checks."""

    def __init__(self, history: History, lives: Lives, records: Records) -> None:
        self._history = history
        self._lives = lives
        self._records = records
        self._time = BrokerTime(history, lives)
        self._told: dict[tuple[str, int], list[ReportedStart]] = defaultdict(list)
        self._trims: dict[tuple[str, int], list[Trim]] = defaultdict(list)
        self._changes: dict[str, list[tuple[Span, bool, TopicRules]]] = defaultdict(list)
        for op in history.operations:
            if isinstance(op, ConfigureTopic) and not op.error:
                change = lives.span(op), op.answered_us != NEVER, op.rules
                self._changes[op.topic].append(change)
            elif isinstance(op, Trim) and not op.error:
                self._trims[op.topic, op.partition].append(op)
                if op.succeeded:
                    self._tell(op, op.topic, op.partition, op.start)
            elif isinstance(op, Describe) and op.succeeded and op.view is not None:
                for partition, start in enumerate(op.view.starts):
                    self._tell(op, op.topic, partition, start)
            elif isinstance(op, Position) and op.succeeded and op.mode == "earliest":
                self._tell(op, op.topic, op.partition, op.offset)
        latest_first = history.compacted[::-1]
        self._compacted = {
            (one.topic, Place(one.partition, one.offset)): one.at_us for one in latest_first
        }
        """When a record was compacted for the first time.

        An older copy of the archive brings it back, and the next rollup compacts it again.
        """
        self._compacts = {one.topic: one.at_us for one in latest_first}
        """When a topic was compacted for the first time."""
        self._sent = {topic: self._sizes(topic) for topic in {p.topic for p in records.produces}}
        for changes in self._changes.values():
            changes.sort(key=lambda change: change[0])
        self._expiries: dict[Record, Span] = {}
        self._equal: dict[tuple[str, bytes, bool], tuple[list[Span], list[SentMessage]]] = {}

    def _tell(self, op: Operation, topic: str, partition: int, start: int) -> None:
        self._told[topic, partition].append(ReportedStart(self._lives.span(op), start, op))

    # -- for others -----------------------------------------------------------------------------

    def removes(self, topic: str) -> bool:
        """Return whether records of a topic may have been removed or have expired."""
        rules = self._rules(topic, Span(-1, EVER_US))
        return (
            any(each.removes or each.ttl_us for each in rules)
            or any(of == topic for of, _ in self._trims)
            or any(
                told.start for (of, _), tolds in self._told.items() if of == topic for told in tolds
            )
            or self._has_ttl(topic)
            or topic in self._compacts
        )

    def expires(self, record: Record) -> Span:
        """Return when the record expires: EVER_US for never or unknown.

        A compacted record counts as expired from its first compaction on.
        """
        span = self._expiries.get(record)
        if span is None:
            if self._records.is_known(record):
                span = self._expires(record.sent.produce, record.sent.message, record.stored)
            else:
                span = _hull(self._expires_as_any(record))
            first_us = min(self.compacted_us(record), span.first_us)
            span = self._expiries[record] = Span(first_us, span.last_us)
        return span

    def compacted_us(self, record: Record) -> int:
        """Return when compaction first removed the record; EVER_US for never."""
        return self._compacted.get((record.topic, record.place), EVER_US)

    def _expires_as_any(self, record: Record) -> list[Span]:
        """Return when a record that may be any of several equal messages expires.

        Thousands of empty messages may be equal, so those whose time runs from their sending are
        looked at once. The others expire by the topic's rules from the storing of the record, all
        at the same time.
        """
        equal = record.topic, record.sent.message.payload, record.is_value
        if equal not in self._equal:
            possible = self._records.possible(record)
            stored = [sent for sent in possible if _lives_from_storing(sent.message)]
            spans = [
                self._expires(sent.produce, sent.message, record.stored)
                for sent in possible
                if not _lives_from_storing(sent.message)
            ]
            self._equal[equal] = spans and [_hull(spans)], stored[:1]
        spans, stored = self._equal[equal]
        return spans + [self._expires(one.produce, one.message, record.stored) for one in stored]

    def expires_of(self, produce: Produce, message: Message) -> Span:
        """Return when an unseen message expires, wherever it is stored."""
        span = self._expires(produce, message, Span(self._lives.span(produce).first_us, EVER_US))
        if message.key is None:
            return span
        return Span(min(span.first_us, self._compacts.get(produce.topic, EVER_US)), span.last_us)

    def _expires(self, produce: Produce, message: Message, stored: Span) -> Span:
        """Return the expiry: a message's own time runs from its sending, the topic's from its
        storing."""
        begun = stored if _lives_from_storing(message) else self._lives.span(produce)
        if message.ttl_us is not None:
            ttls = [message.ttl_us]
        else:
            ttls = [each.ttl_us or EVER_US for each in self._rules(produce.topic, begun)]
        earliest_us = min(self._time.earliest_us(begun.first_us, ttl) for ttl in ttls)
        return Span(earliest_us, max(self._time.latest_us(begun.last_us, ttl) for ttl in ttls))

    def removed(self, record: Record) -> tuple[int, ReportedStart | None]:
        """Return when the start offset may have passed the record, and the answers that show it."""
        partition, offset = record.place
        told = [
            each for each in self._told.get((record.topic, partition), ()) if each.start > offset
        ]
        return self._removed_us(record), min(told, default=None, key=lambda each: each.span.last_us)

    def start(self, topic: str, partition: int) -> int:
        """Return the highest start offset in any answer."""
        return max((told.start for told in self._told.get((topic, partition), ())), default=0)

    def is_there(self, record: Record, span: Span) -> bool:
        """Return whether the record certainly existed during all of ``span``."""
        return self._removed_us(record) > span.last_us and (
            self.expires(record).first_us > span.last_us
        )

    def may_be_gone(self, record: Record, by_us: int) -> bool:
        """Return whether the record may have expired or been removed by ``by_us``."""
        partition, offset = record.place
        return (
            self.start(record.topic, partition) > offset or self.expires(record).first_us <= by_us
        )

    def may_be_hidden(self, record: Record, by_us: int) -> bool:
        """Return whether the record may have counted as expired at ``by_us``, and not later."""
        return self._time.may_go_back and self.expires(record).first_us <= by_us

    def may_be_removed_unseen(self, produce: Produce) -> bool:
        """Return whether the records of a produce may have been removed, at any place."""
        rules = self._rules(produce.topic, Span(self._lives.span(produce).first_us, EVER_US))
        starts = [
            t.start
            for (topic, _), told in self._told.items()
            for t in told
            if topic == produce.topic
        ]
        return any(each.removes for each in rules) or any(starts)

    # -- checks ---------------------------------------------------------------------------------

    def check(self) -> Iterator[Violation]:
        """Return the violations of start offsets, retention and expiry."""
        if self._records.damaged or self._lives.any_loss:
            return
        sights: dict[tuple[str, int], list[tuple[Record, Shown]]] = defaultdict(list)
        for record in self._records:
            sights[record.topic, record.place.partition] += (
                (record, sight.acquire) for sight in record.sights
            )
        for (topic, partition), tolds in self._told.items():
            yield from self._check_falling(topic, partition, tolds, sights[topic, partition])
        for record in self._records:
            yield from self._check_expired(record)
            yield from self._check_kept(record)

    def _check_falling(
        self,
        topic: str,
        partition: int,
        tolds: list[ReportedStart],
        sights: list[tuple[Record, Shown]],
    ) -> Iterator[Violation]:
        """P2: check that a start offset never goes down and nothing below it is delivered."""
        for (before, earlier), (after, later) in falling((t.span, t.start, t) for t in tolds):
            text = f"{topic}/{partition} starts at {after}, and did at {before}"
            yield violation("P2-start", text, earlier.operation, later.operation)
        for record, acquire in sights if any(told.start for told in tolds) else ():
            yield from self._check_above(record, acquire, tolds)

    def _check_above(
        self, record: Record, acquire: Shown, tolds: list[ReportedStart]
    ) -> Iterator[Violation]:
        span = self._lives.span(acquire)
        for told in tolds:
            if told.start > record.place.offset and told.span.is_before(span):
                text = f"{record.name} is given out, and its partition starts at {told.start}"
                yield violation("P2-start", text, told.operation, acquire)
                return

    def _check_expired(self, record: Record) -> Iterator[Violation]:
        """P5: check that no expired record is delivered."""
        over_us = self.expires(record).last_us + LATE_US
        for sight in record.sights:
            if self._lives.span(sight.acquire).first_us > over_us:
                text = f"{record.name} expired by {over_us} and is given out"
                yield violation("P5-expired", text, record.sent.produce, sight.acquire)

    def _check_kept(self, record: Record) -> Iterator[Violation]:
        """P5: check that only records whose time has come, or compacted ones, are removed."""
        may_us, told = self.removed(record)
        may_us = min(may_us, self.expires(record).first_us)
        if told is not None and told.span.last_us < may_us:
            text = f"{record.name} is below the start {told.start}, and must be kept until {may_us}"
            yield violation("P5-removed", text, record.sent.produce, told.operation)

    # -- parts ----------------------------------------------------------------------------------

    def _rules(self, topic: str, during: Span) -> list[TopicRules]:
        changes = self._changes.get(topic)
        if not changes:
            return [self._history.topic_rules]
        return possible(self._history.topic_rules, changes, during)

    def _removed_us(self, record: Record) -> int:
        partition, offset = record.place
        moments = [
            self._lives.span(trim).first_us
            for trim in self._trims.get((record.topic, partition), ())
            if trim.offset > offset
        ]
        stored_us = record.stored.first_us
        for rules in self._rules(record.topic, Span(stored_us, EVER_US)):
            if rules.retention_us:
                moments.append(self._time.earliest_us(stored_us, rules.retention_us))
            if rules.retention_bytes:
                moments.append(max(stored_us, self._exceeds_us(record.topic, rules)))
        return min(moments, default=EVER_US)

    def _exceeds_us(self, topic: str, rules: TopicRules) -> int:
        """Return the first moment at which a topic may exceed its limit of bytes."""
        for at_us, size in self._sent.get(topic, ()):
            if size > rules.retention_bytes:
                return at_us
        return EVER_US

    def _sizes(self, topic: str) -> list[tuple[int, int]]:
        """Return the bytes sent to a topic over time."""
        sizes: list[tuple[int, int]] = []
        total = 0
        of_topic = [op for op in self._records.produces if op.topic == topic and not op.error]
        for op in sorted(of_topic, key=self._lives.span):
            for message in op.messages:
                parts = message.payload, message.metadata, message.key
                total += RECORD_BYTES_MAX + sum(len(part) for part in parts if part)
            sizes.append((self._lives.span(op).first_us, total))
        return sizes

    def _has_ttl(self, topic: str) -> bool:
        return any(
            message.ttl_us is not None
            for op in self._records.produces
            if op.topic == topic
            for message in op.messages
        )


def _lives_from_storing(message: Message) -> bool:
    """Return whether the time to live runs from the storing: a delayed message with its topic's."""
    return message.delay_us is not None and message.ttl_us is None


def _hull(spans: list[Span]) -> Span:
    return Span(min(s.first_us for s in spans), max(s.last_us for s in spans))
