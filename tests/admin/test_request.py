"""Bodies while they arrive: what is kept of them, and of whose."""

from __future__ import annotations

import errno
import gc
import io
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from OpenSSL import SSL
from twisted.internet.protocol import connectionDone
from twisted.logger import globalLogPublisher

from brokerd.admin.http.request import (
    ALL_BYTES_MAX,
    FLOWING_BYTES,
    MAX_BODY_BYTES,
    OWN_BYTES,
    READ_BYTES,
    READ_BYTES_MAX,
    READ_PAUSE_SECONDS,
    REQUEST_SECONDS,
    STALL_SECONDS,
    UNAUTHENTICATED_BYTES,
)
from brokerd.errors import BrokerdError
from brokerd.security import WRITE, Access
from brokerd.security.guard import LoginDone
from tests.admin.caller import JSON, Caller, Wire, answer_of
from tests.admin.test_authentication import Allowed, Door, basic
from tests.test_handshakes import Authorities
from tests.test_tls_pieces import BUFFER_BYTES, Pair, Socket

RECORDS = "/api/v1/topics/orders/records"
WRITER = basic("pen") + JSON
LARGE = MAX_BODY_BYTES - 1


class Kept:
    """Counts what bodies hold."""

    def __init__(self) -> None:
        self.files: list[io.BytesIO] = []

    def open(self) -> io.BytesIO:
        self.files.append(io.BytesIO())
        return self.files[-1]

    def size(self) -> int:
        return sum(len(file.getvalue()) for file in self.files if not file.closed)


class SlowDoor(Door):
    """Passwords take time."""

    def __init__(self) -> None:
        super().__init__()
        self.known["pen", "pw"] = Allowed("pen", {"orders": WRITE})
        self.waiting: list[tuple[LoginDone, Access | None, BrokerdError | None]] = []

    def log_in(self, form: str, peer: str, name: str, password: str, done: LoginDone) -> None:
        def later(access: Access | None, error: BrokerdError | None) -> None:
            self.waiting.append((done, access, error))

        super().log_in(form, peer, name, password, later)

    def answer(self) -> None:
        while self.waiting:
            done, access, error = self.waiting.pop()
            done(access, error)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    kept = Kept()
    monkeypatch.setattr("brokerd.admin.http.request.BytesIO", kept.open)
    yield kept


@pytest.fixture
def door() -> SlowDoor:
    return SlowDoor()


@pytest.fixture
def caller(door: SlowDoor) -> Caller:
    caller = Caller(guard=door)
    caller.house.broker.topics.create("orders")
    caller.house.run()
    return caller


def begin(
    caller: Caller, path: str, head: str, length: int = LARGE, missing: int = 1
) -> tuple[Any, Wire]:
    """A request all of whose body has come but its last byte, or so many bytes."""
    channel, wire = caller.connect()
    lines = (
        f"POST {path} HTTP/1.1\r\nhost: here\r\n{head}content-length: {length + missing}\r\n\r\n"
    )
    channel.dataReceived(lines.encode())
    body = b'{"records": []}'.ljust(length)
    for at in range(0, length, 1 << 20):
        channel.dataReceived(body[at : at + (1 << 20)])
    return channel, wire


def end(caller: Caller, channel: Any) -> None:
    channel.dataReceived(b" ")
    caller.house.run()


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/", "/nothing", "/api/v1/status"])
def test_what_takes_no_body_keeps_none(kept: Kept, path: str) -> None:
    """Whoever sends it, and with security off."""
    begin(Caller(), path, JSON)
    assert kept.size() == 0


