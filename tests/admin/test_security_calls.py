"""The API's calls about accounts, access lists and keys, by bytes on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.security import READ
from brokerd.security.audit import AUDIT_TOPIC
from brokerd.security.directory import Policy
from tests.admin.caller import Caller
from tests.guards import Given, GuardOf
from tests.house import House


@pytest.fixture
def caller() -> Caller:
    return Caller()


def made(caller: Caller, name: str, **more: Any) -> Any:
    status, user = caller.post("/users", {"name": name, **more})
    assert status == 201, user
    return user


def test_an_account_is_made_and_shown_without_its_password(caller: Caller) -> None:
    user = made(caller, "ann", password="correct horse", roles=["consumer", "staff"])
    assert user["permissions"] == ["read"] and user["has_password"] and user["enabled"]
    assert caller.get("/users/ann") == (200, user)
    assert "horse" not in str(caller.get("/users"))
    assert [one["name"] for one in caller.get("/users")[1]["users"]] == ["ann"]


def test_an_account_without_a_password_says_so(caller: Caller) -> None:
    assert made(caller, "workers")["has_password"] is False


def test_an_account_that_is_there_is_not_made_again(caller: Caller) -> None:
    made(caller, "ann")
    assert caller.post("/users", {"name": "ann"})[0] == 409


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "name"),
        ({"name": ""}, "1 to 255 bytes"),
        ({"name": "a\x00"}, "control"),
        ({"name": "a", "roles": [""]}, "role"),
        ({"name": "a", "password": "x" * 1025}, "password"),
        ({"name": "a", "passwort": "x"}, "passwort"),
    ],
)
def test_what_is_no_account_is_refused_and_the_text_says_why(
    caller: Caller, body: Any, word: str
) -> None:
    status, answer = caller.post("/users", body)
    assert status in (400, 409) and word in answer["error"]
    assert caller.get("/users")[1]["users"] == []


def test_roles_and_enabled_change_one_by_one(caller: Caller) -> None:
    made(caller, "ann", roles=["consumer"])
    assert caller.call("PATCH", "/users/ann", {"enabled": False})[1]["roles"] == ["consumer"]
    changed = caller.call("PATCH", "/users/ann", {"roles": []})[1]
    assert changed["roles"] == [] and changed["enabled"] is False


def test_a_password_is_given_to_an_account(caller: Caller) -> None:
    made(caller, "ann")
    status, user = caller.post("/users/ann/password", {"password": "new"})
    assert status == 200 and user["has_password"]


def test_an_account_is_deleted(caller: Caller) -> None:
    made(caller, "ann")
    assert caller.call("DELETE", "/users/ann") == (200, {"deleted": "ann", "quota_stays": False})
    assert caller.get("/users/ann")[0] == 404
    assert caller.call("DELETE", "/users/ann")[0] == 404


def test_the_quota_of_a_deleted_account_stays_for_a_later_one(caller: Caller) -> None:
    made(caller, "ann")
    quota = "/quotas/account/ann"
    assert caller.call("PUT", quota, {"requests": 5})[1]["unknown_account"] is False
    assert caller.call("DELETE", "/users/ann")[1] == {"deleted": "ann", "quota_stays": True}
    assert caller.get("/quotas")[1]["quotas"][0]["unknown_account"] is True
    made(caller, "ann")
    assert caller.get(quota)[1]["unknown_account"] is False
    assert caller.call("PUT", "/quotas/default/*", {"requests": 5})[1]["unknown_account"] is False


def test_an_access_list_is_set_as_it_is_given(caller: Caller) -> None:
    wanted = {"public": True, "users": {"ann": ["read"]}, "roles": {"staff": ["write", "read"]}}
    status, shown = caller.call("PUT", "/acls/topics/orders", wanted)
    assert status == 200
    assert shown == {
        "topic": "orders",
        "prefix": False,
        "public": True,
        "users": {"ann": ["read"]},
        "roles": {"staff": ["read", "write"]},
    }
    assert caller.get("/acls/topics/orders") == (200, shown)
    assert caller.get("/acls/prefixes/orders")[0] == 404
    assert caller.call("PUT", "/acls/topics/orders", {})[1]["users"] == {}


def test_permissions_are_granted_and_revoked_one_by_one(caller: Caller) -> None:
    path = "/acls/prefixes/orders."
    granted = caller.call(
        "PATCH",
        path,
        {"grant_users": {"ann": ["read", "admin"]}, "grant_roles": {"staff": ["read"]}},
    )[1]
    assert granted["prefix"] and granted["users"] == {"ann": ["read", "admin"]}
    less = caller.call("PATCH", path, {"revoke_users": {"ann": ["read", "write"]}})[1]
    assert less["users"] == {"ann": ["admin"]} and less["roles"] == {"staff": ["read"]}


def test_who_revokes_the_last_grant_does_not_make_a_topic_public() -> None:
    """With security.default_public a topic without a list is; one whose list is empty is not."""
    caller = Caller(House(settings=BrokerSettings(security=Policy(default_public=True))))
    directory = caller.house.broker.accounts.directory
    path = "/acls/topics/orders"
    made(caller, "ann")
    ann = directory.accounts["ann"]
    caller.call("PATCH", path, {"grant_users": {"ann": ["read"]}})
    caller.call("PATCH", path, {"revoke_users": {"ann": ["read"]}})
    assert caller.get(path)[1]["users"] == {}
    assert not directory.permissions_on(ann, "orders")
    caller.call("PATCH", "/acls/topics/bills", {"public": False})
    assert not directory.permissions_on(ann, "bills")
    caller.call("PATCH", "/acls/topics/notes", {"revoke_users": {"ann": ["read"]}})
    assert directory.permissions_on(ann, "notes")
    assert caller.get("/acls/topics/notes")[0] == 404


def test_a_prefix_may_be_empty_and_means_all_topics(caller: Caller) -> None:
    status, shown = caller.call("PATCH", "/acls/prefixes//", {"grant_users": {"ann": ["read"]}})
    assert status == 200 and shown["topic"] == "" and shown["prefix"]


def test_a_list_is_deleted_and_none_is_all_right(caller: Caller) -> None:
    caller.call("PATCH", "/acls/topics/orders", {"public": True})
    for _ in range(2):
        assert caller.call("DELETE", "/acls/topics/orders")[0] == 200
    assert caller.get("/acls/topics/orders")[0] == 404


@pytest.mark.parametrize("grants", [{"ann": ["monitor"]}, {"": ["read"]}, {"ann": "read"}])
def test_what_cannot_be_granted_is_refused(caller: Caller, grants: Any) -> None:
    assert caller.call("PATCH", "/acls/topics/orders", {"grant_users": grants})[0] == 400


def test_a_key_is_shown_once_and_revoked_by_its_id(caller: Caller) -> None:
    made(caller, "workers")
    status, key = caller.post("/keys", {"user": "workers", "label": "nightly"})
    assert status == 201 and len(key["key"]) > 40
    listed = caller.get("/keys")
    assert key["key"] not in str(listed)
    (shown,) = listed[1]["keys"]
    assert (shown["key_id"], shown["user"], shown["label"]) == (key["key_id"], "workers", "nightly")
    assert caller.call("DELETE", f"/keys/{key['key_id']}")[0] == 200
    assert caller.call("DELETE", f"/keys/{key['key_id']}")[0] == 404
    assert caller.get("/keys")[1]["keys"] == []


def test_a_key_for_nobody_is_refused(caller: Caller) -> None:
    assert caller.post("/keys", {"user": "nobody"})[0] == 404


def test_without_security_everybody_is_told_so(caller: Caller) -> None:
    assert caller.get("/whoami")[1] == {
        "name": "",
        "roles": [],
        "permissions": ["read", "write", "admin", "monitor"],
        "auth": False,
        "known": True,
    }


def test_permissions_on_a_topic_are_told_to_its_caller(caller: Caller) -> None:
    """By role and by access list, whether or not the topic exists; none on the audit trail."""
    every = ["read", "write", "admin"]
    assert caller.get("/whoami", topic="orders")[1]["topic_permissions"] == every
    assert caller.get("/whoami", topic=AUDIT_TOPIC)[1]["topic_permissions"] == []
    reader = Caller(guard=GuardOf(Given("ann", 0, {"orders": READ})))
    assert reader.get("/whoami", topic="orders")[1]["topic_permissions"] == ["read"]
    assert reader.get("/whoami", topic="other")[1]["topic_permissions"] == []


def test_no_secret_shows_in_the_repr_of_what_the_api_takes() -> None:
    from brokerd.admin.shapes.security import MadeKey, NewAccount, NewPassword

    said = [
        NewAccount("ann", "secret"),
        NewPassword("secret", "secret"),
        MadeKey("id", "ann", "", "secret"),
    ]
    assert "secret" not in repr(said)
