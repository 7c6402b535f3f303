"""Sessions of browsers: login, cookie, token for writes, and the ends of a session."""

from __future__ import annotations

import json
from base64 import b64encode
from http.cookies import SimpleCookie
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.interfaces import ISSLTransport
from zope.interface import directlyProvides

from brokerd.admin.http.sessions import (
    ACCOUNT_SESSIONS_MAX,
    IDLE_SECONDS,
    LIFE_SECONDS,
    SESSIONS_MAX,
)
from brokerd.broker import BrokerSettings
from brokerd.security import OPEN
from tests.admin.caller import JSON, Caller, answer_of
from tests.guards import account_guard
from tests.house import House

PAGE = "origin: http://here\r\n"
ROOT = f"authorization: Basic {b64encode(b'root:pw').decode()}\r\n"


class Site(Caller):
    """A site with the administrator root and the reader ann, and the browsers of both."""

    def __init__(self) -> None:
        house = House(settings=BrokerSettings(audit_keep_us=86_400_000_000))
        accounts = house.broker.accounts
        for name, role in (("root", "admin"), ("ann", "consumer")):
            accounts.create_account(OPEN, name, "pw", (role,), lambda account, error: None)
        guard = account_guard(house)
        super().__init__(house, guard)


class Browser:
    """A browser at an address: keeps the cookie, and sends the token that its page was given."""

    def __init__(self, site: Site, host: str = "192.0.2.1", port: int = 9644) -> None:
        self.site = site
        self.cookies: SimpleCookie = SimpleCookie()
        self.token = ""
        self.is_tls = False
        self._addresses = IPv4Address("TCP", host, 50_000), IPv4Address("TCP", "127.0.0.1", port)

    def send(self, method: str, path: str, body: Any = None, head: str | None = None) -> Any:
        """Send a request of the page; return status and answer."""
        channel, wire = self.site.connect()
        wire.peerAddr, wire.hostAddr = self._addresses
        if self.is_tls:
            directlyProvides(wire, ISSLTransport)
        raw = b"" if body is None else json.dumps(body).encode()
        lines = f"{method} /api/v1{path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n"
        if head is None:
            head = f"{PAGE}x-csrf-token: {self.token}\r\n"
        if self.cookies:
            cookies = "; ".join(f"{one.key}={one.value}" for one in self.cookies.values())
            head += f"cookie: {cookies}\r\n"
        lines += f"{JSON}{head}content-length: {len(raw)}\r\n\r\n"
        channel.dataReceived(lines.encode() + raw)
        self.site.house.run()
        self.headers = wire.value().partition(b"\r\n\r\n")[0].decode()
        for line in self.headers.split("\r\n"):
            if line.lower().startswith("set-cookie: "):
                self.cookies.load(line.partition(": ")[2])
        return answer_of(wire)

    def log_in(self, name: str = "root", password: str = "pw") -> tuple[int, Any]:
        status, answer = self.send("POST", "/session", {"name": name, "password": password})
        self.token = answer.get("csrf_token", "")
        return status, answer

    def who(self, head: str | None = None) -> str:
        """Return the account as which the API sees the browser."""
        status, answer = self.send("GET", "/whoami", head=head)
        assert status == 200
        return str(answer["name"])


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def browser(site: Site) -> Browser:
    browser = Browser(site)
    assert browser.log_in()[0] == 201
    return browser


def test_a_login_sets_a_cookie_that_no_script_and_no_other_site_can_use(site: Site) -> None:
    browser = Browser(site)
    assert browser.who() == ""
    status, answer = browser.log_in()
    assert (status, answer["name"], answer["seconds_left"]) == (201, "root", IDLE_SECONDS)
    (line,) = [one for one in browser.headers.split("\r\n") if one.lower().startswith("set-cookie")]
    assert line.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert answer["csrf_token"] not in line
    assert [*browser.cookies] == ["brokerd-9644"]
    assert browser.who() == "root"
    assert browser.send("GET", "/session")[1]["csrf_token"] == answer["csrf_token"]


