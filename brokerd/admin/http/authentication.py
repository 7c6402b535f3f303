# Tests: tests/admin/test_authentication.py
"""Authentication of requests to the admin site: HTTP Basic (RFC 7617) or a Bearer key (RFC 6750).

A request without either has the identity of its session (`brokerd.admin.http.sessions`), else of
the TLS client certificate, if there is one.

Verifying a password is slow on purpose, so a right password is cached for a while. The cache holds
a keyed digest of address and credentials, in memory, and is cleared by any change of accounts or
keys. It is not used while logins from the address are throttled, or so many of them wait that they
may be throttled: otherwise each guess would reveal whether it is right.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from twisted.internet.defer import Deferred, fail, maybeDeferred, succeed
from twisted.python.failure import Failure
from twisted.web.server import Request

from brokerd.admin.http.sessions import Session, Sessions
from brokerd.errors import BrokerdError, InvalidRequest, without_traceback
from brokerd.security import OPEN, Access, Guard
from brokerd.security.certificates import peer_subject

CACHE_MAX = 1_000
"""Most cached passwords."""
CACHE_SECONDS = 300.0

_BASIC = b'Basic realm="brokerd", charset="UTF-8"'
_SESSION = b'Session realm="brokerd"'
"""A scheme that no browser knows."""


def ask_for_login(request: Request) -> None:
    """Add the header WWW-Authenticate to a 401 (RFC 7617, section 2.1).

    A page that has a form of its own sends ``X-Requested-With``. At its requests a browser must not
    ask for a password itself.
    """
    has_form = request.requestHeaders.hasHeader(b"x-requested-with")
    request.setHeader(b"www-authenticate", _SESSION if has_form else _BASIC)


def drop_frames(failure: Failure) -> None:
    """Remove the frames from a failure: see `without_traceback`."""
    error: Any = failure.value
    without_traceback(error)
    failure.tb = None


class Sender:
    """The sender of one request; authenticated once, for all that ask."""

    session: Session | None = None
    """The session that authenticated the request."""

    def __init__(self) -> None:
        self._outcome: Access | Failure | None = None
        self._waiting: list[Deferred[Access]] | None = None

    @property
    def access(self) -> Access | None:
        """The authenticated access; None before that, and after a failure."""
        return None if isinstance(self._outcome, Failure) else self._outcome

    def ask(self, find: Callable[[], Deferred[Access]]) -> Deferred[Access]:
        """Authenticate at the first call; fire with the result."""
        answer: Deferred[Access] = Deferred()
        if self._outcome is not None:
            answer.callback(self._outcome)
        elif self._waiting is not None:
            self._waiting.append(answer)
        else:
            self._waiting = [answer]
            maybeDeferred(find).addBoth(self._found)
        return answer

    def refuse(self, failure: Failure) -> None:
        """Set the result to a refusal."""
        drop_frames(failure)
        self._outcome = failure

    def _found(self, outcome: Access | Failure) -> None:
        if isinstance(outcome, Failure):
            drop_frames(outcome)
        if self._outcome is None:
            self._outcome = outcome
        waiting, self._waiting = self._waiting or [], None
        for one in waiting:
            one.callback(self._outcome)


class Authenticator:
    """Authenticates requests.

    :param seconds: a monotonic clock.
    :param secret: 32 random bytes of this process.
    """

    def __init__(self, guard: Guard, seconds: Callable[[], float], secret: bytes) -> None:
        self.guard = guard
        self._seconds = seconds
        self._secret = secret
        self._cache: OrderedDict[bytes, tuple[int, float, Access]] = OrderedDict()
        self.sessions = Sessions(seconds, secret)

    def ask(self, request: Request) -> Deferred[Access]:
        """Find out who sent the request, once for each.

        Fails with `LoginFailed`, `LoginThrottled`, and with `InvalidRequest` for a header that
        cannot be read.
        """
        one: Any = request
        sender: Sender = one.sender
        return sender.ask(lambda: self._find(request))

    def _find(self, request: Request) -> Deferred[Access]:
        if not self.guard.auth:
            return succeed(OPEN)
        try:
            header = request.getHeader(b"authorization")
            if header is None:
                return succeed(self._without_login(request))
            scheme, _, given = header.decode("utf-8", "replace").strip().partition(" ")
            if scheme.lower() == "bearer":
                return succeed(self.guard.log_in_with_key("admin", peer_of(request), given.strip()))
            if scheme.lower() == "basic":
                return self._basic(request, given.strip())
            raise InvalidRequest("the header Authorization must be Basic or Bearer")
        except BrokerdError as refusal:
            return fail(refusal)

    def _without_login(self, request: Request) -> Access:
        """Return the access of the session, else of the client's certificate, which is found once
        for each connection, else of anonymous.
        """
        one: Any = request
        session = self.sessions.find(request, peer_of(request))
        if session is not None:
            one.sender.session = session
            return session.access
        channel: Any = request.channel
        if channel.certificate_access is None:
            subject = peer_subject(channel.transport)
            if subject is None:
                return self.guard.begin("admin", peer_of(request))
            channel.certificate_access = self.guard.by_certificate(
                "admin", peer_of(request), *subject
            )
        certificate_access: Access = channel.certificate_access
        return certificate_access

    def _basic(self, request: Request, given: str) -> Deferred[Access]:
        name, password = _credentials(given)
        peer = peer_of(request)
        cache_key = f"{peer} {given}"  # a login by certificate logs its own event
        digest = blake2b(cache_key.encode("utf-8", "replace"), key=self._secret).digest()
        cached = self._cached_access(digest)
        if cached is not None and self.guard.may_skip_check("admin", peer, name):
            return succeed(cached)
        version = self.guard.version

        def keep(access: Access) -> Access:
            self._cache[digest] = version, self._seconds(), access
            if len(self._cache) > CACHE_MAX:
                self._cache.popitem(last=False)
            return access

        return self.log_in(request, name, password).addCallback(keep)

    def log_in(self, request: Request, name: str, password: str) -> Deferred[Access]:
        """Check a password; the connection of the request waits meanwhile.

        Fails with `LoginFailed` and `LoginThrottled`.
        """
        answer: Deferred[Access] = Deferred()
        channel: Any = request.channel  # None if the connection has ended

        def done(access: Access | None, refusal: BrokerdError | None) -> None:
            if channel is not None:
                channel.end_login()
            if access is None:
                answer.errback(refusal)
            else:
                answer.callback(access)

        if channel is not None:
            channel.begin_login()
        self.guard.log_in("admin", peer_of(request), name, password, done)
        return answer

    def _cached_access(self, digest: bytes) -> Access | None:
        """Return the cached access for these credentials, unless accounts or keys changed."""
        found = self._cache.get(digest)
        if found is None:
            return None
        version, since, access = found
        if version != self.guard.version or self._seconds() - since > CACHE_SECONDS:
            del self._cache[digest]
            return None
        return access


class Login:
    """The session of one request: opens and closes it."""

    def __init__(self, authenticator: Authenticator, request: Request) -> None:
        self._authenticator = authenticator
        self._request = request

    @property
    def session(self) -> Session | None:
        """The session that authenticated the request."""
        one: Any = self._request
        session: Session | None = one.sender.session
        return session

    async def open(self, name: str, password: str) -> Session:
        """Check a password and begin a session; the sessions of the request's cookies end.

        Raises `LoginFailed` and `LoginThrottled`.
        """
        peer = peer_of(self._request)
        access = await self._authenticator.log_in(self._request, name, password)
        self._authenticator.sessions.close(self._request, peer)
        return self._authenticator.sessions.open(access, self._request, peer)

    def close(self) -> None:
        """End the session, if there is one, and remove its cookie."""
        self._authenticator.sessions.close(self._request, peer_of(self._request))
        self._authenticator.sessions.forget(self._request)

    def open_sessions(self) -> list[Session]:
        """Return the open sessions of the site by number."""
        return self._authenticator.sessions.open_sessions()

    def end(self, number: int) -> Session | None:
        """End a session of the site; return it, or None if there is no such session."""
        return self._authenticator.sessions.end(number)

    def now(self) -> float:
        """Return the time of the sessions' clock."""
        return self._authenticator.sessions.now()

    def seconds_left(self, session: Session) -> float:
        """Return how long a session lives without use."""
        return self._authenticator.sessions.seconds_left(session)


def peer_of(request: Request) -> str:
    """Return the peer's address, without a port."""
    address: Any = request.getClientAddress()
    return getattr(address, "host", None) or "unix"


def _credentials(given: str) -> tuple[str, str]:
    """Decode name and password from a Basic header. Raises `InvalidRequest`."""
    try:
        text = b64decode(given, validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("the header Authorization is not Basic as RFC 7617 has it") from None
    name, colon, password = text.partition(":")
    if not colon:
        raise InvalidRequest("the header Authorization has no colon between name and password")
    return name, password
