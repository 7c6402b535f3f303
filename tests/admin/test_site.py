"""The admin site over an in-memory transport: answers, bounds, deadlines, access log."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.address import IPv4Address
from twisted.internet.protocol import connectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger, capturedLogs
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from brokerd.admin.api import make_api
from brokerd.admin.conditions import Condition
from brokerd.admin.health import Health, Phase
from brokerd.admin.http.authentication import Authenticator
from brokerd.admin.http.places import MAX_CONNECTIONS
from brokerd.admin.http.request import REQUEST_SECONDS
from brokerd.admin.site import IDLE_SECONDS, KEPT_DESCRIPTORS, make_site
from brokerd.codecs.mamamia import Acquire, Produce
from brokerd.security import OPEN_GUARD
from tests.broker.fakearchive import FakeArchive
from tests.house import House, ask

STATIC = Path(__file__).resolve().parents[2] / "brokerd" / "admin" / "static"
PEER = IPv4Address("TCP", "127.0.0.1", 4000)


class Wire(StringTransport):
    """A transport that knows when it was cut."""

    aborted = False

    def abortConnection(self) -> None:
        self.aborted = True
        self.loseConnection()


class Browser:
    """Talks to a site without a network."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.health = Health()
        self.slow = False
        self.site = make_site(
            lambda: {"phase": self.health.phase.value, "topics": 2},
            make_api(House().broker, Authenticator(OPEN_GUARD, self.clock.seconds, bytes(32))),
            self.health,
            lambda registry: Printed(registry, self.slow),
            self.clock,
            Logger(),
        )

    def connect(self) -> tuple[Any, Wire] | None:
        channel = self.site.buildProtocol(PEER)
        if channel is None:
            return None
        wire = Wire(peerAddress=PEER)
        channel.makeConnection(wire)
        return channel, wire

    def ask(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Send one request; return code, headers and body."""
        connected = self.connect()
        assert connected is not None
        channel, wire = connected
        channel.dataReceived(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        top, _, content = wire.value().partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        return int(status.split()[1]), headers, content

    def get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        return self.ask(f"GET {path} HTTP/1.0\nhost: here")


class Printed(Resource):
    """Prints a registry, in this thread, or never."""

    def __init__(self, registry: CollectorRegistry, slow: bool) -> None:
        super().__init__()
        self._registry = registry
        self._slow = slow

    def render_GET(self, request: Any) -> bytes | int:
        return NOT_DONE_YET if self._slow else generate_latest(self._registry)


@pytest.fixture
def browser() -> Browser:
    return Browser()


@pytest.mark.parametrize(
    ("phase", "live", "ready"),
    [
        (Phase.STARTING, 200, 503),
        (Phase.REPLAYING, 200, 503),
        (Phase.READY, 200, 200),
        (Phase.STOPPING, 200, 503),
        (Phase.FAILED, 503, 503),
    ],
)
def test_health_of_every_phase(browser: Browser, phase: Phase, live: int, ready: int) -> None:
    """Alive from the first moment unless it failed; ready only while clients are served."""
    browser.health.phase = phase
    assert browser.get("/health/live")[0] == live
    code, headers, body = browser.get("/health/ready")
    assert (code, headers["content-type"]) == (ready, "application/json")
    assert json.loads(body) == {"phase": phase.value}


def test_a_failure_gives_its_reason(browser: Browser) -> None:
    """The first reason is the one that is shown."""
    browser.health.fail("the disk is gone")
    browser.health.fail("something that followed")
    _, _, body = browser.get("/health/live")
    assert json.loads(body) == {"phase": "failed", "reason": "the disk is gone"}


def test_status_is_json(browser: Browser) -> None:
    """The page's source of facts is there for scripts too."""
    code, _, body = browser.get("/api/v1/status")
    assert (code, json.loads(body)["topics"]) == (200, 2)


def test_metrics_are_of_this_moment(browser: Browser) -> None:
    """Each scrape computes its figures anew."""
    code, _, body = browser.get("/metrics")
    assert code == 200
    assert b"brokerd_topics 2.0\n" in body


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/health",
        "/health/",
        "/health/dead",
        "/api",
        "/api/v1",
        "/api/v2/status",
        "/health/live/more",
        "/../etc/passwd",
        "/static/page.js",
    ],
)
def test_everything_else_is_404_as_json(browser: Browser, path: str) -> None:
    """A wrong path is told in the same language as the rest."""
    code, headers, body = browser.get(path)
    assert (code, headers["content-type"]) == (404, "application/json")
    assert json.loads(body) == {"error": "there is nothing here", "retryable": False}


