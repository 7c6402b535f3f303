# Tests: tests/protocols/test_flymq_transactions.py
"""The transactions of one FlyMQ connection (docs/protocols/flymq.rst, 0x40 to 0x43).

Texts of refusals are those of the page. An id contains the time at which the
transaction began and is never used again, so a client that reconnects cannot name another's
transaction.
"""

from __future__ import annotations

from brokerd.broker import Broker
from brokerd.broker.transactions import ABORTED, ACTIVE, Transaction
from brokerd.codecs import flymq
from brokerd.codecs.flymq import (
    CommitTransaction,
    Opcode,
    ProduceInTransaction,
    RollBackTransaction,
)
from brokerd.errors import InvalidRequest, LimitExceeded
from brokerd.protocols.flymq.produce import CONTENT_BYTES_MAX, too_large
from brokerd.protocols.flymq.topics import named_topic
from brokerd.security import WRITE, Access
from brokerd.security.audit import topic_auto_created
from brokerd.values import Format

OPEN_MAX = 100
"""Largest number of open and remembered ended transactions of a connection."""


class ConnectionTransactions:
    """Transactions of one connection. A commit creates topics with ``partitions`` partitions."""

    def __init__(self, broker: Broker, partitions: int) -> None:
        self._broker = broker
        self._partitions = partitions
        self._by_id: dict[str, Transaction] = {}
        """Open transactions and the last ended ones."""

    def begin(self) -> bytes:
        """TXN_BEGIN: begin a transaction and return its id."""
        if len(self._by_id) >= OPEN_MAX:
            self._forget_one()
        transaction = self._broker.transactions.begin()
        name = f"txn-{self._broker.time.time_us()}-{transaction.number}"
        self._by_id[name] = transaction
        return flymq.transaction_answer(Opcode.TXN_BEGIN, name)

    def _forget_one(self) -> None:
        """Forget the oldest ended transaction. Raises `LimitExceeded` without one."""
        for name, transaction in self._by_id.items():
            if transaction.state != ACTIVE:
                del self._by_id[name]
                return
        raise LimitExceeded(
            f"{OPEN_MAX} transactions of this connection are open, and no more may be; commit or "
            "roll back some"
        )

    def produce(self, request: ProduceInTransaction) -> bytes:
        """TXN_PRODUCE: add a record to a transaction."""
        transaction = self._find(request.transaction)
        transaction.check_active()
        if len(request.value) > CONTENT_BYTES_MAX:
            raise too_large(len(request.value))
        named_topic(self._broker, request.topic)
        self._broker.transactions.produce(
            transaction, request.topic, request.value, self._partitions
        )
        now_ms = self._broker.time.time_us() // 1000
        return flymq.produced(
            request.topic, 0, 0, now_ms, -1, len(request.value), Opcode.TXN_PRODUCE
        )

    def commit(self, access: Access, request: CommitTransaction) -> bytes:
        """TXN_COMMIT: append all records. After `Congested` the caller commits again."""
        name, broker = request.transaction, self._broker
        transaction = self._find(name)
        for topic in transaction.topics:
            access.require(WRITE, topic)
        made = broker.transactions.commit(transaction, self._partitions, Format.FLYMQ)
        for topic in made:
            broker.audit.record(topic_auto_created(access.actor, topic))
        return flymq.transaction_answer(Opcode.TXN_COMMIT, name)

    def roll_back(self, request: RollBackTransaction) -> bytes:
        """TXN_ROLLBACK: drop the records of an open transaction; leave an ended one as it is."""
        transaction = self._by_id.get(request.transaction)
        if transaction is None:
            return flymq.transaction_answer(Opcode.TXN_ROLLBACK, request.transaction, False)
        self._broker.transactions.roll_back(transaction)
        is_gone = transaction.state == ABORTED
        return flymq.transaction_answer(Opcode.TXN_ROLLBACK, request.transaction, is_gone)

    def end(self) -> None:
        """Roll back all open transactions of a closed connection."""
        for transaction in self._by_id.values():
            self._broker.transactions.roll_back(transaction)
        self._by_id.clear()

    def _find(self, name: str) -> Transaction:
        transaction = self._by_id.get(name)
        if transaction is None:
            raise InvalidRequest(f"transaction not found: {name}")
        return transaction
