"""The JSON API answers what a broker knows, and refuses what makes no sense, always as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import generate_latest
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.logger import Logger
from twisted.web.resource import getChildForRequest
from twisted.web.test.requesthelper import DummyRequest

from brokerd.admin.api import OPENAPI, make_api
from brokerd.admin.health import Health
from brokerd.admin.site import make_site
from brokerd.codecs.mamamia import Acquire, Produce, Settle
from tests.house import House, ask


class Api:
    """Asks the API of a broker, without HTTP around it."""

    def __init__(self, house: House) -> None:
        self._root = make_api(house.broker)

    def get(self, path: str, **arguments: str) -> tuple[int, Any]:
        request = DummyRequest([part.encode() for part in path.split("/")])
        request.args = {name.encode(): [value.encode()] for name, value in arguments.items()}
        body = getChildForRequest(self._root, request).render(request)
        return request.responseCode or 200, json.loads(body)


@pytest.fixture
def house() -> House:
    """Three records of `orders`; group g settled the first, failed the second for good."""
    house = House()
    ask(house, *(Produce("orders", b"x") for _ in range(3)))
    ask(house, *(Acquire("orders", "g", "c") for _ in range(2)))
    ask(house, Settle("orders", "g", 0, "c", True))
    for _ in range(3):
        ask(house, Acquire("orders", "g", "c"), Settle("orders", "g", 1, "c", False))
    return house


def test_topics_are_listed_with_their_next_offsets(house: House) -> None:
    code, answer = Api(house).get("topics")
    assert code == 200
    assert answer["topics"] == [{"name": "orders", "topic_id": 1, "next_offsets": [3], "groups": 1}]
    assert Api(house).get("topics/orders") == (200, answer["topics"][0])
    assert Api(house).get("topics/orders/") == (200, answer["topics"][0])


def test_groups_of_a_topic_are_listed_by_pages(house: House) -> None:
    for group in ("h", "i"):
        ask(house, Acquire("orders", group, "c"))
    path = "topics/orders/groups"
    assert Api(house).get(path) == (200, {"groups": ["g", "h", "i"]})
    assert Api(house).get(path, first="1", limit="1") == (200, {"groups": ["h"]})
    assert Api(house).get(path, limit="0")[0] == 400


def test_a_group_is_described(house: House) -> None:
    code, answer = Api(house).get("topics/orders/groups/g")
    assert code == 200
    assert (answer["floor"], answer["lag"], answer["dead"]) == (2, 1, 1)
    assert answer["oldest_age_seconds"] == 0


def test_dead_letters_are_listed_by_pages(house: House) -> None:
    letter = {"partition": 0, "offset": 1, "reason": "max_attempts", "grants": 3, "failures": 3}
    path = "topics/orders/groups/g/dead-letters"
    only, none = {"dead_letters": [letter], "next": None}, {"dead_letters": [], "next": None}
    assert Api(house).get(path) == (200, only)
    assert Api(house).get(path, limit="1") == (200, only)
    assert Api(house).get(path, first="1") == (200, none)
    assert Api(house).get(path, offset="1") == (200, only)
    assert Api(house).get(path, offset="2") == (200, none)
    assert Api(house).get(path, partition="1") == (200, none)
    assert Api(house).get("topics/orders/groups/other/dead-letters") == (200, none)


def test_following_next_shows_every_dead_letter_once() -> None:
    """A page begins at an offset, so that what came before it is neither counted nor read."""
    house = House()
    house.broker.create_topic("t", 2)
    ask(house, *(Produce("t", b"x", partition=n % 2) for n in range(20)))
    for lane in [house.broker.lane("t", "g", index, 0) for index in range(2)]:
        for offset in range(0, 10, 2):
            house.broker.dead_letter(lane, offset, "bad")
    found, where = [], {"limit": "3"}
    while True:
        code, answer = Api(house).get("topics/t/groups/g/dead-letters", **where)
        assert code == 200
        found += [(letter["partition"], letter["offset"]) for letter in answer["dead_letters"]]
        if answer["next"] is None:
            break
        where |= {name: str(value) for name, value in answer["next"].items()}
    assert found == [(index, offset) for index in range(2) for offset in range(0, 10, 2)]


def test_names_may_hold_anything(house: House) -> None:
    """A slash inside a name is written %2F, and the site does not take it for one of its own."""
    ask(house, Produce("a/b ü", b"x"), Acquire("a/b ü", "g/1", "c"))
    site = make_site(
        dict, make_api(house.broker), Health(), lambda r: generate_latest(r), Clock(), Logger()
    )
    for path, key, name in (
        ("a%2Fb%20%C3%BC", "name", "a/b ü"),
        ("a%2Fb%20%C3%BC/groups/g%2F1", "group", "g/1"),
    ):
        channel, wire = site.buildProtocol(None), StringTransport()
        channel.makeConnection(wire)
        channel.dataReceived(f"GET /api/v1/topics/{path} HTTP/1.0\r\n\r\n".encode())
        assert json.loads(wire.value().partition(b"\r\n\r\n")[2])[key] == name


@pytest.mark.parametrize(
    ("path", "arguments", "code", "part"),
    [
        ("nothing", {}, 404, "there is nothing here"),
        ("topics/unknown", {}, 404, "no topic 'unknown'"),
        ("topics/unknown/groups/g", {}, 404, "no topic 'unknown'"),
        ("topics/orders/parts", {}, 404, "there is nothing here"),
        ("topics", {"limit": "0"}, 400, "limit must be a number from 1 to 10000"),
        ("topics", {"first": "-1"}, 400, "first must be a number"),
        ("topics", {"first": "9" * 30}, 400, "first must be a number"),
        ("topics/orders/groups/g/dead-letters", {"offset": "x"}, 400, "offset must be a number"),
        ("topics/orders/groups/g/parts", {}, 404, "there is nothing here"),
    ],
)
def test_what_makes_no_sense_is_refused(
    house: House, path: str, arguments: dict[str, str], code: int, part: str
) -> None:
    found, answer = Api(house).get(path, **arguments)
    assert found == code
    assert part in answer["error"]


def test_the_description_names_every_path(house: House) -> None:
    code, answer = Api(house).get("openapi.json")
    assert (code, answer) == (200, json.loads(json.dumps(OPENAPI)))
