# Tests: tests/simulator/test_oracle_transactions.py
"""Turn each transaction into a produce to each of its topics at one moment: promise 2.

The produces share one number. A sight of one message proves that all of them are stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from simulator.history.operations import History, Message, Operation, Produce
from simulator.history.transactions import Stage, Transact


def spread_transactions(history: History) -> History:
    """Return the history with a produce for each topic of a transaction."""
    if not any(isinstance(op, Transact) for op in history.operations):
        return history
    refused = [op for op in history.operations if isinstance(op, Stage) and op.error]
    dropped = {(op.transaction, op.topic, op.message) for op in refused}
    operations: list[Operation] = []
    for op in history.operations:
        if isinstance(op, Transact):
            operations += _parts(op, dropped)
        else:
            operations.append(op)
    return replace(history, operations=operations)


def _parts(op: Transact, dropped: set[tuple[str, str, Message]]) -> Iterator[Produce]:
    """Yield the produces of a transaction, without the messages that it refused to stage."""
    by_topic: dict[str, list[Message]] = defaultdict(list)
    for topic, message in op.messages:
        if (op.transaction, topic, message) not in dropped:
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


def by_transaction(produces: Iterable[Produce]) -> list[list[Produce]]:
    """Return the produces of each transaction."""
    same: dict[int, list[Produce]] = defaultdict(list)
    for produce in produces:
        if produce.in_transaction:
            same[produce.number].append(produce)
    return list(same.values())
