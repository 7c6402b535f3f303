"""Who gets one of the last places for connections, and how many one address has."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.logger import capturedLogs

from brokerd.protocols.base.connection import Connection, Limits
from brokerd.protocols.base.factory import KEPT_DESCRIPTORS
from brokerd.protocols.mamamia.connection import MamamiaFactory
from brokerd.security import Guard
from brokerd.security.places import Places, counted_network
from tests.house import House, Transport


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        *[(host, "") for host in ("127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1", "unix")],
        (None, ""),
    ],
)
def test_networks_are_counted_and_this_machine_is_not(host: str | None, network: str) -> None:
    assert counted_network(host) == network


def test_places_forget_networks_without_connections() -> None:
    places = Places()
    for network in ("a", "a", "b", ""):
        places.add(network)
    assert (places.count("a"), places.count("b"), places.count("")) == (2, 1, 0)
    for network in ("a", "b", "", "a"):
        places.remove(network)
    assert places._counts == {}


class Door(Guard):
    """Security is on; some networks have logged in."""

    auth = True

    def __init__(self, *known: str) -> None:
        self._known = known

    def knows(self, network: str) -> bool:
        return network in self._known


class Hosts:
    """Connections from many addresses to two listeners that share their places."""

    def __init__(self, limits: Limits, guard: Guard | None = None) -> None:
        self.house = House(limits=limits)
        places = Places()
        self.factories = [
            MamamiaFactory(self.house.broker, self.house.clock, limits) for _ in range(2)
        ]
        for factory in self.factories:
            factory.places = places
            factory.count_open = lambda: sum(len(one.connections) for one in self.factories)
            if guard is not None:
                factory.guard = guard

    def connect(self, host: str, listener: int = 0) -> Connection | None:
        """Return the connection of an address, or None if it is refused."""
        address: Any
        if host == "unix":
            address = UNIXAddress(b"/socket")
        else:
            kind = IPv6Address if ":" in host else IPv4Address
            address = kind("TCP", host, 1)
        connection = self.factories[listener].buildProtocol(address)
        if connection is None:
            return None
        transport = Transport(self.house.clock)
        transport.getPeer = lambda: address  # type: ignore[method-assign]
        transport.protocol = connection
        connection.makeConnection(transport)
        made: Connection = connection
        return made


def test_one_address_gets_its_part_of_the_places_of_all_listeners() -> None:
    hosts = Hosts(Limits(connections=10, connections_per_address=3))
    mine = [hosts.connect("192.0.2.1", number % 2) for number in range(3)]
    assert None not in mine
    with capturedLogs() as events:
        assert hosts.connect("192.0.2.1") is None and hosts.connect("192.0.2.1", 1) is None
        assert hosts.connect("192.0.2.2") is not None
        hosts.factories[0].startFactory()
        hosts.house.pass_time(6, step=1)
    [event] = [one for one in events if one.get("event_id") == "addresses-refused"]
    assert (event["count"], event["limit"]) == (1, 3)
    assert not [one for one in events if one.get("event_id") == "connections-refused"]
    assert mine[0] is not None
    mine[0].transport.loseConnection()
    hosts.house.turn()
    assert hosts.connect("192.0.2.1") is not None
    hosts.factories[0].stopFactory()


def test_addresses_of_one_ipv6_network_count_together() -> None:
    hosts = Hosts(Limits(connections=10, connections_per_address=2))
    assert hosts.connect("2001:db8::1") and hosts.connect("2001:db8::2")
    assert hosts.connect("2001:db8::3") is None
    assert hosts.connect("2001:db8:0:1::1")


def test_this_machine_has_no_limit_by_address() -> None:
    hosts = Hosts(Limits(connections=10, connections_per_address=2))
    assert all(hosts.connect(host) for host in ["127.0.0.1"] * 4 + ["::1"] * 3 + ["unix"] * 3)
    assert hosts.connect("127.0.0.1") is None, "all places are taken"


def test_the_last_places_are_kept_for_addresses_that_have_logged_in() -> None:
    limits = Limits(connections=16, connections_per_address=16)
    hosts = Hosts(limits, Door("192.0.2.1"))
    assert all(hosts.connect(f"198.51.100.{number}") for number in range(14))
    assert hosts.connect("198.51.100.99") is None
    assert hosts.connect("192.0.2.1") and hosts.connect("127.0.0.1")
    assert hosts.connect("192.0.2.1") is None, "all places are taken"


def test_connections_are_refused_while_few_descriptors_are_left() -> None:
    """The log needs the rest: a segment that it cannot open would end the broker."""
    hosts = Hosts(Limits())
    left = [KEPT_DESCRIPTORS - 1]
    hosts.factories[0].descriptors_left = lambda: left[0]
    with capturedLogs() as events:
        assert hosts.connect("127.0.0.1") is None and hosts.connect("192.0.2.1") is None
        hosts.factories[0].startFactory()
        hosts.house.pass_time(6, step=1)
        hosts.factories[0].stopFactory()
    [event] = [one for one in events if one.get("log_level") and one["log_level"].name == "warn"]
    assert (event["event_id"], event["count"]) == ("descriptors-short", 2)
    left[0] += 1
    assert hosts.connect("127.0.0.1")


def test_without_security_no_place_is_kept() -> None:
    hosts = Hosts(Limits(connections=16, connections_per_address=16))
    assert all(hosts.connect(f"198.51.100.{number}") for number in range(16))
