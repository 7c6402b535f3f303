"""Times of requests by operation: what is timed, from when to when, and under which name."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.codecs.mamamia import Acquire, Produce, Settle, encode_request
from brokerd.protocols.base.request_times import SAMPLED, RequestTimes, operation_names
from brokerd.protocols.blipmq.connection import BlipmqConnection
from brokerd.protocols.flymq.connection import FlymqConnection
from brokerd.protocols.mamamia.connection import MamamiaConnection
from brokerd.protocols.mega.connection import MegaConnection
from brokerd.protocols.rustlog.connection import RustlogConnection
from tests.corehouse import CoreHouse
from tests.house import Client, House


@pytest.fixture(autouse=True)
def everything_is_sampled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "one_run_in_eight" not in request.node.name:
        made = RequestTimes.__init__

        def make(times: RequestTimes) -> None:
            made(times)
            times.mask = 0

        monkeypatch.setattr(RequestTimes, "__init__", make)


def times(house: House) -> dict[str, tuple[int, float]]:
    """Return operation -> number and sum of its times."""
    return {
        name: (sum(one["counts"]), one["sum"])
        for name, one in house.factory.request_times.status().items()
    }


def test_a_request_takes_until_its_commit() -> None:
    """Its answer leaves when it is durable."""
    house = House()
    client = house.connect()
    client.send(Produce("t", b"x"))
    house.turn()
    house.clock.advance(0.25)
    assert times(house) == {}
    house.run()
    assert client.answers()
    assert times(house) == {"produce": (1, 0.25)}


def test_a_run_is_timed_by_its_last_request() -> None:
    """However many requests one read of the socket brings."""
    house = House()
    client = house.connect()
    client.send(*(Produce("t", b"x") for _ in range(20)))
    house.run()
    client.send(Acquire("t", "g", "c"), Settle("t", "g", 0, "c", True))
    house.run()
    assert len(client.answers()) == 22
    assert {name: count for name, (count, _) in times(house).items()} == {
        "produce": 1,
        "settle": 1,
    }


def test_a_wait_for_a_record_is_not_timed() -> None:
    """It says nothing about the broker; the produce that ends it is timed."""
    house = House()
    client = house.connect()
    house.append("t", b"x")
    client.send(Acquire("t", "g", "c"))
    house.run()
    client.send(Acquire("t", "g", "c", wait=30.0))
    house.run()
    house.pass_time(10)
    assert len(client.answers()) == 1
    house.connect().send(Produce("t", b"y"))
    house.run()
    assert len(client.answers()) == 1
    assert {name: count for name, (count, _) in times(house).items()} == {
        "acquire_next": 1,
        "produce": 1,
    }


def test_a_read_from_disk_is_timed() -> None:
    """The answer to the acquire comes when the record is there."""
    house = House()
    house.append("t", b"x" * 1000)
    house = house.again()
    client = house.connect()
    client.send(Acquire("t", "g", "c"))
    house.turn()
    house.clock.advance(0.5)
    house.run()
    assert client.answers()
    assert times(house) == {"acquire_next": (1, 0.5)}


def test_a_request_that_waits_for_room_is_timed_from_its_arrival() -> None:
    """It is handled several times, and answered once."""
    house = House()
    client = house.connect()
    house.append("t", b"x")
    before = house.broker.group_commit._congested
    before.append(lambda: None)
    client.send(Produce("t", b"y" * 3_000_000))
    house.turn()
    assert client.answers() == []
    house.clock.advance(2)
    house.run()
    assert client.answers()
    assert times(house)["produce"][1] >= 2


def test_one_run_in_eight_is_timed() -> None:
    """The first, so that an operation that is rare shows, too."""
    house = House()
    client = house.connect()
    for _ in range(2 * SAMPLED):
        client.send(Produce("t", b"x"))
        house.run()
    assert times(house)["produce"][0] == 2


def test_names_are_those_of_the_requests() -> None:
    """A fixed set, so that no client makes series."""

    class CreateTopic: ...

    class Produce: ...

    assert operation_names([CreateTopic, Produce]) == {
        CreateTopic: "create_topic",
        Produce: "produce",
    }


@pytest.mark.parametrize(
    ("connection", "frame", "name"),
    [
        (MamamiaConnection, (0x01, b""), "produce"),
        (MamamiaConnection, (0x7F, b""), "request"),
        (FlymqConnection, (0x01, 0, b""), "produce"),
        (FlymqConnection, (0xFE, 0, b""), "request"),
        (BlipmqConnection, b"\x03", "publish"),
        (BlipmqConnection, b"\xff", "request"),
    ],
)
def test_each_format_names_its_operations(connection: Any, frame: Any, name: str) -> None:
    assert connection.operation_of(None, frame) == name


@pytest.mark.parametrize("connection", [RustlogConnection, MegaConnection])
def test_formats_name_every_type_of_request(connection: Any) -> None:
    """By the type that they dispatch on."""
    names = operation_names(connection._DISPATCH)
    assert {"produce"} <= set(names.values())
    assert all(name == name.lower() for name in names.values())


def test_the_status_has_every_listener() -> None:
    """Formats that share an endpoint have their own times."""
    house = CoreHouse()
    for listener in ("mamamia", "flymq+rustlog"):
        house.factory(listener)
    client = Client(house.core._factories["mamamia"], house.clock)
    client.send_bytes(encode_request(Produce("t", b"x")))
    house.run()
    status = house.core.status()["request_times"]
    assert set(status) == {"mamamia", "flymq", "rustlog", "flymq+rustlog"}
    assert sum(status["mamamia"]["produce"]["counts"]) == 1