def test_over_tls_the_cookie_is_secure(site: Site) -> None:
    browser = Browser(site)
    browser.is_tls = True
    body = {"name": "root", "password": "pw"}
    assert browser.send("POST", "/session", body, "origin: https://here\r\n")[0] == 201
    assert "; SameSite=Strict; Secure\r\n" in f"{browser.headers}\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (None, 201),
        ("sec-fetch-site: same-origin\r\nx-csrf-token: TOKEN\r\n", 201),
        ("x-csrf-token: TOKEN\r\n", 403),
        (PAGE, 403),
        (f"{PAGE}x-csrf-token: x\r\n", 403),
        (f"{PAGE}x-csrf-token:\r\n", 403),
        ("origin: http://evil.example\r\nx-csrf-token: TOKEN\r\n", 403),
        (f"{PAGE}sec-fetch-site: cross-site\r\nx-csrf-token: TOKEN\r\n", 403),
    ],
)
def test_a_write_needs_the_token_and_a_page_of_the_site(
    browser: Browser, head: str | None, status: int
) -> None:
    """Each of the two alone is not enough; a read needs neither."""
    given = None if head is None else head.replace("TOKEN", browser.token)
    assert browser.send("POST", "/topics", {"name": "orders"}, given)[0] == status
    assert (browser.site.house.broker.topics.find("orders") is not None) == (status == 201)
    assert browser.send("GET", "/topics", head="")[0] == 200


def test_the_token_of_another_session_is_not_enough(browser: Browser) -> None:
    other = Browser(browser.site)
    other.log_in("ann")
    assert browser.token != other.token
    browser.token = other.token
    assert browser.send("POST", "/topics", {"name": "orders"})[0] == 403


def test_programs_need_neither_cookie_nor_token(site: Site) -> None:
    """With a password or a key, a cookie changes nothing."""
    browser = Browser(site)
    browser.log_in("ann")
    basic = "authorization: Basic cm9vdDpwdw==\r\n"
    assert browser.send("POST", "/topics", {"name": "orders"}, basic)[0] == 201
    assert browser.who(basic) == "root"


def test_a_session_has_the_permissions_of_its_account(site: Site) -> None:
    browser = Browser(site)
    browser.log_in("ann")
    assert browser.send("POST", "/topics", {"name": "orders"})[0] == 403
    assert browser.send("GET", "/users")[0] == 403


def test_a_failed_login_gives_no_session_and_is_in_the_audit_trail(site: Site) -> None:
    """It counts for the throttle, as all logins."""
    browser = Browser(site)
    assert browser.log_in("root", "guess") == (
        401,
        {"error": "invalid username or password", "retryable": False},
    )
    assert not browser.cookies and len(site.authenticator.sessions) == 0
    statuses = {browser.log_in("root", f"guess {number}")[0] for number in range(40)}
    assert statuses == {401, 429}
    assert browser.log_in()[0] == 429
    site.house.clock.advance(60)
    assert browser.log_in()[0] == 201
    events = browser.send("GET", "/audit?limit=1000")[1]["events"]
    logins = [one for one in events if one["type"].startswith("auth.")]
    assert {one["client_ip"] for one in logins} == {"192.0.2.1"}
    kinds = [one["type"] for one in logins]
    assert "auth.failure" in kinds and kinds.count("auth.success") == 1


def test_a_browser_is_not_asked_for_a_password_by_a_page_with_a_form(site: Site) -> None:
    """Other clients are, as before."""
    browser = Browser(site)
    assert browser.send("GET", "/topics", head="x-requested-with: XMLHttpRequest\r\n")[0] == 401
    assert "www-authenticate: session" in browser.headers.lower()
    assert browser.send("GET", "/topics", head="")[0] == 401
    assert "www-authenticate: basic" in browser.headers.lower()


def test_a_logout_ends_the_session(browser: Browser) -> None:
    """On the server, too: a copy of the cookie is worth nothing."""
    copy = SimpleCookie(browser.cookies.output(header=""))
    assert browser.send("DELETE", "/session", head=PAGE)[0] == 403
    assert browser.send("DELETE", "/session") == (200, {"deleted": "root"})
    assert "; Max-Age=0" in browser.headers
    browser.cookies = copy
    assert browser.who() == "" and browser.send("GET", "/session")[0] == 404


