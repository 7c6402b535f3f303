"""Only a page of the admin site itself may write through a browser."""

from __future__ import annotations

import pytest
from twisted.internet.interfaces import ISSLTransport
from zope.interface import directlyProvides

from brokerd.admin.http.hosts import Hosts
from tests.admin.caller import JSON, Caller, answer_of


def create(head: str, host: str = "here:9644", tls: bool = False) -> int:
    """Return the status of a request to create a topic; check that a refusal changed nothing."""
    caller = Caller(hosts=Hosts(["broker.example"]))
    channel, wire = caller.connect()
    if tls:
        directlyProvides(wire, ISSLTransport)
    lines = f"POST /api/v1/topics HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{JSON}{head}"
    body = b'{"name": "orders"}'
    channel.dataReceived(f"{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    caller.house.run()
    status, _ = answer_of(wire)
    assert (caller.house.broker.topics.find("orders") is not None) == (status == 201)
    return status


@pytest.mark.parametrize(
    "head",
    [
        "",
        "origin: http://here:9644\r\n",
        "origin: http://HERE:9644\r\n",
        "origin: https://here:9644\r\nsec-fetch-site: same-origin\r\n",
        "sec-fetch-site: same-origin\r\n",
    ],
)
def test_programs_and_pages_of_the_site_write(head: str) -> None:
    """A proxy may end TLS in front of a plain listener."""
    assert create(head) == 201


@pytest.mark.parametrize(
    "head",
    [
        "origin: http://evil.example\r\n",
        "origin: http://here\r\n",
        "origin: http://here:9645\r\n",
        "origin: http://here:9644.evil.example\r\n",
        "origin: here:9644\r\n",
        "origin: ftp://here:9644\r\n",
        "origin: null\r\n",
        "origin:\r\n",
        "origin: http://here:9644\r\norigin: http://evil.example\r\n",
        "origin: http://here:9644\r\nsec-fetch-site: same-site\r\n",
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: none\r\n",
        "host: evil.example\r\norigin: http://evil.example\r\n",
    ],
)
def test_other_pages_do_not_write(head: str) -> None:
    """Also pages of other ports, and requests whose origin is ambiguous."""
    assert create(head) == 403


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("", 200),
        ("sec-fetch-site: same-origin\r\nsec-fetch-mode: cors\r\nsec-fetch-dest: empty\r\n", 200),
        ("sec-fetch-site: none\r\nsec-fetch-dest: document\r\n", 200),
        ("sec-fetch-site: cross-site\r\nsec-fetch-dest: document\r\n", 200),
        ("sec-fetch-site: cross-site\r\nsec-fetch-dest: object\r\n", 403),
        ("sec-fetch-site: cross-site\r\nsec-fetch-dest: iframe\r\n", 403),
        ("sec-fetch-site: same-site\r\nsec-fetch-dest: script\r\n", 403),
        ("sec-fetch-site: same-site\r\nsec-fetch-dest: empty\r\n", 403),
        ("sec-fetch-site: cross-site\r\n", 403),
    ],
)
def test_other_pages_embed_no_answer(head: str, status: int) -> None:
    """A page sees whether an ``<object>`` loads, and so would learn names of topics and accounts.
    A link to this site works.
    """
    caller = Caller()
    caller.post("/topics", {"name": "orders"})
    missing = 404 if status == 200 else status
    for path, wanted in [("/topics/orders", status), ("/topics/other", missing)]:
        assert caller.call("GET", path, head=head)[0] == wanted


@pytest.mark.parametrize("path", ["/", "/metrics", "/api/v1/topics", "/api/v1/status", "/nothing"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_page_of_another_origin_holds_an_answer(path: str, method: str) -> None:
    caller = Caller()
    channel, wire = caller.connect()
    lines = f"{method} {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n"
    channel.dataReceived(f"{lines}content-length: 0\r\n\r\n".encode())
    caller.house.run()
    head = wire.value().partition(b"\r\n\r\n")[0].lower()
    for line in [
        b"cross-origin-opener-policy: same-origin",
        b"cross-origin-resource-policy: same-origin",
        b"x-content-type-options: nosniff",
        b"referrer-policy: same-origin",
    ]:
        assert head.count(line) == 1
    assert head.count(b"frame-ancestors 'none'") == 1
    assert b"cache-control: no-" in head


def test_over_tls_the_page_came_over_tls() -> None:
    """A page that was changed on its way without TLS does not write."""
    assert create("origin: https://here:9644\r\n", tls=True) == 201
    assert create("origin: http://here:9644\r\n", tls=True) == 403


def test_a_name_that_resolves_to_this_broker_is_no_way_in() -> None:
    """DNS rebinding: the origin is the host, and the host is a stranger's."""
    assert create("origin: http://evil.example:9644\r\n", "evil.example:9644") == 403
    assert create("origin: http://broker.example:9644\r\n", "broker.example:9644") == 201