def test_a_route_keeps_as_much_as_it_may_have(kept: Kept) -> None:
    """And tells who sent more, when all of it is there."""
    caller = Caller()
    channel, wire = begin(caller, "/api/v1/topics", JSON)
    assert kept.size() <= (1 << 20) + 1
    end(caller, channel)
    status, answer = answer_of(wire)
    assert status == 413 and "1048576 bytes" in answer["error"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (JSON, 401),
        (basic("ann") + JSON, 403),
        (basic("ann", "wrong") + JSON, 401),
        ("authorization: Bearer nothing\r\n" + JSON, 401),
        ("authorization: Bearer secret-key\r\n" + JSON, 403),
        (basic("pen") + "content-type: multipart/form-data; boundary=x\r\n", 415),
    ],
)
def test_who_may_not_write_has_nothing_kept_and_hears_why(
    kept: Kept, caller: Caller, door: SlowDoor, head: str, status: int
) -> None:
    """He is asked once, before the body; what comes until that is answered goes again."""
    channel, wire = begin(caller, RECORDS, head)
    door.answer()
    assert kept.size() == 0
    assert door.checked <= 1
    end(caller, channel)
    door.answer()
    caller.house.run()
    assert answer_of(wire)[0] == status
    assert door.checked <= 1


def test_a_topic_is_not_made_by_nobody_however_large_the_request(
    kept: Kept, caller: Caller
) -> None:
    channel, wire = begin(caller, "/api/v1/topics", JSON)
    assert kept.size() == 0
    end(caller, channel)
    assert answer_of(wire)[0] == 401


@pytest.mark.parametrize("early", [True, False])
def test_who_may_write_is_asked_once_and_his_body_counts(
    caller: Caller, door: SlowDoor, early: bool
) -> None:
    """Whether the password was checked before or after all of the body is there."""
    record = '{"records": [{"value": "' + "x" * 200_000 + '"}]}'
    channel, wire = caller.connect()
    lines = (
        f"POST {RECORDS} HTTP/1.1\r\nhost: here\r\n{WRITER}content-length: {len(record)}\r\n\r\n"
    )
    channel.dataReceived(lines.encode() + record[:-1].encode())
    if early:
        door.answer()
    channel.dataReceived(b"}")
    door.answer()
    caller.house.run()
    assert (answer_of(wire)[0], door.checked) == (200, 1)


def test_a_chunked_body_is_no_way_around(kept: Kept, caller: Caller) -> None:
    channel, _ = caller.connect()
    head = f"POST {RECORDS} HTTP/1.1\r\nhost: here\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    channel.dataReceived(head.encode() + b"100000\r\n" + bytes(1 << 20) + b"\r\n")
    assert kept.size() == 0


