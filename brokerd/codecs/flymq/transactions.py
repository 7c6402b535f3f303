# Tests: tests/codecs/test_flymq_transactions.py
"""Encodes and decodes requests and answers about transactions (page, 0x40 to 0x43)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.codecs.flymq.fields import Fields, pack_data, pack_text
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.transaction_values import (
    BeginTransaction,
    CommitTransaction,
    ProduceInTransaction,
    RollBackTransaction,
    TransactionAnswer,
    TransactionRequest,
)
from brokerd.codecs.flymq.values import Opcode


def _produce(fields: Fields) -> ProduceInTransaction:
    return ProduceInTransaction(
        fields.text("transaction"), fields.text("topic"), fields.data("value")
    )


DECODERS: dict[int, Callable[[Fields], TransactionRequest]] = {
    Opcode.TXN_BEGIN: lambda fields: BeginTransaction(),
    Opcode.TXN_COMMIT: lambda fields: CommitTransaction(fields.text("transaction")),
    Opcode.TXN_ROLLBACK: lambda fields: RollBackTransaction(fields.text("transaction")),
    Opcode.TXN_PRODUCE: _produce,
}


def transaction_answer(opcode: int, transaction: str, success: bool = True) -> bytes:
    """The answer to TXN_BEGIN, TXN_COMMIT or TXN_ROLLBACK."""
    return frame(opcode, pack_text(transaction) + bytes([success]))


# -- the client's half ------------------------------------------------------------------------


def _produce_payload(request: ProduceInTransaction) -> bytes:
    names = pack_text(request.transaction) + pack_text(request.topic)
    return names + pack_data(request.value)


OPCODES: dict[type[Any], Opcode] = {
    BeginTransaction: Opcode.TXN_BEGIN,
    CommitTransaction: Opcode.TXN_COMMIT,
    RollBackTransaction: Opcode.TXN_ROLLBACK,
    ProduceInTransaction: Opcode.TXN_PRODUCE,
}

PAYLOADS: dict[type[Any], Callable[[Any], bytes]] = {
    BeginTransaction: lambda one: b"",
    CommitTransaction: lambda one: pack_text(one.transaction),
    RollBackTransaction: lambda one: pack_text(one.transaction),
    ProduceInTransaction: _produce_payload,
}


def _answer(fields: Fields) -> TransactionAnswer:
    return TransactionAnswer(fields.text("transaction"), fields.flag("success"))


ANSWERS: dict[int, Callable[[Fields], TransactionAnswer]] = {
    Opcode.TXN_BEGIN: _answer,
    Opcode.TXN_COMMIT: _answer,
    Opcode.TXN_ROLLBACK: _answer,
}
