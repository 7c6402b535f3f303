"""Quotas over the API and in the metrics."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from prometheus_client import generate_latest

from brokerd.admin.metrics import QUOTA_SERIES_MAX, make_registry
from brokerd.broker import BrokerSettings
from brokerd.codecs import mamamia as mm
from brokerd.security import OPEN
from brokerd.security.audit import EventType
from brokerd.security.quotas import Quota
from tests.admin.caller import Caller
from tests.house import House, ask


def test_a_quota_lives_from_put_to_delete() -> None:
    caller = Caller(House(settings=BrokerSettings(audit_keep_us=86_400_000_000)))
    status, answer = caller.call("PUT", "/quotas/account/ann", {"requests": 5, "bytes_in": 1_000})
    assert status == 200
    limits = {"requests": 5, "bytes_in": 1_000, "bytes_out": 0, "connections": 0}
    assert (answer["kind"], answer["name"], answer["limits"]) == ("account", "ann", limits)
    assert answer["use"]["requests"] == 0
    assert caller.get("/quotas/account/ann")[1] == answer
    assert caller.get("/quotas")[1] == {"quotas": [answer], "next": None}
    assert caller.call("DELETE", "/quotas/account/ann")[0] == 200
    assert caller.get("/quotas/account/ann")[0] == 404
    assert caller.call("DELETE", "/quotas/account/ann")[0] == 404
    caller.house.pass_time(1)
    events = caller.get("/audit")[1]["events"]
    changes = [one for one in events if one["type"].startswith("quota.")]
    assert {one["type"] for one in changes} == {"quota.set", "quota.delete"}
    assert {one["resource"] for one in changes} == {"account/ann"}


def test_a_network_and_the_default_have_quotas() -> None:
    caller = Caller()
    assert caller.call("PUT", "/quotas/address/10.0.0.0%2F8", {"connections": 9})[0] == 200
    assert caller.call("PUT", "/quotas/default/*", {"bytes_out": 9})[0] == 200
    names = [(one["kind"], one["name"]) for one in caller.get("/quotas")[1]["quotas"]]
    assert names == [("address", "10.0.0.0/8"), ("default", "*")]


@pytest.mark.parametrize(
    ("given", "usual"),
    [
        ("10.1.2.3/32", "10.1.2.3"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
    ],
)
def test_each_call_takes_an_address_in_any_form(given: str, usual: str) -> None:
    caller = Caller()
    path = f"/quotas/address/{quote(given, safe='')}"
    assert caller.call("PUT", path, {"requests": 1})[1]["name"] == usual
    assert caller.get(path)[1]["name"] == usual
    assert caller.call("PATCH", path, {"requests": 2})[1]["limits"]["requests"] == 2
    assert caller.call("DELETE", path) == (200, {"deleted": usual})
    assert caller.get("/quotas")[1]["quotas"] == []


def test_a_deletion_of_no_quota_is_not_found_and_of_a_wrong_kind_or_name_is_refused() -> None:
    caller = Caller()
    status, answer = caller.call("DELETE", "/quotas/account/x")
    assert (status, answer["error"]) == (404, "there is no quota of account 'x'")
    for path in ("acount/x", "listener/nope", "address/host", "default/x", "account/a%0Ab"):
        assert caller.call("DELETE", f"/quotas/{path}")[0] == 400, path
        assert caller.get(f"/quotas/{path}")[0] == 400, path


def test_a_name_that_an_earlier_version_stored_is_deleted() -> None:
    caller = Caller()
    stored = [
        Quota("address", "::ffff:a00:1", 1),
        Quota("address", "fe80::1%lo", 1),
        Quota("account", "a\nb", 1),
    ]
    for quota in stored:
        caller.house.broker.accounts.change_quota(OPEN, EventType.QUOTA_SET, quota, True)
    for quota in stored:
        name = quote(quota.name, safe="")
        assert caller.call("DELETE", f"/quotas/{quota.kind}/{name}")[0] == 200
    assert caller.get("/quotas")[1]["quotas"] == []


def test_a_change_keeps_the_limits_that_it_does_not_name() -> None:
    caller = Caller()
    caller.call("PUT", "/quotas/account/ann", {"requests": 5, "bytes_in": 1_000})
    status, answer = caller.call("PATCH", "/quotas/account/ann", {"requests": 0, "connections": 2})
    assert status == 200
    limits = {"requests": 0, "bytes_in": 1_000, "bytes_out": 0, "connections": 2}
    assert answer["limits"] == limits
    assert caller.get("/quotas/account/ann")[1] == answer
    assert caller.call("PATCH", "/quotas/account/ann", {})[1]["limits"] == limits


def test_a_change_of_no_quota_or_to_no_limit_is_refused() -> None:
    caller = Caller()
    assert caller.call("PATCH", "/quotas/account/ann", {"requests": 1})[0] == 404
    caller.call("PUT", "/quotas/account/ann", {"requests": 5})
    assert caller.call("PATCH", "/quotas/account/ann", {"requests": 0})[0] == 400
    assert caller.call("PATCH", "/quotas/account/ann", {"request": 1})[0] == 400
    assert caller.get("/quotas/account/ann")[1]["limits"]["requests"] == 5


def test_wrong_quotas_are_refused() -> None:
    caller = Caller()
    assert caller.call("PUT", "/quotas/account/ann", {})[0] == 400
    assert caller.call("PUT", "/quotas/account/ann", {"requests": -1})[0] == 400
    assert caller.call("PUT", "/quotas/topic/x", {"requests": 1})[0] == 400
    assert caller.call("PUT", "/quotas/listener/kafka", {"requests": 1})[0] == 400
    assert caller.call("PUT", "/quotas/account/a%0Ab", {"requests": 1})[0] == 400
    assert caller.call("PUT", "/quotas/address/fe80::1%25eth0", {"requests": 1})[0] == 400
    assert caller.get("/quotas")[1]["quotas"] == []


def test_metrics_show_the_use_of_a_quota() -> None:
    house = House()
    house.broker.quotas.put(OPEN, Quota("listener", "mamamia", requests=100))
    ask(house, mm.Produce("orders", b"x"))
    text = generate_latest(make_registry(house.broker.status())).decode()
    assert 'brokerd_quota_requests_total{kind="listener",name="mamamia"} 1.0' in text


def test_metrics_have_a_bounded_number_of_series() -> None:
    house = House()
    for number in range(QUOTA_SERIES_MAX + 20):
        house.broker.quotas.put(OPEN, Quota("account", f"a{number:03}", requests=1))
    text = generate_latest(make_registry(house.broker.status())).decode()
    series = [line for line in text.splitlines() if line.startswith("brokerd_quota_waits_total{")]
    assert len(series) == QUOTA_SERIES_MAX + 1
    assert 'brokerd_quota_waits_total{kind="others",name=""} 0.0' in text
