# Tests: tests/sim/test_oracle.py, tests/sim/test_oracle_random.py
"""The audit at the end of a run: all records are there and none is left: promises 1 and 2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from brokerd.sim.history import NEVER, Acquire, History, Place, Produce
from brokerd.sim.oracle.lanes import AUDIT, Lane
from brokerd.sim.oracle.records import Record, Records
from brokerd.sim.oracle.spans import EVER_US, Lives
from brokerd.sim.oracle.violation import Violation, violation


class Audit:
    """What the audit read of each topic."""

    def __init__(
        self, history: History, lives: Lives, records: Records, lanes: dict[tuple[str, str], Lane]
    ) -> None:
        self._history = history
        self._lives = lives
        self._records = records
        self._lanes = lanes
        self._read: dict[str, Acquire] = {}
        """The last acquire of those that read a topic."""
        self._places: dict[str, set[Place]] = {}
        for (topic, group), lane in lanes.items():
            last = lane.last_acquire(history.audit_us)
            if not group.startswith(AUDIT) or last is None:
                continue
            self._read[topic] = last
            self._places.setdefault(topic, set()).update(lane.sights)

    def check(self) -> Iterator[Violation]:
        """Everything there is to say; nothing about a run without an audit."""
        if self._history.audit_us == NEVER:
            return
        yield from self._check_complete()
        for topic in self._read:
            yield from self._check_kept(topic)
            if not self._records.damaged:
                yield from self._check_suffix(topic)
                yield from self._check_dense(topic)
                yield from self._check_next(topic)
        yield from self._check_batches()

    def _has(self, record: Record) -> bool:
        return any(sight.acquire.group.startswith(AUDIT) for sight in record.sights)

    def _check_complete(self) -> Iterator[Violation]:
        """The audit read each topic to its end, and drained each group."""
        for topic in self._records.of_topic:
            if topic not in self._read:
                yield Violation("audit", f"topic {topic} was not read", (), self._history.audit_us)
        for (topic, group), lane in self._lanes.items():
            last = lane.last_acquire(self._history.audit_us)
            if last is None and topic in self._records.of_topic and lane.acquires:
                text = f"group {group} of {topic} was not drained"
                yield violation("audit", text, lane.acquires[-1])
            elif last is not None and last.deliveries:
                text = f"group {group} of {topic} was not drained to the end"
                yield violation("audit", text, last)

    def _check_kept(self, topic: str) -> Iterator[Violation]:
        """P1: what was acknowledged, or seen, is there."""
        for record in self._records.of_topic[topic]:
            if record.last_boot < EVER_US or self._has(record) or self._records.damaged:
                continue
            if not record.stored.is_before(self._lives.span(self._read[topic])):
                continue
            how = "acknowledged" if record.is_acknowledged else "seen"
            shown = [sight.acquire for sight in record.sights[:1]]
            text = f"{record.name} was {how} and is not there"
            yield violation("P1-kept", text, record.sent.produce, *shown)

    def _check_dense(self, topic: str) -> Iterator[Violation]:
        """P2: offsets run from 0 without a hole."""
        partitions: dict[int, set[int]] = defaultdict(set)
        for partition, offset in self._places[topic]:
            partitions[partition].add(offset)
        for partition, offsets in sorted(partitions.items()):
            holes = sorted(set(range(max(offsets))) - offsets)
            if holes:
                text = f"{topic}/{partition} ends with {max(offsets)} and has no {holes[:5]}"
                yield violation("P2-dense", text, self._read[topic])

    def _check_next(self, topic: str) -> Iterator[Violation]:
        """P2: the next offset is the number of records there are."""
        count = len(self._places[topic])
        late = sum(
            len(produce.messages)
            for produce in self._records.produces
            if produce.topic == topic
            and self._lives.span(produce).last_us >= self._history.audit_us
        )
        for (of, _), lane in self._lanes.items():
            for look in lane.looks if of == topic else ():
                if look.sent_us < self._read[topic].sent_us or look.view is None:
                    continue
                if not count <= look.view.next <= count + late:
                    text = f"{topic} has {count} records and tells {look.view.next}"
                    yield violation("P2-next", text, look)

    def _check_suffix(self, topic: str) -> Iterator[Violation]:
        """P1 without fsync: power loss takes the end of what was acknowledged, and no more."""
        lost: dict[int, list[Record]] = defaultdict(list)
        for record in self._records.of_topic[topic]:
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
        """P2: of the messages of one produce all are stored, or none."""
        seen: dict[int, set[int]] = defaultdict(set)
        for record in self._records:
            if self._has(record):
                seen[record.sent.produce.number].add(record.sent.position)
        for produce in self._records.produces:
            stored = len(seen.get(produce.number, ()))
            if 0 < stored < len(produce.messages) and self._can_tell(produce):
                text = f"{stored} of {len(produce.messages)} messages were stored"
                yield violation("P2-batch", text, produce)

    def _can_tell(self, produce: Produce) -> bool:
        if self._records.damaged or produce.topic not in self._read:
            return False
        if self._lives.span(produce).last_us >= self._history.audit_us and not produce.succeeded:
            return False
        payloads = [message.payload for message in produce.messages]
        return produce.succeeded or all(
            self._records.senders(produce.topic, payload) == 1 for payload in payloads
        )
