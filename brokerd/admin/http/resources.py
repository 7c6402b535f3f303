# Tests: tests/admin/test_site.py
"""Base classes of resources that answer with one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import Request

Answer = Mapping[str, Any]

METHODS = (b"GET", b"HEAD")


def refusal(error: str) -> Answer:
    """Return the body of a permanent refusal."""
    return {"error": error, "retryable": False}


def json_answer(request: Request, code: int, value: Answer) -> bytes:
    """Write one JSON object as the answer to a request."""
    request.setResponseCode(code)
    request.setHeader(b"content-type", b"application/json")
    request.setHeader(b"cache-control", b"no-store")
    return json.dumps(value).encode() + b"\n"


class NotFoundResource(Resource):
    """404 as JSON."""

    isLeaf = True

    def render(self, request: Request) -> bytes:
        """Answer 404 to every method."""
        return json_answer(request, http.NOT_FOUND, refusal("there is nothing here"))


class Branch(Resource):
    """A path that has only children; unknown children are 404."""

    def render(self, request: Request) -> Any:
        """Answer to GET and HEAD, and refuse other methods as JSON."""
        if request.method in METHODS:
            return super().render(request)
        request.setHeader(b"allow", b", ".join(METHODS))
        return json_answer(request, http.NOT_ALLOWED, refusal("read only: use GET or HEAD"))

    def getChild(self, path: bytes, request: Request) -> Resource:
        """Return 404; Twisted has looked for children before."""
        return NotFoundResource()

    def render_GET(self, request: Request) -> bytes:
        """Answer 404 for the branch itself."""
        return NotFoundResource().render(request)


class JSONResource(Branch):
    """Answers with one JSON object, with or without a slash after its path."""

    def __init__(self, answer: Callable[[Request], tuple[int, Answer]]) -> None:
        super().__init__()
        self._answer = answer

    def getChild(self, path: bytes, request: Request) -> Resource:
        """Find the resource itself behind a slash, and nothing below it."""
        return self if path == b"" and not request.postpath else NotFoundResource()

    def render_GET(self, request: Request) -> bytes:
        """Answer with the code and the object."""
        code, value = self._answer(request)
        return json_answer(request, code, value)
