# Tests: tests/simulator/test_oracle_offsets.py
"""Check that reads by offset are complete and fit their requests: promises 1 and 2.

`records` checks the content and place of each record, as for every other sight.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from operator import attrgetter

from simulator.history.offsets import Read, Reading
from simulator.history.operations import NEVER, History
from simulator.oracle.records.offsets import Offsets
from simulator.oracle.records.records import Record, Records
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span
from simulator.oracle.violation import Violation, violation
from simulator.payloads import value_of

JSON_PATH = "$."
_offset = attrgetter("place.offset")


class Reads:
    """Judge of the reads of a history."""

    def __init__(
        self, history: History, lives: Lives, records: Records, removal: Removal, offsets: Offsets
    ) -> None:
        self._lives = lives
        self._records = records
        self._removal = removal
        self._offsets = offsets
        self._reads = [op for op in history.operations if isinstance(op, Read) and op.succeeded]
        self._by_partition: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in records if self._reads else ():
            self._by_partition[record.topic, record.place.partition].append(record)
        for group_partition in self._by_partition.values():
            group_partition.sort(key=_offset)

    def check(self) -> Iterator[Violation]:
        """Return all violations of the reads."""
        for op in self._reads:
            starts = self._offsets.starts(op)
            if starts is None:
                continue
            if not starts:
                yield violation("P2-read", "without a commit the group gets an answer", op)
                continue
            yield from _check_answer(op, min(starts))
            missing = [self._missing(op, start) for start in starts]
            if not self._records.damaged and missing[0] is not None and None not in missing:
                text = f"{missing[0].name} was there and is not shown from {op.offset} on"
                yield violation("P1-read", text, missing[0].sent.produce, op)

    def _missing(self, op: Read, start: int) -> Record | None:
        """Return a record that an answer lacks. An empty answer covers the partition's rest."""
        span = self._lives.span(op)
        shown = {reading.place.offset for reading in op.readings}
        end = _end(op, start)
        for record in self._from(op, start):
            if record.place.offset >= end:
                break
            if record.place.offset in shown or not self._is_visible(record, op, span):
                continue
            message = record.sent.message
            if op.pattern and not passes(op.pattern, message.key, value_of(message.payload)):
                continue
            return record
        return None

    def _from(self, op: Read, start: int) -> list[Record]:
        group_partition = self._by_partition.get((op.topic, op.partition), [])
        return group_partition[bisect_left(group_partition, start, key=_offset) :]

    def _is_visible(self, record: Record, op: Read, span: Span) -> bool:
        """Return whether the record was certainly stored and durable during the read."""
        produce = record.sent.produce
        is_own = (
            op.connection == produce.connection != NEVER
            and produce.number < op.number
            and produce.succeeded
            and None not in produce.places
        )
        is_durable = record.durable_us < span.first_us or record.boot < op.boot
        return (
            ((record.stored.is_before(span) and is_durable) or is_own)
            and self._records.is_known(record)
            and record.first_boot <= op.boot <= record.last_boot
            and (record.boot == op.boot or not self._records.may_be_lost(record))
            and self._removal.is_there(record, span)
        )


def _end(op: Read, start: int) -> int:
    """Return the offset up to which an answer is complete."""
    if op.exact:
        return op.offset + 1
    if op.readings:
        last = op.readings[-1].place.offset + 1
        return last if op.next is None else max(last, op.next)
    if op.stops_at_gaps and op.next is not None and op.next > start:
        return op.next
    return EVER_US


def _check_answer(op: Read, start: int) -> Iterator[Violation]:
    """P2: check start, order and number of the records."""
    problem = _problem(op, start)
    if problem:
        yield violation("P2-read", problem, op)


def _problem(op: Read, start: int) -> str:
    before = start - 1
    for reading in op.readings:
        offset = reading.place.offset
        if reading.place.partition != op.partition or offset <= before:
            return f"offset {offset} of partition {reading.place.partition} comes after {before}"
        before = offset
        if op.pattern and not passes(op.pattern, reading.key, reading.value):
            return f"offset {offset} does not match {op.pattern!r}"
    if len(op.readings) > op.limit:
        return f"{op.limit} records were asked for, {len(op.readings)} are shown"
    if op.exact and any(reading.place.offset != op.offset for reading in op.readings):
        return f"offset {op.offset} was asked for, and {before} is shown"
    if op.next is not None and op.readings and op.next <= before:
        return f"the next read is to begin at {op.next}, and {before} was shown"
    return _too_many_bytes(op.readings, op.limit_bytes)


def _too_many_bytes(readings: tuple[Reading, ...], limit: int | None) -> str:
    size = sum(len(reading.value) for reading in readings)
    if limit is not None and len(readings) > 1 and size > limit:
        return f"{limit} bytes were asked for, {size} are shown"
    return ""


def passes(pattern: str, key: bytes | None, value: bytes) -> bool:
    """Return whether a filter of FlyMQ accepts a record (docs/protocols/flymq.rst, FETCH)."""
    texts = (value, key or b"")
    if pattern.startswith(JSON_PATH) and _has_path(value, pattern[len(JSON_PATH) :].split(".")):
        return True
    if any(pattern.encode().lower() in text.lower() for text in texts):
        return True
    if pattern.startswith(JSON_PATH):
        return False
    try:
        expression = re.compile(pattern.encode())
    except re.error:
        return False
    return any(expression.search(text) for text in texts)


def _has_path(value: bytes, names: list[str]) -> bool:
    try:
        there = json.loads(value)
    except ValueError:
        return False
    for name in names:
        if not isinstance(there, dict) or name not in there:
            return False
        there = there[name]
    return True
