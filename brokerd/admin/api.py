# Tests: tests/admin/test_api.py
"""The JSON API below ``/api/v1``: topics, groups and dead letters, read only.

Its description, for people and programs, is ``/api/v1/openapi.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from brokerd.admin.resources import Answer, Branch, JSONResource, Missing
from brokerd.broker import Broker
from brokerd.errors import InvalidRequest, UnknownTopic

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000

MAX_NUMBER = 1 << 62

Arguments = Mapping[str, int]


class Query(JSONResource):
    """One question to the broker; ``ask`` gets the numbers of the query string, see `NUMBERS`."""

    def __init__(self, ask: Callable[[Arguments], Answer]) -> None:
        super().__init__(self._reply)
        self._ask = ask

    def _reply(self, request: Request) -> tuple[int, Answer]:
        """Answer, or say what is wrong with the question."""
        try:
            return http.OK, self._ask(_arguments(request))
        except UnknownTopic as error:
            return http.NOT_FOUND, {"error": str(error)}
        except InvalidRequest as error:
            return http.BAD_REQUEST, {"error": str(error)}


class Names(Query):
    """A question about all things of a kind, with one thing below each name."""

    def __init__(
        self, ask: Callable[[Arguments], Answer], child: Callable[[str], Resource]
    ) -> None:
        super().__init__(ask)
        self._child = child

    def getChild(self, path: bytes, request: Request) -> Resource:
        """The thing of this (percent-decoded) name."""
        if path == b"":
            return super().getChild(path, request)
        try:
            return self._child(path.decode())
        except UnicodeDecodeError:
            return Missing()


def make_api(broker: Broker) -> Resource:
    """The resource to be hung up at ``/api/v1``."""
    root = Branch()
    root.putChild(
        b"topics",
        Names(lambda arguments: topics(broker, arguments), lambda name: _topic(broker, name)),
    )
    root.putChild(b"openapi.json", Query(lambda arguments: OPENAPI))
    return root


def _topic(broker: Broker, topic: str) -> Resource:
    resource = Query(lambda arguments: describe_topic(broker, topic))
    groups = Names(
        lambda arguments: group_names(broker, topic, arguments),
        lambda group: _group(broker, topic, group),
    )
    resource.putChild(b"groups", groups)
    return resource


def _group(broker: Broker, topic: str, group: str) -> Resource:
    resource = Query(lambda arguments: describe_group(broker, topic, group))
    letters = Query(lambda arguments: dead_letters(broker, topic, group, arguments))
    resource.putChild(b"dead-letters", letters)
    return resource


def topics(broker: Broker, arguments: Arguments) -> Answer:
    """All topics with their partitions."""
    chosen = islice(broker.topics(), arguments["first"], arguments["first"] + arguments["limit"])
    return {"topics": [_describe(topic) for topic in chosen]}


def group_names(broker: Broker, topic: str, arguments: Arguments) -> Answer:
    """Names of a topic's groups. Raises `UnknownTopic`."""
    groups = broker.existing_topic(topic).groups
    chosen = islice(groups, arguments["first"], arguments["first"] + arguments["limit"])
    return {"groups": list(chosen)}


def describe_topic(broker: Broker, name: str) -> Answer:
    """One topic. Raises `UnknownTopic`."""
    return _describe(broker.existing_topic(name))


def _describe(topic: Any) -> Answer:
    return {
        "name": topic.name,
        "topic_id": topic.topic_id,
        "next_offsets": [partition.next_offset for partition in topic.partitions],
        "groups": len(topic.groups),
    }


def describe_group(broker: Broker, topic: str, group: str) -> Answer:
    """Where a group stands. Raises `UnknownTopic`."""
    broker.existing_topic(topic)
    info = broker.group_info(topic, group)._asdict()
    age_us = info.pop("oldest_age_us")
    return {
        "topic": topic,
        "group": group,
        **info,
        "oldest_age_seconds": None if age_us is None else age_us / 1e6,
    }


def dead_letters(broker: Broker, topic: str, group: str, arguments: Arguments) -> Answer:
    """A group's dead letters from (``partition``, ``offset``) on, without ``first`` of them.

    ``next`` is where the next page begins, or None after the last. Raises `UnknownTopic`.
    """
    first, limit = arguments["first"], arguments["limit"]
    letters = broker.dead_letters(topic, group, arguments["partition"], arguments["offset"])
    page = [
        {
            "partition": partition,
            "offset": letter.offset,
            "reason": letter.reason,
            "grants": letter.grants,
            "failures": letter.failures,
        }
        for partition, letter in islice(letters, first, first + limit + 1)
    ]
    more = page[limit:]
    following = {key: more[0][key] for key in ("partition", "offset")} if more else None
    return {"dead_letters": page[:limit], "next": following}


NUMBERS = {
    "first": (0, 0, MAX_NUMBER),
    "limit": (DEFAULT_LIMIT, 1, MAX_LIMIT),
    "partition": (0, 0, MAX_NUMBER),
    "offset": (0, 0, MAX_NUMBER),
}
"""What a query string may hold: name -> (default, lowest, highest)."""
PAGE = ("first", "limit")


def _arguments(request: Request) -> Arguments:
    """The numbers of the query string. Raises `InvalidRequest`."""
    return {name: _number(request, name, *bounds) for name, bounds in NUMBERS.items()}


def _number(request: Request, name: str, default: int, low: int, high: int) -> int:
    given = (request.args or {}).get(name.encode())
    if given is None:
        return default
    text = given[-1]
    if not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise InvalidRequest(f"{name} must be a number from {low} to {high}")
    return int(text)


def _operation(summary: str, *parameters: str, query: tuple[str, ...] = ()) -> Answer:
    described: list[Answer] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in parameters
    ]
    for name in query:
        default, low, high = NUMBERS[name]
        schema = {"type": "integer", "default": default, "minimum": low, "maximum": high}
        described.append({"name": name, "in": "query", "schema": schema})
    found = {
        "description": "the answer",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
    refused = {"description": 'refused: {"error": text}'}
    return {
        "get": {
            "summary": summary,
            "parameters": described,
            "responses": {"200": found, "400": refused, "404": refused},
        }
    }


OPENAPI: Answer = {
    "openapi": "3.1.0",
    "info": {"title": "brokerd admin API", "version": "1"},
    "servers": [{"url": "/api/v1"}],
    "paths": {
        "/status": _operation("Counts and sizes of the whole broker"),
        "/topics": _operation("All topics, in order of creation", query=PAGE),
        "/topics/{topic}": _operation("One topic", "topic"),
        "/topics/{topic}/groups": _operation("Names of a topic's groups", "topic", query=PAGE),
        "/topics/{topic}/groups/{group}": _operation("Where a group stands", "topic", "group"),
        "/topics/{topic}/groups/{group}/dead-letters": _operation(
            "A group's dead letters, by partition and offset, and where the next page begins",
            "topic",
            "group",
            query=(*PAGE, "partition", "offset"),
        ),
    },
}
