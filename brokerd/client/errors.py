# Tests: tests/client/test_exchange.py
"""Errors of clients besides the codec's. A time-out is the built-in TimeoutError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brokerd.errors import BrokerdError


class AddressError(BrokerdError, ValueError):
    """An address is neither host:port, [v6]:port nor unix:PATH."""


class MamamiaError(BrokerdError):
    """The broker refused a request; the text is the broker's. The connection stays open."""


class ConnectionLost(BrokerdError, ConnectionError):
    """The connection ended, or became unreadable, before the last answer.

    The broker may or may not have carried out requests without an answer.
    """

    def __init__(self, text: str, answers: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.answers = tuple(answers)
        """Received answers of the same call, in the order of its requests."""


class OutOfStep(ConnectionLost):
    """An answer does not match its request. No request is sent again."""
