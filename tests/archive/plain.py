"""The archive's rules as plain loops over the events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from brokerd.walformat import EventKind, GroupEvent

STEP_US = 20 * 60_000_000
"""Broker time between two LSNs, in microseconds."""


class Happened(NamedTuple):
    """An event of a group, with its place in the log."""

    topic_id: int
    partition: int
    group: str
    lsn: int
    seq: int
    event: GroupEvent

    @property
    def time_us(self) -> int:
        return self.lsn * STEP_US + 7


def log_of(histories: list[list[list[GroupEvent]]]) -> list[Happened]:
    """Merge the entries of several groups into one log; each group keeps its order."""
    entries = sorted(
        (at, number, events)
        for number, history in enumerate(histories)
        for at, events in enumerate(history)
    )
    return [
        Happened(number % 2 + 1, number % 3, f"g{number}", lsn, seq, event)
        for lsn, (_, number, events) in enumerate(entries, 1)
        for seq, event in enumerate(events)
    ]


class Attempt:
    """A record in a group, from its first attempt on."""

    def __init__(self) -> None:
        self.grants: int | None = None
        self.failures = 0
        self.first_us: int | None = None
        self.owner: str | None = None


def deliveries(log: Iterable[Happened]) -> list[tuple[Any, ...]]:
    """Return rows of the table deliveries, computed event by event; times in microseconds."""
    attempts: dict[tuple[int, int, str, int], Attempt] = {}
    found = []
    for h in log:
        kind, offset, _, _, count, owner, reason = h.event
        key = (h.topic_id, h.partition, h.group, offset)
        one = attempts.setdefault(key, Attempt())
        if kind == EventKind.LEASED:
            if count == 1 and one.grants:
                one = attempts[key] = Attempt()
            if one.first_us is None:
                one.first_us = h.time_us
            one.grants, one.owner = count, owner
        elif kind == EventKind.FAILED:
            one.failures = max(one.failures, count)
        elif kind in (EventKind.SETTLED, EventKind.DEAD):
            is_dead = kind == EventKind.DEAD
            failures = max(one.failures, count) if is_dead else one.failures
            latency = None if one.first_us is None else h.time_us - one.first_us
            outcome = "dead" if is_dead else "settled"
            found.append(
                (f"t{h.topic_id}", *key, outcome, reason or None if is_dead else None)
                + (one.grants or 0, failures, one.first_us, h.time_us, latency, one.owner, h.lsn)
            )
            del attempts[key]
    return sorted(found, key=in_order)


def in_order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sort key of a row of deliveries, which has no nulls."""
    return (row[13], *row[:5])
