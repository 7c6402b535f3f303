# Tests: tests/codecs/test_flymq_timed.py
"""Requests about delayed records and records with a time to live, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x30, 0x31 and 0x35. The answer to both is that to PRODUCE.
"""

from __future__ import annotations

from typing import NamedTuple


class ProduceDelayed(NamedTuple):
    topic: str
    value: bytes
    delay_ms: int
    """0 or less: due at once."""


class CancelDelayed(NamedTuple):
    message: int | str
    """The number in the answer to PRODUCE_DELAYED, also as text."""
    topic: str | None = None
    """Required with a number, optional with a text."""


class ProduceWithTtl(NamedTuple):
    topic: str
    value: bytes
    ttl_ms: int
    """0 or less: for ever."""


TimedRequest = ProduceDelayed | CancelDelayed | ProduceWithTtl
