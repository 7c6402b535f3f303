# Tests: tests/groups/test_store.py, tests/groups/test_model.py
"""What is known about a record that was attempted: as it is kept, and as it is shown.

Kept times are microseconds relative to the *epoch* of the partition, an attribute of its state, so
that all of them move together when a restart finds another clock.
"""

from __future__ import annotations

from typing import NamedTuple

LeaseRow = tuple[int, str, int, int, int, int, int | None]
"""(deadline_us, owner, token, grants, failures, duration_us, first_us) of a live lease; first_us is
when the record was first attempted, relative to the epoch; None as long as it is this very lease
that was the first attempt, and its deadline tells."""

RETURNED_LAYOUT = "<IIQq"
"""grants, failures * 2 + (1 if the last grant's failure is counted), token of the last grant, time
of the first attempt relative to the epoch."""
DEAD_LAYOUT = "<IIIqq"
"""grants, failures, index of the reason, times of the first and the last attempt relative to the
epoch."""
NEVER_US = -(1 << 63)
"""The first attempt of a record that begins anew."""

Attempts = tuple[int, int, int, int]
"""grants, failures, token of the last grant, time of the first attempt relative to the epoch"""
NO_ATTEMPTS = (0, 0, 0, NEVER_US)


class Lease(NamedTuple):
    """One lease, as listed. It is over when ``now_us`` is past ``deadline_us``."""

    offset: int
    deadline_us: int
    owner: str
    token: int
    grants: int
    failures: int
    duration_us: int
    first_attempt_us: int
    """When the record was first leased, or failed."""


class DeadLetter(NamedTuple):
    """A record that will not be delivered again, and why. Times are those of the store's clock."""

    offset: int
    reason: str
    grants: int
    failures: int
    first_attempt_us: int
    """When it was first leased, or failed; when it became a dead letter if it never was."""
    last_attempt_us: int
    """When its last attempt ended, that is, when it became a dead letter."""


def first_attempt_us(lease: LeaseRow) -> int:
    """When a lease began that was not extended."""
    return lease[0] - lease[5] if lease[5] > 0 else lease[0] + 1