def test_a_session_ends_without_use(browser: Browser) -> None:
    """Requests that a page repeats by itself are no use."""
    clock = browser.site.house.clock
    clock.advance(IDLE_SECONDS - 1)
    assert browser.who() == "root"
    clock.advance(IDLE_SECONDS - 1)
    assert browser.who("x-poll: 1\r\n") == "root"
    clock.advance(2)
    assert browser.who("x-poll: 1\r\n") == ""
    assert len(browser.site.authenticator.sessions) == 0


def test_a_session_ends_after_its_longest_life(browser: Browser) -> None:
    clock = browser.site.house.clock
    for _ in range(int(LIFE_SECONDS / 1_800) - 1):
        clock.advance(1_800)
        assert browser.who() == "root"
    assert browser.send("GET", "/session")[1]["seconds_left"] == 1_800
    clock.advance(1_801)
    assert browser.who() == ""


def test_a_session_ends_with_its_login(site: Site) -> None:
    """Another password, a disabled account; not a change by the session itself."""
    ann, root = Browser(site), Browser(site)
    ann.log_in("ann")
    root.log_in()
    body = {"password": "new", "current": "pw"}
    assert ann.send("POST", "/users/ann/password", body)[0] == 200
    assert ann.who() == "ann"
    assert root.send("POST", "/users/ann/password", {"password": "newer"})[0] == 200
    assert ann.who() == ""
    ann.log_in("ann", "newer")
    assert root.send("PATCH", "/users/ann", {"enabled": False})[0] == 200
    assert ann.who() == ""
    assert root.send("PATCH", "/users/ann", {"enabled": True})[0] == 200
    assert ann.who() == ""


def test_a_cookie_from_another_address_or_port_is_no_login(browser: Browser) -> None:
    """Another broker on the same host keeps its own cookie."""
    for elsewhere in (Browser(browser.site, "192.0.2.2"), Browser(browser.site, port=9645)):
        elsewhere.cookies = browser.cookies
        assert elsewhere.who() == ""
    assert browser.who() == "root"


@pytest.mark.parametrize("value", ["", "x", "0" * 64, "é", '"'])
def test_a_wrong_cookie_is_no_login(browser: Browser, value: str) -> None:
    channel, wire = browser.site.connect()
    lines = "GET /api/v1/topics HTTP/1.1\r\nhost: here\r\nconnection: close\r\n"
    channel.dataReceived(f"{lines}cookie: a; brokerd-9644={value}; =\r\n\r\n".encode())
    browser.site.house.run()
    assert answer_of(wire)[0] == 401


def test_sessions_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was not used for the longest time ends: of the account, then of all."""
    browsers = [Browser(site) for _ in range(ACCOUNT_SESSIONS_MAX + 1)]
    for browser in browsers[:-1]:
        browser.log_in()
    assert browsers[0].who() == "root"
    browsers[-1].log_in()
    assert [browser.who() for browser in browsers[:3]] == ["root", "", "root"]
    assert SESSIONS_MAX == 1_000
    monkeypatch.setattr("brokerd.admin.http.sessions.SESSIONS_MAX", ACCOUNT_SESSIONS_MAX)
    ann = Browser(site)
    ann.log_in("ann")
    assert len(site.authenticator.sessions) == ACCOUNT_SESSIONS_MAX
    assert (ann.who(), browsers[3].who()) == ("ann", "")


def test_logins_of_other_accounts_do_not_end_a_single_session(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the bound of all sessions, the account with the most loses one."""
    monkeypatch.setattr("brokerd.admin.http.sessions.SESSIONS_MAX", 3)
    root = Browser(site)
    root.log_in()
    others = [Browser(site) for _ in range(4)]
    for one in others:
        one.log_in("ann")
    assert root.who() == "root" and len(site.authenticator.sessions) == 3
    assert [one.who() for one in others] == ["", "", "ann", "ann"]


def test_a_new_login_ends_the_session_before(browser: Browser) -> None:
    browser.log_in("ann")
    assert browser.who() == "ann" and len(browser.site.authenticator.sessions) == 1


