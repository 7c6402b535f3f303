# Tests: tests/simulator/test_format_clients.py, tests/simulator/test_oracle_transactions.py
"""What clients ask that put messages into transactions; see `simulator.history.operations`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.history.operations import Message, Operation


@dataclass(kw_only=True)
class Begin(Operation):
    """A transaction is begun."""

    transaction: str = ""
    """What it is called, once answered."""


@dataclass(kw_only=True)
class Stage(Operation):
    """A message is put into a transaction; nothing is stored."""

    transaction: str
    topic: str
    message: Message


@dataclass(kw_only=True)
class Transact(Operation):
    """A transaction is committed: all its messages are stored, or none."""

    transaction: str
    messages: tuple[tuple[str, Message], ...]
    """Each with its topic, in the order in which they were staged."""


@dataclass(kw_only=True)
class RollBack(Operation):
    """A transaction is given up: none of its messages is ever stored."""

    transaction: str
