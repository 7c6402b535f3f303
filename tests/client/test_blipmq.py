"""What a user of the BlipMQ client observes, against a whole broker in memory or a scripted one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.client.blipmq import (
    FIRST_ID,
    POLL_SECONDS,
    POLL_SECONDS_MAX,
    RETRIES,
    RETRY_SECONDS,
    UNCONFIRMED_MAX,
    BlipmqClient,
    BlipmqError,
    ConnectionLost,
    Delivery,
    OutOfStep,
)
from brokerd.codecs import blipmq as bm
from brokerd.errors import NoSpace, RecordTooLarge
from tests.broker.desk import read
from tests.client.peer import Peer
from tests.protocols.blipmq_desk import KEY, BlipmqHouse


class End:
    """The client's socket to a broker in memory, in which no time passes unless it sleeps."""

    def __init__(self, house: BlipmqHouse) -> None:
        self._house = house
        self.wire = house.stranger()
        self.breaks = False

    def settimeout(self, seconds: float) -> None:
        """No time passes here."""

    def sendall(self, data: bytes) -> None:
        if self.breaks:
            raise ConnectionResetError("connection reset")
        self.wire.send_bytes(data)

    def recv(self, most: int) -> bytes:
        if self.breaks:
            raise ConnectionResetError("connection reset")
        self._house.run()
        data = self.wire.received_bytes()
        if not data and self.wire.is_open:
            raise TimeoutError
        return data

    def close(self) -> None:
        self.wire.disconnect()


class Desk:
    """A broker, a client, and the pauses that it made."""

    def __init__(self) -> None:
        self.house = BlipmqHouse()
        self.ends: list[End] = []
        self.pauses: list[float] = []
        self.client = self.new_client()

    def new_client(self, api_key: str = KEY) -> BlipmqClient:
        return BlipmqClient(
            "broker:5555",
            api_key=api_key,
            connect=self._connect,
            sleep=self._sleep,
            clock=lambda: self.house.clock.seconds(),
        )

    def _connect(self, address: object, timeout: float) -> Any:
        self.ends.append(End(self.house))
        return self.ends[-1]

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.house.pass_time(seconds)

    def values(self, topic: str = "t") -> list[bytes]:
        """What the topic holds."""
        found = self.house.broker.topics.find(topic)
        count = 0 if found is None else found.partition(0).next_offset
        return [read(self.house, topic, offset).value for offset in range(count)]


@pytest.fixture
def desk() -> Desk:
    return Desk()


class Refusing:
    """Makes the broker refuse some of the records that it is to take."""

    def __init__(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch, pattern: Iterator[bool]
    ) -> None:
        self._admit = desk.house.broker.group_commit.admit
        self._pattern = pattern
        monkeypatch.setattr(desk.house.broker.group_commit, "admit", self)

    def __call__(self, size: int, partitions: int = 1) -> None:
        if next(self._pattern, False):
            raise NoSpace("the disk is full")
        self._admit(size, partitions)


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# -- conversations ------------------------------------------------------------------------------


