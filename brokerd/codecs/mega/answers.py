# Tests: tests/codecs/test_mega_answers.py
"""Answers, as the server writes them (page, section Answers)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from brokerd.codecs.mega.layouts import CONSUMED, CREATED, PRODUCED, REFUSED
from brokerd.codecs.mega.values import MAX_OFFSET

_INT32_VALUES = 1 << 32


def created(correlation_id: int, timestamp: int, topic: str) -> bytes:
    """Answer to CREATE_TOPIC; ``timestamp`` is the request's."""
    name = topic.encode()
    return CREATED.pack(correlation_id, True, timestamp, len(name)) + name


def produced(correlation_id: int, timestamp: int, offset: int) -> bytes:
    """Answer to PRODUCE; ``timestamp`` is the request's."""
    return PRODUCED.pack(correlation_id, True, timestamp, offset)


def produced_run(
    correlation_ids: Iterable[int], timestamps: Iterable[int], offsets: Iterable[int]
) -> bytes:
    """Answers to several PRODUCEs."""
    return b"".join(map(PRODUCED.pack, correlation_ids, repeat(True), timestamps, offsets))


def consumed(correlation_id: int, timestamp: int, offset: int, payload: bytes) -> bytes:
    """Answer to CONSUME: the record at ``offset`` and its producer's ``timestamp``.

    The next offset of the largest offset wraps around, as the reference's integers do.
    """
    next_offset = offset + 1 if offset < MAX_OFFSET else offset + 1 - _INT32_VALUES
    return CONSUMED.pack(correlation_id, True, timestamp, next_offset, len(payload)) + payload


def refused(correlation_id: int, code: int) -> bytes:
    """Answer to any request that failed; ``code`` is one of `Code`."""
    return REFUSED.pack(correlation_id, False, code)
