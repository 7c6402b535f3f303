# Tests: tests/admin/test_routing.py
"""Routing: from an HTTP request to a call and back, by one table of routes.

A `Route` names method, path, function, and the types of query, body and answer. The OpenAPI
description (`brokerd.admin.openapi`) comes from the same table. msgspec decodes query strings and
bodies into the declared types. Each route names the permission it needs, which is checked before
the request is decoded. `STATUSES` maps the errors of the broker to HTTP statuses.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web import http
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request

from brokerd import errors
from brokerd.admin.http.authentication import Authenticator, Login, ask_for_login, drop_frames
from brokerd.admin.http.bodies import PIECE_BYTES, ListBody, most_values, read_pieces, value_counts
from brokerd.admin.http.origins import is_cross_origin, is_from_page
from brokerd.admin.http.resources import METHODS, Branch, json_answer, refusal
from brokerd.admin.http.sessions import Session
from brokerd.admin.shapes.configuration import OptionShape
from brokerd.broker import Broker
from brokerd.broker.calls import call_when_admitted
from brokerd.broker.slices import Pace, SliceOwner
from brokerd.errors import BrokerdError, InvalidRequest
from brokerd.security import ANY, Access
from brokerd.security.audit import EventType

Result = TypeVar("Result")

BODY_BYTES_MAX = 1 << 20
"""Default of the largest body."""

VALUES_MAX = 200_000
"""Approximate limit of values in a JSON body: decoding more would block the broker."""

PATH_NAME = "path."
"""A parameter ``path.NAME`` of the query replaces NAME in the path, for browsers: they drop the
parts ``.`` and ``..`` from paths, percent-encoded ones too (URL standard).
"""

TOO_MANY_REQUESTS = 429
"""RFC 6585, section 4."""

STATUSES: dict[type[BrokerdError], int] = {
    errors.InvalidName: http.BAD_REQUEST,
    errors.InvalidRequest: http.BAD_REQUEST,
    errors.UnknownTopic: http.NOT_FOUND,
    errors.UnknownGroup: http.NOT_FOUND,
    errors.UnknownPartition: http.NOT_FOUND,
    errors.UnknownOffset: http.NOT_FOUND,
    errors.UnknownAccount: http.NOT_FOUND,
    errors.UnknownKey: http.NOT_FOUND,
    errors.UnknownSchema: http.NOT_FOUND,
    errors.InvalidSchema: http.BAD_REQUEST,
    errors.IncompatibleSchema: http.CONFLICT,
    errors.SchemaCheckFailed: http.BAD_REQUEST,
    errors.AccountExists: http.CONFLICT,
    errors.NotLeaseOwner: http.CONFLICT,
    errors.LeaseLost: http.CONFLICT,
    errors.LimitExceeded: http.CONFLICT,
    errors.RecordTooLarge: http.REQUEST_ENTITY_TOO_LARGE,
    errors.NoSpace: http.INSUFFICIENT_STORAGE_SPACE,
    errors.ShuttingDown: http.SERVICE_UNAVAILABLE,
    errors.AuthenticationRequired: http.UNAUTHORIZED,
    errors.LoginFailed: http.UNAUTHORIZED,
    errors.Denied: http.FORBIDDEN,
    errors.LoginThrottled: TOO_MANY_REQUESTS,
}
"""Error class -> HTTP status; subclasses inherit it, all others are 500."""


class AlreadyExists(BrokerdError):
    """The thing to create exists already."""


class NotFound(BrokerdError):
    """The thing that the request names does not exist."""


class ReadFailed(BrokerdError):
    """A read from disk failed; a retry may succeed."""

    retryable = True


class ArchiveUnusable(BrokerdError):
    """The archive is unusable at the moment."""

    retryable = True


class Overloaded(BrokerdError):
    """The bodies of other requests use all memory for bodies."""

    retryable = True


class TooLarge(BrokerdError):
    """The body is larger than the limit of the route."""


class CrossOriginWrite(BrokerdError):
    """A browser sends this write on behalf of a page of another origin."""


class UnsupportedMediaType(BrokerdError):
    """A write does not say that its body is JSON."""


STATUSES |= {
    AlreadyExists: http.CONFLICT,
    NotFound: http.NOT_FOUND,
    ArchiveUnusable: http.SERVICE_UNAVAILABLE,
    Overloaded: http.SERVICE_UNAVAILABLE,
    TooLarge: http.REQUEST_ENTITY_TOO_LARGE,
    CrossOriginWrite: http.FORBIDDEN,
    UnsupportedMediaType: http.UNSUPPORTED_MEDIA_TYPE,
}


_SHUT_OUT = (EventType.CONNECTION_CLOSED, EventType.SESSION_ENDED)


def pace(broker: Broker, access: Access) -> Pace:
    """Return the slices of an account, or of one request without a login."""
    owner = broker.slices.account(access.name) if access.name else SliceOwner()
    return Pace(broker.slices, owner)


class Call(NamedTuple):
    """The argument of a route's function."""

    broker: Broker
    access: Access
    """The authenticated sender and its permissions."""
    path: dict[str, str]
    """Names in the path, for example ``topic``."""
    query: Any
    """The query string, as the route's type."""
    body: Any
    """The body, as the route's type."""
    login: Login
    """The session of the request."""
    options: Callable[[], Sequence[OptionShape]]
    """Returns the options of the configuration."""
    check: Callable[[], None]
    """Checks the route's permission again; raises as `Access.require`."""

    def pace(self) -> Pace:
        """Return the slices of the sender."""
        return pace(self.broker, self.access)

    def carry_out(
        self,
        kind: EventType,
        change: Callable[[], Result],
        resource: str | None = None,
        **details: str,
    ) -> Deferred[Result]:
        """Run a change and write its audit event; fire once both are durable.

        The event's default resource is the path's topic, or ``topic/group``. The event of a change
        that shuts out a client may use the last of the log's reserve. Fails as `when_admitted`.
        """
        actor = self.access.actor
        named = "/".join(self.path.values()) if resource is None else resource
        admit = self.broker.group_commit.admit_revocation if kind in _SHUT_OUT else None
        return self.when_admitted(
            lambda: self.broker.audit.carry_out(actor, kind, named, change, details, admit=admit)
        )

    def when_admitted(self, change: Callable[[], Result]) -> Deferred[Result]:
        """Run a change as `call_when_admitted`, with the route's permission at that time.

        The change may wait for room in the log. If the function checks the permission, the change
        has to check it, too.
        """

        def permitted() -> Result:
            self.check()
            return change()

        return call_when_admitted(self.broker, permitted)

    def number(self, name: str) -> int:
        """Return a number from the path. Raises `InvalidRequest`."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise InvalidRequest(f"the path's {name} must be a number, not {text[:40]!r}")
        return int(text)


@dataclass(frozen=True)
class Route:
    """One method of one path, for example ``/topics/{topic}``."""

    method: str
    path: str
    need: int
    """Required permission: on the path's topic, or by role if the path has none. 0: the function
    checks it, because the topic is elsewhere.
    """
    summary: str
    act: Callable[[Call], Struct | Coroutine[Deferred[Any], Any, Struct]]
    answer: type[Struct]
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    status: int = http.OK
    body_bytes_max: int = BODY_BYTES_MAX
    body_list: ListBody | None = None
    """Decodes a large body in slices."""

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    def check(self, access: Access, names: dict[str, str]) -> None:
        """Check the route's permission; raises as `Access.require`."""
        if not self.need:
            return
        if self.need == ANY:
            access.require_any(names["topic"])
        elif "topic" in names:
            access.require(self.need, names["topic"])
        else:
            access.require_server(self.need)

    def check_sender(self, access: Access, names: dict[str, str]) -> None:
        """Check the sender before the body arrives; if the body decides, require a login."""
        if self.need:
            self.check(access, names)
        else:
            access.require_known()

    def match(self, parts: list[str]) -> dict[str, str] | None:
        """Return the names in a path, or None if it does not match."""
        pattern = self.path.strip("/").split("/")
        if len(pattern) != len(parts):
            return None
        names = {}
        for want, part in zip(pattern, parts, strict=True):
            if want.startswith("{"):
                names[want.strip("{}")] = part
            elif want != part:
                return None
        return names


