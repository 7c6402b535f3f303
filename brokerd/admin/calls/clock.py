# Tests: tests/admin/test_clock_calls.py
"""The API's calls about the broker's clocks: describe, set."""

from __future__ import annotations

from brokerd.admin.http.routing import Call, Route
from brokerd.admin.shapes.clock import ClockShape
from brokerd.admin.shapes.common import time_of
from brokerd.security import ADMIN, MONITOR
from brokerd.security.audit import EventType


def describe_clock(call: Call) -> ClockShape:
    """Return the clocks and their differences."""
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
    """Set broker time to the wall clock and describe the clocks. Raises `NoSpace`."""
    back = f"{call.broker.time.status()['skew_seconds']:.3f}"
    change = call.broker.clock_admin.set_to_wall
    await call.carry_out(EventType.CLOCK_SET, change, "", back_seconds=back)
    return describe_clock(call)


ROUTES = [
    Route("GET", "/clock", MONITOR, "Show the clocks of the broker", describe_clock, ClockShape),
    Route(
        "POST",
        "/clock/set",
        ADMIN,
        "Trust the wall clock, and set broker time to it",
        set_clock,
        ClockShape,
    ),
]
