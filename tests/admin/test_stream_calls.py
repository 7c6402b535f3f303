"""Named streams over the API and in the metrics."""

from __future__ import annotations

from typing import Any

from prometheus_client import generate_latest

from brokerd.admin.metrics import make_registry
from brokerd.broker import BrokerSettings
from tests.admin.caller import Caller
from tests.house import House


def reporting(caller: Caller, name: str = "loader", **fields: object) -> tuple[int, Any]:
    return caller.call("PUT", f"/streams/{name}/position", {"log_id": "", "lsn": 0, **fields})


def test_a_stream_lives_from_its_first_report_to_the_drop() -> None:
    house = House()
    for value in (b"a", b"b", b"c"):
        house.append("orders", value)
    caller = Caller(house)
    orders = house.broker.topics.existing("orders").topic_id
    assert reporting(caller, topics=["orders"], offsets={str(orders): [1]})[0] == 200
    status, shown = caller.get("/streams/loader")
    assert status == 200
    assert (shown["name"], shown["lsn"], shown["lag_records"]) == ("loader", 0, 2)
    assert (shown["holds"], shown["hold_dropped"]) == (False, "")
    assert reporting(caller, offsets={str(orders): [1]}, topics=["orders"], holds=True)[1]["holds"]
    assert shown["lag_bytes"] > 0
    assert shown["positions"] == [
        {"topic": "orders", "topic_id": orders, "offsets": [1], "next_offsets": [3]}
    ]
    status, listed = caller.get("/streams")
    assert listed["next"] is None
    assert [(one["name"], one["lag_records"]) for one in listed["streams"]] == [("loader", 2)]
    assert caller.call("DELETE", "/streams/loader") == (200, {"deleted": "loader"})
    assert caller.call("DELETE", "/streams/loader")[0] == 404
    assert caller.get("/streams/loader")[0] == 404


def test_wrong_reports_are_refused() -> None:
    caller = Caller(House(settings=BrokerSettings(max_streams=1)))
    assert reporting(caller, lsn=-1)[0] == 400
    assert reporting(caller, lsn=1 << 50)[0] == 400
    assert reporting(caller, offsets={"x": [1]})[0] == 400
    assert reporting(caller, offset={})[0] == 400
    assert reporting(caller)[0] == 200
    status, answer = reporting(caller, "another")
    assert status == 409
    assert "limits.streams" in str(answer)


def test_metrics_have_the_lag_of_each_stream() -> None:
    house = House()
    house.append("orders", b"x")
    caller = Caller(house)
    reporting(caller)
    reporting(caller, "done", topics=["none"])
    text = generate_latest(make_registry(house.broker.status())).decode()
    assert 'brokerd_stream_lag_records{stream="loader"} 1.0' in text
    assert 'brokerd_stream_lag_records{stream="done"} 0.0' in text
    assert 'brokerd_stream_lag_bytes{stream="done"} 0.0' in text
    assert 'brokerd_stream_holds{stream="done"} 0.0' in text
    assert "brokerd_stream_holds_dropped_total 0.0" in text
    assert "brokerd_stream_reports_total 2.0" in text
    assert "brokerd_streams 2.0" in text