class Api(Branch):
    """Serves a table of routes; explicit children come first."""

    def __init__(self, broker: Broker, routes: list[Route], authenticator: Authenticator) -> None:
        super().__init__()
        self._broker = broker
        self._routes = routes
        self.authenticator = authenticator
        self.options: Callable[[], Sequence[OptionShape]] = tuple
        """Returns the options of the configuration."""

    def light_waits(self) -> int:
        """Return whether a light request waits for a commit, as `GroupCommit.light_waits`."""
        return self._broker.slices.light_waits()

    def getChild(self, path: bytes, request: Request) -> Resource:
        """Return the resource of a path; its parts are already percent-decoded."""
        found = self.find([path, *(request.postpath or [])], request.args or {})
        if not found:
            return super().getChild(path, request)
        return _Endpoint(self._broker, found, self.authenticator, self.options)

    def find(
        self, raw: list[bytes], query: Mapping[bytes, list[bytes]]
    ) -> dict[str, tuple[Route, dict[str, str]]]:
        """Return method -> (route, names) of a path.

        The names in the query replace those in the path: see `PATH_NAME`.
        """
        if len(raw) > 1 and raw[-1] == b"":
            raw = raw[:-1]
        try:
            parts = [part.decode() for part in raw]
            given = {
                name.decode().removeprefix(PATH_NAME): values[-1].decode()
                for name, values in query.items()
                if name.startswith(PATH_NAME.encode())
            }
        except UnicodeDecodeError:
            return {}
        return {
            route.method: (route, {name: given.get(name, part) for name, part in names.items()})
            for route in self._routes
            if (names := route.match(parts)) is not None
        }


