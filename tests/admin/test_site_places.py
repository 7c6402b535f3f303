"""Which connections the admin site closes or refuses when it has too many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.protocol import connectionDone

from brokerd.admin.http.places import KEPT_PLACES, MAX_CONNECTIONS, PER_ADDRESS_MAX
from brokerd.admin.http.request import PIPELINED_MAX, Pipelines
from brokerd.admin.site import KEPT_DESCRIPTORS
from brokerd.errors import LoginFailed
from brokerd.security import OPEN, OPEN_GUARD, Access, Guard
from brokerd.security.guard import LoginDone
from tests.admin.caller import JSON, Caller, Wire
from tests.admin.test_authentication import Allowed, basic

ADMIN = "198.51.100.1"
LOOPBACK = "127.0.0.1"
HEALTH = b"GET /health/ready HTTP/1.1\r\nhost: here\r\n\r\n"
LOGIN = f"GET /api/v1/status HTTP/1.1\r\nhost: here\r\n{basic('ann', 'wrong')}\r\n".encode()
STRANGERS_MAX = MAX_CONNECTIONS - KEPT_PLACES


class Queue(Guard):
    """Security is on; the address of an administrator has logged in. Passwords wait for a check."""

    auth = True

    def __init__(self) -> None:
        self.known = {ADMIN}
        self.waiting: list[LoginDone] = []

    def begin(self, wire_format: str, peer: str) -> Access:
        return Allowed("", {})

    def log_in(
        self, wire_format: str, peer: str, name: str, password: str, done: LoginDone
    ) -> None:
        self.waiting.append(done)

    def log_in_with_key(self, wire_format: str, peer: str, key: str) -> Access:
        return OPEN

    def knows(self, network: str) -> bool:
        return network in self.known


class Peer:
    """A connection, or none if the site refused it."""

    def __init__(self, site: Any, host: str | None, sent: bytes = b"") -> None:
        address: Any = UNIXAddress(b"") if host is None else IPv4Address("TCP", host, 4000)
        make_wire: Any = Wire
        self.wire = make_wire(peerAddress=address)
        self.channel = site.buildProtocol(address)
        if self.channel is not None:
            self.channel.makeConnection(self.wire)
            self.channel.dataReceived(sent)

    @property
    def is_open(self) -> bool:
        return self.channel is not None and not self.wire.aborted

    @property
    def status(self) -> bytes:
        return bytes(self.wire.value()[9:12])


class Place:
    """A site whose callers have addresses."""

    def __init__(self, guard: Guard | None = None) -> None:
        self.guard = Queue()
        self.caller = Caller(guard=guard or self.guard)
        self.site = self.caller.site

    def connect(self, host: str | None, sent: bytes = b"") -> Peer:
        return Peer(self.site, host, sent)

    def strangers(self, count: int = STRANGERS_MAX, sent: bytes = LOGIN) -> list[Peer]:
        return [self.connect(f"203.0.113.{number}", sent) for number in range(count)]


@pytest.fixture
def place() -> Place:
    return Place()


def opened(peers: list[Peer]) -> list[bool]:
    return [peer.is_open for peer in peers]


@pytest.mark.parametrize("host", [ADMIN, LOOPBACK, "203.0.113.200", None])
def test_health_checks_pass_while_strangers_wait_for_the_check_of_their_passwords(
    place: Place, host: str | None
) -> None:
    place.strangers(110)
    for _ in range(110):
        assert place.connect(host, HEALTH).status == b"503"  # this broker is not ready


def test_a_known_administrator_has_a_place_while_strangers_wait(place: Place) -> None:
    strangers = place.strangers(110)
    key = b"GET /api/v1/status HTTP/1.1\r\nhost: here\r\nauthorization: Bearer k\r\n\r\n"
    admins = [place.connect(ADMIN, key) for _ in range(KEPT_PLACES)]
    assert [admin.status for admin in admins] == [b"200"] * KEPT_PLACES
    assert sum(opened(strangers)) == STRANGERS_MAX


@pytest.mark.parametrize("sent", [b"", LOGIN])
def test_a_known_address_loses_no_connection_to_strangers(place: Place, sent: bytes) -> None:
    admins = [place.connect(ADMIN, sent) for _ in range(KEPT_PLACES)]
    local = place.connect(LOOPBACK, sent)
    strangers = place.strangers(200)
    assert all(opened(admins)) and local.is_open
    assert sum(opened(strangers)) == MAX_CONNECTIONS - KEPT_PLACES - 1


def test_a_stranger_replaces_an_idle_connection_beyond_the_kept_places(place: Place) -> None:
    """A health check of another machine passes, and a login of a known address goes on."""
    known = [f"192.0.2.{number}" for number in range(MAX_CONNECTIONS)]
    place.guard.known = set(known)
    logins = [place.connect(host, LOGIN) for host in known[:-1]]
    idle = place.connect(known[-1])
    assert place.connect("203.0.113.1", HEALTH).status == b"503"
    assert all(opened(logins)) and not idle.is_open
    place.strangers(10)
    assert all(opened(logins)), "they replace each other"


def test_the_oldest_connection_of_the_address_with_most_connections_ends(place: Place) -> None:
    others = place.strangers(STRANGERS_MAX - 3)
    many = [place.connect("203.0.113.250", sent) for sent in (LOGIN, b"", LOGIN)]
    many[0].channel.dataReceived(LOGIN)
    for number, expected in ((251, [False, True, True]), (252, [False, False, True])):
        assert place.connect(f"203.0.113.{number}", LOGIN).is_open
        assert opened(many) == expected and all(opened(others))
    assert place.connect("203.0.113.253", LOGIN).is_open
    assert opened(others) == [False] + [True] * (STRANGERS_MAX - 4), "all have one"


@pytest.mark.parametrize("is_known", [False, True])
def test_requests_make_the_wait_of_a_known_address_shorter_and_not_that_of_a_stranger(
    place: Place, is_known: bool
) -> None:
    """Otherwise a stranger with many requests would outlive a health check on its way."""
    peers = place.strangers(sent=HEALTH)
    if is_known:
        place.guard.known = {f"203.0.113.{number}" for number in range(MAX_CONNECTIONS)}
        peers += [place.connect(f"203.0.113.{STRANGERS_MAX + n}") for n in range(KEPT_PLACES)]
    peers[0].channel.dataReceived(HEALTH)
    assert place.connect("198.51.100.2").is_open
    assert opened(peers[:3]) == [is_known, not is_known, True]


def test_a_known_address_takes_the_place_of_strangers_before_that_of_this_machine(
    place: Place,
) -> None:
    local = [place.connect(LOOPBACK, LOGIN) for _ in range(MAX_CONNECTIONS - 1)]
    known = place.connect(ADMIN, LOGIN)
    assert place.connect(LOOPBACK).is_open and known.is_open
    assert opened(local) == [False] + [True] * (MAX_CONNECTIONS - 2)
    local[1].channel.connectionLost(connectionDone)
    (stranger,) = place.strangers(1)
    assert stranger.is_open
    assert place.connect(ADMIN).is_open
    assert opened([stranger, *local[2:]]) == [False] + [True] * (MAX_CONNECTIONS - 3)


def test_an_address_has_half_of_the_places(place: Place) -> None:
    """Its further connection replaces its own that waits longest; this machine has no limit."""
    other = place.connect("203.0.113.1")
    own = [place.connect("192.0.2.1", LOGIN) for _ in range(PER_ADDRESS_MAX)]
    assert place.connect("192.0.2.1").is_open
    assert opened(own) == [False] + [True] * (PER_ADDRESS_MAX - 1) and other.is_open
    local = [place.connect(LOOPBACK) for _ in range(PER_ADDRESS_MAX - 1)]
    assert all(opened(local)) and other.is_open


def test_a_login_by_form_waits_as_any(place: Place) -> None:
    body = b'{"name": "ann", "password": "wrong"}'
    head = f"POST /api/v1/session HTTP/1.1\r\nhost: here\r\n{JSON}content-length: {len(body)}"
    strangers = place.strangers(sent=f"{head}\r\n\r\n".encode() + body)
    place.caller.house.run()
    assert len(place.guard.waiting) == STRANGERS_MAX
    assert place.connect("203.0.113.200", HEALTH).status == b"503"
    assert opened(strangers) == [False] + [True] * (STRANGERS_MAX - 1)


def test_a_large_body_is_read_on_while_its_login_waits(place: Place) -> None:
    """The end of the body does not end the wait, and the end of the login not that of the body."""
    size = 300_000
    head = f"POST /api/v1/topics/t/records HTTP/1.1\r\nhost: here\r\n{JSON}{basic('ann')}"
    sent = f"{head}content-length: {size}\r\n\r\n".encode()
    whole, part = (place.connect(f"203.0.113.{number}", sent) for number in (201, 202))
    assert len(place.guard.waiting) == 2
    whole.channel.dataReceived(b" " * size)
    place.guard.waiting[1](None, LoginFailed("wrong"))
    place.strangers(STRANGERS_MAX)
    assert not whole.is_open and not part.is_open


def test_an_answer_that_is_being_made_is_not_cut_off(place: Place) -> None:
    """A login that has ended is no reason to close its connection any more."""
    body = b'{"name": "t"}'
    head = f"POST /api/v1/topics HTTP/1.1\r\nhost: here\r\n{JSON}{basic('ann')}"
    sent = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    busy = place.strangers(sent=sent)
    for done in place.guard.waiting[1:]:
        done(OPEN, None)
    assert place.connect("203.0.113.200", LOGIN).is_open and not busy[0].is_open
    fresh = [place.connect(f"203.0.113.{number}") for number in range(201, 210)]
    assert sum(opened(fresh)) == 1, "a new one replaces the one before"
    assert all(opened(busy[1:]))


def test_connections_that_end_are_forgotten(place: Place) -> None:
    peers = [*place.strangers(110), place.connect(ADMIN, LOGIN), place.connect(None)]
    for peer in peers:
        if peer.channel is not None:
            peer.channel.connectionLost(connectionDone)
    for done in place.guard.waiting:
        done(None, LoginFailed("wrong"))
    assert not place.site.places.waiting
    assert sum(opened(place.strangers())) == STRANGERS_MAX, "as many as at first"


def test_strangers_make_room_while_descriptors_are_short(place: Place) -> None:
    admin = place.connect(ADMIN)
    (stranger,) = place.strangers(1)
    place.site.descriptors_left = lambda: KEPT_DESCRIPTORS - 1
    assert place.connect(LOOPBACK).is_open
    assert admin.is_open and not stranger.is_open


def test_without_security_nobody_is_a_stranger() -> None:
    place = Place(OPEN_GUARD)
    peers = place.strangers(MAX_CONNECTIONS, sent=b"")
    assert all(opened(peers))
    assert place.connect("203.0.113.200").is_open
    assert opened(peers) == [False] + [True] * (MAX_CONNECTIONS - 1)


def test_many_requests_of_a_connection_share_the_turn_with_others(place: Place) -> None:
    """Others would wait for all of them, and health checks lose their places meanwhile."""
    many = [place.connect(ADMIN) for _ in range(3)]
    for peer in many:
        peer.channel.dataReceived(HEALTH * 100)
    counts = [peer.wire.value().count(b"HTTP/1.1 503") for peer in many]
    assert counts == [1 + PIPELINED_MAX, 1, 1]
    many[1].channel.connectionLost(connectionDone)
    place.caller.house.run()
    assert [peer.wire.value().count(b"HTTP/1.1 503") for peer in many] == [100, 1, 100]
    assert many[0].wire.producerState == many[2].wire.producerState == "producing"


def test_a_connection_that_goes_on_later_keeps_the_order_of_its_requests(place: Place) -> None:
    """Bytes that come meanwhile are read after them, and unread answers pause it as before."""
    peer = place.connect(ADMIN)
    live = HEALTH.replace(b"ready", b"live")
    peer.channel.dataReceived(HEALTH * (2 + PIPELINED_MAX) + live[:10])
    assert peer.wire.producerState == "paused"
    peer.channel.dataReceived(live[10:] + HEALTH)
    peer.channel.pauseProducing()  # the client does not read the answers
    place.caller.house.run()
    assert peer.wire.value().count(b"HTTP/1.1 ") == 1 + PIPELINED_MAX
    peer.channel.resumeProducing()
    place.caller.house.run()
    codes = [one[:3] for one in peer.wire.value().split(b"HTTP/1.1 ")[1:]]
    assert codes == [b"503"] * (2 + PIPELINED_MAX) + [b"200", b"503"]


class Turns:
    """A clock whose calls are made in the next turn, as by a reactor."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def callLater(self, seconds: float, call: Callable[[], None]) -> object:
        assert seconds == 0
        self.calls.append(call)
        return object()

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def test_a_fault_of_one_connection_takes_no_turn_from_the_others(place: Place) -> None:
    """It left the other ones of that turn without an answer until the time-out."""
    turns = Turns()
    place.site.pipelines = Pipelines(turns)
    first, *others = [place.connect(ADMIN) for _ in range(3)]
    for peer in (first, *others):
        peer.channel.dataReceived(HEALTH * (2 + PIPELINED_MAX))

    def fail() -> None:
        raise ArithmeticError

    first.channel.go_on = fail
    with pytest.raises(ArithmeticError):
        turns.turn()
    while turns.calls:
        turns.turn()
    counts = [peer.wire.value().count(b"HTTP/1.1 503") for peer in others]
    assert counts == [2 + PIPELINED_MAX] * 2


def test_a_turn_handles_few_requests_however_many_connections_have_more(place: Place) -> None:
    turns = Turns()
    place.site.pipelines = Pipelines(turns)
    strangers = place.strangers(60, HEALTH * 3)
    answered = sum(peer.wire.value().count(b"HTTP/1.1 503") for peer in strangers)
    assert answered == 60 + PIPELINED_MAX
    while turns.calls:
        turns.turn()
        before = answered
        answered = sum(peer.wire.value().count(b"HTTP/1.1 503") for peer in strangers)
        assert answered - before <= PIPELINED_MAX
    assert answered == 180
