# Tests: tests/client/test_exchange.py
"""What a client raises besides the codec's errors. Timeouts are the built-in TimeoutError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brokerd.errors import BrokerdError


class AddressError(BrokerdError, ValueError):
    """An address is neither host:port, [v6]:port nor unix:PATH."""


class MamamiaError(BrokerdError):
    """The broker refused a request; the text is the broker's. The connection lives."""


class ConnectionLost(BrokerdError, ConnectionError):
    """The connection ended, or fell out of step, before every answer was there.

    Requests without an answer may or may not have been carried out.
    """

    def __init__(self, text: str, answers: Sequence[Any] = ()) -> None:
        super().__init__(text)
        self.answers = tuple(answers)
        """Answers of the same call that did arrive, in the order of its requests."""


class OutOfStep(ConnectionLost):
    """What came is not an answer to what was asked. It would come again: nothing is sent again."""
