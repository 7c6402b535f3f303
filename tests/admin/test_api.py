"""The JSON API answers what a broker knows, and refuses what makes no sense, always as JSON."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from twisted.web.resource import getChildForRequest
from twisted.web.test.requesthelper import DummyRequest

from brokerd.admin.api import OPENAPI, make_api
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
    assert answer["topics"] == [
        {"name": "orders", "topic_id": 1, "next_offsets": [3], "groups": 1}
    ]
    assert Api(house).get("topics/orders") == (200, answer["topics"][0])
    assert Api(house).get("topics/orders/groups") == (200, {"groups": ["g"]})


def test_a_group_is_described(house: House) -> None:
    code, answer = Api(house).get("topics/orders/groups/g")
    assert code == 200
    assert (answer["floor"], answer["lag"], answer["dead"]) == (2, 1, 1)
    assert answer["oldest_age_seconds"] == 0


def test_dead_letters_are_listed_by_pages(house: House) -> None:
    letter = {"partition": 0, "offset": 1, "reason": "max_attempts", "grants": 3, "failures": 3}
    path = "topics/orders/groups/g/dead-letters"
    assert Api(house).get(path) == (200, {"dead_letters": [letter]})
    assert Api(house).get(path, first="1") == (200, {"dead_letters": []})
    assert Api(house).get("topics/orders/groups/other/dead-letters")[1] == {"dead_letters": []}


def test_names_may_hold_anything(house: House) -> None:
    ask(house, Produce("a/b ü", b"x"))
    request = DummyRequest([b"topics", "a/b ü".encode()])
    body = getChildForRequest(make_api(house.broker), request).render(request)
    assert json.loads(body)["name"] == "a/b ü"
    assert quote("a/b ü", safe="") == "a%2Fb%20%C3%BC"


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
