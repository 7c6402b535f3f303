# Tests: tests/broker/test_transactions.py
"""Transactions: records that stay in memory until a commit appends all of them in one frame.

Before its commit, a transaction is not in the log, and no consumer sees it. The commit is admitted
as a whole, and no other change comes between its records. So it is one frame of the log, with the
topics that it creates, and a crash keeps all of it or nothing.

A transaction belongs to the connection that began it. It ends with `Transactions.roll_back` when
the connection closes, or by itself after a time limit. `Transaction.held_bytes` counts its memory,
with `RECORD_BYTES` a record besides the value. Each transaction has a limit of memory, and all open
transactions together have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from brokerd.broker.clock import Timer
from brokerd.broker.context import Context
from brokerd.broker.group_commit import ENTRY_OVERHEAD_BYTES, Congested
from brokerd.broker.model.topics import Partition, Topic
from brokerd.broker.records.append import RecordAppender
from brokerd.broker.records.size import RECORD_FRAME_BYTES
from brokerd.broker.topic_admin import OWN_TOPIC_BYTES, TopicAdmin, check_topic_name
from brokerd.errors import InvalidRequest, LimitExceeded

HELD_BYTES_MAX = 48 << 20
"""Most bytes of one transaction."""

RECORD_BYTES = 512
"""Bytes counted for a record besides its value: objects in memory, and headers in the frame."""

OPEN_BYTES = 4096
"""Bytes counted for a transaction besides its records."""

CHANGES_MAX = 1_000
"""Most changes of a commit: partitions that get records, and new topics with all their partitions.
A commit is one step of the reactor. With 40 records each, 1,000 changes take about 20 ms."""

ACTIVE = "active"
COMMITTED = "committed"
ABORTED = "aborted"


@dataclass
class TransactionCounters:
    """Counts of ended transactions since the broker started."""

    committed: int = 0
    rolled_back: int = 0
    timed_out: int = 0


class Transaction:
    """A transaction. Only `Transactions` changes it."""

    __slots__ = (
        "changes",
        "commit_waits",
        "end_seconds",
        "held_bytes",
        "number",
        "state",
        "values",
        "why",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        """Counted from 1 since the broker started."""
        self.state = ACTIVE
        self.why = ""
        """The broker's reason for an abort; "" if the owner aborted it, or it is not aborted."""
        self.end_seconds = 0.0
        """When the broker aborts it, by the broker's clock."""
        self.commit_waits = False
        """Whether its commit raised `Congested`. Then its age does not end it."""
        self.values: dict[str, list[bytes]] = {}
        """Values by topic, in the order in which they came."""
        self.changes = 0
        """Number of changes by a commit, as counted with its records (`CHANGES_MAX`)."""
        self.held_bytes = OPEN_BYTES

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the names of the topics of its records."""
        return tuple(self.values)

    def check_active(self) -> None:
        """Raise `InvalidRequest` if it has ended."""
        if self.state != ACTIVE:
            why = f" ({self.why})" if self.why else ""
            raise InvalidRequest(f"transaction is not active: {self.state}{why}")


class _Part(NamedTuple):
    """The records that a commit appends to one topic."""

    name: str
    topic: Topic | None
    """None: the commit creates it."""
    values: list[bytes]


class Transactions:
    """All open transactions. ``topic(name)`` finds a topic.

    :param most_bytes: most memory of all open transactions together.
    :param timeout_us: longest time that a transaction may be open.
    """

    def __init__(
        self,
        context: Context,
        appender: RecordAppender,
        topics: TopicAdmin,
        topic: Callable[[str], Topic | None],
        most_bytes: int,
        timeout_us: int,
    ) -> None:
        self._group_commit = context.group_commit
        self._clock = context.clock
        self._appender = appender
        self._topics = topics
        self._topic = topic
        self.held_bytes_max = most_bytes
        self._timeout_us = timeout_us
        self._open: dict[Transaction, None] = {}
        """Transactions in the order of their begin, which is also that of their timeouts."""
        self._look_call: Timer | None = None
        self._held_bytes = 0
        self._begun = 0
        self.counters = TransactionCounters()

    def begin(self) -> Transaction:
        """Begin and return a transaction. Raises `LimitExceeded`."""
        self._check_memory(OPEN_BYTES)
        self._begun += 1
        transaction = Transaction(self._begun)
        self._start_time(transaction)
        self._held_bytes += OPEN_BYTES
        self._look_later(transaction)
        return transaction

    def produce(
        self, transaction: Transaction, topic_name: str, value: bytes, partitions: int
    ) -> None:
        """Add a record. The commit creates an unknown topic with ``partitions`` partitions.

        Raises `InvalidRequest` if the transaction has ended, `InvalidName` and `LimitExceeded`.
        """
        transaction.check_active()
        values = transaction.values.get(topic_name)
        topic = self._topic(topic_name)
        if topic is not None:
            changes = int(values is None or len(values) < len(topic.partitions))
        elif values is not None:
            changes = 0
        else:
            check_topic_name(topic_name)
            changes = 1 + partitions
        if transaction.changes + changes > CHANGES_MAX:
            raise LimitExceeded(
                f"a transaction changes at most {CHANGES_MAX} partitions, and a new topic counts "
                "one more than it has; create topics before, or commit, and go on in another one"
            )
        added = len(value) + RECORD_BYTES
        if transaction.held_bytes + added > HELD_BYTES_MAX:
            raise LimitExceeded(
                f"a transaction holds at most {HELD_BYTES_MAX} bytes, each record counting "
                f"{RECORD_BYTES} more than its value; commit, and go on in another transaction"
            )
        self._check_memory(added)
        if values is None:
            values = transaction.values[topic_name] = []
        transaction.changes += changes
        values.append(value)
        transaction.held_bytes += added
        self._held_bytes += added

    def commit(self, transaction: Transaction, partitions: int, producer_format: int) -> list[str]:
        """Append all its records in one frame; return the names of the topics that this created.

        Records have no key, and go to the partitions of their topic in rotation. Raises
        `InvalidRequest` if the transaction has ended. Raises `Congested`: the caller commits again
        later, and no timeout ends the transaction before. After `InvalidName`, `LimitExceeded`,
        `NoSpace` and other errors the transaction is still open.
        """
        transaction.check_active()
        transaction.commit_waits = False
        parts = [
            _Part(name, self._topic(name), values) for name, values in transaction.values.items()
        ]
        new = [part.name for part in parts if part.topic is None]
        for number, name in enumerate(new):
            self._topics.check_new(name, partitions, number)
        try:
            self._admit(transaction, parts, len(new), partitions)
        except Congested:
            transaction.commit_waits = True
            raise
        for part in parts:
            topic = part.topic or self._topics.create_admitted(part.name, partitions)
            for partition, values in _in_turn(topic, part.values):
                self._appender.append_values(partition, values, producer_format)
        self.counters.committed += 1
        self._end(transaction, COMMITTED)
        return new

    def _admit(
        self, transaction: Transaction, parts: list[_Part], new_topics: int, partitions: int
    ) -> None:
        """Check that the whole commit fits into one frame."""
        size = new_topics * (OWN_TOPIC_BYTES + ENTRY_OVERHEAD_BYTES)
        # held_bytes counts each value and RECORD_BYTES. The frame needs RECORD_FRAME_BYTES instead.
        size += transaction.held_bytes - OPEN_BYTES
        touched = 0
        changes = 0
        for part in parts:
            count = len(part.values)
            size -= count * (RECORD_BYTES - RECORD_FRAME_BYTES)
            if part.topic is None:
                touched += min(count, partitions)
                changes += 1 + partitions
            else:
                written = min(count, len(part.topic.partitions))
                touched += written
                changes += written
        if changes > CHANGES_MAX:
            raise LimitExceeded(
                "topics of the transaction were deleted or got partitions after its records came: "
                f"it changes {changes} partitions now, and at most {CHANGES_MAX} are allowed; roll "
                "it back, and send the records in several transactions"
            )
        if parts:
            self._group_commit.admit(size, touched)

    def roll_back(self, transaction: Transaction) -> None:
        """Drop the records of a transaction. An ended transaction does not change."""
        if transaction.state == ACTIVE:
            self.counters.rolled_back += 1
            self._end(transaction, ABORTED)

    def stop(self) -> None:
        """Drop all open transactions."""
        for transaction in list(self._open):
            self.roll_back(transaction)
        if self._look_call is not None:
            self._look_call.cancel()
            self._look_call = None

    def open(self) -> Iterator[Transaction]:
        """Iterate over the open transactions, in the order of their timeouts."""
        return iter(self._open)

    def seconds_left(self, transaction: Transaction) -> float:
        """Return the time until the broker rolls a transaction back."""
        return transaction.end_seconds - self._clock.seconds()

    @property
    def held_bytes(self) -> int:
        """Memory of all open transactions."""
        return self._held_bytes

    def status(self) -> dict[str, Any]:
        """Return counts and sizes for the status."""
        return {
            "open": len(self._open),
            "held_bytes": self._held_bytes,
            "committed": self.counters.committed,
            "rolled_back": self.counters.rolled_back,
            "timed_out": self.counters.timed_out,
        }

    def _check_memory(self, added: int) -> None:
        if self._held_bytes + added > self.held_bytes_max:
            raise LimitExceeded(
                f"all open transactions together hold {self._held_bytes} bytes of "
                f"{self.held_bytes_max} (limits.transaction_bytes, at most a quarter of "
                "limits.memory); try again when some are over"
            )

    def _end(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        transaction.values = {}
        del self._open[transaction]
        self._held_bytes -= transaction.held_bytes

    # -- age ----------------------------------------------------------------------------------

    def _look_later(self, transaction: Transaction) -> None:
        """Schedule a search for old transactions at the timeout of this one, the oldest."""
        if self._look_call is None:
            delay_seconds = transaction.end_seconds - self._clock.seconds()
            self._look_call = self._clock.callLater(max(0.0, delay_seconds), self._look)

    def _look(self) -> None:
        self._look_call = None
        now_seconds = self._clock.seconds()
        for transaction in list(self._open):
            if transaction.end_seconds > now_seconds:
                break
            if transaction.commit_waits:
                self._give_time(transaction)
            else:
                self._time_out(transaction)
        if self._open:
            self._look_later(next(iter(self._open)))

    def _give_time(self, transaction: Transaction) -> None:
        """Start the timeout of a transaction again, because its commit waits for space."""
        del self._open[transaction]
        self._start_time(transaction)

    def _start_time(self, transaction: Transaction) -> None:
        transaction.end_seconds = self._clock.seconds() + self._timeout_us / 1e6
        self._open[transaction] = None

    def _time_out(self, transaction: Transaction) -> None:
        transaction.why = f"it was open for {self._timeout_us / 1e6:g} seconds"
        self.counters.timed_out += 1
        self._end(transaction, ABORTED)


def _in_turn(topic: Topic, values: list[bytes]) -> Iterator[tuple[Partition, list[bytes]]]:
    """Yield the records of each partition. Records go to the partitions in rotation."""
    step = len(topic.partitions)
    for first, partition in enumerate(topic.rotate(len(values))):
        yield partition, values[first::step]
