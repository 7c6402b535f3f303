# Tests: tests/simulator/test_oracle_subscriptions.py
"""Settings of the broker that the oracle needs, beside those of groups and topics."""

from __future__ import annotations

from typing import NamedTuple


class ClockRules(NamedTuple):
    """When the broker trusts the wall clock."""

    tolerance_us: int = 60_000_000
    grace_us: int = 3_600_000_000


class LimitRules(NamedTuple):
    """Limits of the broker's options that clients meet."""

    subscriptions: int = 100_000
    delay_us: int = 86_400_000_000
    """The longest delay of a FlyMQ record."""
    dead_letter_us: int = 604_800_000_000
    """Time for which a dead letter holds back retention; 0: not at all."""


class ConnectionRules(NamedTuple):
    """When the broker ends a connection; 0: never."""

    connections: int = 10_000
    """The most connections at once."""
    first_byte_us: int = 120_000_000
    idle_us: int = 0
    unfinished_us: int = 60_000_000
    """Time for the rest of a frame."""
    login_us: int = 60_000_000
    """Time for the login of a client without a permission."""


class AccessRules(NamedTuple):
    """Permissions without an access list or an account."""

    default_public: bool = False
    """Whether topics without an access list are public."""
    allow_anonymous: bool = False
    """Whether anonymous may read and write public topics."""


class SubscriptionRules(NamedTuple):
    """The broker's settings for new subscriptions."""

    max_deliveries: int = 3
    base_us: int = 100_000
    """Duration of the first delivery of a message."""
    grace_us: int = 3_600_000_000
    """Time after which an unused subscription ends."""
    look_back_us: int = 0
    """Time before its creation at which a subscription begins."""
    ttl_us: int = 0
    """Time to live of published messages; 0: that of the topic."""

    def flight_us(self, delivery: int) -> int:
        """Return the duration of a delivery, counted from 1."""
        return min(self.base_us << min(delivery - 1, 40), max(600_000_000, self.base_us))
