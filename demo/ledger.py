# Tests: tests/test_demo.py
"""The books of the demo: what was acknowledged, what was delivered, and the proof that they agree.

Contract: workers report each answer as they read it; :meth:`Ledger.prove` returns one line for
everything that is off, and nothing when the broker kept its promises. The books know nothing of the
broker but its answers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_FAILURES = 3
REASONS = ("fog", "no landing slot", "crew over its hours")
"""Why rows fail."""
_FINDINGS_MAX = 20


def is_to_fail(row: int) -> bool:
    """One row in a thousand is failed each time it is delivered, until it is dead.

    Whoever wrote it: a thousand and one is no multiple of the number of formats.
    """
    return row % 1001 == 500


def reason_of(row: int) -> str:
    """Why a row that is to fail does."""
    return REASONS[row // 1001 % len(REASONS)]


@dataclass(frozen=True)
class Delivery:
    """One message as a worker received it."""

    offset: int
    row: int
    is_as_sent: bool
    """Whether the payload is the row's, to the byte."""
    asked_at: float
    """Monotonic seconds at which the request that brought it was sent."""
    received_at: float


@dataclass
class Ledger:
    """Everything the workers were told; safe to use from several threads."""

    rows: int
    lease_seconds: float
    row_of: dict[int, int] = field(default_factory=dict)
    """Offset -> row, for each acknowledged write that told the offset."""
    unplaced: set[int] = field(default_factory=set)
    """Rows whose acknowledgement tells no offset."""
    delivered: dict[int, int] = field(default_factory=dict)
    """Offset -> row, for each message that was delivered."""
    settled_at: dict[int, float] = field(default_factory=dict)
    """Offset -> when the acknowledgement of its successful SETTLE was read."""
    failures: Counter[int] = field(default_factory=Counter)
    """Offset -> acknowledged failed SETTLEs."""
    deliveries: int = 0
    resent_rows: int = 0
    """Rows sent again because no answer came."""
    resent_settles: int = 0
    refused_settles: int = 0
    """Settles refused because somebody else held the lease by then."""
    findings: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, answered: Mapping[int, int]) -> None:
        """Book acknowledged rows, offset -> row."""
        with self._lock:
            for offset, row in answered.items():
                if offset in self.row_of:
                    self._find(f"offset {offset} was acknowledged twice")
                self.row_of[offset] = row

    def acknowledge_unplaced(self, rows: Iterable[int]) -> None:
        """Book rows that are stored, nobody said where."""
        with self._lock:
            self.unplaced.update(rows)

    def acknowledged(self) -> int:
        """Rows that are acknowledged."""
        return len(self.row_of) + len(self.unplaced)

    def resend_rows(self, count: int) -> None:
        """Book rows whose answer never came and that are sent again."""
        with self._lock:
            self.resent_rows += count

    def resend_settles(self, count: int) -> None:
        """Book settles whose answer never came and that are sent again."""
        with self._lock:
            self.resent_settles += count

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Book messages as they were received."""
        with self._lock:
            for delivery in deliveries:
                self._deliver(delivery)

    def _deliver(self, delivery: Delivery) -> None:
        offset, row = delivery.offset, delivery.row
        self.deliveries += 1
        if not delivery.is_as_sent:
            self._find(f"offset {offset} came back with other content than row {row}")
        earlier = self.delivered.setdefault(offset, row)
        if earlier != row:
            self._find(f"offset {offset} was delivered as row {earlier} and as row {row}")
        settled_at = self.settled_at.get(offset)
        if settled_at is not None and self._is_after(settled_at, delivery):
            self._find(f"offset {offset} was delivered again after its settle was acknowledged")

    def _is_after(self, settled_at: float, delivery: Delivery) -> bool:
        """Whether a delivery can only have been made after the settle.

        An answer that lay unread for a whole lease may be older than the settle of somebody who
        leased the message in the meantime; any other cannot, because its lease was still live.
        """
        held_back = delivery.received_at - delivery.asked_at >= self.lease_seconds
        return delivery.asked_at > settled_at or not held_back

    def settle(self, offset: int, success: bool, when: float) -> None:
        """Book an acknowledged SETTLE."""
        with self._lock:
            if success:
                self.settled_at[offset] = when
            else:
                self.failures[offset] += 1

    def refuse(self) -> None:
        """Book a SETTLE that was refused because the lease had gone to somebody else."""
        with self._lock:
            self.refused_settles += 1

    def report(self, what: str) -> None:
        """Book something that should not have happened."""
        with self._lock:
            self._find(what)

    def _find(self, what: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(what)

    def expected_dead(self) -> set[int]:
        """Offsets that must be dead letters: every copy of a row that is to fail."""
        return {offset for offset, row in self.delivered.items() if is_to_fail(row)}

    def finished(self) -> int:
        """Messages whose work is done: settled, or failed as often as it takes to be dead."""
        with self._lock:
            dead = sum(count >= MAX_FAILURES for count in self.failures.values())
            return len(self.settled_at) + dead

    def unacknowledged_copies(self) -> int:
        """Messages in the log although no answer said so: their rows were sent again."""
        return len(self.delivered.keys() - self.row_of.keys()) - len(self.unplaced)

    def prove(self, next_offset: int, lag: int, dead: Mapping[int, int]) -> list[str]:
        """Hold the books against the broker's final word.

        :param next_offset: messages in the log.
        :param lag: messages of the group that are not settled.
        :param dead: offset -> failures, for each dead letter.
        :return: one line for each thing that is off.
        """
        wrong = list(self.findings)
        missing = self.row_of.keys() - self.delivered.keys()
        if missing:
            wrong.append(f"{len(missing)} acknowledged rows were never delivered: {some(missing)}")
        lost = self.unplaced - set(self.delivered.values())
        if lost:
            wrong.append(f"{len(lost)} acknowledged rows were never delivered: rows {some(lost)}")
        mixed = [o for o, row in self.row_of.items() if self.delivered.get(o, row) != row]
        if mixed:
            wrong.append(f"{len(mixed)} offsets hold another row than acknowledged: {some(mixed)}")
        unsent = set(range(self.rows)) - set(self.row_of.values()) - self.unplaced
        if unsent:
            wrong.append(f"{len(unsent)} rows were never acknowledged: {some(unsent)}")
        unseen = set(range(next_offset)) - self.delivered.keys()
        if unseen:
            wrong.append(f"{len(unseen)} messages of the log were never delivered: {some(unseen)}")
        beyond = {o for o in self.delivered if o >= next_offset}
        if beyond:
            wrong.append(f"offsets beyond the end of the log: {some(beyond)}")
        if lag:
            wrong.append(f"the group lags {lag} messages behind")
        return wrong + self._prove_dead(dead)

    def _prove_dead(self, dead: Mapping[int, int]) -> list[str]:
        wrong = []
        expected = self.expected_dead()
        if expected - dead.keys():
            wrong.append(f"missing among the dead letters: {some(expected - dead.keys())}")
        if dead.keys() - expected:
            wrong.append(f"dead letters that should not be: {some(dead.keys() - expected)}")
        early = {offset for offset, failures in dead.items() if failures != MAX_FAILURES}
        if early:
            wrong.append(f"dead with other than {MAX_FAILURES} failures: {some(early)}")
        over = {offset for offset, count in self.failures.items() if count > MAX_FAILURES}
        if over:
            wrong.append(f"more than {MAX_FAILURES} failures acknowledged: {some(over)}")
        return wrong


def some(offsets: set[int] | list[int]) -> str:
    """The first few of many, for a line of text."""
    first = sorted(offsets)[:5]
    return ", ".join(map(str, first)) + (", ..." if len(offsets) > len(first) else "")