def test_the_page_brings_all_it_needs(browser: Browser) -> None:
    """HTML, style and script come from here, and nothing from elsewhere."""
    _, headers, page = browser.get("/")
    assert headers["content-type"].startswith("text/html")
    assert headers["content-security-policy"] == (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    for name in re.findall(r'(?:href|src)="([^"]+)"', page.decode()):
        path, _, view = name.partition("#")
        assert browser.get(f"/{path}")[0] in (200, 503) and (not path or not view), name
    assert b"://" not in page + browser.get("/page.js")[2] + browser.get("/page.css")[2]


def test_the_modules_of_the_console_are_served_and_load_nothing_from_elsewhere(
    browser: Browser,
) -> None:
    """The import of a module that is missing would leave the page without its views."""
    modules, unread = {"page.js"}, ["console.js"]
    while unread:
        modules.add(unread[-1])
        code, headers, body = browser.get(f"/{unread.pop()}")
        assert (code, headers["content-type"]) == (200, "text/javascript; charset=utf-8")
        text = body.decode()
        unread += set(re.findall(r'from "./([\w.]+)"', text)) - modules
        assert "://" not in text.replace('"http://www.w3.org/2000/svg"', "")
    assert modules == {path.name for path in STATIC.glob("*.js")}


def test_no_script_parses_text_as_html(browser: Browser) -> None:
    """Names, keys, values and reasons are text of strangers."""
    for path in STATIC.glob("*.js"):
        found = re.findall(r"\w*HTML\w*|document\.write|eval\(", path.read_text())
        assert not found, path.name


def test_only_the_api_can_be_written_to(browser: Browser) -> None:
    """Nothing else answers to POST; what answers with JSON refuses in JSON."""
    for path in ("/health/live", "/api/v1/status", "/api/v1/openapi.json"):
        code, headers, body = browser.ask(f"POST {path} HTTP/1.0\ncontent-length: 2", b"{}")
        assert (code, headers["content-type"]) == (405, "application/json")
        assert headers["allow"] == "GET, HEAD"
        assert json.loads(body) == {"error": "read only: use GET or HEAD", "retryable": False}


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("content-length: 999999999999", b""),
        ("transfer-encoding: chunked", b"1000001\r\n" + b"x" * 0x1000001 + b"\r\n"),
    ],
)
def test_large_bodies_are_refused(browser: Browser, head: str, body: bytes) -> None:
    """Declared or chunked, a body over the bound gets 413 and the end of the connection."""
    connected = browser.connect()
    assert connected is not None
    channel, wire = connected
    channel.dataReceived(f"POST / HTTP/1.1\r\nhost: h\r\n{head}\r\n\r\n".encode() + body)
    assert wire.value().startswith(b"HTTP/1.1 413 Content Too Large\r\n")
    assert wire.value().count(b"HTTP/1.1") == 1
    assert wire.disconnecting


def test_a_request_that_trickles_in_is_cut_off(browser: Browser) -> None:
    """A byte now and then does not hold a connection for longer than the deadline."""
    connected = browser.connect()
    assert connected is not None
    channel, wire = connected
    channel.dataReceived(b"GET /health/live HTTP/1.1\r\n")
    for _ in range(int(REQUEST_SECONDS) - 1):
        browser.clock.advance(1)
        channel.dataReceived(b"x-slow: 1\r\n")
    assert not wire.aborted
    browser.clock.advance(1)
    assert wire.aborted


