# Tests: tests/admin/test_transaction_calls.py
"""The API's call about open transactions."""

from __future__ import annotations

from itertools import islice

from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.transactions import TransactionList, TransactionQuery, TransactionShape
from brokerd.broker.transactions import Transaction
from brokerd.security import MONITOR

TOPICS_SHOWN = 10


def list_transactions(call: Call) -> TransactionList:
    """Return a page of the open transactions, by number."""
    query: TransactionQuery = call.query
    transactions = call.broker.transactions
    found = sorted(
        (one for one in transactions.open() if one.number >= query.first_number),
        key=lambda one: one.number,
    )
    page, rest = found[: query.limit], found[query.limit :]
    status = transactions.status()
    return TransactionList(
        transactions=[_shape(one, transactions.seconds_left(one)) for one in page],
        next_number=rest[0].number if rest else None,
        open=status["open"],
        held_bytes=status["held_bytes"],
        held_bytes_max=transactions.held_bytes_max,
        committed=status["committed"],
        rolled_back=status["rolled_back"],
        timed_out=status["timed_out"],
    )


def _shape(transaction: Transaction, seconds_left: float) -> TransactionShape:
    return TransactionShape(
        number=transaction.number,
        records=sum(map(len, transaction.values.values())),
        topics=[*islice(transaction.values, TOPICS_SHOWN)],
        topics_count=len(transaction.values),
        held_bytes=transaction.held_bytes,
        seconds_left=max(0.0, seconds_left),
        commit_waits=transaction.commit_waits,
    )


ROUTES = [
    Route(
        "GET",
        "/transactions",
        MONITOR,
        "List open transactions, oldest first",
        list_transactions,
        TransactionList,
        query=TransactionQuery,
    )
]
