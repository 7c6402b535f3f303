"""A site that asks nobody who he is answers for names only that no stranger can have."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.interfaces import ISSLTransport
from zope.interface import directlyProvides

from brokerd.admin.http.hosts import Hosts
from tests.admin.caller import JSON, Caller, answer_of


def status_of(caller: Caller, head: str) -> int:
    channel, wire = caller.connect()
    channel.dataReceived(f"GET /api/v1/topics HTTP/1.1\r\n{head}\r\n".encode())
    caller.house.run()
    return int(wire.value().split()[1])


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:9644", "192.0.2.7", "[::1]", "[::1]:9644", "localhost"),
        *("LocalHost:9644", "localhost.", "broker", "box.example.org", "BOX.example.org.:9644"),
        "log.example.com",
    ],
)
def test_addresses_and_names_that_are_known_are_answered(host: str) -> None:
    caller = Caller(hosts=Hosts(["box.example.org", "Log.example.com"]))
    assert status_of(caller, f"host: {host}\r\n") == 200


@pytest.mark.parametrize(
    "head",
    [
        *("host: evil.example\r\n", "host: evil.example:9644\r\n", "host: 127.0.0.1.nip.io\r\n"),
        *("host: x.localhost.evil.example\r\n", "host: localhost\r\nhost: evil.example\r\n"),
        "host: [evil.example]\r\n",
        *("host: localhost:evil.example\r\n", "host: [::1].evil.example\r\n"),
        *("host: localhost:80@evil.example\r\n", "host: 127.0.0.1:1:evil.example\r\n"),
        *("host: localhost/evil.example\r\n", "host: [::1]evil\r\n"),
    ],
)
def test_a_page_whose_name_was_made_to_lead_here_reads_nothing(head: str) -> None:
    assert status_of(Caller(hosts=Hosts(["box.example.org"])), head) == 403


def test_the_refusal_says_what_to_set() -> None:
    caller = Caller(hosts=Hosts([]))
    channel, wire = caller.connect()
    name = "x" * 1_000 + ".example"
    channel.dataReceived(f"GET / HTTP/1.1\r\nhost: {name}\r\n\r\n".encode())
    status, answer = answer_of(wire)
    assert (status, answer["retryable"]) == (403, False)
    assert "admin.hosts" in answer["error"] and len(answer["error"]) < 400


def test_a_request_without_a_host_is_no_browsers() -> None:
    caller = Caller(hosts=Hosts([]))
    channel, wire = caller.connect()
    channel.dataReceived(b"GET /health/live HTTP/1.0\r\n\r\n")
    assert wire.value().startswith(b"HTTP/1.0 200 ")


def test_a_site_that_asks_who_it_is_answers_for_any_name() -> None:
    assert status_of(Caller(), "host: evil.example\r\n") == 200


def test_a_site_that_is_open_checks_the_writes_of_pages() -> None:
    """Its readers know it by any name; a page that made its name lead here changes nothing."""
    caller = Caller(hosts=Hosts(["box.example.org"], only_writes=True))
    assert status_of(caller, "host: evil.example\r\n") == 200

    def create(name: str, host: str, head: str) -> int:
        channel, wire = caller.connect()
        lines = f"POST /api/v1/topics HTTP/1.1\r\nhost: {host}\r\n{JSON}{head}"
        body = f'{{"name": "{name}"}}'
        channel.dataReceived(f"{lines}content-length: {len(body)}\r\n\r\n{body}".encode())
        caller.house.run()
        return int(wire.value().split()[1])

    assert create("a", "evil.example", "origin: http://evil.example\r\n") == 403
    assert create("b", "evil.example", "sec-fetch-site: same-origin\r\n") == 403
    assert create("c", "evil.example", "") == 201
    assert create("d", "box.example.org", "origin: http://box.example.org\r\n") == 201


LOGIN = "authorization: Basic cm9vdDpndWVzcw==\r\n"
KEY = "authorization: Bearer bk_1_2\r\n"


@pytest.mark.parametrize(
    ("path", "head", "status"),
    [
        ("/api/v1/topics", "", 403),
        ("/%61pi/v1/topics", "", 403),
        ("/api/v1/openapi.json", "", 403),
        ("/api/v1/topics", LOGIN, 403),
        ("/metrics", LOGIN, 403),
        ("/api/v1/topics", "origin: http://evil.example\r\n", 403),
        ("/api/v1/topics", "sec-fetch-site: cross-site\r\n", 403),
        ("/api/v1/topics", "sec-fetch-site: none\r\nsec-fetch-site: cross-site\r\n", 403),
        ("/api/v1/topics", "origin: https://evil.example\r\norigin: http://a\r\n", 403),
        ("/", "", 200),
        ("/console.js", "", 200),
        ("/health/live", "", 200),
        ("/api/v1/topics", KEY, 200),
        ("/api/v1/topics", "sec-fetch-site: same-origin\r\n", 200),
        ("/api/v1/topics", "origin: https://evil.example\r\n", 200),
    ],
)
def test_with_logins_a_page_whose_name_was_made_to_lead_here_guesses_none(
    path: str, head: str, status: int
) -> None:
    """Keys, and browsers that reach a proxy by HTTPS, use any name."""
    caller = Caller(hosts=Hosts(["box.example.org"], has_login=True))

    def ask(host: str) -> tuple[int, Any]:
        channel, wire = caller.connect()
        lines = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{head}\r\n"
        channel.dataReceived(lines.encode())
        caller.house.run()
        top, _, body = wire.value().partition(b"\r\n\r\n")
        return int(top.split()[1]), body

    found, body = ask("evil.example")
    assert found == status
    assert (b"admin.hosts" in body) == (status == 403)
    if "sec-fetch" not in head and "origin" not in head:
        assert ask("box.example.org:9644")[0] == ask("127.0.0.1")[0] == 200


def test_over_tls_any_name_is_answered() -> None:
    """The certificate tells the name."""
    caller = Caller(hosts=Hosts([], has_login=True))
    channel, wire = caller.connect()
    directlyProvides(wire, ISSLTransport)
    lines = "GET /api/v1/topics HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n"
    channel.dataReceived(lines.encode())
    caller.house.run()
    assert wire.value().startswith(b"HTTP/1.1 200 ")
