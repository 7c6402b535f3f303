# Tests: tests/simulator/test_oracle_subscriptions.py
"""Operations of subscriptions (BlipMQ); see `simulator.history.operations`.

Many successful requests have no answer. Their success is known when a later request of the
connection is answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from simulator.history.operations import Operation, Place

UNKNOWN_DELIVERY = "unknown subscription or delivery tag"
"""Error of an acknowledgement of a message that is not in flight."""


class Handed(NamedTuple):
    """One delivered message."""

    value: bytes
    qos: int
    place: Place | None = None
    """Delivery tag; None for QoS 0."""


@dataclass(kw_only=True)
class Subscribe(Operation):
    topic: str
    qos: int
    subscription: int = 0
    """Id of the new subscription."""


@dataclass(kw_only=True)
class Poll(Operation):
    topic: str
    """Id of the subscription."""
    subscription: int
    handed: Handed | None = None


@dataclass(kw_only=True)
class Acknowledge(Operation):
    """Acknowledges a delivery. Refused with UNKNOWN_DELIVERY if it is not in flight."""

    topic: str
    subscription: int
    place: Place


def group_of(subscription: int) -> str:
    """Return the group of a subscription, as operators see it."""
    return f"__blipmq.{subscription}"


def is_subscription(group: str) -> bool:
    """Return whether a group belongs to a subscription."""
    return group.startswith("__blipmq.")
