# Tests: tests/admin/test_sessions.py
"""The API's calls about the session of a browser: log in, log out, describe."""

from __future__ import annotations

from twisted.web import http

from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.http.sessions import Session
from brokerd.admin.shapes.common import Deleted
from brokerd.admin.shapes.security import NewSession, SessionShape
from brokerd.security import OPEN

BODY_BYTES_MAX = 16 << 10


async def log_in(call: Call) -> SessionShape:
    """Begin a session. Raises `NotFound`, `LoginFailed` and `LoginThrottled`."""
    if call.access is OPEN:
        raise NotFound("security is off (security.auth): there is nothing to log in to")
    new: NewSession = call.body
    return _shape(call, await call.login.open(new.name, new.password))


def describe_session(call: Call) -> SessionShape:
    """Return the session of the request. Raises `NotFound`."""
    return _shape(call, _existing(call))


def log_out(call: Call) -> Deleted:
    """End the session of the request. Raises `NotFound`."""
    session = _existing(call)
    call.login.close()
    return Deleted(session.access.name)


def _existing(call: Call) -> Session:
    session = call.login.session
    if session is None:
        raise NotFound("this request has no session: log in with POST /session")
    return session


def _shape(call: Call, session: Session) -> SessionShape:
    return SessionShape(session.access.name, session.token, call.login.seconds_left(session))


SESSION = "/session"
ROUTES = [
    Route("GET", SESSION, 0, "Show the session of this request", describe_session, SessionShape),
    Route(
        "POST",
        SESSION,
        0,
        "Begin a session: set its cookie, and answer with the token for writes",
        log_in,
        SessionShape,
        body=NewSession,
        status=http.CREATED,
        body_bytes_max=BODY_BYTES_MAX,
    ),
    Route("DELETE", SESSION, 0, "End the session of this request", log_out, Deleted),
]
