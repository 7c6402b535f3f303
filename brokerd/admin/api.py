# Tests: tests/admin/test_api.py
"""The JSON API below ``/api/v1``: topics, groups and dead letters, read only.

Its description, for people and programs, is ``/api/v1/openapi.json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

from brokerd.broker import Broker
from brokerd.errors import InvalidRequest, UnknownTopic

DEFAULT_LIMIT = 1_000
MAX_LIMIT = 10_000

Answer = Mapping[str, Any]
Arguments = Mapping[str, int]


def json_answer(request: Request, code: int, value: Answer) -> bytes:
    """Write one JSON object as the answer to a request."""
    request.setResponseCode(code)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"cache-control", b"no-store")
    return json.dumps(value).encode() + b"\n"


class Missing(Resource):
    """404 as JSON."""

    isLeaf = True

    def render(self, request: Request) -> bytes:
        """Answer 404, whatever the method."""
        return json_answer(request, http.NOT_FOUND, {"error": "there is nothing here"})


class Query(Resource):
    """One question to the broker: ``ask(limit=..., first=...)`` gives the answer."""

    def __init__(self, ask: Callable[[Arguments], Answer]) -> None:
        super().__init__()
        self._ask = ask

    def getChild(self, path: bytes, request: Request) -> Resource:
        """Nothing is below an answer."""
        return self if not path and not request.postpath else Missing()

    def render_GET(self, request: Request) -> bytes:
        """Answer, or say what is wrong with the question."""
        try:
            return json_answer(request, http.OK, self._ask(_arguments(request)))
        except UnknownTopic as error:
            return json_answer(request, http.NOT_FOUND, {"error": str(error)})
        except InvalidRequest as error:
            return json_answer(request, http.BAD_REQUEST, {"error": str(error)})


class Names(Query):
    """A question about all things of a kind, with one thing below each name."""

    def __init__(
        self, ask: Callable[[Arguments], Answer], child: Callable[[str], Resource]
    ) -> None:
        super().__init__(ask)
        self._child = child

    def getChild(self, path: bytes, request: Request) -> Resource:
        """The thing of this (percent-decoded) name."""
        try:
            return self._child(path.decode())
        except UnicodeDecodeError:
            return Missing()


def make_api(broker: Broker) -> Resource:
    """The resource to be hung up at ``/api/v1``."""
    root = _Branch(Missing(), {})
    root.putChild(
        b"topics",
        Names(lambda arguments: topics(broker, arguments), lambda name: _topic(broker, name)),
    )
    root.putChild(b"openapi.json", Query(lambda arguments: OPENAPI))
    return root


def _topic(broker: Broker, topic: str) -> Resource:
    resource = Query(lambda arguments: describe_topic(broker, topic))
    groups = Names(
        lambda arguments: {"groups": [*broker.existing_topic(topic).groups]},
        lambda group: _group(broker, topic, group),
    )
    return _Branch(resource, {b"groups": groups})


def _group(broker: Broker, topic: str, group: str) -> Resource:
    resource = Query(lambda arguments: describe_group(broker, topic, group))
    letters = Query(lambda arguments: dead_letters(broker, topic, group, arguments))
    return _Branch(resource, {b"dead-letters": letters})


class _Branch(Resource):
    """A thing that answers for itself and has named parts."""

    def __init__(self, itself: Query | Missing, parts: Mapping[bytes, Resource]) -> None:
        super().__init__()
        self._itself = itself
        self._parts = parts

    def getChild(self, path: bytes, request: Request) -> Resource:
        """The part of this name."""
        return self._parts.get(path, Missing())

    def render_GET(self, request: Request) -> bytes:
        """Answer for the thing itself."""
        return self._itself.render(request)


def topics(broker: Broker, arguments: Arguments) -> Answer:
    """All topics with their partitions."""
    chosen = islice(broker.topics(), arguments["first"], arguments["first"] + arguments["limit"])
    return {"topics": [_describe(topic) for topic in chosen]}


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
    """A group's dead letters, ``limit`` of them from the ``first``-th on."""
    first, limit = arguments["first"], arguments["limit"]
    letters = islice(broker.dead_letters(topic, group), first, first + limit)
    return {
        "dead_letters": [
            {
                "partition": partition,
                "offset": letter.offset,
                "reason": letter.reason,
                "grants": letter.grants,
                "failures": letter.failures,
            }
            for partition, letter in letters
        ]
    }


def _arguments(request: Request) -> Arguments:
    """``first`` and ``limit`` of the query string. Raises `InvalidRequest`."""
    return {
        "first": _number(request, b"first", 0, 0, 1 << 62),
        "limit": _number(request, b"limit", DEFAULT_LIMIT, 1, MAX_LIMIT),
    }


def _number(request: Request, name: bytes, default: int, low: int, high: int) -> int:
    given = (request.args or {}).get(name)
    if given is None:
        return default
    text = given[-1]
    if not text.isdigit() or len(text) > 19 or not low <= int(text) <= high:
        raise InvalidRequest(f"{name.decode()} must be a number from {low} to {high}")
    return int(text)


def _operation(summary: str, *parameters: str, paged: bool = False) -> Answer:
    described: list[Answer] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in parameters
    ]
    if paged:
        described += [
            {"name": name, "in": "query", "schema": {"type": "integer", "default": default}}
            for name, default in (("first", 0), ("limit", DEFAULT_LIMIT))
        ]
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
        "/topics": _operation("All topics, in order of creation", paged=True),
        "/topics/{topic}": _operation("One topic", "topic"),
        "/topics/{topic}/groups": _operation("Names of a topic's groups", "topic"),
        "/topics/{topic}/groups/{group}": _operation("Where a group stands", "topic", "group"),
        "/topics/{topic}/groups/{group}/dead-letters": _operation(
            "A group's dead letters, by partition and offset", "topic", "group", paged=True
        ),
    },
}
