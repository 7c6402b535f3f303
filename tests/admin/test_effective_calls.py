"""What the API says about who may do what with a topic, by bytes on the wire."""

from __future__ import annotations

import pytest

from brokerd.broker import BrokerSettings
from brokerd.security.directory import Policy
from tests.admin.caller import Caller
from tests.house import House


@pytest.fixture
def caller() -> Caller:
    caller = Caller()
    for name, role in (("ann", "staff"), ("bob", "consumer")):
        assert caller.post("/users", {"name": name, "roles": [role]})[0] == 201
    caller.call("PUT", "/acls/topics/orders.new", {"users": {"ann": ["write"]}})
    caller.call("PUT", "/acls/prefixes/orders.", {"roles": {"staff": ["read"]}})
    caller.call("PUT", "/acls/prefixes/bills.", {"public": True})
    return caller


def test_all_lists_that_fit_are_shown_and_what_they_come_to(caller: Caller) -> None:
    status, found = caller.get("/acls/effective/orders.new", user="ann")
    assert status == 200
    assert [(one["topic"], one["prefix"]) for one in found["access_lists"]] == [
        ("orders.new", False),
        ("orders.", True),
    ]
    assert found["permissions"] == ["read", "write"]
    assert (found["public"], found["anonymous"]) == (False, [])
    assert caller.get("/acls/effective/orders.old", user="ann")[1]["permissions"] == ["read"]
    assert caller.get("/acls/effective/none", user="bob")[1]["permissions"] == ["read"]


def test_a_public_topic_is_everybodys_who_has_an_account(caller: Caller) -> None:
    found = caller.get("/acls/effective/bills.1", user="ann")[1]
    assert found["public"] and found["permissions"] == ["read", "write"]
    assert found["anonymous"] == []


def test_without_a_list_the_configuration_says_what_is_public() -> None:
    policy = Policy(allow_anonymous=True, default_public=True)
    caller = Caller(House(settings=BrokerSettings(security=policy)))
    found = caller.get("/acls/effective/orders")[1]
    assert found["public"] and found["anonymous"] == ["read", "write"]
    assert found["user"] is None and found["permissions"] is None
    trail = caller.get("/acls/effective/__brokerd.audit")[1]
    assert not trail["public"] and trail["anonymous"] == []


def test_a_disabled_account_may_do_nothing(caller: Caller) -> None:
    caller.call("PATCH", "/users/bob", {"enabled": False})
    found = caller.get("/acls/effective/orders", user="bob")[1]
    assert found["permissions"] == [] and not found["user"]["enabled"]


def test_an_account_that_is_not_there_is_told(caller: Caller) -> None:
    assert caller.get("/acls/effective/orders", user="eve")[0] == 404
