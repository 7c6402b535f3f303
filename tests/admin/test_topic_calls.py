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
    assert caller.get("/topics") == (200, {"topics": [topic], "next": None})


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
    assert ([topic["name"] for topic in page["topics"]], page["next"]) == (["b"], 2)
    _, page = caller.get("/topics", first=2, limit=1)
    assert ([topic["name"] for topic in page["topics"]], page["next"]) == (["c"], None)


def test_a_page_of_topics_with_many_partitions_is_short(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at least, however wide it is."""
    monkeypatch.setattr("brokerd.admin.calls.topics.PAGE_PARTITIONS", 5)
    for name, partitions in (("a", 2), ("b", 2), ("c", 9), ("d", 1)):
        caller.post("/topics", {"name": name, "partitions": partitions})
    pages, first = [], 0
    while first is not None:
        _, page = caller.get("/topics", first=first)
        pages.append([topic["name"] for topic in page["topics"]])
        first = page["next"]
    assert pages == [["a", "b"], ["c"], ["d"]]


def test_one_request_for_a_list_looks_at_so_many_topics(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand, each looked at for its permission, would hold up the broker."""
    monkeypatch.setattr("brokerd.admin.calls.topics.EXAMINED_MAX", 2)
    for name in "abcde":
        caller.post("/topics", {"name": name})
    pages, first = [], 0
    while first is not None:
        _, page = caller.get("/topics", first=first)
        pages.append([topic["name"] for topic in page["topics"]])
        first = page["next"]
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({}, 400, "missing required field `name`"),
        ({"name": 5}, 400, "name: expected `str`"),
        ({"name": "a\nb"}, 400, "control character"),
        ({"name": "x" * 256}, 400, "longer than 255 bytes"),
        ({"name": "x", "partitions": 0}, 400, "partitions: expected `int`"),
        ({"name": "x", "partitions": 32_768}, 400, "partitions: expected `int`"),
        ({"name": "x", "partitons": 1}, 400, "unknown field `partitons`"),
    ],
)
def test_a_topic_that_makes_no_sense_is_refused(
    caller: Caller, body: dict[str, Any], status: int, part: str
) -> None:
    found, answer = caller.post("/topics", body)
    assert (found, part in answer["error"]) == (status, True), answer
    assert caller.get("/topics")[1] == {"topics": [], "next": None}


def test_a_topic_that_is_not_there_is_404(caller: Caller) -> None:
    status, answer = caller.get("/topics/unknown")
    assert (status, "no topic 'unknown'" in answer["error"]) == (404, True)


def test_settings_change_one_by_one(caller: Caller) -> None:
    """What is left out stays, null goes back to the default, 0 is no limit."""
    _, topic = caller.post("/topics", {"name": "orders", "settings": {"ttl_seconds": 1.5}})
    assert topic["settings"] == {
        "retention_seconds": None,
        "retention_bytes": None,
        "ttl_seconds": 1.5,
        "compact": None,
    }
    for change, then in [
        ({"retention_bytes": 4096}, (None, 4096, 1.5, None)),
        ({"retention_seconds": 60, "ttl_seconds": None}, (60, 4096, None, None)),
        ({"retention_bytes": 0, "compact": True}, (60, 0, None, True)),
        ({}, (60, 0, None, True)),
    ]:
        status, topic = caller.call("PATCH", "/topics/orders/settings", change)
        assert status == 200, topic
        assert tuple(topic["settings"].values()) == then
    assert caller.get("/topics/orders")[1] == topic
    assert Caller(caller.house.crash()).get("/topics/orders")[1] == topic


@pytest.mark.parametrize(
    "change",
    [
        {"ttl_seconds": -1},
        {"ttl_seconds": 1e12},
        {"retention_bytes": 1.5},
        {"compact": 1},
        {"retention": 5},
    ],
)
def test_settings_that_make_no_sense_are_refused(caller: Caller, change: dict[str, Any]) -> None:
    caller.post("/topics", {"name": "orders"})
    assert caller.call("PATCH", "/topics/orders/settings", change)[0] == 400
    assert caller.call("PATCH", "/topics/none/settings", {})[0] == 404


def test_a_topic_is_trimmed(caller: Caller) -> None:
    """Records below the offset are gone, for readers and for groups."""
    records = [{"value": number} for number in range(5)]
    caller.post("/topics/orders/records", {"records": records})
    assert caller.post("/topics/orders/trim", {"offset": 3}) == (200, {"start_offset": 3})
    assert caller.get("/topics/orders")[1]["start_offsets"] == [3]
    _, page = caller.get("/topics/orders/records")
    assert [record["offset"] for record in page["records"]] == [3, 4]
    assert caller.post("/topics/orders/trim", {"offset": 1}) == (200, {"start_offset": 3})
    assert caller.post("/topics/orders/trim", {"offset": 9})[0] == 404
    assert caller.post("/topics/orders/trim", {"offset": 1, "partition": 1})[0] == 404
    assert Caller(caller.house.crash()).get("/topics/orders")[1]["start_offsets"] == [3]


def test_a_topic_is_deleted(caller: Caller) -> None:
    """One made again is a new one, and begins at offset 0."""
    caller.post("/topics/orders/records", {"records": [{"value": "x"}]})
    assert caller.call("DELETE", "/topics/orders") == (200, {"deleted": "orders"})
    assert caller.get("/topics/orders")[0] == 404
    assert caller.call("DELETE", "/topics/orders")[0] == 404
    again = Caller(caller.house.crash())
    assert again.get("/topics")[1] == {"topics": [], "next": None}
    _, topic = again.post("/topics", {"name": "orders"})
    assert (topic["topic_id"], topic["next_offsets"]) == (2, [0])
