# Tests: tests/client/test_flymq_later.py
"""Methods of `brokerd.client.flymq.FlymqClient` for delays, times to live and transactions.

They raise as its other methods do.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from brokerd.client.checks import check_bytes, check_number, check_text
from brokerd.client.flymq_admin import FlymqError
from brokerd.codecs.flymq import (
    Answer,
    BeginTransaction,
    CancelDelayed,
    CommitTransaction,
    Done,
    Produced,
    ProduceDelayed,
    ProduceInTransaction,
    ProduceWithTtl,
    Request,
    RollBackTransaction,
    TransactionAnswer,
)

_U64_MAX = (1 << 64) - 1
_I64_MAX = (1 << 63) - 1

Result = TypeVar("Result", bound=Answer)


class FlymqLater:
    """Delayed records, records with a time to live, and transactions."""

    def _call(self, request: Request, kind: type[Result]) -> Result:
        """Send a request and return its answer. Raises `FlymqError` and what the client raises."""
        raise NotImplementedError

    def produce_delayed(self, topic: str, value: bytes, delay_ms: int) -> Produced:
        """Store a record in `delay_ms`; its ``offset`` is the number to cancel it by."""
        _check(topic, value, delay_ms=delay_ms)
        return self._call(ProduceDelayed(topic, value, delay_ms), Produced)

    def cancel_delayed(self, topic: str, number: int) -> None:
        """Cancel a delayed record. Raises FlymqError if it was stored or cancelled."""
        check_text(topic=topic)
        check_number("number", number, 0, _U64_MAX)
        self._call(CancelDelayed(number, topic), Done)

    def produce_with_ttl(self, topic: str, value: bytes, ttl_ms: int) -> Produced:
        """Store a record that expires after `ttl_ms`; 0: never."""
        _check(topic, value, ttl_ms=ttl_ms)
        return self._call(ProduceWithTtl(topic, value, ttl_ms), Produced)

    def transaction(self) -> FlymqTransaction:
        """Begin a transaction.

        As a context manager it commits at the end of the block, or rolls back after an error."""
        return FlymqTransaction(self, self._call(BeginTransaction(), TransactionAnswer).transaction)


class FlymqTransaction:
    """Records that are all stored, or none. It ends with its client's connection."""

    def __init__(self, client: FlymqLater, transaction: str) -> None:
        self.id = transaction
        self._client = client
        self._is_over = False
        """Whether the transaction has ended."""

    def produce(self, topic: str, value: bytes) -> None:
        """Add a record, which the commit stores."""
        _check(topic, value)
        self._client._call(ProduceInTransaction(self.id, topic, value), Produced)

    def commit(self) -> None:
        """Store all records durably, or raise."""
        answer = self._client._call(CommitTransaction(self.id), TransactionAnswer)
        if not answer.success:
            raise FlymqError(f"the transaction {self.id} was not committed: it is over, or unknown")
        self._is_over = True

    def rollback(self) -> bool:
        """Drop the records; return False if the transaction was committed or is unknown."""
        answer = self._client._call(RollBackTransaction(self.id), TransactionAnswer)
        self._is_over = True
        return answer.success

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if kind is None:
            self.commit()
        elif not isinstance(error, ConnectionError | TimeoutError):
            with suppress(OSError):  # the connection is gone, and the transaction with it
                self.rollback()


def _check(topic: str, value: bytes, **milliseconds: int) -> None:
    check_text(topic=topic)
    check_bytes(value=value)
    for name, number in milliseconds.items():
        check_number(name, number, 0, _I64_MAX)