@pytest.mark.parametrize("head", ["content-length: 300015", "transfer-encoding: chunked"])
def test_a_body_needs_no_temporary_file(
    caller: Caller, door: SlowDoor, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may be full, or on a disk that is."""

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    channel, wire = caller.connect()
    lines = f"POST {RECORDS} HTTP/1.1\r\nhost: here\r\n{WRITER}{head}\r\n\r\n"
    channel.dataReceived(lines.encode())
    body = b'{"records": [{"value": ""}]}'.ljust(300_015)
    if head.endswith("chunked"):
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    channel.dataReceived(body)
    door.answer()
    caller.house.run()
    assert answer_of(wire)[0] == 200


@pytest.fixture
def open_caller() -> Caller:
    """A caller of a broker without security, with a topic."""
    caller = Caller()
    caller.house.broker.topics.create("orders")
    caller.house.run()
    return caller


def fill(caller: Caller) -> list[tuple[Any, Wire]]:
    """Begin bodies until they use all memory for bodies; no last byte arrives."""
    bodies = [begin(caller, RECORDS, JSON) for _ in range(ALL_BYTES_MAX // MAX_BODY_BYTES)]
    for _, wire in bodies:
        assert not wire.value()
    rest = ALL_BYTES_MAX - len(bodies) * MAX_BODY_BYTES + len(bodies) * OWN_BYTES - 1
    return [*bodies, begin(caller, RECORDS, JSON, rest + OWN_BYTES)]


def status_at_end(caller: Caller, body: tuple[Any, Wire]) -> int:
    """Send the last byte of a body, and return the status of the answer: 400, it has no record."""
    channel, wire = body
    end(caller, channel)
    return answer_of(wire)[0]


def test_all_bodies_together_are_bounded(kept: Kept, open_caller: Caller) -> None:
    """One more is told to come back, and may when another is gone."""
    bodies = fill(open_caller)
    assert kept.size() <= ALL_BYTES_MAX + len(bodies) * OWN_BYTES
    channel, wire = begin(open_caller, RECORDS, JSON)
    assert kept.size() <= ALL_BYTES_MAX + len(bodies) * OWN_BYTES
    end(open_caller, channel)
    status, answer = answer_of(wire)
    assert (status, answer["retryable"]) == (503, True)
    bodies[0][0].connectionLost(connectionDone)
    assert status_at_end(open_caller, begin(open_caller, RECORDS, JSON)) == 400


def test_a_small_body_has_room_beside_all_others(open_caller: Caller) -> None:
    """Some large bodies without their ends made all writes fail, of quotas too."""
    fill(open_caller)
    record = {"records": [{"value": "x"}]}
    assert open_caller.post("/topics/orders/records", record)[0] == 200
    small = [begin(open_caller, RECORDS, JSON, OWN_BYTES - 1) for _ in range(20)]
    assert [status_at_end(open_caller, one) for one in small] == [400] * 20


def test_a_body_that_is_dropped_leaves_its_room_at_once(caller: Caller, door: SlowDoor) -> None:
    """And not when its connection ends."""
    head = basic("pen", "wrong") + JSON
    guesses = [begin(caller, RECORDS, head) for _ in range(ALL_BYTES_MAX // MAX_BODY_BYTES)]
    door.answer()
    right = begin(caller, RECORDS, WRITER)
    door.answer()
    assert status_at_end(caller, right) == 400
    assert status_at_end(caller, guesses[0]) == 401


def test_a_connection_may_end_before_its_sender_is_refused(
    caller: Caller, door: SlowDoor, request: pytest.FixtureRequest
) -> None:
    """Nothing is left to refuse, and nothing is logged."""
    events: list[Any] = []
    globalLogPublisher.addObserver(events.append)
    request.addfinalizer(lambda: globalLogPublisher.removeObserver(events.append))
    channel, _ = begin(caller, RECORDS, basic("pen", "wrong") + JSON)
    channel.connectionLost(connectionDone)
    del channel
    door.answer()
    gc.collect()
    assert not [event for event in events if "log_failure" in event]


def test_a_body_over_the_largest_size_leaves_its_room_at_once(
    kept: Kept, open_caller: Caller
) -> None:
    """Over TLS its connection lives until the client closes, too."""
    channel, wire = open_caller.connect()
    head = f"POST {RECORDS} HTTP/1.1\r\nhost: here\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
    channel.dataReceived(head.encode() + b"%x\r\n" % (2 * MAX_BODY_BYTES))
    channel.dataReceived(bytes(MAX_BODY_BYTES))
    assert kept.size() == MAX_BODY_BYTES
    channel.dataReceived(b" ")
    assert wire.value().startswith(b"HTTP/1.1 413 ")
    assert kept.size() == 0


def test_a_body_that_stalls_makes_room(kept: Kept, open_caller: Caller) -> None:
    """Of several, the one with the largest product of bytes and time without progress."""
    bodies = fill(open_caller)
    open_caller.house.pass_time(STALL_SECONDS / 2)
    assert status_at_end(open_caller, begin(open_caller, RECORDS, JSON)) == 503, "none stalls"
    bodies[1][0].connectionLost(connectionDone)
    bodies[1] = begin(open_caller, RECORDS, JSON, LARGE - OWN_BYTES)
    open_caller.house.pass_time(STALL_SECONDS)
    further = begin(open_caller, RECORDS, JSON)
    assert kept.size() <= ALL_BYTES_MAX + len(bodies) * OWN_BYTES
    assert status_at_end(open_caller, further) == 400
    statuses = [status_at_end(open_caller, one) for one in bodies]
    assert statuses == [503, 400, 400, 400, 400]


def test_drips_are_no_progress(open_caller: Caller) -> None:
    """A body has progress when 64 KiB of it have arrived."""
    dripping = begin(open_caller, RECORDS, JSON, LARGE - 4 * OWN_BYTES, 4 * OWN_BYTES)
    flowing = [
        begin(open_caller, RECORDS, JSON, LARGE - 4 * OWN_BYTES, 4 * OWN_BYTES) for _ in range(3)
    ]
    for _ in range(3):
        open_caller.house.pass_time(STALL_SECONDS / 2)
        dripping[0].dataReceived(b" ")
        for channel, _ in flowing:
            channel.dataReceived(b" " * OWN_BYTES)
    further = begin(open_caller, RECORDS, JSON)
    for channel, _ in (dripping, *flowing):
        channel.dataReceived(b" " * (OWN_BYTES - 1))
    dripping[0].dataReceived(b" " * (3 * OWN_BYTES - 3))
    assert status_at_end(open_caller, dripping) == 503
    assert [status_at_end(open_caller, one) for one in (*flowing, further)] == [400] * 4


@pytest.mark.parametrize(
    ("unread_bytes", "answers_wait", "status"),
    [
        (FLOWING_BYTES, False, 400),
        (FLOWING_BYTES - 1, False, 503),
        (FLOWING_BYTES, True, 503),
    ],
)
def test_a_body_that_waits_in_the_socket_does_not_stall(
    open_caller: Caller, unread_bytes: int, answers_wait: bool, status: int
) -> None:
    """The broker is late, unless it waits until the client reads answers."""
    bodies = fill(open_caller)
    channel, wire = bodies[0]
    server, client = socket.socketpair()
    with server, client:
        client.sendall(bytes(unread_bytes))
        wire.getHandle = lambda: server  # type: ignore[attr-defined]
        if answers_wait:
            channel.pauseProducing()
        open_caller.house.pass_time(2 * STALL_SECONDS)
        begin(open_caller, RECORDS, JSON)
        if answers_wait:
            channel.resumeProducing()
        assert status_at_end(open_caller, bodies[0]) == status


def test_a_body_that_has_arrived_is_not_dropped_for_another(caller: Caller, door: SlowDoor) -> None:
    """It waits for the broker: here, for the check of its password."""
    bodies = [begin(caller, RECORDS, WRITER) for _ in range(ALL_BYTES_MAX // MAX_BODY_BYTES)]
    for channel, _ in bodies:
        end(caller, channel)
    caller.house.pass_time(10 * STALL_SECONDS)
    begin(caller, RECORDS, WRITER)
    door.answer()
    caller.house.run()
    assert [answer_of(wire)[0] for _, wire in bodies] == [400] * len(bodies)


def test_a_body_that_was_dropped_is_never_taken_for_an_empty_one(
    caller: Caller, door: SlowDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when there was no room for it while the password was being checked."""
    monkeypatch.setattr("brokerd.admin.http.request.ALL_BYTES_MAX", 950_000)
    door.known["pen", "pw"] = Allowed("pen", {}, 15)
    channel, wire = begin(caller, "/api/v1/wal/seal", WRITER, 1_040_000)
    door.answer()
    end(caller, channel)
    assert answer_of(wire)[0] == 503


@pytest.mark.parametrize(
    "headers",
    [
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\nTransfer-Encoding: identity\r\n",
        "transfer-encoding: identity\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "content-length: 5\r\ncontent-length: 5\r\n",
    ],
)
def test_a_request_gives_the_length_of_its_body_once(caller: Caller, headers: str) -> None:
    channel, wire = caller.connect()
    head = f"POST {RECORDS} HTTP/1.1\r\nhost: here\r\n{JSON}{headers}\r\n"
    channel.dataReceived(head.encode() + b"0\r\n\r\nGET /health/live HTTP/1.1\r\n\r\n")
    assert wire.value().startswith(b"HTTP/1.1 400 ")
    assert wire.value().count(b"HTTP/1.1") == 1 and wire.disconnecting


def test_each_request_of_a_connection_has_its_own_length(caller: Caller) -> None:
    channel, wire = caller.connect()
    request = "POST /health/live HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n"
    for _ in range(2):
        channel.dataReceived(request.encode() + b"0\r\n\r\n")
    assert wire.value().count(b"HTTP/1.1 405") == 2


def reading(wires: list[Wire]) -> list[bool]:
    """Return which connections the site reads."""
    return [wire.producerState == "producing" for wire in wires]


class TestBesideLightRequests:
    """Reads of large bodies beside requests that wait for a commit."""

    def begun(self, count: int) -> tuple[Caller, list[Any], list[Wire]]:
        """Connections with a part of a large body each, beside a light request."""
        caller = Caller()
        caller.house.broker.slices.light_waits = lambda: 1
        pairs = [begin(caller, RECORDS, JSON, UNAUTHENTICATED_BYTES + 2) for _ in range(count)]
        return caller, [channel for channel, _ in pairs], [wire for _, wire in pairs]

    def test_one_large_body_after_the_other_is_read_with_pauses(self) -> None:
        caller, channels, wires = self.begun(3)
        assert reading(wires) == [False, False, False]
        caller.house.pass_time(READ_PAUSE_SECONDS)
        assert reading(wires) == [True, False, False]
        channels[0].dataReceived(b" ")
        caller.house.run()
        assert answer_of(wires[0])[0] == 400, "it has no record"
        for left in ([True, False], [True, True]):
            caller.house.pass_time(READ_PAUSE_SECONDS)
            assert reading(wires)[1:] == left

    def test_all_are_read_once_no_light_request_waits(self) -> None:
        caller, _, wires = self.begun(3)
        caller.house.broker.slices.light_waits = lambda: 0
        caller.house.pass_time(READ_PAUSE_SECONDS)
        assert reading(wires) == [True, True, True]
        begin(caller, RECORDS, JSON)
        assert reading(wires) == [True, True, True]

    def test_small_bodies_are_read_at_once(self) -> None:
        caller = Caller()
        caller.house.broker.slices.light_waits = lambda: 1
        channel, wire = begin(caller, RECORDS, JSON, UNAUTHENTICATED_BYTES - 1)
        assert reading([wire]) == [True]
        end(caller, channel)
        assert answer_of(wire)[0] == 400, "it has no record"

    def test_after_a_body_that_ends_in_a_pause_unread_answers_pause_the_connection(self) -> None:
        """A read of TLS brings several parts: one begins the pause, the next ends the body."""
        caller, [channel], [wire] = self.begun(1)
        channel.dataReceived(b" ")
        caller.house.run()
        assert reading([wire]) == [True]
        channel.pauseProducing()
        caller.house.pass_time(READ_PAUSE_SECONDS)
        assert reading([wire]) == [False]

    def test_a_connection_that_ends_in_a_pause_holds_nobody_up(self) -> None:
        caller, channels, wires = self.begun(2)
        channels[0].connectionLost(connectionDone)
        caller.house.pass_time(READ_PAUSE_SECONDS)
        assert reading(wires) == [False, True]

    def test_the_time_of_a_pause_does_not_count_against_the_client(self) -> None:
        """A body of 15 MB was reset after 30 s in which the broker read it in 240 turns."""
        caller, [channel], [wire] = self.begun(1)
        caller.house.clock.advance(2 * REQUEST_SECONDS)
        assert reading([wire]) == [True] and not wire.disconnecting
        caller.house.pass_time(REQUEST_SECONDS - 1)
        channel.dataReceived(b" ")
        caller.house.run()
        assert answer_of(wire)[0] == 400, "it has no record"

    def test_a_client_that_sends_nothing_after_a_pause_is_cut(self) -> None:
        caller, _, [wire] = self.begun(1)
        caller.house.clock.advance(2 * REQUEST_SECONDS)
        caller.house.pass_time(REQUEST_SECONDS + 1)
        assert wire.aborted

    def test_the_time_of_a_pause_counts_after_a_drip(self) -> None:
        """So many connections that drip, and pause in turn, do not live for long."""
        caller = Caller()
        channel, wire = begin(caller, RECORDS, JSON, OWN_BYTES + 2, 1_000)
        caller.house.broker.slices.light_waits = lambda: 1
        for _ in range(int(REQUEST_SECONDS)):
            assert not wire.aborted
            channel.dataReceived(b" ")
            assert reading([wire]) == [False]
            caller.house.clock.advance(1)
        caller.house.clock.advance(0.1)
        assert wire.aborted

    def test_a_body_that_the_broker_does_not_read_does_not_stall(self) -> None:
        caller = Caller()
        caller.house.broker.slices.light_waits = lambda: 1
        bodies = fill(caller)
        caller.house.clock.advance(2 * STALL_SECONDS)
        assert status_at_end(caller, begin(caller, RECORDS, JSON)) == 503
        assert [status_at_end(caller, one) for one in bodies] == [400] * 5

    @pytest.mark.parametrize("lights", [0, 1])
    def test_reads_are_larger_when_turns_are_long(self, lights: int) -> None:
        """A body of 15 MB took 13 s beside 3,000 connections, of 64 KiB a turn."""
        caller = Caller()
        caller.house.broker.slices.light_waits = lambda: lights
        channel, wire = begin(caller, RECORDS, JSON, OWN_BYTES + 1, MAX_BODY_BYTES // 2)
        for turn_seconds, size in (
            (READ_PAUSE_SECONDS, READ_BYTES),
            (3 * READ_PAUSE_SECONDS, 3 * READ_BYTES),
            (0.1, READ_BYTES_MAX),
            (READ_PAUSE_SECONDS, READ_BYTES),
            (0.1, READ_BYTES_MAX),
        ):
            caller.house.pass_time(turn_seconds)
            channel.dataReceived(b" " * 100)
            assert wire.bufferSize == pytest.approx(size, abs=2)
        channel.dataReceived(b" " * (MAX_BODY_BYTES // 2 - 500))
        caller.house.run()
        assert answer_of(wire)[0] == 400, "it has no record"
        assert wire.bufferSize == READ_BYTES

    def test_paused_bodies_share_the_size_of_reads(self) -> None:
        caller, channels, wires = self.begun(4)
        caller.house.clock.advance(10 * READ_PAUSE_SECONDS)
        channels[0].dataReceived(b"")
        assert wires[0].bufferSize == pytest.approx(2.5 * READ_BYTES, abs=2)


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Authorities:
    return Authorities(tmp_path_factory.mktemp("request"))


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"content-length: {MAX_BODY_BYTES + 1}", 413),
        ("content-length: 2\r\ntransfer-encoding: chunked", 400),
        ("transfer-encoding: identity", 400),
        ("content-type: a\x01b\r\ncontent-length: 0", 400),
    ],
)
def test_a_refused_request_ends_the_connection_over_tls_too(
    authorities: Authorities, head: str, status: int
) -> None:
    """A client that read to the end waited for 30 s, and the request could be carried out."""
    caller = Caller()
    topics = caller.house.broker.topics
    topics.create("orders")
    caller.house.run()
    channel: Any = caller.site.buildProtocol(None)
    pair = Pair(authorities, channel)
    lines = f"DELETE /api/v1/topics/orders HTTP/1.1\r\nhost: here\r\n{JSON}{head}\r\n"
    for part in (lines, "x-more: 1\r\n", "\r\n", "{}", "\r\n"):
        pair.client.send(part.encode())
        pair.tls.dataReceived(pair.client.bio_read(1 << 16))
        caller.house.run()
    answer = b"".join(pair.read_all())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1
    assert pair.client.get_shutdown() & SSL.RECEIVED_SHUTDOWN
    assert topics.find("orders") is not None
    assert not pair.socket.disconnected
    caller.house.pass_time(REQUEST_SECONDS + 1)
    assert pair.socket.disconnected, "a client that does not close keeps no connection"
    channel.connectionLost(connectionDone)


def test_a_request_whose_body_is_refused_is_not_carried_out() -> None:
    """The end of the body may come in the read that goes over the limit."""
    caller = Caller()
    topics = caller.house.broker.topics
    topics.create("orders")
    caller.house.run()
    channel, wire = caller.connect()
    head = f"DELETE /api/v1/topics/orders HTTP/1.1\r\nhost: here\r\n{JSON}"
    channel.dataReceived(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
    size = MAX_BODY_BYTES + 1
    channel.dataReceived(b"%x\r\n%s\r\n0\r\n\r\n" % (size, b" " * size))
    caller.house.run()
    assert wire.value().startswith(b"HTTP/1.1 413 ")
    assert wire.value().count(b"HTTP/1.1") == 1
    assert topics.find("orders") is not None


PAGE = b"GET /views.js HTTP/1.1\r\nhost: here\r\n\r\n"


def test_a_client_that_reads_no_answers_is_not_read_on() -> None:
    """It filled the memory, without a login. It goes on where it was when it reads."""
    caller = Caller()
    channel: Any = caller.site.buildProtocol(None)
    socket = Socket()
    channel.makeConnection(socket)
    channel.dataReceived(PAGE * 100)
    assert socket.producerState == "paused"
    socket.resumeProducing()  # as the end of a pause of large bodies does
    channel.dataReceived(PAGE)
    assert socket.producerState == "paused"
    assert socket.most < 2 * BUFFER_BYTES
    answers = b""
    while data := socket.take():
        answers += data
        caller.house.run()
    assert answers.count(b"HTTP/1.1 200 OK") == 101
    assert socket.most < 2 * BUFFER_BYTES
    assert socket.producerState == "producing"
    channel.connectionLost(connectionDone)


def test_a_connection_over_tls_that_closes_after_a_full_buffer_is_read_on(
    authorities: Authorities,
) -> None:
    """It ends with the close_notify of the client, and not at its deadline."""
    channel: Any = Caller().site.buildProtocol(None)
    pair = Pair(authorities, channel)
    pair.client.send(PAGE * 3 + PAGE[:-2] + b"connection: close\r\n\r\n")
    pair.tls.dataReceived(pair.client.bio_read(1 << 16))
    assert pair.socket.is_paused
    assert b"".join(pair.read_all()).count(b"HTTP/1.1 200 OK") == 4
    assert pair.socket.producerState == "producing"
    pair.client.shutdown()
    pair.tls.dataReceived(pair.client.bio_read(1 << 16))
    assert pair.socket.disconnecting
    channel.connectionLost(connectionDone)


def test_a_read_over_tls_is_larger_when_turns_are_long(authorities: Authorities) -> None:
    """Its parts of 16 KiB come at once, and leave the size as it is."""
    caller = Caller()
    channel: Any = caller.site.buildProtocol(None)
    pair = Pair(authorities, channel)
    head = f"POST {RECORDS} HTTP/1.1\r\nhost: here\r\n{JSON}content-length: 1000000\r\n\r\n"
    pair.client.send(head.encode())
    for _ in range(3):
        for _ in range(5):
            pair.client.send(b" " * (OWN_BYTES // 4))
        caller.house.pass_time(0.1)
        pair.tls.dataReceived(pair.client.bio_read(1 << 20))
    assert pair.socket.bufferSize == READ_BYTES_MAX  # type: ignore[attr-defined]
    channel.connectionLost(connectionDone)
