"""Who is a member of a FlyMQ group: open connections that have subscribed."""

from __future__ import annotations

import gc

import pytest
from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from brokerd.broker import ConsumerGroup
from brokerd.codecs import flymq
from brokerd.protocols.flymq.members import address_text
from tests.protocols.flymq_desk import FlymqHouse

JOIN = flymq.Subscribe("t", "g", 0, "latest")


@pytest.fixture
def house() -> FlymqHouse:
    house = FlymqHouse()
    house.produce(b"x")
    return house


def members(house: FlymqHouse, group: str = "g") -> int:
    answer = house.only(flymq.DescribeGroup(group, "t"))
    assert isinstance(answer, flymq.Group), answer
    return answer.members


def test_each_open_connection_that_subscribed_counts_once(house: FlymqHouse) -> None:
    clients = [house.client() for _ in range(3)]
    for number, client in enumerate(clients, start=1):
        client.ask(JOIN, JOIN, flymq.Subscribe("t", "g", 0, "commit"))
        assert members(house) == number
    clients[0].disconnect()
    house.run()
    assert members(house) == 2
    for client in clients[1:]:
        client.disconnect()
    house.run()
    assert members(house) == 0


def test_who_only_commits_or_fetches_is_no_member(house: FlymqHouse) -> None:
    client = house.client()
    client.ask(flymq.Commit("t", "g", 0, 1), flymq.Fetch("t", 0, 0, 10), flymq.GetLag("t", "g", 0))
    assert members(house) == 0


def test_a_refused_subscription_joins_nothing(house: FlymqHouse) -> None:
    house.ask(flymq.Commit("t", "g", 0, 1))
    house.client().ask(
        flymq.Subscribe("t", "g", 9, "latest"), flymq.Subscribe("t", "g", 0, "never")
    )
    assert members(house) == 0


def test_a_group_that_is_made_again_begins_without_members(house: FlymqHouse) -> None:
    """And who had joined the former one leaves without harm."""
    client = house.client()
    client.ask(JOIN)
    house.ask(flymq.DeleteGroup("g", "t"), flymq.Commit("t", "g", 0, 1))
    assert members(house) == 0
    client.disconnect()
    house.run()
    assert members(house) == 0


def test_groups_that_come_and_go_leave_nothing_behind(house: FlymqHouse) -> None:
    """However many a connection joins one after the other."""
    client = house.client()
    for number in range(500):
        group = f"g{number}"
        client.ask(flymq.Subscribe("t", group, 0, "latest"), flymq.DeleteGroup(group, "t"))
    client.ask(JOIN)
    topic = house.broker.topics.existing("t")
    groups = [one for one in gc.get_objects() if isinstance(one, ConsumerGroup)]
    assert sum(one.topic is topic for one in groups) < 200
    assert members(house) == 1


def test_a_restart_forgets_members_and_keeps_the_group(house: FlymqHouse) -> None:
    house.client().ask(JOIN)
    assert members(house.crash()) == 0


def test_a_connection_is_called_by_its_address() -> None:
    assert address_text(IPv4Address("TCP", "10.0.0.7", 40_000)) == "10.0.0.7:40000"
    assert address_text(IPv6Address("TCP", "::1", 40_000)) == "[::1]:40000"
    assert address_text(UNIXAddress(b"/run/x")) == "unix:/run/x"
    assert address_text(UNIXAddress(None)) == "unix:"
