# Tests: tests/admin/test_openapi.py
"""Answers about the clocks; see `brokerd.admin.shapes.common`."""

from __future__ import annotations

from msgspec import Struct

from brokerd.admin.shapes.common import Time


class ClockShape(Struct):
    """The broker's clocks (docs/broker.rst, "Clocks")."""

    time: Time
    """Broker time."""
    wall_time: Time
    """The wall clock."""
    removal_time: Time
    """The time that decides the age of records for their removal."""
    skew_seconds: float
    """Broker time minus the wall clock."""
    ahead_seconds: float
    """Broker time minus ``removal_time``; 0 while broker time is trusted."""
    degraded: str
    """The reason why broker time is not trusted; "" if it is trusted."""
