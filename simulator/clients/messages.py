# Tests: tests/simulator/test_clients.py
"""Distinct messages: each has its producer's name and a number, in many forms.

Empty messages, if a plan asks for them, are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgpack

from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.packing import pack
from simulator.clients.mamamia_wire import microseconds
from simulator.history.operations import Message
from simulator.plan import ClientPlan, Topic

LARGE_BYTES_MIN, LARGE_BYTES_MAX = 20_000, 200_000
EXTENSION_TYPE = 42


def _everything(tag: bytes, filling: bytes) -> dict[str | bytes, Any]:
    """Return a map with a value of every kind that MessagePack has."""
    return {
        "tag": tag,
        "nil": None,
        "true": True,
        "ints": [0, -1, -33, 127, 128, 1 << 16, 1 << 32, (1 << 64) - 1, -(1 << 63)],
        "float": len(filling) / 3,
        "": {},
        b"\xff key": [[], [[]], {b"": ""}],
        "text": "Ω" * (len(filling) % 50),
        "ext": msgpack.ExtType(EXTENSION_TYPE, tag),
        "filling": filling,
    }


FORMS: tuple[Callable[[bytes, bytes], Any], ...] = (
    lambda tag, filling: tag + filling,
    lambda tag, filling: (tag + filling).decode(),
    lambda tag, filling: [tag, filling],
    lambda tag, filling: msgpack.ExtType(EXTENSION_TYPE, tag + filling),
    _everything,
)
"""bin, str, array, extension, map."""


class MessageMaker:
    """Makes the messages of one client, in order."""

    def __init__(self, plan: ClientPlan, chance: Random) -> None:
        self._plan = plan
        self._chance = chance
        self._count = 0
        self._empty = chance.choice((b"", ""))

    def make(self, topic: Topic, may_wait: bool = True) -> tuple[Message, mm.BatchMessage]:
        """Return the next message, for the history and for the wire."""
        plan = self._plan
        payload = self._payload()
        key, partition = self._key(), self._partition(topic)
        metadata = self._metadata()
        delay = self._span(plan.delayed_permille, plan.schedule_us_max) if may_wait else None
        ttl = self._span(plan.ttl_permille, plan.ttl_us_max)
        delay_us, ttl_us = (None if s is None else microseconds(s) for s in (delay, ttl))
        return (
            Message(pack(payload), metadata, key, partition, delay_us, ttl_us),
            mm.BatchMessage(*mm.pack_payload(payload), metadata, key, partition, ttl, delay),
        )

    def _span(self, permille: int, longest_us: int) -> float | None:
        """Draw a duration in seconds, at least a millisecond; None most of the time."""
        if not self._often(permille):
            return None
        return self._chance.randint(1_000, max(1_000, longest_us)) / 1_000_000

    def _often(self, permille: int) -> bool:
        return permille > 0 and self._chance.randrange(1_000) < permille

    def _payload(self) -> object:
        chance, plan = self._chance, self._plan
        tag = f"{plan.name}/{self._count}|".encode()
        self._count += 1
        if self._often(plan.empty_permille):
            return self._empty
        if self._often(plan.large_permille):
            size = chance.randint(LARGE_BYTES_MIN, LARGE_BYTES_MAX)
        else:
            size = chance.randint(0, plan.payload_bytes_max)
        filling = (tag * (size // len(tag) + 1))[:size]
        return (FORMS[0] if plan.is_plain else chance.choice(FORMS))(tag, filling)

    def _metadata(self) -> bytes | None:
        if not self._often(self._plan.metadata_permille):
            return None
        tag = str(self._count).encode()
        return pack(self._chance.choice(({}, {"ts": self._count / 7}, _everything(tag, tag * 5))))

    def _key(self) -> bytes | None:
        plan = self._plan
        return b"key-%d" % self._chance.randrange(plan.keys) if plan.keys else None

    def _partition(self, topic: Topic) -> int | None:
        """Draw a partition, sometimes beyond the topic's partitions."""
        if not self._often(self._plan.partition_permille):
            return None
        return self._chance.randrange(topic.partitions + (self._chance.random() < 0.05))
