"""Connections of clients over the API."""

from __future__ import annotations

from contextlib import suppress

import pytest
from twisted.internet.address import IPv4Address

from brokerd.broker import BrokerSettings, Congested
from brokerd.codecs.mamamia import Acquire, Produce
from brokerd.errors import NoSpace
from brokerd.security import ADMIN, MONITOR
from tests.admin.caller import Caller
from tests.broker.test_audit import fill_disk
from tests.guards import Given, GuardOf
from tests.house import Client, House

BASE = "/connections"


@pytest.fixture
def caller() -> Caller:
    caller = Caller(House(settings=BrokerSettings(audit_keep_us=86_400_000_000)))
    caller.house.run()
    return caller


def ids(page: dict[str, list[dict[str, int]]]) -> list[int]:
    return [one["id"] for one in page["connections"]]


def test_a_connection_is_described(caller: Caller) -> None:
    client = caller.house.connect()
    caller.house.pass_time(5, 1)
    client.send(Produce("orders", b"x"))
    caller.house.run()
    caller.house.pass_time(3, 1)
    client.send(Acquire("orders", "g", "c"), Acquire("orders", "g", "c", wait=60.0))
    caller.house.run()
    status, page = caller.get(BASE)
    assert (status, page["next"]) == (200, None)
    assert page["connections"] == [
        {
            "id": 1,
            "format": "mamamia",
            "address": "unix",
            "port": None,
            "user": "",
            "tls": False,
            "open_seconds": 8.0,
            "idle_seconds": 0.0,
            "requests": 1,
            "unread_bytes": page["connections"][0]["unread_bytes"],
            "holds": [],
        }
    ]
    caller.house.pass_time(2, 1)
    (one,) = caller.get(BASE)[1]["connections"]
    assert (one["open_seconds"], one["idle_seconds"]) == (10.0, 2.0)


def test_a_peer_has_address_and_port_and_account(caller: Caller) -> None:
    client = caller.house.connect()
    client.transport.getPeer = lambda: IPv4Address("TCP", "10.0.0.7", 4_711)
    client.protocol.access = Given("ann")
    (one,) = caller.get(BASE, user="ann", address="10.0.0.7")[1]["connections"]
    assert (one["address"], one["port"], one["user"]) == ("10.0.0.7", 4_711, "ann")


def test_a_list_needs_monitor_and_a_close_needs_admin(caller: Caller) -> None:
    client = caller.house.connect()
    for permission, codes in ((0, (403, 403)), (MONITOR, (200, 403)), (ADMIN, (403, 200))):
        guarded = Caller(caller.house, GuardOf(Given("ann", permission)))
        assert guarded.get(BASE)[0] == codes[0]
        assert is_open(client)
        assert guarded.call("DELETE", f"{BASE}/1")[0] == codes[1]
    assert not is_open(client)


def test_a_silent_connection_is_idle_since_it_was_opened(caller: Caller) -> None:
    caller.house.connect()
    caller.house.pass_time(4, 1)
    (one,) = caller.get(BASE)[1]["connections"]
    assert (one["open_seconds"], one["idle_seconds"]) == (4.0, 4.0)


def test_connections_are_listed_by_pages(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [caller.house.connect() for _ in range(4)]
    clients[1].transport.loseConnection()
    caller.house.run()
    _, page = caller.get(BASE, limit=2)
    assert (ids(page), page["next"]) == ([1, 3], 4)
    _, page = caller.get(BASE, limit=2, first_id=4)
    assert (ids(page), page["next"]) == ([4], None)
    monkeypatch.setattr("brokerd.admin.calls.connections.EXAMINED_MAX", 1)
    _, page = caller.get(BASE, format="mega")
    assert (ids(page), page["next"]) == ([], 3)


def test_connections_are_chosen(caller: Caller) -> None:
    caller.house.connect()
    for query in ({"format": "mamamia"}, {"address": "unix"}, {"user": ""}):
        assert ids(caller.get(BASE, **query)[1]) == [1], query
    for query in ({"format": "mega"}, {"address": "127.0.0.2"}, {"user": "ann"}):
        assert ids(caller.get(BASE, **query)[1]) == [], query


def test_a_hold_is_named(caller: Caller) -> None:
    client = caller.house.connect()
    client.transport.peer_reads = False
    client.send(*(Acquire("orders", "g", "c") for _ in range(20_000)))
    caller.house.run()
    (one,) = caller.get(BASE)[1]["connections"]
    assert "slow_reader" in one["holds"]
    assert one["unread_bytes"] > 65_536


def test_a_connection_is_closed_and_the_trail_has_it(caller: Caller) -> None:
    stays, goes = caller.house.connect(), caller.house.connect()
    status, answer = caller.call("DELETE", f"{BASE}/2")
    assert (status, answer) == (200, {"closed": 2})
    assert (is_open(stays), is_open(goes)) == (True, False)
    assert ids(caller.get(BASE)[1]) == [1]
    caller.house.pass_time(1)
    [event] = caller.get("/audit?type=connection.close")[1]["events"]
    assert (event["resource"], event["result"]) == ("2", "success")
    assert event["details"]["peer"] == "unix"


def is_open(client: Client) -> bool:
    return bool(client.transport.connected)


def test_what_is_not_open_cannot_be_closed(caller: Caller) -> None:
    for path, code in ((f"{BASE}/1", 404), (f"{BASE}/one", 400)):
        status, answer = caller.call("DELETE", path)
        assert status == code, answer
    caller.house.pass_time(1)
    assert caller.get("/audit?type=connection.close")[1]["events"] == []


def test_an_id_is_not_used_again(caller: Caller) -> None:
    caller.house.connect()
    assert caller.call("DELETE", f"{BASE}/1")[0] == 200
    caller.house.connect()
    assert ids(caller.get(BASE)[1]) == [2]
    assert caller.call("DELETE", f"{BASE}/1")[0] == 404


def test_a_connection_is_closed_when_not_even_the_reserve_has_room(caller: Caller) -> None:
    """Its client may have used up the reserve, by commits on a full disk."""
    house = caller.house
    client = house.connect()
    house.broker.topics.create("t")
    house.run()
    fill_disk(house)
    with pytest.raises(NoSpace):
        for number in range(100_000):
            with suppress(Congested):
                house.broker.groups.commit_offset("t", f"{number % 9}" + "g" * 200, 0, 0)
            house.run()
    assert caller.call("DELETE", "/topics/t")[0] == 507
    assert caller.call("DELETE", f"{BASE}/1")[0] == 200
    assert not client.transport.connected
    house = house.crash()
    assert "connection.close" in str(Caller(house).get("/audit"))
