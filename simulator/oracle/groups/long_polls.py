# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_changes.py
"""Turn long polls without a result into events of the records they might have got: promise 5.

The broker must notice by itself that a lease lapsed or a delay is over, and serve the waiting poll.
Pauses, order by key, other lives of the group and disk faults excuse it, and so does a record that
had expired until the wall clock went back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from simulator.history.operations import (
    NEVER,
    Acquire,
    Configure,
    DeleteGroup,
    GroupChange,
    GroupRules,
    History,
    Pause,
    Resume,
)
from simulator.oracle.groups.lease_model import SERVED_US, LeaseModel
from simulator.oracle.groups.lease_search import Event
from simulator.oracle.records.records import Record, Sight
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import Lives, Span, possible

MODEL = LeaseModel()


class Poll(NamedTuple):
    """A long poll without a result, and the certain part of its wait."""

    acquire: Acquire
    waited: Span


def idle_polls(history: History, lives: Lives, acquires: list[Acquire]) -> list[Poll]:
    """Return the polls that waited long enough while the disk had no fault."""
    if not history.is_steady or lives.any_loss:
        return []
    polls = []
    for acquire in acquires:
        if not acquire.wait_us or not acquire.succeeded or acquire.deliveries:
            continue
        asked = lives.span(acquire)
        # Requests and answers queue, so the wait began between these two times.
        waited = Span(asked.last_us - acquire.wait_us, asked.first_us + acquire.wait_us)
        if asked.first_us <= waited.first_us and waited.first_us + SERVED_US < waited.last_us:
            polls.append(Poll(acquire, waited))
    return polls


class Waiting:
    """The long polls of one group."""

    def __init__(
        self,
        begin: GroupRules,
        lives: Lives,
        removal: Removal,
        polls: list[Poll],
        changes: list[GroupChange],
    ) -> None:
        self._lives = lives
        self._removal = removal
        paused = [
            (lives.span(op), op.answered_us != NEVER, isinstance(op, Pause))
            for op in changes
            if isinstance(op, Pause | Resume | DeleteGroup)
        ]
        ordered = [
            (lives.span(op), op.answered_us != NEVER, _orders(op, begin))
            for op in changes
            if isinstance(op, Configure | DeleteGroup)
        ]
        self.polls = [
            poll
            for poll in polls
            if not any(possible(False, paused, poll.waited))
            and not any(possible(begin.key_ordered, ordered, poll.waited))
        ]

    def events(self, record: Record, sights: list[Sight[Acquire]]) -> Iterator[Event]:
        """Return events: the record was not available for long when a poll ended, or before each
        lease."""
        for poll in self.polls:
            first_us, last_us = poll.waited
            first_us = max(first_us, record.stored.last_us)
            leased = (self._lives.span(sight.acquire).first_us - 1 for sight in sights)
            for at_us in (last_us, *leased):
                is_late = first_us + SERVED_US < at_us <= last_us
                if is_late and not self._removal.may_be_hidden(record, at_us):
                    step = partial(MODEL.is_not_served, since_us=first_us)
                    yield Event(Span(at_us, at_us), step, poll.acquire)


def _orders(op: Configure | DeleteGroup, begin: GroupRules) -> bool:
    return op.rules.key_ordered if isinstance(op, Configure) else begin.key_ordered