class _Endpoint(Resource):
    """One path of the API, for all methods."""

    isLeaf = True

    def __init__(
        self,
        broker: Broker,
        found: dict[str, tuple[Route, dict[str, str]]],
        authenticator: Authenticator,
        options: Callable[[], Sequence[OptionShape]],
    ) -> None:
        super().__init__()
        self._broker = broker
        self._authenticator = authenticator
        self._options = options
        self._found = found

    def render(self, request: Request) -> Any:
        """Begin to answer, or refuse the method."""
        method = "GET" if request.method in METHODS else request.method.decode("ascii", "replace")
        if method not in self._found:
            allowed = [*self._found, "HEAD"] if "GET" in self._found else [*self._found]
            request.setHeader(b"allow", ", ".join(allowed).encode())
            return json_answer(
                request,
                http.NOT_ALLOWED,
                refusal(f"{method} is not for this path: use {' or '.join(allowed)}"),
            )
        reply = _Reply(request, self._authenticator, self._options)
        reply.begin(self._broker, *self._found[method])
        return NOT_DONE_YET


class _Reply:
    """Answers one request, unless its connection ends before."""

    _log = Logger()

    def __init__(
        self,
        request: Request,
        authenticator: Authenticator,
        options: Callable[[], Sequence[OptionShape]],
    ) -> None:
        self._request = request
        self._authenticator = authenticator
        self._options = options

    def begin(self, broker: Broker, route: Route, names: dict[str, str]) -> None:
        """Make the call; send the answer when it fires."""
        working = Deferred.fromCoroutine(self._work(broker, route, names))
        self._request.notifyFinish().addErrback(lambda _: working.cancel())
        working.addCallbacks(
            self._answer, self._refuse, callbackArgs=(route.status,), errbackArgs=(route,)
        )
        working.addErrback(self._fault)

    async def _work(self, broker: Broker, route: Route, names: dict[str, str]) -> Struct:
        if not broker.ready:
            raise errors.ShuttingDown("the broker is starting or stopping; try again later")
        access = await self._authenticator.ask(self._request)
        route.check(access, names)
        login = Login(self._authenticator, self._request)
        if route.is_write:
            _check_page(self._request, login.session)
        query = _query(self._request, route)
        body = await _body(self._request, route, pace(broker, access))
        check = partial(route.check, access, names)
        call = Call(broker, access, names, query, body, login, self._options, check)
        result = route.act(call)
        if isinstance(result, Struct):
            return result
        answer = await result
        if not route.is_write:  # a write is done, and was permitted when it was
            check()
        return answer

    def _answer(self, answer: Struct, status: int) -> None:
        self._send(status, msgspec.json.encode(answer))

    def _refuse(self, failure: Failure, route: Route) -> None:
        failure.trap(BrokerdError)
        said: Any = failure.value
        status = status_of(said)
        if status == http.UNAUTHORIZED:
            ask_for_login(self._request)
        error = {"error": str(said), "retryable": said.retryable}
        self._send(status, msgspec.json.encode(error))
        drop_frames(failure)

    def _fault(self, failure: Failure) -> None:
        if failure.check(CancelledError):
            drop_frames(failure)
            return  # the connection is gone
        self._log.failure(
            "a fault in brokerd; a request to the admin API has no answer",
            failure,
            event_id="admin-fault",
        )
        error = refusal("a fault in brokerd; see its log")
        self._send(http.INTERNAL_SERVER_ERROR, msgspec.json.encode(error))

    def _send(self, status: int, body: bytes) -> None:
        request = self._request
        request.setResponseCode(status)
        request.setHeader(b"content-type", b"application/json")
        request.setHeader(b"cache-control", b"no-store")
        request.setHeader(b"content-length", b"%d" % (len(body) + 1))
        request.write(body + b"\n")
        request.finish()


