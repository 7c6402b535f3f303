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


def test_over_tls_the_page_came_over_tls() -> None:
    """A page that was changed on its way without TLS does not write."""
    assert create("origin: https://here:9644\r\n", tls=True) == 201
    assert create("origin: http://here:9644\r\n", tls=True) == 403


def test_a_name_that_resolves_to_this_broker_is_no_way_in() -> None:
    """DNS rebinding: the origin is the host, and the host is a stranger's."""
    assert create("origin: http://evil.example:9644\r\n", "evil.example:9644") == 403
    assert create("origin: http://broker.example:9644\r\n", "broker.example:9644") == 201
