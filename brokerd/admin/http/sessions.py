# Tests: tests/admin/test_sessions.py
"""Sessions of browsers that logged in to the console: a cookie, and a token for writes (CSRF).

The cookie is HttpOnly and SameSite=Strict, and Secure if the page came over HTTPS. Its name has the
port of the listener, because browsers send cookies to all ports of a host. A session belongs to the
address of its login. It ends after a while without use, after its longest life, with the logout,
and when its account loses the login: disabled, deleted, another password. A restart ends all.

Another server on the same host can set a cookie of this name, so a request may carry the cookies of
several sessions. Then it has none of them, and its login ends them all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from hmac import compare_digest
from itertools import count
from typing import Any

from twisted.web.server import Request

from brokerd.security import Access

IDLE_SECONDS = 3_600.0
"""Life of a session without use."""
LIFE_SECONDS = 12 * 3_600.0
"""Longest life of a session."""
SESSIONS_MAX = 1_000
"""Most sessions; a further one ends a session of the account with the most."""
ACCOUNT_SESSIONS_MAX = 20
"""Most sessions of an account; a further one ends the session with the longest time without use."""
TOKEN_HEADER = b"x-csrf-token"
POLL_HEADER = b"x-poll"
"""A page marks requests that it repeats by itself, which are no use of a session."""


class Session:
    """One login of a browser."""

    def __init__(self, number: int, access: Access, peer: str, token: str, now: float) -> None:
        self.number = number
        """Never used again in this process, and no secret."""
        self.access = access
        self.peer = peer
        self.token = token
        """Writes carry it in the header ``X-CSRF-Token``."""
        self.since = self.used = now

    def seconds_left(self, now: float) -> float:
        """Return how long the session lives without use."""
        return min(self.used + IDLE_SECONDS, self.since + LIFE_SECONDS) - now

    def is_over(self, now: float) -> bool:
        """Return whether its time is over, or its account lost the login."""
        return self.seconds_left(now) <= 0 or not self.access.is_known

    def allows_write(self, request: Request) -> bool:
        """Return whether the request has the session's token."""
        given = request.getHeader(TOKEN_HEADER) or b""
        return compare_digest(given, self.token.encode())


class Sessions:
    """The sessions of one site, by a digest of the cookie's value.

    :param seconds: a monotonic clock.
    :param secret: 32 random bytes of this process; cookies and tokens are derived from it.
    """

    def __init__(self, seconds: Callable[[], float], secret: bytes) -> None:
        self._seconds = seconds
        self._secret = secret
        self._numbers = count(1)
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        """The session that was used last is last."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, access: Access, request: Request, peer: str) -> Session:
        """Begin a session, and set its cookie in the answer."""
        now = self._seconds()
        self._forget_ended(now)
        own = [digest for digest, one in self._sessions.items() if one.access.name == access.name]
        if len(own) >= ACCOUNT_SESSIONS_MAX:
            del self._sessions[own[0]]
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[self._least_used_of_most()]
        number = next(self._numbers)
        value = self._derive(f"cookie {number}")
        session = Session(number, access, peer, self._derive(f"token {number}"), now)
        self._sessions[self._digest(value)] = session
        _set_cookie(request, value)
        return session

    def open_sessions(self) -> list[Session]:
        """Return the open sessions by number."""
        self._forget_ended(self._seconds())
        return sorted(self._sessions.values(), key=lambda session: session.number)

    def end(self, number: int) -> Session | None:
        """End a session; return it, or None if there is no such session."""
        self._forget_ended(self._seconds())
        for digest, session in self._sessions.items():
            if session.number == number:
                del self._sessions[digest]
                return session
        return None

    def _forget_ended(self, now: float) -> None:
        """Forget the sessions that are over."""
        for digest, session in list(self._sessions.items()):
            if session.is_over(now):
                del self._sessions[digest]

    def _least_used_of_most(self) -> bytes:
        """Return the least recently used session of the account with the most sessions."""
        names = [one.access.name for one in self._sessions.values()]
        ((most, _),) = Counter(names).most_common(1)
        return next(digest for digest, one in self._sessions.items() if one.access.name == most)

    def find(self, request: Request, peer: str) -> Session | None:
        """Return the session of a request's cookie, and count it as a use; None without a session,
        and for a request with several.
        """
        carried = self._carried(request, peer)
        if len(carried) != 1:
            return None
        ((digest, session),) = carried.items()
        if not request.requestHeaders.hasHeader(POLL_HEADER):
            session.used = self._seconds()
            self._sessions.move_to_end(digest)
        return session

    def close(self, request: Request, peer: str) -> None:
        """End the sessions of a request's cookies."""
        for digest in self._carried(request, peer):
            del self._sessions[digest]

    def _carried(self, request: Request, peer: str) -> dict[bytes, Session]:
        """Return the sessions of a request's cookies by digest; forget those that are over."""
        now = self._seconds()
        carried = {}
        for value in _cookies(request):
            digest = self._digest(value)
            session = self._sessions.get(digest)
            if session is None or session.peer != peer:
                continue
            if session.is_over(now):
                del self._sessions[digest]
            else:
                carried[digest] = session
        return carried

    def forget(self, request: Request) -> None:
        """Remove the cookie from the browser, by the answer."""
        _set_cookie(request, "", "; Max-Age=0")

    def now(self) -> float:
        """Return the time of the clock."""
        return self._seconds()

    def seconds_left(self, session: Session) -> float:
        """Return how long a session lives without use."""
        return session.seconds_left(self._seconds())

    def _derive(self, name: str) -> str:
        return blake2b(f"session {name}".encode(), key=self._secret, digest_size=32).hexdigest()

    def _digest(self, value: str) -> bytes:
        return blake2b(value.encode("utf-8", "replace"), key=self._secret).digest()


def _cookie_name(request: Request) -> str:
    channel: Any = request.channel
    port = getattr(channel.getHost(), "port", None)
    return "brokerd" if port is None else f"brokerd-{port}"


def _cookies(request: Request) -> Iterator[str]:
    """Yield the values of the session cookie; read here, because Twisted reads it with the body."""
    name = _cookie_name(request)
    for header in request.requestHeaders.getRawHeaders(b"cookie", []):
        for part in header.decode("latin-1").split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                yield value


def _set_cookie(request: Request, value: str, more: str = "") -> None:
    is_https = request.isSecure() or (request.getHeader(b"origin") or b"").startswith(b"https:")
    cookie = f"{_cookie_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict"
    cookie += ("; Secure" if is_https else "") + more
    request.responseHeaders.addRawHeader(b"set-cookie", cookie.encode())
