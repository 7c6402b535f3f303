# Tests: tests/simulator/test_oracle_transactions.py
"""Turn each transaction into a produce to each of its topics at one moment: promise 2.

The produces share one number. A sight of one message proves that all of them are stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from simulator.history.operations import History, Message, Operation, Produce
from simulator.history.transactions import Begin, Stage, Transact
from simulator.oracle.timeline.spans import Lives
from simulator.oracle.violation import Violation, violation

StagedMessage = tuple[str, str, Message]
"""Transaction, topic, message."""

TIMED_OUT = "it was open for"
"""Part of the refusal of a transaction that lasted too long."""
LATE_US = 1_000_000
EARLY_US = 1_000


def spread_transactions(history: History) -> History:
    """Return the history with a produce for each topic of a transaction."""
    if not any(isinstance(op, Transact) for op in history.operations):
        return history
    refused = refused_messages(history)
    operations: list[Operation] = []
    for op in history.operations:
        if isinstance(op, Transact):
            operations += _parts(op, refused)
        else:
            operations.append(op)
    return replace(history, operations=operations)


def refused_messages(history: History) -> set[StagedMessage]:
    """Return the messages that no transaction has, since their stage was refused."""
    return {
        (op.transaction, op.topic, op.message)
        for op in history.operations
        if isinstance(op, Stage) and op.error
    }


def staged_messages(op: Transact, refused: set[StagedMessage]) -> Iterator[tuple[str, Message]]:
    """Yield topic and message of all that a commit stores, given `refused_messages`."""
    for topic, message in op.messages:
        if (op.transaction, topic, message) not in refused:
            yield topic, message


def _parts(op: Transact, refused: set[StagedMessage]) -> Iterator[Produce]:
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for topic, message in staged_messages(op, refused):
        by_topic[topic].append(message)
    for topic, messages in by_topic.items():
        yield Produce(
            number=op.number,
            client=op.client,
            boot=op.boot,
            sent_us=op.sent_us,
            arrived_us=op.arrived_us,
            written_us=op.written_us,
            answered_us=op.answered_us,
            error=op.error,
            connection=op.connection,
            lost_us=op.lost_us,
            topic=topic,
            messages=tuple(messages),
            places=(None,) * len(messages) if op.succeeded else (),
            is_silent=True,
            in_transaction=True,
        )


def check_transaction_times(history: History, lives: Lives) -> Iterator[Violation]:
    """P2: check that no transaction is committed after its time, or ended by time before.

    Its time is monotonic, and does not run while a commit waits.
    """
    begins = {
        op.transaction: op for op in history.operations if isinstance(op, Begin) and op.succeeded
    }
    for op in history.operations:
        if not isinstance(op, Transact) or op.transaction not in begins:
            continue
        begin = begins[op.transaction]
        begun, span, longest_us = lives.span(begin), lives.span(op), history.transaction_us
        if op.succeeded and span.first_us > begun.last_us + longest_us + LATE_US:
            text = (
                f"{op.transaction} was committed {span.first_us - begun.last_us} us after its begin"
            )
            yield violation("P2-transaction", text, begin, op)
        if TIMED_OUT in op.error and span.last_us < begun.first_us + longest_us - EARLY_US:
            text = f"{op.transaction} was over {span.last_us - begun.first_us} us after its begin"
            yield violation("P2-transaction", text, begin, op)


def by_transaction(produces: Iterable[Produce]) -> list[list[Produce]]:
    """Return the produces of each transaction."""
    same: dict[int, list[Produce]] = defaultdict(list)
    for produce in produces:
        if produce.in_transaction:
            same[produce.number].append(produce)
    return list(same.values())
