"""Logins, users, access lists and the audit trail, as a user of the FlyMQ client sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.client.flymq import FlymqError
from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.client.flymq_peer import Call, FlymqPeer, client_of, peer

__all__ = ["peer"]

BOB = fm.User("bob", ("consumer",), ("read",), True, 1_700_000_000, 1_700_000_001)
ACL = fm.Acl("t", True, False, ("bob",), ("team",))
ROLE = fm.Role("consumer", ("read",), "reads")
WHO = fm.Identity(True, "bob", ("consumer", "team"), ("read",))
EVENT = fm.AuditEvent("7", 5, "auth.failure", "bob", "::1", "", "login", "failure", "n")
FOUND = fm.AuditEvents((EVENT,), 3, True)
QUERY = fm.QueryAudit(1, 2, ("auth.failure",), "bob", "t", "failure", "x", 10, 20)
EXPORT = fm.ExportAudit(QUERY, "csv")
TOPICS = fm.topics(["t"])

CALLS: list[Call] = [
    (
        lambda c: c.login("bob", "pw"),
        fm.Auth("bob", "pw"),
        fm.logged_in("bob", ("consumer",), "seed"),
        fm.LoggedIn("bob", ("consumer",)),
    ),
    (lambda c: c.whoami(), fm.WhoAmI(), fm.identity(WHO), WHO),
    (
        lambda c: c.create_user("bob", "pw", ["consumer"]),
        fm.CreateUser("bob", "pw", ("consumer",)),
        fm.user(Opcode.USER_CREATE, BOB),
        BOB,
    ),
    (
        lambda c: c.delete_user("bob"),
        fm.DeleteUser("bob"),
        fm.ok(Opcode.USER_DELETE, "bob"),
        None,
    ),
    (
        lambda c: c.update_user("bob", ["team"], True),
        fm.UpdateUser("bob", ("team",), True),
        fm.ok(Opcode.USER_UPDATE, "bob"),
        None,
    ),
    (lambda c: c.list_users(), fm.ListUsers(), fm.users([BOB]), (BOB,)),
    (lambda c: c.get_user("bob"), fm.GetUser("bob"), fm.user(Opcode.USER_GET, BOB), BOB),
    (
        lambda c: c.change_password("bob", "new", "old"),
        fm.ChangePassword("bob", "new", "old"),
        fm.ok(Opcode.PASSWORD_CHANGE, "bob"),
        None,
    ),
    (
        lambda c: c.set_acl("t", public=True, users=["bob"], roles=["team"]),
        fm.SetAcl("t", True, ("bob",), ("team",)),
        fm.ok(Opcode.ACL_SET, "t"),
        None,
    ),
    (lambda c: c.get_acl("t"), fm.GetAcl("t"), fm.acl(ACL, False), fm.OneAcl(ACL, False)),
    (lambda c: c.delete_acl("t"), fm.DeleteAcl("t"), fm.ok(Opcode.ACL_DELETE, "t"), None),
    (lambda c: c.list_acls(), fm.ListAcls(), fm.acls([ACL], True), fm.Acls((ACL,), True)),
    (lambda c: c.list_roles(), fm.ListRoles(), fm.roles([ROLE]), (ROLE,)),
    (lambda c: c.query_audit(), fm.QueryAudit(), fm.audit_events(FOUND, False), FOUND),
    (lambda c: c.query_audit(QUERY), QUERY, fm.audit_events(FOUND, False), FOUND),
    (lambda c: c.export_audit(QUERY, "csv"), EXPORT, fm.exported(EXPORT, b"ID\n"), b"ID\n"),
    (
        lambda c: c.export_audit(),
        fm.ExportAudit(fm.QueryAudit(), "json"),
        fm.exported(fm.ExportAudit(fm.QueryAudit(), "json"), b"[]"),
        b"[]",
    ),
]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests() == [request_]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_every_call_may_be_refused(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(fm.error("unauthorized", sdk=True))
    with client_of(peer) as client, pytest.raises(FlymqError, match=r"^unauthorized$"):
        call(client)


def test_every_opcode_has_a_call() -> None:
    """But those that Java has for the audit trail: the others tell the same."""
    opcodes = {fm.opcode_of(request) for _, request, _, _ in CALLS}
    others = {Opcode.AUTH_RESPONSE, Opcode.AUDIT_QUERY_JAVA, Opcode.AUDIT_EXPORT_JAVA}
    assert opcodes == {one for one in Opcode if Opcode.AUTH <= one < Opcode.ERROR} - others


# -- logging in -------------------------------------------------------------------------------

WELCOME = fm.logged_in("bob", (), "seed")
BOB_COMES = fm.Auth("bob", "pw")


@pytest.mark.parametrize("layout", ["seed", "sdk", "neutral"])
def test_a_client_with_a_user_logs_in_first(peer: FlymqPeer, layout: Any) -> None:
    """Whatever layout the broker answers in."""
    peer.will_accept(fm.logged_in("bo", ("team",), layout))
    with client_of(peer, user="bob", password="pw") as client:
        client._exchange._connect(iter(()))
        peer.answer(TOPICS)
        assert client.list_topics() == ("t",)
        peer.answer(TOPICS)
        assert client.list_topics() == ("t",)
    assert peer.requests() == [BOB_COMES, fm.ListTopics(), fm.ListTopics()]


def test_it_logs_in_again_on_each_new_connection(peer: FlymqPeer) -> None:
    peer.will_accept(WELCOME, then_close=True, in_bytes=True)
    peer.will_accept(WELCOME, TOPICS, in_bytes=True)
    with client_of(peer, user="bob", password="pw") as client:
        assert client.list_topics() == ("t",)
    assert peer.requests(0) == [BOB_COMES, fm.ListTopics()]
    assert peer.requests(1) == [BOB_COMES, fm.ListTopics()]


def test_a_login_that_is_refused_is_told_and_not_tried_again(peer: FlymqPeer) -> None:
    """What was to be sent is not; the next call tries anew."""
    peer.will_accept(fm.login_refused("invalid username or password"))
    peer.will_accept(WELCOME, TOPICS, in_bytes=True)
    with client_of(peer, user="bob", password="pw") as client:
        with pytest.raises(FlymqError, match="invalid username or password"):
            client.list_topics()
        assert peer.attempts == 1
        assert peer.requests(0) == [BOB_COMES]
        assert client.list_topics() == ("t",)


def test_a_broker_that_dies_during_a_login_is_tried_again(peer: FlymqPeer) -> None:
    peer.will_accept(WELCOME[:5], then_close=True)
    peer.will_accept(WELCOME, TOPICS, in_bytes=True)
    with client_of(peer, user="bob", password="pw") as client:
        assert client.list_topics() == ("t",)
    assert peer.slept == [0.1]


def test_an_answer_that_is_no_login_is_not_tried_again(peer: FlymqPeer) -> None:
    peer.will_accept(fm.frame(Opcode.AUTH_RESPONSE, b"\2"))
    with (
        client_of(peer, user="bob", password="pw") as client,
        pytest.raises(OSError, match="AUTH cannot be read"),
    ):
        client.list_topics()
    assert peer.attempts == 1


def test_a_later_login_holds_for_later_connections(peer: FlymqPeer) -> None:
    """One that fails does not."""
    peer.will_accept(WELCOME)
    with client_of(peer) as client:
        assert client.login("bob", "pw").user == "bob"
        peer.answer(fm.login_refused("no"))
        with pytest.raises(FlymqError, match=r"^no$"):
            client.login("eve", "pw")
        client.close()
        peer.will_accept(WELCOME, TOPICS, in_bytes=True)
        assert client.list_topics() == ("t",)
    assert peer.requests(1) == [BOB_COMES, fm.ListTopics()]


def test_a_right_login_needs_no_right_one_before(peer: FlymqPeer) -> None:
    """The account of the first login was deleted, and the connection lost."""
    peer.will_accept(WELCOME, WELCOME, TOPICS, in_bytes=True)
    with client_of(peer, user="gone", password="old") as client:
        assert client.login("bob", "pw").user == "bob"
        assert client.list_topics() == ("t",)
    assert peer.requests() == [BOB_COMES, BOB_COMES, fm.ListTopics()]


def test_a_connection_whose_login_cannot_be_sent_is_not_used(peer: FlymqPeer) -> None:
    peer.will_accept()
    peer.will_accept()
    with client_of(peer, user="u" * 70_000, password="pw", timeout=1.0) as client:
        for _ in range(2):
            with pytest.raises(ValueError, match="too long"):
                client.list_topics()
    assert peer.received(0) == peer.received(1) == b""


def test_who_changes_his_own_password_logs_in_with_the_new_one_later(peer: FlymqPeer) -> None:
    changed = fm.ok(Opcode.PASSWORD_CHANGE, "bob")
    peer.will_accept(WELCOME)
    with client_of(peer) as client:
        client.login("bob", "pw")
        peer.answer(changed)
        client.change_password("bob", "new", "pw")
        peer.answer(changed)
        client.change_password("ann", "other")
        peer.answer(fm.error("invalid current password", sdk=True))
        with pytest.raises(FlymqError):
            client.change_password("bob", "refused", "wrong")
        client.close()
        peer.will_accept(WELCOME, TOPICS, in_bytes=True)
        assert client.list_topics() == ("t",)
    assert peer.requests(1)[0] == fm.Auth("bob", "new")


def test_a_client_without_a_user_sends_no_login(peer: FlymqPeer) -> None:
    peer.will_accept(TOPICS)
    with client_of(peer, password="unused") as client:
        client.list_topics()
    assert peer.requests() == [fm.ListTopics()]


def test_a_client_shows_its_password_to_nobody(peer: FlymqPeer) -> None:
    with client_of(peer, user="bob", password="s3cret") as client:
        assert "s3cret" not in repr(client) + str(vars(client))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.login(b"bob", "pw"), TypeError),
        (lambda c: c.create_user("bob", None), TypeError),
        (lambda c: c.create_user("bob", "pw", "admin"), TypeError),
        (lambda c: c.create_user("\ud800", "pw"), ValueError),
        (lambda c: c.create_user("b" * 65_536, "pw"), ValueError),
        (lambda c: c.update_user("bob", [1], True), TypeError),
        (lambda c: c.update_user("bob", [], 1), TypeError),
        (lambda c: c.set_acl("t", public="no"), TypeError),
        (lambda c: c.query_audit(fm.QueryAudit(limit=-1)), ValueError),
        (lambda c: c.query_audit(fm.QueryAudit(offset=1 << 31)), ValueError),
        (lambda c: c.query_audit(fm.QueryAudit(start_seconds=-1)), ValueError),
        (lambda c: c.query_audit(fm.QueryAudit(types="auth")), TypeError),
        (lambda c: c.export_audit(format=None), TypeError),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_sent(
    peer: FlymqPeer, call: Callable[..., object], error: type[Exception]
) -> None:
    with client_of(peer) as client, pytest.raises(error):
        call(client)
    assert peer.attempts == 0


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda c: c.create_user("bob", "pw"), fm.user(Opcode.USER_CREATE, BOB)),
        (lambda c: c.delete_user("bob"), fm.ok(Opcode.USER_DELETE, "bob")),
        (lambda c: c.change_password("bob", "n"), fm.ok(Opcode.PASSWORD_CHANGE, "bob")),
    ],
)
def test_what_does_harm_twice_is_not_sent_again(
    peer: FlymqPeer, call: Callable[..., object], answer: bytes
) -> None:
    peer.will_accept(then_close=True)
    peer.will_accept(answer)
    with client_of(peer) as client, pytest.raises(OSError, match="closed the connection"):
        call(client)
    assert peer.attempts == 1
