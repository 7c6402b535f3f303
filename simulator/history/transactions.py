# Tests: tests/simulator/test_format_clients.py, tests/simulator/test_oracle_transactions.py
"""Operations of transactions; see `simulator.history.operations`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.history.operations import Message, Operation


@dataclass(kw_only=True)
class Begin(Operation):
    """Begins a transaction."""

    transaction: str = ""
    """Id of the transaction, once answered."""


@dataclass(kw_only=True)
class Stage(Operation):
    """Stages a message in a transaction; stores nothing."""

    transaction: str
    topic: str
    message: Message


@dataclass(kw_only=True)
class Transact(Operation):
    """Commits a transaction: stores all its messages or none."""

    transaction: str
    messages: tuple[tuple[str, Message], ...]
    """(topic, message) in the order of staging."""


@dataclass(kw_only=True)
class RollBack(Operation):
    """Rolls a transaction back: stores none of its messages."""

    transaction: str