def test_a_request_with_the_cookies_of_several_sessions_has_none_of_them(site: Site) -> None:
    """Another server on the same host planted cookies of ann before root logs in; then one more."""
    planted = [Browser(site), Browser(site)]
    for one in planted:
        one.log_in("ann")
    before = [one.cookies["brokerd-9644"].value for one in planted]
    root = Browser(site)
    assert root.log_in()[0] == 201
    own = root.cookies["brokerd-9644"].value

    def who(*values: str) -> str:
        cookies = "".join(f"cookie: brokerd-9644={value}\r\n" for value in values)
        return Browser(site).who(cookies)

    assert who(own) == who("over", own, own) == "root"
    assert who(before[0], own) == who(own, before[0]) == ""
    body = {"name": "root", "password": "pw"}
    cookies = "".join(f"cookie: brokerd-9644={value}\r\n" for value in [*before, own])
    browser = Browser(site)
    assert browser.send("POST", "/session", body, PAGE + cookies)[0] == 201
    assert [who(value) for value in [*before, own]] == ["", "", ""]
    assert len(site.authenticator.sessions) == 1


def test_a_large_body_is_authenticated_by_the_cookie_before_it_arrives(browser: Browser) -> None:
    records = [{"value": "x" * 100_000}]
    status, _ = browser.send("POST", "/topics/orders/records", {"records": records})
    assert status == 200


def test_without_security_there_is_nothing_to_log_in_to() -> None:
    caller = Caller()
    assert caller.post("/session", {"name": "a", "password": "b"})[0] == 404
    assert caller.get("/session")[0] == 404


def events_of(site: Site, kind: str) -> list[dict[str, Any]]:
    """Return the events of a type in the audit trail, without what differs each time."""
    status, answer = site.call("GET", f"/audit?type={kind}", head=JSON + ROOT)
    assert status == 200
    wanted = ("user", "client_ip", "format", "resource", "result", "details")
    return [{name: one[name] for name in wanted} for one in answer["events"]]


def test_a_logout_is_an_audit_event(browser: Browser) -> None:
    assert browser.send("DELETE", "/session")[0] == 200
    browser.site.house.clock.advance(1)
    browser.site.house.run()
    assert events_of(browser.site, "auth.logout") == [
        {
            "user": "root",
            "client_ip": "192.0.2.1",
            "format": "admin",
            "resource": "",
            "result": "success",
            "details": {},
        }
    ]


def test_an_administrator_lists_the_sessions(site: Site, browser: Browser) -> None:
    """Oldest first, in pages, without those that are over."""
    site.house.clock.advance(10)
    ann = Browser(site, "192.0.2.2")
    ann.log_in("ann")
    site.house.clock.advance(5)
    status, answer = browser.send("GET", "/sessions")
    assert status == 200 and answer["next"] is None
    own, other = answer["sessions"]
    assert (own["user"], own["address"], own["current"]) == ("root", "192.0.2.1", True)
    assert (own["open_seconds"], own["idle_seconds"], own["seconds_left"]) == (15, 0, IDLE_SECONDS)
    assert (other["user"], other["address"], other["current"]) == ("ann", "192.0.2.2", False)
    assert (other["open_seconds"], other["idle_seconds"]) == (5, 5)
    status, page = browser.send("GET", "/sessions?first=1&limit=1")
    assert [one["id"] for one in page["sessions"]] == [other["id"]]
    site.call("PATCH", "/users/ann", {"enabled": False}, JSON + ROOT)
    (left,) = browser.send("GET", "/sessions")[1]["sessions"]
    assert left["id"] == own["id"]


def test_an_administrator_ends_a_session(site: Site, browser: Browser) -> None:
    """Its browser has to log in again, and the audit trail has who ended it; again is a 404."""
    ann = Browser(site, "192.0.2.2")
    ann.log_in("ann")
    number = browser.send("GET", "/sessions")[1]["sessions"][1]["id"]
    assert browser.send("DELETE", f"/sessions/{number}") == (200, {"deleted": str(number)})
    assert (ann.who(), browser.who()) == ("", "root")
    status, answer = browser.send("DELETE", f"/sessions/{number}")
    assert (status, answer["error"]) == (
        404,
        f"there is no session {number}: it is over, or never existed",
    )
    (event,) = events_of(site, "session.end")
    assert (event["user"], event["resource"]) == ("root", str(number))
    assert event["details"] == {"address": "192.0.2.2", "ended_user": "ann"}


def test_sessions_are_for_administrators(site: Site) -> None:
    ann = Browser(site)
    ann.log_in("ann")
    assert ann.send("GET", "/sessions")[0] == ann.send("DELETE", "/sessions/1")[0] == 403
    assert ann.who() == "ann"
