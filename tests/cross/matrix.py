"""The records of every writer, and the expected results of every reader."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache

from tests.cross.peers import PEERS, Seen, Written

VALUES: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"\0",
    "every byte": bytes(range(256)),
    "text": "Grüße, мир, 世界, 🛫\n".encode(),
    "70 KB": random.Random(70).randbytes(70_000),
    "900 KB": random.Random(900).randbytes(900_000),
}
"""None is larger than the smallest format takes; the last must be read in many pieces."""

RECORDS = [
    Written(value, None if number % 3 == 0 else f"key {number}".encode())
    for number, value in enumerate(VALUES.values())
]

Begun = dict[tuple[str, str, str], int]
"""(writer, reader, stage) -> the result of `Peer.begin`."""


def topic_of(writer: str) -> str:
    """Return the topic that only this writer fills."""
    return f"from-{writer}"


def write_all(addresses: Mapping[str, str], stages: list[str]) -> Begun:
    """Let every format write all records to a topic of its own, after all readers have begun.

    ``addresses`` is by listener. In each of ``stages`` every format reads once.
    """
    begun: Begun = {}
    for writer, peer in PEERS.items():
        topic = topic_of(writer)
        with peer(addresses[peer.listener]) as client:
            client.make(topic)
            for reader, other in PEERS.items():
                with other(addresses[other.listener]) as waiting:
                    for stage in stages:
                        begun[writer, reader, stage] = waiting.begin(topic, stage)
            told = client.write(topic, RECORDS)
        assert all(offset in (None, number) for number, offset in enumerate(told)), (writer, told)
    return begun


def read(addresses: Mapping[str, str], begun: Begun, cell: tuple[str, str, str]) -> list[Seen]:
    """Return the records that a reader gets from a writer's topic at a stage."""
    writer, reader, stage = cell
    peer = PEERS[reader]
    with peer(addresses[peer.listener]) as client:
        return client.read(topic_of(writer), stage, begun[cell], len(RECORDS))


def expected(writer: str, reader: str) -> list[Seen]:
    """Return the records in order, with the keys and offsets that both formats have."""
    shows, keeps = PEERS[reader], PEERS[writer]
    return [
        Seen(
            value,
            number,
            key if shows.has_keys and keeps.has_keys else None,
        )
        for number, (value, key) in enumerate(RECORDS)
    ]


def difference(seen: list[Seen], wanted: list[Seen]) -> list[str]:
    """Return a short line for each wrong record, with the name of its value."""
    if len(seen) != len(wanted):
        return [f"{len(seen)} records instead of {len(wanted)}"]
    wrong = []
    for name, got, want in zip(VALUES, seen, wanted, strict=True):
        if got.value != want.value:
            wrong.append(f"{name}: another value: {_short(got.value)}")
        if got[1:] != want[1:]:
            wrong.append(f"{name}: offset and key {got[1:]} instead of {want[1:]}")
    return wrong


@cache
def cells() -> list[tuple[str, str]]:
    """Return each pair of a writer and a reader."""
    return [(writer, reader) for writer in PEERS for reader in PEERS]


def _short(value: object) -> str:
    return f"{repr(value)[:40]}... of {len(value)}" if isinstance(value, bytes) else repr(value)
