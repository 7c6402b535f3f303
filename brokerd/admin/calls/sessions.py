# Tests: tests/admin/test_sessions.py
"""The API's calls about sessions of browsers: log in, log out, describe, list, end."""

from __future__ import annotations

from twisted.web import http

from brokerd.admin.http.routing import Call, NotFound, Route
from brokerd.admin.http.sessions import Session
from brokerd.admin.shapes.common import Deleted, Page
from brokerd.admin.shapes.security import NewSession, OpenSession, SessionList, SessionShape
from brokerd.security import ADMIN, OPEN
from brokerd.security.audit import EventType, event

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
    call.broker.audit.record(event(session.access.actor, EventType.LOGOUT))
    return Deleted(session.access.name)


def list_sessions(call: Call) -> SessionList:
    """Return a page of all open sessions, oldest first."""
    query: Page = call.query
    page, following = query.select(call.login.open_sessions(), 1)
    now = call.login.now()
    return SessionList([_listed(one, one is call.login.session, now) for one in page], following)


async def end_session(call: Call) -> Deleted:
    """End a session; its browser has to log in again. Raises `NotFound`."""
    number = call.number("number")
    session = next((one for one in call.login.open_sessions() if one.number == number), None)
    if session is None:
        raise NotFound(f"there is no session {number}: it is over, or never existed")
    await call.carry_out(
        EventType.SESSION_ENDED,
        lambda: call.login.end(number),
        str(number),
        address=session.peer,
        ended_user=session.access.name,
    )
    return Deleted(str(number))


def _existing(call: Call) -> Session:
    session = call.login.session
    if session is None:
        raise NotFound("this request has no session: log in with POST /session")
    return session


def _shape(call: Call, session: Session) -> SessionShape:
    return SessionShape(session.access.name, session.token, call.login.seconds_left(session))


def _listed(session: Session, is_current: bool, now: float) -> OpenSession:
    return OpenSession(
        id=session.number,
        user=session.access.name,
        address=session.peer,
        open_seconds=now - session.since,
        idle_seconds=now - session.used,
        seconds_left=session.seconds_left(now),
        current=is_current,
    )


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
    Route(
        "GET",
        "/sessions",
        ADMIN,
        "List the open sessions of browsers, oldest first",
        list_sessions,
        SessionList,
        query=Page,
    ),
    Route("DELETE", "/sessions/{number}", ADMIN, "End a session", end_session, Deleted),
]
