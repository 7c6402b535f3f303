# Tests: tests/simulator/test_format_clients.py
"""Distinct values of bytes: each has its producer's name and a number, in several forms.

Empty values, if a plan asks for them, are equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from simulator.plan import ClientPlan

LARGE_BYTES_MIN, LARGE_BYTES_MAX = 20_000, 200_000
ALL_BYTES = bytes(range(256))


def _as_json(tag: bytes, filling: bytes) -> bytes:
    """Return a JSON object, for filters that name a path."""
    return json.dumps({"tag": tag.decode(), "deep": {"filling": filling.decode()}}).encode()


FORMS: tuple[Callable[[bytes, bytes], bytes], ...] = (
    lambda tag, filling: tag + filling,
    lambda tag, filling: tag + ALL_BYTES,
    _as_json,
)

PATTERNS = ("", "C1/", "c0/", "key-1", "$.tag", "$.deep.filling", "$.deep.none", "[02468][|]", "(")
"""Filters: texts, keys, paths of JSON, regular expressions, and a broken regular expression."""


class ValueMaker:
    """Makes the values of one client, in order."""

    def __init__(self, plan: ClientPlan, chance: Random) -> None:
        self._plan = plan
        self._chance = chance
        self._count = 0

    def make(self) -> bytes:
        """Return the next value."""
        chance, plan = self._chance, self._plan
        tag = f"{plan.name}/{self._count}|".encode()
        self._count += 1
        if self.often(plan.empty_permille):
            return b""
        if self.often(plan.large_permille):
            size = chance.randint(LARGE_BYTES_MIN, LARGE_BYTES_MAX)
        else:
            size = chance.randint(0, plan.payload_bytes_max)
        filling = (tag * (size // len(tag) + 1))[:size]
        return chance.choice(FORMS)(tag, filling)

    def key(self) -> bytes | None:
        """Draw a key of the plan, or None."""
        plan = self._plan
        return b"key-%d" % self._chance.randrange(plan.keys) if plan.keys else None

    def often(self, permille: int) -> bool:
        """Return True with a probability of ``permille`` thousandths."""
        return permille > 0 and self._chance.randrange(1_000) < permille
