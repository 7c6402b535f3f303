# Tests: tests/codecs/test_flymq_transactions.py
"""Transactions: requests and answers, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x40 to 0x43. The answer to TXN_PRODUCE is that to PRODUCE.
"""

from __future__ import annotations

from typing import NamedTuple


class BeginTransaction(NamedTuple):
    pass


class ProduceInTransaction(NamedTuple):
    transaction: str
    topic: str
    value: bytes


class CommitTransaction(NamedTuple):
    transaction: str


class RollBackTransaction(NamedTuple):
    transaction: str


TransactionRequest = (
    BeginTransaction | ProduceInTransaction | CommitTransaction | RollBackTransaction
)


class TransactionAnswer(NamedTuple):
    """The answer to TXN_BEGIN, TXN_COMMIT and TXN_ROLLBACK."""

    transaction: str
    success: bool
    """False: the broker began, committed or rolled back no transaction."""
