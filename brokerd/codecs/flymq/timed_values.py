# Tests: tests/codecs/test_flymq_timed.py
"""Records that come later or live for a time: requests, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x30, 0x31 and 0x35. Both kinds are answered as PRODUCE is.
"""

from __future__ import annotations

from typing import NamedTuple


class ProduceDelayed(NamedTuple):
    topic: str
    value: bytes
    delay_ms: int
    """0 and less: due at once."""


class CancelDelayed(NamedTuple):
    message: int | str
    """The number that PRODUCE_DELAYED was answered with, or a text that should say it."""
    topic: str | None = None
    """Given with a number, and maybe with a text."""


class ProduceWithTtl(NamedTuple):
    topic: str
    value: bytes
    ttl_ms: int
    """0 and less: for ever."""


TimedRequest = ProduceDelayed | CancelDelayed | ProduceWithTtl
