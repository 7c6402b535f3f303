# Tests: tests/simulator/test_oracle_subscriptions.py
"""What clients of subscriptions asked and saw (BlipMQ): the rest of `simulator.history.operations`.

Much of it is answered by silence: it is known to have succeeded when something that was sent
behind it is answered, and it was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.history.operations import Operation, Place

UNKNOWN_DELIVERY = "unknown subscription or delivery tag"
"""What an acknowledgement of what is not in flight is refused with."""


class Handed(NamedTuple):
    """A message as it was delivered."""

    value: bytes
    qos: int
    place: Place | None = None
    """What its delivery tag says; None for QoS 0, which has none."""


@dataclass(kw_only=True)
class Subscribe(Operation):
    topic: str
    qos: int
    subscription: int = 0
    """The id that was given."""


@dataclass(kw_only=True)
class Poll(Operation):
    topic: str
    """That of the subscription."""
    subscription: int
    handed: Handed | None = None


@dataclass(kw_only=True)
class Acknowledge(Operation):
    """A delivery was dealt with. Refused with UNKNOWN_DELIVERY if it is not in flight."""

    topic: str
    subscription: int
    place: Place


def group_of(subscription: int) -> str:
    """The group that operators see of a subscription."""
    return f"__blipmq.{subscription}"


def is_subscription(group: str) -> bool:
    """Whether a group is that of a subscription."""
    return group.startswith("__blipmq.")