def test_an_answer_may_take_its_time(browser: Browser) -> None:
    """The deadline is for the request; a slow scrape is not cut off."""
    browser.slow = True
    connected = browser.connect()
    assert connected is not None
    channel, wire = connected
    channel.dataReceived(b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n")
    browser.clock.advance(REQUEST_SECONDS * 2)
    assert not wire.aborted


def test_a_connection_in_use_is_kept(browser: Browser) -> None:
    """A scraper may keep its connection: each request has a deadline of its own."""
    connected = browser.connect()
    assert connected is not None
    channel, wire = connected
    for _ in range(5):
        browser.clock.advance(IDLE_SECONDS - 1)
        channel.dataReceived(b"GET /health/live HTTP/1.1\r\nhost: h\r\n\r\n")
    assert wire.value().count(b"HTTP/1.1 200 OK") == 5
    assert not wire.aborted


def test_connections_are_bounded_and_given_back(browser: Browser) -> None:
    """Too many with a request are refused; one that ends makes room for another."""
    browser.slow = True
    connections = [browser.connect() for _ in range(MAX_CONNECTIONS)]
    for connected in connections:
        assert connected is not None
        connected[0].dataReceived(b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n")
    assert browser.connect() is None
    assert connections[0] is not None
    connections[0][0].connectionLost(connectionDone)
    assert browser.connect() is not None


def test_connections_leave_the_broker_some_descriptors(browser: Browser) -> None:
    browser.slow = True
    first = browser.connect()
    assert first is not None
    left = [KEPT_DESCRIPTORS - 1]
    browser.site.descriptors_left = lambda: left[0]
    assert browser.connect() is not None and first[1].aborted, "it makes room"
    browser.site.places.waiting.clear()
    assert browser.connect() is None
    left[0] += 1
    assert browser.connect() is not None


def test_whoever_says_nothing_makes_room_for_others(browser: Browser) -> None:
    """The one that has been silent for longest; an answer that is being made is not cut off."""
    browser.slow = True
    connections = [browser.connect() for _ in range(MAX_CONNECTIONS)]
    wires = [connected[1] for connected in connections if connected is not None]
    assert connections[0] is not None and connections[1] is not None
    connections[0][0].dataReceived(b"GET /metrics HTTP/1.1\r\nhost: h\r\n\r\n")
    connections[1][0].dataReceived(b"GET /health/live HTTP/1.1\r\nhost: h\r\n\r\n")
    for _ in range(MAX_CONNECTIONS // 2):
        assert browser.get("/health/live")[0] == 200
    aborted = [number for number, wire in enumerate(wires) if wire.aborted]
    assert aborted == [*range(2, 2 + MAX_CONNECTIONS // 2)]


def test_the_access_log_runs_on_the_wall_clock(browser: Browser) -> None:
    """The line's time comes from the log, whatever the reactor's clock says."""
    with capturedLogs() as captured:
        browser.ask('GET /a"b HTTP/1.0\nhost: h')
    (event,) = [event for event in captured if event.get("event_id") == "admin-request"]
    assert event["log_time"] > 1_600_000_000
    assert browser.clock.seconds() == 0
    facts = {name: event[name] for name in ("client", "method", "path", "code")}
    assert facts == {"client": "127.0.0.1", "method": "GET", "path": '/a"b', "code": 404}


@pytest.mark.parametrize("path", ["/health/live", "/health/ready"])
def test_a_degraded_broker_is_ready_and_says_why(browser: Browser, path: str) -> None:
    """What is sound is served: a supervisor must not take the broker away for what is not."""
    browser.health.phase = Phase.READY
    browser.health.conditions.add([Condition("log-damaged", lambda: "the log is damaged")])
    browser.health.conditions.check()
    code, _, body = browser.get(path)
    assert code == 200
    assert json.loads(body) == {
        "phase": "ready",
        "conditions": ["log-damaged"],
        "degraded": "the log is damaged",
    }


def test_the_page_has_a_place_for_damage(browser: Browser) -> None:
    """It is hidden until there is some; tests/test_conditions.py runs the page."""
    assert b'id="damage" class="damage" role="alert" hidden' in browser.get("/")[2]
    assert b"status.damage" in browser.get("/page.js")[2]


def test_the_page_has_a_place_for_the_archive(browser: Browser) -> None:
    """What it shows are facts of the status, and what is wrong is told with the damage."""
    script = browser.get("/page.js")[2].decode()
    body = script.partition("function archive(status) {")[2].partition("\n}")[0]
    used = set(re.findall(r"\bknown\.(\w+)", body))
    house = House(open_archive=FakeArchive().open)
    assert {"version", "bytes", "files", "error"} <= used <= set(house.broker.status()["archive"])
    places = set(re.findall(r'show\("([\w-]+)"', body))
    assert places == set(re.findall(r'id="(archive-\w+)"', browser.get("/")[2].decode()))


def test_the_page_shows_what_groups_are_in(browser: Browser) -> None:
    """Every column has a heading, and every fact is one of the status."""
    heads = browser.get("/")[2].decode().partition("<thead>")[2].partition("</thead>")[0]
    assert re.findall(r">(\w+)</th>", heads)[-4:] == ["floor", "committed", "start", "state"]
    script = browser.get("/page.js")[2].decode()
    house = House()
    ask(house, Produce("t", b"x"), Acquire("t", "g", "c"))
    (group,) = house.broker.status()["groups"]
    used = set(re.findall(r"\bgroup\.(\w+)", script))
    assert {"paused", "key_ordered", "start", "floor", "committed", "dead"} <= used <= set(group)


def test_the_page_without_javascript_names_where_to_look(browser: Browser) -> None:
    """``curl /`` must not look as if all were well."""
    body = browser.get("/")[2].decode()
    hint = body.partition("<noscript>")[2].partition("</noscript>")[0]
    assert "/api/v1/status" in hint and "/health/ready" in hint and "damage" in hint


@pytest.mark.parametrize("kind", ["\x0b application/json", "a\x85b", "\x1cx"])
def test_a_content_type_that_cannot_be_read_is_400(browser: Browser, kind: str) -> None:
    """Nothing is logged as a fault."""
    connected = browser.connect()
    assert connected is not None
    channel, wire = connected
    head = f"POST /api/v1/topics HTTP/1.1\r\nhost: here\r\ncontent-type:{kind}\r\n"
    with capturedLogs() as events:
        channel.dataReceived(head.encode("latin-1") + b"content-length: 2\r\n\r\n{}")
    assert wire.value().startswith(b"HTTP/1.1 400 ")
    assert not [event for event in events if "log_failure" in event]