def status_of(refusal: BrokerdError) -> int:
    """Return the HTTP status of an error."""
    kinds = [kind for kind in type(refusal).__mro__ if kind in STATUSES]
    return STATUSES[kinds[0]] if kinds else http.INTERNAL_SERVER_ERROR


def _query(request: Request, route: Route) -> Any:
    """Decode the query string into the route's type. Raises `InvalidRequest`."""
    given = {
        name.decode("utf-8", "replace"): values[-1].decode("utf-8", "replace")
        for name, values in (request.args or {}).items()
    }
    for name in parameters(route.path):
        given.pop(PATH_NAME + name, None)
    if route.query is None:
        if given:
            raise InvalidRequest(f"this path takes no query string, and got {next(iter(given))!r}")
        return None
    try:
        return msgspec.convert(given, type=route.query, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the query string is wrong: {error_text(error)}") from None


def _check_page(request: Request, session: Session | None) -> None:
    """Refuse a write for a page of another origin, and one of a session without its token.

    Raises `CrossOriginWrite`.
    """
    if is_cross_origin(request):
        raise CrossOriginWrite(
            "a page of another origin may change nothing: Origin must be this site, with the host "
            "and the port of the header Host"
        )
    if session is None:
        return
    if not is_from_page(request):
        raise CrossOriginWrite("a write of a session needs the header Origin or Sec-Fetch-Site")
    if not session.allows_write(request):
        raise CrossOriginWrite(
            "a write of a session needs the header X-CSRF-Token: the csrf_token of GET /session"
        )


async def _body(request: Request, route: Route, pace: Pace) -> Any:
    """Decode the body into the route's type; a large one in slices of its own.

    Raises `InvalidRequest`, `UnsupportedMediaType` and `TooLarge`.
    """
    if not route.is_write:
        return None
    if not is_json(request):
        raise UnsupportedMediaType(
            f"a {route.method} needs the header Content-Type: application/json"
        )
    content: Any = request.content
    pieces: list[bytes] = []
    values = 0
    for piece in read_pieces(content, route.body_bytes_max + 1):
        pieces.append(piece)
        values += most_values(piece)
        await pace.rest()
    size = sum(map(len, pieces))
    if size > route.body_bytes_max:
        raise TooLarge(f"the body is larger than {route.body_bytes_max} bytes; send less at once")
    if values > VALUES_MAX:
        await _check_values(pieces, pace)
    try:
        if route.body_list is not None and size > PIECE_BYTES:
            for decoded in route.body_list.steps(pieces):
                await pace.rest()
                if decoded is not None:
                    return decoded
        return msgspec.json.decode(b"".join(pieces) or b"{}", type=route.body or _Empty)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is wrong: {error_text(error)}") from None
    except RecursionError:
        raise InvalidRequest("the body is wrong: its JSON is nested too deeply") from None


async def _check_values(pieces: list[bytes], pace: Pace) -> None:
    """Refuse a body of too many values. Raises `TooLarge`."""
    for count in value_counts(pieces):
        if count > VALUES_MAX:
            raise TooLarge(
                f"the body's JSON holds more than {VALUES_MAX} values; send fewer records at "
                "once, or a large value as value_base64"
            )
        await pace.rest()
    await pace.next_slice()


def is_json(request: Request) -> bool:
    """Return whether the Content-Type of a request is JSON."""
    kind = (request.getHeader(b"content-type") or b"").partition(b";")[0]
    return kind.strip().lower() == b"application/json"


class _Empty(Struct, forbid_unknown_fields=True):
    """The body of a write without arguments."""


def error_text(error: Exception) -> str:
    """Return msgspec's message with the field first: ``partitions: expected `int` >= 1``."""
    text, at, place = str(error).partition(" - at `")
    field = place.removesuffix("`").removeprefix("$").removeprefix(".")
    return f"{field}: {text[:1].lower()}{text[1:]}" if at and field else text


def parameters(path: str) -> Iterator[str]:
    """Return the names in a route's path."""
    return (part.strip("{}") for part in path.split("/") if part.startswith("{"))
