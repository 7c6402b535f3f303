"""Topics over the API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admin.caller import Caller


@pytest.fixture
def caller() -> Caller:
    return Caller()


def test_a_topic_is_created_and_described(caller: Caller) -> None:
    status, topic = caller.post("/topics", {"name": "orders", "partitions": 2})
    assert status == 201
    assert (topic["name"], topic["topic_id"], topic["groups"]) == ("orders", 1, 0)
    assert topic["start_offsets"] == topic["next_offsets"] == [0, 0]
    assert caller.get("/topics/orders") == (200, topic)
    assert caller.get("/topics") == (200, {"topics": [topic]})


def test_a_topic_is_created_once(caller: Caller) -> None:
    """Who finds it there may want to know that somebody else made it."""
    caller.post("/topics", {"name": "orders"})
    status, answer = caller.post("/topics", {"name": "orders"})
    assert (status, answer["retryable"]) == (409, False)
    assert "there is a topic 'orders' already" in answer["error"]


def test_a_topic_is_durable_when_it_is_answered(caller: Caller) -> None:
    caller.post("/topics", {"name": "orders"})
    assert Caller(caller.house.crash()).get("/topics/orders")[0] == 200


def test_topics_are_listed_by_pages(caller: Caller) -> None:
    for name in "abc":
        caller.post("/topics", {"name": name})
    _, page = caller.get("/topics", first=1, limit=1)
    assert [topic["name"] for topic in page["topics"]] == ["b"]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({}, 400, "missing required field `name`"),
        ({"name": 5}, 400, "Expected `str`"),
        ({"name": "a\nb"}, 400, "control character"),
        ({"name": "x" * 256}, 400, "longer than 255 bytes"),
        ({"name": "x", "partitions": 0}, 400, "$.partitions"),
        ({"name": "x", "partitions": 32_768}, 400, "$.partitions"),
        ({"name": "x", "partitons": 1}, 400, "unknown field `partitons`"),
    ],
)
def test_a_topic_that_makes_no_sense_is_refused(
    caller: Caller, body: dict[str, Any], status: int, part: str
) -> None:
    found, answer = caller.post("/topics", body)
    assert (found, part in answer["error"]) == (status, True), answer
    assert caller.get("/topics")[1] == {"topics": []}


def test_a_topic_that_is_not_there_is_404(caller: Caller) -> None:
    status, answer = caller.get("/topics/unknown")
    assert (status, "no topic 'unknown'" in answer["error"]) == (404, True)
