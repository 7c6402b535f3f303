"""Who sends a request to the admin site, and what it may see, by bytes on the wire."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from OpenSSL import crypto
from twisted.internet.address import IPv4Address

from brokerd.broker import BrokerSettings
from brokerd.errors import (
    AuthenticationRequired,
    BrokerdError,
    Denied,
    LoginFailed,
    LoginThrottled,
)
from brokerd.security import ANY, MONITOR, OPEN, READ, Access, Guard
from brokerd.security.guard import LoginDone
from brokerd.security.passwords import RUNNING_MAX, SOURCE_MAX, Passwords
from brokerd.worker_pool import run_inline
from tests.admin.caller import JSON, Caller, Wire, answer_of
from tests.certificates import Authority
from tests.guards import account_guard
from tests.house import House


class Allowed(Access):
    """Somebody who has permissions on topics, and others on everything."""

    def __init__(self, name: str, topics: dict[str, int], server: int = 0) -> None:
        self.name = name
        self._topics = topics
        self._server = server

    @property
    def is_known(self) -> bool:
        return bool(self.name)

    def require_known(self) -> None:
        if not self.name:
            raise self._refuse()

    def require_lists(self) -> None:
        self.require_known()

    def _refuse(self) -> BrokerdError:
        return (
            Denied("unauthorized")
            if self.name
            else AuthenticationRequired("authentication required")
        )

    def require(self, permission: int, topic_name: str) -> None:
        if not permission & (self._topics.get(topic_name, 0) | self._server):
            raise self._refuse()

    def require_any(self, topic_name: str) -> None:
        self.require(ANY, topic_name)

    def require_server(self, permission: int) -> None:
        if not permission & self._server:
            raise self._refuse()

    def may(self, permission: int, topic_name: str) -> bool:
        return bool(permission & (self._topics.get(topic_name, 0) | self._server))


class Door(Guard):
    """Knows ann, who reads orders, root, who may do everything, and one key."""

    auth = True

    def __init__(self) -> None:
        self.checked = 0
        self.changes = 0
        self.known = {
            ("ann", "pw"): Allowed("ann", {"orders": READ}),
            ("root", "pw"): Allowed("root", {}, 15),
            ("eye", "pw"): Allowed("eye", {}, MONITOR),
        }

    @property
    def version(self) -> int:
        return self.changes

    def begin(self, form: str, peer: str) -> Access:
        return Allowed("", {})

    def by_certificate(self, form: str, peer: str, subject: str, common_name: str) -> Access:
        self.checked += 1
        return self.known[common_name, "pw"]

    def log_in(self, form: str, peer: str, name: str, password: str, done: LoginDone) -> None:
        self.checked += 1
        access = self.known.get((name, password))
        if name == "busy":
            done(None, LoginThrottled("too many failed logins; try again in 3 s"))
        elif access is None:
            done(None, LoginFailed("invalid username or password"))
        else:
            done(access, None)

    def log_in_with_key(self, form: str, peer: str, key: str) -> Access:
        if key != "secret-key":
            raise LoginFailed("invalid key")
        return self.known["ann", "pw"]


@pytest.fixture
def door() -> Door:
    return Door()


@pytest.fixture
def caller(door: Door) -> Caller:
    caller = Caller(guard=door)
    caller.house.broker.topics.create("orders")
    caller.house.broker.topics.create("secret")
    caller.house.run()
    return caller


def basic(name: str, password: str = "pw") -> str:
    return f"authorization: Basic {b64encode(f'{name}:{password}'.encode()).decode()}\r\n"


def ask(caller: Caller, path: str, head: str = "") -> tuple[int, Any]:
    return caller.call("GET", path, head=head)


def test_without_a_login_nothing_is_shown_and_browsers_are_asked_for_one(caller: Caller) -> None:
    _, wire = caller.send("GET", "/topics/orders", head="")
    caller.house.run()
    assert b"401 Unauthorized" in wire.value()
    assert b'www-authenticate: Basic realm="brokerd"' in wire.value().lower().replace(
        b"basic", b"Basic"
    )
    assert ask(caller, "/topics/orders")[1] == {
        "error": "authentication required",
        "retryable": False,
    }


def test_a_topic_that_is_there_and_one_that_is_not_are_refused_alike(caller: Caller) -> None:
    for path in ("", "/records", "/groups", "/groups/g", "/groups/g/leases"):
        there = ask(caller, f"/topics/secret{path}", basic("ann"))
        missing = ask(caller, f"/topics/nothing{path}", basic("ann"))
        assert there == missing == (403, {"error": "unauthorized", "retryable": False})


def test_who_may_read_a_topic_reads_it_and_does_not_delete_it(caller: Caller) -> None:
    assert ask(caller, "/topics/orders/records", basic("ann"))[0] == 200
    assert (
        caller.call(
            "DELETE", "/topics/orders", head=basic("ann") + "content-type: application/json\r\n"
        )[0]
        == 403
    )
    assert caller.house.broker.topics.find("orders") is not None


def test_a_list_shows_what_one_may_know(caller: Caller) -> None:
    assert [one["name"] for one in ask(caller, "/topics", basic("ann"))[1]["topics"]] == ["orders"]
    assert len(ask(caller, "/topics", basic("root"))[1]["topics"]) == 2
    assert ask(caller, "/topics")[0] == 401


def test_a_page_that_is_full_does_not_tell_of_topics_that_one_may_not_know(caller: Caller) -> None:
    """The topic behind it is a secret."""
    page = ask(caller, "/topics?limit=1", basic("ann"))[1]
    assert [one["name"] for one in page["topics"]] == ["orders"] and page["next"] is None
    assert ask(caller, "/topics?limit=1", basic("root"))[1]["next"] == 1


def test_making_a_topic_needs_admin_and_does_not_tell_whether_it_is_there(caller: Caller) -> None:
    head = basic("ann") + "content-type: application/json\r\n"
    answers = [caller.call("POST", "/topics", {"name": name}, head) for name in ("orders", "new")]
    assert answers == [(403, {"error": "unauthorized", "retryable": False})] * 2


def test_a_key_lets_in_and_a_wrong_one_does_not(caller: Caller) -> None:
    assert ask(caller, "/topics/orders", "authorization: Bearer secret-key\r\n")[0] == 200
    assert ask(caller, "/topics/orders", "authorization: Bearer other\r\n")[0] == 401


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (basic("ann", "wrong"), 401),
        (basic("busy"), 429),
        ("authorization: Basic !!!\r\n", 400),
        ("authorization: Basic YW5u\r\n", 400),
        ("authorization: Digest x\r\n", 400),
        ("authorization: \udcff\r\n", 400),
    ],
)
def test_a_login_that_does_not_work_is_told(caller: Caller, head: str, status: int) -> None:
    answer = ask(caller, "/topics/orders", head)
    assert answer[0] == status and answer[1]["error"]
    assert "wrong" not in answer[1]["error"]


def test_a_right_password_is_checked_once_until_accounts_change(caller: Caller, door: Door) -> None:
    for _ in range(3):
        ask(caller, "/topics/orders", basic("ann"))
    assert door.checked == 1
    door.changes += 1
    ask(caller, "/topics/orders", basic("ann"))
    assert door.checked == 2
    caller.house.clock.advance(301)
    ask(caller, "/topics/orders", basic("ann"))
    assert door.checked == 3


def test_each_address_is_told_of_by_itself_in_the_audit_trail() -> None:
    """A password that is remembered from one address does not make that the address of others."""
    house = House(settings=BrokerSettings(audit_keep_us=86_400_000_000))
    accounts, audit = house.broker.accounts, house.broker.audit
    accounts.create_account(OPEN, "root", "pw", ("admin",), lambda account, error: None)
    guard = account_guard(house, audit.record)
    caller = Caller(house, guard)
    hosts = ["192.0.2.1", "192.0.2.2", "192.0.2.1"]
    for number, host in enumerate(hosts):
        channel, wire = caller.connect()
        wire.peerAddr = IPv4Address("TCP", host, 50_000)
        body = json.dumps({"name": f"topic-{number}"})
        lines = f"POST /api/v1/topics HTTP/1.1\r\nhost: here\r\n{basic('root')}{JSON}"
        channel.dataReceived(f"{lines}content-length: {len(body)}\r\n\r\n{body}".encode())
        house.run()
        assert wire.value().startswith(b"HTTP/1.1 201 ")
    events = caller.call("GET", "/audit", head=basic("root"))[1]["events"]
    came = [one["client_ip"] for one in events if one["type"] == "topic.create"]
    assert came == hosts[::-1]
    logins = [one["client_ip"] for one in events if one["type"] == "auth.success"]
    assert logins[-2:] == ["192.0.2.2", "192.0.2.1"]


def test_a_password_that_is_remembered_is_no_way_past_the_throttle() -> None:
    """From an address of which too many guesses failed the right one gets the same answer."""
    house = House()
    accounts = house.broker.accounts
    accounts.create_account(OPEN, "root", "pw", ("admin",), lambda account, error: None)
    guard = account_guard(house, lambda event: None)
    caller = Caller(house, guard)
    assert ask(caller, "/users", basic("root"))[0] == 200
    guesses = [ask(caller, "/users", basic("root", f"guess {number}")) for number in range(40)]
    assert {status for status, _ in guesses} == {401, 429}
    assert ask(caller, "/users", basic("root")) == guesses[-1]
    house.clock.advance(30)
    assert ask(caller, "/users", basic("root"))[0] == 200


class Slow(Caller):
    """A site with the administrator root, where passwords are hashed when `finish` says."""

    def __init__(self) -> None:
        house = House()
        accounts = house.broker.accounts
        accounts.create_account(OPEN, "root", "pw", ("admin",), lambda account, error: None)
        self._hashes: list[Callable[[], None]] = []
        accounts.passwords = Passwords(
            lambda work, done: self._hashes.append(lambda: run_inline(work, done)), os.urandom
        )
        guard = account_guard(house)
        super().__init__(house, guard)

    def begin(self, *passwords: str) -> list[Wire]:
        """Send a request of root with each password."""
        wires = [self.send("GET", "/users", head=basic("root", one))[1] for one in passwords]
        self.house.run()
        return wires

    def finish(self) -> None:
        while self._hashes:
            self._hashes.pop(0)()
        self.house.run()


def test_requests_at_once_with_the_right_password_are_all_answered() -> None:
    """None is refused because others are being checked, before the password is remembered."""
    caller = Slow()
    wires = caller.begin(*["pw"] * 50)
    caller.finish()
    assert {answer_of(wire)[0] for wire in wires} == {200}
    assert caller.house.broker.status()["audit"]["logins_failed"] == 0
    (wire,) = caller.begin("pw")
    assert answer_of(wire)[0] == 200


def test_requests_for_which_there_is_no_place_are_told_so_and_are_no_failed_logins() -> None:
    caller = Slow()
    wires = caller.begin(*["pw"] * (RUNNING_MAX + SOURCE_MAX + 1))
    text = "too many logins at once; try again in a second"
    assert answer_of(wires[-1]) == (429, {"error": text, "retryable": True})
    caller.finish()
    assert {answer_of(wire)[0] for wire in wires[:-1]} == {200}
    counts = caller.house.broker.status()["audit"]
    assert (counts["logins_failed"], counts["logins_refused"]) == (0, 1)


def test_a_password_that_is_remembered_is_no_guess_for_free_among_many_at_once() -> None:
    """It has its turn among the guesses, and is refused after twenty of them."""
    caller = Slow()
    caller.begin("pw")
    caller.finish()
    wires = caller.begin(*[f"guess {number}" for number in range(30)], "pw")
    assert all(not wire.value() for wire in wires)
    caller.finish()
    assert [answer_of(wire)[0] for wire in wires] == [401] * 20 + [429] * 11


def test_a_wrong_password_is_checked_each_time(caller: Caller, door: Door) -> None:
    for _ in range(3):
        ask(caller, "/topics/orders", basic("ann", "wrong"))
    assert door.checked == 3


@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics"])
def test_status_and_metrics_are_for_monitors(caller: Caller, path: str) -> None:
    def get(head: str) -> int:
        channel, wire = caller.connect()
        lines = f"GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n{head}\r\n"
        channel.dataReceived(lines.encode())
        caller.house.run()
        return int(wire.value().split()[1])

    assert get("") == 401
    assert get(basic("ann")) == 403
    assert get(basic("eye")) == get(basic("root")) == 200


def test_health_is_open_and_says_no_more_than_the_phase(caller: Caller) -> None:
    channel, wire = caller.connect()
    channel.dataReceived(b"GET /health/live HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n")
    caller.house.run()
    status, body = answer_of(wire)
    assert status == 200 and set(body) == {"phase"}


def test_a_bad_body_is_not_looked_at_for_who_may_not_write(caller: Caller) -> None:
    head = basic("ann") + "content-type: application/json\r\n"
    status, body = caller.call("POST", "/topics/secret/records", b"{", head)
    assert status == 403 and json.dumps(body)


def test_admin_by_role_is_needed_for_the_journal(caller: Caller) -> None:
    head = basic("eye") + "content-type: application/json\r\n"
    assert caller.call("POST", "/wal/seal", {}, head)[0] == 403


@pytest.fixture(scope="module")
def anns(tmp_path_factory: pytest.TempPathFactory) -> crypto.X509:
    issued = Authority(tmp_path_factory.mktemp("asker")).issue("ann")
    return crypto.load_certificate(crypto.FILETYPE_PEM, issued.certificate.read_bytes())


def over_tls(caller: Caller, certificate: crypto.X509 | None, heads: Sequence[str]) -> list[int]:
    """The status of each of some requests for a topic, on one connection."""
    channel, wire = caller.connect()
    wire.getPeerCertificate = lambda: certificate
    statuses = []
    for head in heads:
        wire.clear()
        lines = f"GET /api/v1/topics/orders HTTP/1.1\r\nhost: here\r\n{head}\r\n"
        channel.dataReceived(lines.encode())
        caller.house.run()
        statuses.append(int(wire.value().split(b" ", 2)[1]))
    return statuses


def test_a_client_with_a_certificate_needs_no_login(
    caller: Caller, door: Door, anns: crypto.X509
) -> None:
    """Whom it names is asked once for each connection."""
    assert over_tls(caller, anns, ["", "", ""]) == [200, 200, 200]
    assert door.checked == 1


def test_a_login_counts_for_its_request_and_the_certificate_for_the_others(
    caller: Caller, anns: crypto.X509
) -> None:
    """A failed one is not forgiven because of the certificate."""
    heads = ["", basic("eye"), "", basic("ann", "wrong"), ""]
    assert over_tls(caller, anns, heads) == [200, 403, 200, 401, 200]


def test_tls_without_a_certificate_is_no_login(caller: Caller) -> None:
    assert over_tls(caller, None, [""]) == [401]
