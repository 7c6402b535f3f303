# Tests: tests/admin/test_clock_calls.py
"""The API's calls about the broker's clocks: look, set."""

from __future__ import annotations

from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.clock import ClockShape
from brokerd.admin.shapes.common import time_of
from brokerd.security import ADMIN, MONITOR
from brokerd.security.audit import EventType


def describe_clock(call: Call) -> ClockShape:
    """The clocks, and how far they differ."""
    status = call.broker.time.status()
    return ClockShape(
        time_of(status["time_us"]),
        time_of(status["wall_us"]),
        time_of(status["removal_us"]),
        status["skew_seconds"],
        status["ahead_seconds"],
        status["degraded"],
    )


async def set_clock(call: Call) -> ClockShape:
    """As `describe_clock`, once broker time is that of the wall clock. Raises `NoSpace`."""
    back = f"{call.broker.time.status()['skew_seconds']:.3f}"
    change = call.broker.clock_admin.set_to_wall
    await call.audited_as(EventType.CLOCK_SET, "", change, back_seconds=back)
    return describe_clock(call)


ROUTES = [
    Route("GET", "/clock", MONITOR, "The broker's clocks", describe_clock, ClockShape),
    Route(
        "POST",
        "/clock/set",
        ADMIN,
        "Trust the wall clock, and set broker time to it",
        set_clock,
        ClockShape,
    ),
]
