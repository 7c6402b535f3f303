# Tests: tests/test_demo.py
"""The ledger of the demo: acknowledged writes and delivered messages, and whether they agree.

Workers record each answer as they receive it. :meth:`Ledger.check` returns one line for each broken
promise of the broker. The ledger uses nothing but the answers.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_FAILURES = 3
REASONS = ("fog", "no landing slot", "crew over its hours")
"""Reasons of failures."""
_FINDINGS_MAX = 20


def is_to_fail(row: int) -> bool:
    """Return whether consumers fail this row at each delivery, until it is a dead letter.

    It is one row in 1,001. 1,001 is not a multiple of the number of formats, so rows of every
    format fail.
    """
    return row % 1001 == 500


def reason_of(row: int) -> str:
    """Return the reason with which consumers fail a row."""
    return REASONS[row // 1001 % len(REASONS)]


@dataclass(frozen=True)
class Delivery:
    """A message that a worker received."""

    offset: int
    row: int
    is_as_sent: bool
    """Whether the payload is the row's, to the byte."""
    asked_at: float
    """Monotonic seconds at which the request that brought it was sent."""
    received_at: float


@dataclass
class Ledger:
    """The answers that the workers received; thread-safe."""

    rows: int
    lease_seconds: float
    row_of: dict[int, int] = field(default_factory=dict)
    """Offset -> row, for each acknowledged write whose answer has an offset."""
    without_offset: set[int] = field(default_factory=set)
    """Acknowledged rows whose answer has no offset."""
    delivered: dict[int, int] = field(default_factory=dict)
    """Offset -> row, for each message that was delivered."""
    settled_at: dict[int, float] = field(default_factory=dict)
    """Offset -> monotonic time at which the answer to its successful SETTLE was received."""
    failures: Counter[int] = field(default_factory=Counter)
    """Offset -> acknowledged failed SETTLEs."""
    deliveries: int = 0
    resent_rows: int = 0
    """Rows sent again because no answer came."""
    resent_settles: int = 0
    refused_settles: int = 0
    """Settles refused because another consumer held the lease by then."""
    findings: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledge(self, answered: Mapping[int, int]) -> None:
        """Record acknowledged rows, offset -> row."""
        with self._lock:
            for offset, row in answered.items():
                if offset in self.row_of:
                    self._find(f"offset {offset} was acknowledged twice")
                self.row_of[offset] = row

    def acknowledge_without_offset(self, rows: Iterable[int]) -> None:
        """Record acknowledged rows whose answer has no offset."""
        with self._lock:
            self.without_offset.update(rows)

    def acknowledged(self) -> int:
        """Return the number of acknowledged rows."""
        return len(self.row_of) + len(self.without_offset)

    def resend_rows(self, count: int) -> None:
        """Record rows that are sent again because no answer came."""
        with self._lock:
            self.resent_rows += count

    def resend_settles(self, count: int) -> None:
        """Record settles that are sent again because no answer came."""
        with self._lock:
            self.resent_settles += count

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Record received messages."""
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
        """Return whether the broker must have made a delivery after the settle.

        An answer that stayed unread for a whole lease may be older than the settle: another
        consumer may have leased the message in between. Any other delivery had a live lease.
        """
        held_back = delivery.received_at - delivery.asked_at >= self.lease_seconds
        return delivery.asked_at > settled_at or not held_back

    def settle(self, offset: int, success: bool, when: float) -> None:
        """Record an acknowledged SETTLE."""
        with self._lock:
            if success:
                self.settled_at[offset] = when
            else:
                self.failures[offset] += 1

    def count_refused_settle(self) -> None:
        """Record a SETTLE that was refused because another consumer held the lease."""
        with self._lock:
            self.refused_settles += 1

    def report(self, what: str) -> None:
        """Record a finding: something that must not happen."""
        with self._lock:
            self._find(what)

    def _find(self, what: str) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(what)

    def expected_dead(self) -> set[int]:
        """Return the offsets that must be dead letters: every copy of a row that consumers fail."""
        return {offset for offset, row in self.delivered.items() if is_to_fail(row)}

    def finished(self) -> int:
        """Return the number of messages that are settled or dead letters."""
        with self._lock:
            dead = sum(count >= MAX_FAILURES for count in self.failures.values())
            return len(self.settled_at) + dead

    def unacknowledged_copies(self) -> int:
        """Return the number of stored messages whose answer never came; their rows were resent."""
        return len(self.delivered.keys() - self.row_of.keys()) - len(self.without_offset)

    def check(self, next_offset: int, lag: int, dead: Mapping[int, int]) -> list[str]:
        """Compare the ledger with the final state of the broker.

        :param next_offset: messages in the log.
        :param lag: messages of the group that are not settled.
        :param dead: offset -> failures, for each dead letter.
        :return: one line for each difference.
        """
        wrong = list(self.findings)
        missing = self.row_of.keys() - self.delivered.keys()
        if missing:
            wrong.append(
                f"{len(missing)} acknowledged rows were never delivered: {first_few(missing)}"
            )
        lost = self.without_offset - set(self.delivered.values())
        if lost:
            wrong.append(
                f"{len(lost)} acknowledged rows were never delivered: rows {first_few(lost)}"
            )
        mixed = [o for o, row in self.row_of.items() if self.delivered.get(o, row) != row]
        if mixed:
            wrong.append(
                f"{len(mixed)} offsets hold another row than acknowledged: {first_few(mixed)}"
            )
        unsent = set(range(self.rows)) - set(self.row_of.values()) - self.without_offset
        if unsent:
            wrong.append(f"{len(unsent)} rows were never acknowledged: {first_few(unsent)}")
        unseen = set(range(next_offset)) - self.delivered.keys()
        if unseen:
            wrong.append(
                f"{len(unseen)} messages of the log were never delivered: {first_few(unseen)}"
            )
        beyond = {o for o in self.delivered if o >= next_offset}
        if beyond:
            wrong.append(f"offsets beyond the end of the log: {first_few(beyond)}")
        if lag:
            wrong.append(f"the group lags {lag} messages behind")
        return wrong + self._check_dead(dead)

    def _check_dead(self, dead: Mapping[int, int]) -> list[str]:
        wrong = []
        expected = self.expected_dead()
        if expected - dead.keys():
            wrong.append(f"missing among the dead letters: {first_few(expected - dead.keys())}")
        if dead.keys() - expected:
            wrong.append(f"dead letters that should not be: {first_few(dead.keys() - expected)}")
        early = {offset for offset, failures in dead.items() if failures != MAX_FAILURES}
        if early:
            wrong.append(f"dead with other than {MAX_FAILURES} failures: {first_few(early)}")
        over = {offset for offset, count in self.failures.items() if count > MAX_FAILURES}
        if over:
            wrong.append(f"more than {MAX_FAILURES} failures acknowledged: {first_few(over)}")
        return wrong


def first_few(offsets: set[int] | list[int]) -> str:
    """Return the first five offsets as text."""
    first = sorted(offsets)[:5]
    return ", ".join(map(str, first)) + (", ..." if len(offsets) > len(first) else "")