def test_what_is_published_arrives(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    client = desk.client
    one = client.subscribe("t")
    client.publish("t", b"a")
    client.publish("t", b"b", qos=0)
    client.flush()
    first, second = client.poll(one), client.poll(one)
    assert first == Delivery(one, 1, 1, "t", b"a")
    assert second == Delivery(one, None, 0, "t", b"b")
    client.ack(first)
    client.ack(second)  # which needs none
    assert client.poll(one) is None
    assert texts(caplog) == []
    desk.house.pass_time(5.0)
    assert client.poll(one) is None


def test_one_that_is_not_acknowledged_comes_again(desk: Desk) -> None:
    client = desk.client
    one = client.subscribe("t")
    client.publish("t", b"a")
    first = client.poll(one)
    desk.house.pass_time(0.2)
    assert client.poll(one) == first


def test_a_ping_makes_what_was_done_durable(desk: Desk) -> None:
    client = desk.client
    one = client.subscribe("t")
    client.publish("t", b"a")
    delivery = client.poll(one)
    assert delivery is not None
    client.ack(delivery)
    client.ping()
    desk.house = desk.house.crash()
    desk.house.pass_time(2.0)
    assert desk.new_client().poll(one) is None


def test_leaving_flushes(desk: Desk) -> None:
    with desk.client as client:
        client.publish("t", b"a")
    desk.house = desk.house.crash()
    assert desk.values() == [b"a"]
    assert not desk.ends[0].wire.is_open


def test_leaving_by_an_error_does_not_hide_it(desk: Desk) -> None:
    with pytest.raises(KeyError), desk.client as client:
        client.publish("t", b"a")
        desk.ends[0].breaks = True
        raise KeyError


# -- the rules for clients ------------------------------------------------------------------------


def test_nacks_are_logged_with_code_and_text(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    client = desk.client
    one = client.subscribe("t")
    client.ack(Delivery(one, 9, 1, "t", b""))
    client.ping()
    (text,) = texts(caplog)
    assert text == "broker:5555: NACK 404: unknown subscription or delivery tag"


def test_what_a_500_refused_is_sent_again_after_growing_pauses(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.client.publish("t", b"a")
    Refusing(desk, monkeypatch, iter([True, False, True, True]))
    for message in (b"b", b"c", b"d"):
        desk.client.publish("t", message)
    desk.client.flush()
    assert sorted(desk.values()) == [b"a", b"b", b"c", b"d"]
    assert desk.values()[:2] == [b"a", b"c"]
    assert desk.pauses == [RETRY_SECONDS, 2 * RETRY_SECONDS]
    assert texts(caplog) == ["broker:5555: NACK 500: durable publish failed: the disk is full"] * 3


def test_what_is_refused_again_and_again_is_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = iter([True] * (RETRIES + 1))
    desk.client.publish("t", b"before")
    desk.client.flush()
    Refusing(desk, monkeypatch, refusing)
    desk.client.publish("t", b"a")
    with pytest.raises(BlipmqError, match="500: durable publish failed") as refusal:
        desk.client.flush()
    assert refusal.value.retryable and refusal.value.code == 500
    assert next(refusing, None) is None
    assert desk.pauses == [RETRY_SECONDS * 2**number for number in range(RETRIES)]
    desk.client.publish("t", b"b")
    desk.client.flush()
    assert desk.values() == [b"before", b"b"]


def test_a_500_that_only_another_setting_ends_is_not_sent_again(desk: Desk) -> None:
    """The broker has as many topics as it may have: pauses do not help."""
    desk.house = BlipmqHouse(settings=BrokerSettings(max_topics=1))
    desk.client.publish("t", b"a")
    desk.client.publish("u", b"b")
    with pytest.raises(BlipmqError, match=r"500: .*limits\.max_topics") as refusal:
        desk.client.flush()
    assert not refusal.value.retryable
    with pytest.raises(BlipmqError, match=r"500: .*limits\.max_topics"):
        desk.client.subscribe("v")
    assert desk.pauses == [] and desk.values() == [b"a"]


def test_nothing_but_a_500_is_sent_again(desk: Desk) -> None:
    """And the others are durable all the same."""
    desk.client.publish("t", b"a")
    desk.client.publish("bad\nname", b"b")
    desk.client.publish("t", b"c")
    with pytest.raises(BlipmqError, match="400: topic name holds a control character") as refusal:
        desk.client.flush()
    assert not refusal.value.retryable
    assert desk.pauses == [] and desk.values() == [b"a", b"c"]
    desk.client.flush()


def test_a_refusal_is_not_missed_when_something_else_is_waited_for(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.client.publish("t", b"a")
    Refusing(desk, monkeypatch, iter([True]))
    desk.client.publish("t", b"b")
    one = desk.client.subscribe("t")
    assert desk.client.poll(one) is None
    desk.client.flush()
    assert desk.values() == [b"a", b"b"]


def test_a_subscribe_that_a_500_refused_is_sent_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe = desk.house.broker.subscriptions.subscribe
    refusals = [NoSpace("full")] * 2

    def refuse(*arguments: Any) -> int:
        if refusals:
            raise refusals.pop()
        return subscribe(*arguments)

    monkeypatch.setattr(desk.house.broker.subscriptions, "subscribe", refuse)
    assert desk.client.subscribe("t") == 1
    assert desk.pauses == [RETRY_SECONDS, 2 * RETRY_SECONDS]
    refusals[:] = [NoSpace("full")] * 99
    with pytest.raises(BlipmqError, match="500: subscribe failed: full"):
        desk.client.subscribe("t")
    assert len(refusals) == 99 - RETRIES - 1


def test_a_subscribe_that_is_wrong_is_refused_at_once(desk: Desk) -> None:
    with pytest.raises(BlipmqError, match="400"):
        desk.client.subscribe("bad\nname")
    assert desk.pauses == []


def test_polls_without_an_answer_come_at_growing_pauses(desk: Desk) -> None:
    one = desk.client.subscribe("t")
    assert desk.client.receive(one, timeout=5.0) is None
    assert desk.pauses[:4] == [POLL_SECONDS * 2**number for number in range(4)]
    assert max(desk.pauses) == POLL_SECONDS_MAX
    assert sum(desk.pauses) == pytest.approx(5.0)


def test_a_message_ends_the_wait_and_the_next_one_begins_anew(desk: Desk) -> None:
    one = desk.client.subscribe("t")
    other = desk.new_client()
    for _ in range(2):
        desk.pauses.clear()
        assert desk.client.receive(one, timeout=1.0) is None
        assert desk.pauses[0] == POLL_SECONDS
    other.publish("t", b"a")
    other.flush()
    desk.pauses.clear()
    delivery = desk.client.receive(one)
    assert delivery is not None and delivery.message == b"a" and desk.pauses == []


def test_a_refusal_is_told_by_the_next_flush_if_the_connection_ends_first() -> None:
    """The message is dropped: without the refusal it would look durable."""
    first = bm_id(0)
    with Peer.open() as peer:
        answers = [
            *(bm.Ack(first + number, 0) for number in (0, 1)),
            bm.Nack(first + 2, 403, "not permitted"),
            bm.Nack(first + 3, 500, "the disk is full"),
            bm.Nack(first + 4, 413, "too large"),
            bm.Pong(first + 5),
        ]
        peer.will_accept(*map(bm.encode, answers), then_close=True)
        again = [*(bm.Ack(first + number, 0) for number in (7, 8)), bm.Pong(first + 9)]
        peer.will_accept(*map(bm.encode, again))
        client = BlipmqClient(
            "broker:5555", api_key="key", connect=peer.connect, sleep=peer.slept.append
        )
        for message in (b"a", b"b", b"c"):
            client.publish("t", message)
        with pytest.raises(ConnectionLost):
            client.flush()
        with pytest.raises(
            BlipmqError, match=r"403: not permitted \(and 1 more were refused\)"
        ) as told:
            client.flush()
        assert told.value.count == 2
        client.flush()


def bm_id(number: int) -> int:
    """The correlation id of a client's request, from 0."""
    return FIRST_ID + 1 + number


@pytest.mark.parametrize("interrupted", [1, 2, 3])
def test_an_interrupted_call_leaves_no_answer_for_the_next_one(
    desk: Desk, interrupted: int
) -> None:
    """A message of one subscription was returned as that of another."""
    one, other = desk.client.subscribe("one"), desk.client.subscribe("other")
    desk.client.publish("one", b"a")
    desk.client.flush()

    def interrupt(most: int) -> bytes:
        raise KeyboardInterrupt

    desk.ends[-1].recv = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        (desk.client.poll, desk.client.receive, lambda _: desk.client.ping())[interrupted - 1](one)
    assert desk.client.poll(other) is None
    assert len(desk.ends) == 2


# -- endings --------------------------------------------------------------------------------------


def test_a_wrong_key_is_refused_and_the_next_call_tries_again(desk: Desk) -> None:
    client = desk.new_client(api_key="nope")
    for _ in range(2):
        with pytest.raises(BlipmqError, match="401: invalid API key"):
            client.subscribe("t")
    assert len(desk.ends) == 2


def test_after_a_lost_connection_what_was_not_confirmed_is_sent_again(desk: Desk) -> None:
    client = desk.client
    client.publish("t", b"a")
    client.flush()
    client.publish("t", b"b")
    desk.house = desk.house.crash()  # b is gone with it
    desk.ends[0].breaks = True
    with pytest.raises(ConnectionLost):
        client.flush()
    client.publish("t", b"c")
    client.flush()
    assert desk.values() == [b"a", b"b", b"c"]
    client.flush()
    assert desk.values() == [b"a", b"b", b"c"]


def test_a_message_that_could_not_be_sent_was_not_taken(desk: Desk) -> None:
    desk.client.publish("t", b"a")
    desk.ends[0].breaks = True
    with pytest.raises(ConnectionLost):
        desk.client.publish("t", b"b")
    desk.client.flush()
    assert desk.values() == [b"a", b"a"]


def test_many_are_confirmed_on_the_way(desk: Desk) -> None:
    """So memory is bounded, and so is what the broker has to keep of refusals."""
    for number in range(2 * UNCONFIRMED_MAX + 1):
        desk.client.publish("t", b"%d" % number)
        assert len(desk.client._unconfirmed) <= UNCONFIRMED_MAX
    assert len(desk.client._unconfirmed) == 1
    for _ in range(9):
        desk.client.publish("t", bytes(1 << 20))
        assert len(desk.client._unconfirmed) <= 5


FIRST = 1 << 63
LET_IN = bm.encode(bm.Ack(FIRST + 1)) + bm.encode(bm.Ack(FIRST + 2))


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer.open() as one:
        yield one


def scripted(peer: Peer, *answers: bytes) -> BlipmqClient:
    """A client that gets these answers, each after its request, and then the end."""
    peer.will_accept(*answers, then_close=True, in_bytes=True)
    return BlipmqClient("broker:1", connect=peer.connect, sleep=peer.slept.append)


def messages_of(peer: Peer) -> list[bm.Message]:
    return [bm.decode(frame) for frame in bm.frame_reader().feed(peer.received())]


def test_a_refusal_of_messages_unknown_sends_all_of_them_again(peer: Peer) -> None:
    """A broker that could not tell which were refused says so before its PONG."""
    unknown = bm.encode(bm.Nack(FIRST + 5, 500, "durable publish failed: 1 refusals were not sent"))
    pongs = [bm.encode(bm.Pong(FIRST + number)) for number in (5, 6)]
    client = scripted(peer, LET_IN, unknown, *pongs)
    client.publish("t", b"a")
    client.publish("t", b"b")
    client.flush()
    sent = [one.message for one in messages_of(peer) if isinstance(one, bm.Publish)]
    assert sent == [b"a", b"b", b"a", b"b"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"\0\0\0\1\0", "length is 1"),
        (b"\0\0\0\x09\x0a" + bytes(8), "frame type 0x0a is unknown"),
        (b"\0\0\0\x09\x06" + bytes(8), "invalid NACK payload"),
        (b"", "closed the connection"),
    ],
)
def test_a_peer_that_speaks_something_else_is_lost(peer: Peer, answer: bytes, text: str) -> None:
    client = scripted(peer, LET_IN, answer)
    with pytest.raises(ConnectionLost, match=text) as lost:
        client.ping()
    assert isinstance(lost.value, OutOfStep) == bool(answer)


def test_no_key_is_an_empty_one(peer: Peer) -> None:
    client = scripted(peer, LET_IN, bm.encode(bm.Pong(FIRST + 3)))
    client.ping()
    assert messages_of(peer) == [bm.Hello(FIRST + 1), bm.Auth(FIRST + 2, ""), bm.Ping(FIRST + 3)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda client: client.publish("", b"x"), ValueError),
        (lambda client: client.publish(b"t", b"x"), TypeError),
        (lambda client: client.publish("t", b"x", qos=2), ValueError),
        (lambda client: client.publish("t", b"x", qos=True), TypeError),
        (lambda client: client.publish("t", bytes(16 << 20)), RecordTooLarge),
        (lambda client: client.subscribe(""), ValueError),
        (lambda client: client.poll(0), ValueError),
        (lambda client: client.poll(1 << 64), ValueError),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    peer: Peer, call: Any, error: type[Exception]
) -> None:
    client = scripted(peer)
    with pytest.raises(error):
        call(client)
    assert peer.received() == b""
