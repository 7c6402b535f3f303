# Tests: tests/admin/test_sender.py
"""A resource that only those may see who have a permission on everything."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from brokerd.admin.http.resources import json_answer
from brokerd.admin.http.routing import status_of
from brokerd.admin.http.sender import REALM, Asker
from brokerd.errors import BrokerdError
from brokerd.security import Access


class Permitted(Resource):
    """Shows ``shown`` to who has the permission ``need``; everybody else gets a refusal as JSON."""

    isLeaf = True

    def __init__(self, asker: Asker, need: int, shown: Resource) -> None:
        super().__init__()
        self._asker = asker
        self._need = need
        self._shown = shown

    def render(self, request: Request) -> int:
        """Answer when it is known who asks, which is now for most."""

        def allowed(access: Access) -> Resource:
            access.require_server(self._need)
            return self._shown

        asked = self._asker.ask(request)
        request.notifyFinish().addErrback(lambda _: asked.cancel())
        asked.addCallback(allowed).addErrback(_refused).addCallback(request.render)
        asked.addErrback(lambda failure: failure.trap(CancelledError))
        return NOT_DONE_YET


def _refused(failure: Failure) -> Resource:
    failure.trap(BrokerdError)
    refusal: Any = failure.value
    return _Refused(refusal)


class _Refused(Resource):
    """A refusal, whatever the method."""

    isLeaf = True

    def __init__(self, refusal: BrokerdError) -> None:
        super().__init__()
        self._refusal = refusal

    def render(self, request: Request) -> bytes:
        status = status_of(self._refusal)
        if status == http.UNAUTHORIZED:
            request.setHeader(b"www-authenticate", REALM)
        said = {"error": str(self._refusal), "retryable": self._refusal.retryable}
        return json_answer(request, status, said)
