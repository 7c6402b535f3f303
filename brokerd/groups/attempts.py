# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""Attempts at a record: layouts of stored rows, and values for callers.

Stored times are microseconds relative to the *epoch*, an attribute of the group partition's state.
After a restart with another clock, one change of the epoch moves them all.
"""

from __future__ import annotations

from typing import NamedTuple

LeaseRow = tuple[int, str, int, int, int, int, int | None]
"""(deadline_us, owner, token, grants, failures, duration_us, first_us) of a live lease. first_us is
the time of the record's first attempt, relative to the epoch. It is None while this lease is the
first attempt: then deadline minus duration is the time."""

RETURNED_LAYOUT = "<IIQq"
"""grants, failures * 2 + (1 if the failure of the last grant is counted), token of the last grant,
time of the first attempt relative to the epoch."""
DEAD_LAYOUT = "<IIIqq"
"""grants, failures, index of the reason, times of the first and the last attempt relative to the
epoch."""
NEVER_US = -(1 << 63)
"""First attempt of a record whose attempts were reset."""

Attempts = tuple[int, int, int, int]
"""grants, failures, token of the last grant, time of the first attempt relative to the epoch"""
NO_ATTEMPTS = (0, 0, 0, NEVER_US)


class Lease(NamedTuple):
    """One lease of a list. It has ended when ``now_us`` is past ``deadline_us``."""

    offset: int
    deadline_us: int
    owner: str
    token: int
    grants: int
    failures: int
    duration_us: int
    first_attempt_us: int
    """Time of the record's first lease or failure."""


class DeadLetter(NamedTuple):
    """A dead letter and its reason. Times are those of the store's clock."""

    offset: int
    reason: str
    grants: int
    failures: int
    first_attempt_us: int
    """Time of the first lease or failure; without one, ``last_attempt_us``."""
    last_attempt_us: int
    """Time at which the record became a dead letter."""


def first_attempt_us(lease: LeaseRow) -> int:
    """Return the begin of a lease that was not extended."""
    return lease[0] - lease[5] if lease[5] > 0 else lease[0] + 1
