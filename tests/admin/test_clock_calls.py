"""The broker's clocks over the API."""

from __future__ import annotations

from brokerd.broker import BrokerSettings
from tests.admin.caller import Caller
from tests.house import House


def test_clocks_that_agree_are_described() -> None:
    status, answer = Caller().get("/clock")
    assert (status, answer["skew_seconds"], answer["ahead_seconds"]) == (200, 0, 0)
    assert answer["time"] == answer["wall_time"] == answer["removal_time"]
    assert answer["degraded"] == ""


def test_broker_time_is_set_and_the_trail_has_it() -> None:
    caller = Caller(House(settings=BrokerSettings(audit_keep_us=86_400_000_000)))
    caller.house.run()
    caller.house.wall_seconds += 86_400
    assert caller.get("/clock")[1]["ahead_seconds"] == 86_400
    caller.house.wall_seconds -= 86_400
    answer = caller.get("/clock")[1]
    assert (answer["skew_seconds"], answer["ahead_seconds"]) == (86_400, 86_400)
    assert answer["removal_time"] == answer["wall_time"] < answer["time"]
    assert "86400 s ahead of the wall clock" in answer["degraded"]
    status, answer = caller.post("/clock/set")
    assert (status, answer["skew_seconds"], answer["degraded"]) == (200, 0, "")
    caller.house.pass_time(1)
    [event] = caller.get("/audit?type=clock.set")[1]["events"]
    assert event["details"] == {"back_seconds": "86400.000"}
