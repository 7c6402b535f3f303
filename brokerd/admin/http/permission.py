# Tests: tests/admin/test_authentication.py
"""Resources that need a permission by role."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from brokerd.admin.http.authentication import Authenticator, ask_for_login
from brokerd.admin.http.resources import json_answer
from brokerd.admin.http.routing import status_of
from brokerd.errors import BrokerdError
from brokerd.security import Access


class PermissionResource(Resource):
    """Serves a resource to senders with a permission by role; refuses others in JSON."""

    isLeaf = True

    def __init__(self, authenticator: Authenticator, permission: int, resource: Resource) -> None:
        super().__init__()
        self._authenticator = authenticator
        self._permission = permission
        self._resource = resource

    def render(self, request: Request) -> int:
        """Answer once the sender is authenticated, usually at once."""

        def allowed(access: Access) -> Resource:
            access.require_server(self._permission)
            return self._resource

        asked = self._authenticator.ask(request)
        request.notifyFinish().addErrback(lambda _: asked.cancel())
        asked.addCallback(allowed).addErrback(_refused).addCallback(request.render)
        asked.addErrback(lambda failure: failure.trap(CancelledError))
        return NOT_DONE_YET


def _refused(failure: Failure) -> Resource:
    failure.trap(BrokerdError)
    refusal: Any = failure.value
    return _Refused(refusal)


class _Refused(Resource):
    """A refusal for every method."""

    isLeaf = True

    def __init__(self, refusal: BrokerdError) -> None:
        super().__init__()
        self._refusal = refusal

    def render(self, request: Request) -> bytes:
        status = status_of(self._refusal)
        if status == http.UNAUTHORIZED:
            ask_for_login(request)
        said = {"error": str(self._refusal), "retryable": self._refusal.retryable}
        return json_answer(request, status, said)
