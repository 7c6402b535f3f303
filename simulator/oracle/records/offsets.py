# Tests: tests/simulator/test_oracle_offsets.py
"""Check committed offsets and the ends of partitions: promises 1, 2 and 3.

Only a commit, a reset, an operator's seek and the end of the group change a committed offset. A
seek changes an existing commit and makes no new one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from simulator.history.offsets import Commit, Committed, Position, Read, ResetOffset
from simulator.history.operations import DeleteGroup, History, Produce, Seek
from simulator.oracle.records.records import Record, Records
from simulator.oracle.timeline.spans import EVER_US, Lives, Span, possible
from simulator.oracle.violation import Violation, violation


class Number(NamedTuple):
    """The possible values of a committed offset, both ends included."""

    low: int
    high: int


NOTHING = None
"""Nothing is committed."""


class Setting(NamedTuple):
    """The time of a change, whether it is certain, and the new value."""

    span: Span
    is_sure: bool
    value: Number | None
    number: int
    """Number of the operation that set it, or whose answer has it."""


class Ends:
    """The next offset of each partition, as far as clients can know it."""

    def __init__(self, lives: Lives, records: Records) -> None:
        self._lives = lives
        self._records = records
        self._by_partition: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for record in records:
            self._by_partition[record.topic, record.place.partition].append(record)

    def least(self, topic: str, partition: int, before: Span) -> int:
        """Return the smallest possible value in a span."""
        if self._lives.any_loss or self._records.damaged:
            return 0
        return max(
            (
                record.place.offset + 1
                for record in self._by_partition.get((topic, partition), ())
                if record.stored.is_before(before)
            ),
            default=0,
        )

    def most(self, topic: str, partition: int, until: Span) -> int:
        """Return the largest possible value in a span."""
        if self._records.damaged:
            return EVER_US
        return sum(
            message.partition in (None, partition)
            for produce in self._records.produces
            if produce.topic == topic and self._may_have_begun(produce, until)
            for message in produce.messages
        )

    def _may_have_begun(self, produce: Produce, until: Span) -> bool:
        return not produce.error and self._lives.span(produce).first_us <= until.last_us


class Offsets:
    """All committed offsets of a history."""

    def __init__(self, history: History, lives: Lives, records: Records) -> None:
        self._lives = lives
        self._records = records
        self.ends = Ends(lives, records)
        self._operations = history.operations
        self._settings: dict[tuple[str, str, int], list[Setting]] = defaultdict(list)
        self._deletions: dict[tuple[str, str], list[Setting]] = defaultdict(list)
        self._in_memory = [
            op for op in history.operations if isinstance(op, Commit) and not op.is_kept
        ]
        for op in history.operations:
            if isinstance(op, DeleteGroup) and not op.error:
                is_sure = op.succeeded and not lives.loses(op.boot)
                setting = Setting(lives.span(op), is_sure, NOTHING, op.number)
                self._deletions[op.topic, op.group].append(setting)
            elif isinstance(op, Commit | ResetOffset | Committed):
                self._learn(op)
        for op in history.operations:
            if isinstance(op, Seek) and not op.error:
                self._learn_seek(op)

    def _learn_seek(self, op: Seek) -> None:
        """Add a seek. It is a certain change only if a commit certainly exists."""
        span = self._lives.span(op)
        is_done = op.succeeded and not self._lives.loses(op.boot)
        is_kept = (op.topic, op.group) not in self._deletions
        for (topic, group, partition), settings in self._settings.items():
            if (topic, group) != (op.topic, op.group) or op.partition not in (None, partition):
                continue
            before = [
                setting
                for setting in settings
                if setting.value is not NOTHING and setting.span.first_us <= span.last_us
            ]
            if before:
                was_there = any(one.is_sure and one.span.is_before(span) for one in before)
                is_sure = is_done and is_kept and was_there
                value = self._floor(op, partition, span)
                settings.append(Setting(span, is_sure, value, op.number))

    def _floor(self, op: Seek, partition: int, span: Span) -> Number:
        """Return the possible results of a seek: an offset is cut to the existing records."""
        least = self.ends.least(op.topic, partition, span)
        most = self.ends.most(op.topic, partition, span)
        if op.to == "start":
            return Number(0, most)
        return Number(least if op.to == "end" else min(op.to, least), most)

    def _learn(self, op: Commit | ResetOffset | Committed) -> None:
        """Add a change, or an answer, which is true from then on."""
        span = self._lives.span(op)
        value: Number | None
        if op.error or (isinstance(op, Committed) and not op.succeeded):
            return
        if isinstance(op, Commit):
            value = Number(op.offset, op.offset)
        elif isinstance(op, ResetOffset):
            value = self._reset(op, span)
        elif op.told_as_zero and not op.offset:
            return
        else:
            value = NOTHING if op.offset is None else Number(op.offset, op.offset)
        is_sure = op.succeeded and not self._lives.loses(op.boot) and self._is_kept(op, span)
        setting = Setting(span, is_sure, value, op.number)
        self._settings[op.topic, op.group, op.partition].append(setting)

    def _is_kept(self, op: Commit | ResetOffset | Committed, span: Span) -> bool:
        """Return whether the offset outlives the broker.

        Of an answer: whether no commit that the broker keeps in memory explains it.
        """
        if isinstance(op, Commit):
            return op.is_kept
        return not isinstance(op, Committed) or not any(
            (commit.topic, commit.group, commit.partition, commit.offset)
            == (op.topic, op.group, op.partition, op.offset)
            and self._lives.span(commit).first_us <= span.last_us
            for commit in self._in_memory
        )

    def _reset(self, op: ResetOffset, span: Span) -> Number:
        most = self.ends.most(op.topic, op.partition, span)
        if op.to == "latest":
            return Number(self.ends.least(op.topic, op.partition, span), most)
        return Number(0, most)

    def at(self, op: Committed | Position | Read) -> list[Number | None]:
        """Return the possible commits at the time of a request."""
        settings = [
            *self._settings.get((op.topic, op.group, op.partition), ()),
            *self._deletions.get((op.topic, op.group), ()),
        ]
        others = [setting[:3] for setting in settings if setting.number != op.number]
        return possible(NOTHING, others, self._lives.span(op))

    def starts(self, read: Read) -> list[int] | None:
        """Return the possible starts of a read: its offset, or that of its group.

        None: an answer without records is right, because nothing may be committed. Of a range,
        return the offsets that explain the answer best.
        """
        if not read.group:
            return [read.offset]
        likely = [reading.place.offset for reading in read.readings[:1]]
        likely += [] if read.next is None else [read.next - 1]
        starts: set[int] = set()
        for number in self.at(read):
            if read.by_reference and number is None:
                if not read.readings and not read.next:
                    return None
                continue
            low, high = number or (read.offset, read.offset)
            within = (min(max(offset, low), high) for offset in (low, high, *likely))
            least = 0 if read.by_reference else read.offset
            starts.update(max(least, offset) for offset in within)
        return sorted(starts)

    # -- checks ---------------------------------------------------------------------------------

    def check(self) -> Iterator[Violation]:
        """Return all violations in answers about offsets."""
        if self._records.damaged:
            return
        for op in self._operations:
            if isinstance(op, Committed) and op.succeeded:
                yield from self._check_committed(op)
                yield from self._check_lag(op)
            elif isinstance(op, Position) and op.succeeded:
                yield from self._check_position(op)

    def _check_committed(self, op: Committed) -> Iterator[Violation]:
        """P1: check that the last commit is returned as given."""
        told = self.at(op)
        if not any(_fits(op.offset, number, op.told_as_zero) for number in told):
            text = (
                f"group {op.group} of {op.topic}/{op.partition} tells {op.offset} as committed; "
                f"it is {_words(told)}"
            )
            yield violation("P1-committed", text, op)

    def _check_lag(self, op: Committed) -> Iterator[Violation]:
        if op.latest is None:
            return
        yield from self._check_end(op, op.latest)
        if op.lag != max(0, op.latest - (op.offset or 0)):
            text = f"{op.lag} is the lag of {op.offset} behind {op.latest}"
            yield violation("P3-sums", text, op)

    def _check_position(self, op: Position) -> Iterator[Violation]:
        """P1, P2: check the latest and the committed offset. `Removal` checks the start."""
        if op.mode == "latest":
            yield from self._check_end(op, op.offset)
        elif op.mode == "commit":
            told = self.at(op)
            if not any(number is None or _fits(op.offset, number, False) for number in told):
                text = f"group {op.group} begins at {op.offset}; committed is {_words(told)}"
                yield violation("P1-committed", text, op)

    def _check_end(self, op: Committed | Position, told: int) -> Iterator[Violation]:
        """P2: check that the next offset is between the acknowledged and the sent number."""
        span = self._lives.span(op)
        least = self.ends.least(op.topic, op.partition, span)
        most = self.ends.most(op.topic, op.partition, span)
        if not least <= told <= most:
            text = f"{op.topic}/{op.partition} ends at {told}; it was {least} to {most}"
            yield violation("P2-next", text, op)


def _fits(told: int | None, number: Number | None, is_zero_nothing: bool) -> bool:
    if number is None:
        return told is None or (is_zero_nothing and told == 0)
    return told is not None and number.low <= told <= number.high


def _words(numbers: list[Number | None]) -> str:
    return " or ".join(
        "nothing" if n is None else str(n.low) if n.low == n.high else f"{n.low} to {n.high}"
        for n in numbers
    )
