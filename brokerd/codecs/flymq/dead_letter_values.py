# Tests: tests/codecs/test_flymq_dead_letters.py
"""Requests and answers about dead letters, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x20 to 0x22.
"""

from __future__ import annotations

from typing import NamedTuple


class FetchDlq(NamedTuple):
    topic: str
    max_messages: int = 10
    """0 or less: 10."""


class ReplayDlq(NamedTuple):
    topic: str
    message: int | str
    """A str: the id of a dead letter; an int: an offset."""


class PurgeDlq(NamedTuple):
    topic: str


DeadLetterRequest = FetchDlq | ReplayDlq | PurgeDlq


class DeadLetter(NamedTuple):
    message_id: str
    payload: bytes
    error: str
    retries: int


class DeadLetters(NamedTuple):
    """The answer to FETCH_DLQ."""

    letters: tuple[DeadLetter, ...]


DeadLetterAnswer = DeadLetters
