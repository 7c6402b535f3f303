"""What a user of the blocking Mamamia client observes, against a scripted peer."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from brokerd.client.mamamia import (
    BatchSettle,
    ConnectionLost,
    LeasedMessage,
    MamamiaClient,
    MamamiaError,
    OutOfStep,
    batch_message,
)
from brokerd.codecs import mamamia as mm
from tests.client.peer import Peer, over_tls

STATE = mm.GroupState(2, 5, 3, 1, 1, 1, 0, None, 1.5, 3, 1)


class MamamiaPeer(Peer):
    def requests(self, connection: int = 0) -> list[mm.Request]:
        decoder = mm.Decoder()
        return [decoder.decode(*one) for one in mm.FrameReader().feed(self.received(connection))]


@pytest.fixture
def peer() -> Iterator[MamamiaPeer]:
    with MamamiaPeer.open() as one:
        yield one


def client_of(peer: MamamiaPeer, **options: object) -> MamamiaClient:
    return MamamiaClient("broker:9000", connect=peer.connect, timeout=60.0, **options)


CALLS: list[tuple[Callable[[MamamiaClient], object], mm.Request, bytes, object]] = [
    (
        lambda c: c.produce("l", {"n": 1}, {"m": 2}, key="k", partition=3),
        mm.Produce("l", b"\x81\xa1n\x01", 2, b"\x81\xa1m\x02", b"k", 3),
        mm.produced(7),
        7,
    ),
    (lambda c: c.produce("l", "text"), mm.Produce("l", b"text", 1), mm.produced(300), 300),
    (lambda c: c.produce("l", b"bin", {}), mm.Produce("l", b"bin", 0, b"\x80"), mm.produced(0), 0),
    (
        lambda c: c.acquire("l", "g", "c", 2, wait=1),
        mm.Acquire("l", "g", "c", 2.0, 1.0),
        mm.acquired(5, "l", b"x", 0, None),
        mm.Message(5, "l", b"x", None),
    ),
    (
        lambda c: c.acquire("l", "g", "c"),
        mm.Acquire("l", "g", "c", None),
        mm.acquired_nothing(),
        None,
    ),
    (lambda c: c.produce("l", b"b", ttl=5), mm.Produce("l", b"b", ttl=5.0), mm.produced(0), 0),
    (lambda c: c.produce("l", b"b", delay=5), mm.Produce("l", b"b", delay=5.0), mm.scheduled(9), 9),
    (
        lambda c: c.produce_batch(
            "l", [batch_message(b"a", ttl=1.5), batch_message(b"b", delay=2.0)]
        ),
        mm.ProduceBatch("l", (mm.BatchMessage(b"a", ttl=1.5), mm.BatchMessage(b"b", delay=2.0))),
        mm.produced_batch([7, None], [None, 3]),
        (7, 3),
    ),
    (
        lambda c: c.produce_batch("l", [batch_message(b"a")], "p", 4),
        mm.ProduceBatch("l", (mm.BatchMessage(b"a"),), "p", 4),
        mm.produced_batch([7]),
        (7,),
    ),
    (lambda c: c.release("l", "g", "c"), mm.Release("l", "g", "c"), mm.released(5), 5),
    (
        lambda c: c.release("l", "g", "c", [1, 2]),
        mm.Release("l", "g", "c", (1, 2)),
        mm.released(2),
        2,
    ),
    (lambda c: c.cancel("l", 3), mm.Cancel("l", 3), mm.cancelled(False), False),
    (lambda c: c.settle("l", "g", 5, "c"), mm.Settle("l", "g", 5, "c", True), mm.settled(), None),
    (
        lambda c: c.settle("l", "g", 5, "c", False, 0.5),
        mm.Settle("l", "g", 5, "c", False, 0.5),
        mm.settled(),
        None,
    ),
    (
        lambda c: c.settle("l", "g", 5, "c", False, reason="bad", dead=True),
        mm.Settle("l", "g", 5, "c", False, None, "bad", True),
        mm.settled(),
        None,
    ),
    (
        lambda c: c.extend("l", "g", "c", 5, 9.0),
        mm.Extend("l", "g", "c", 5, 9.0),
        mm.extended(9.0),
        9.0,
    ),
    (
        lambda c: c.produce_batch("l", [batch_message(1), batch_message(b"b", key=b"k")]),
        mm.ProduceBatch("l", (mm.BatchMessage(b"\x01", 2), mm.BatchMessage(b"b", 0, None, b"k"))),
        mm.produced_batch([1, 2]),
        (1, 2),
    ),
    (
        lambda c: c.acquire_batch("l", "g", "c", 9, wait=0.5),
        mm.AcquireBatch("l", "g", "c", 9, None, 0.5),
        mm.acquired_batch([mm.batch_item(1, b"t", 1, None, b"k", 4, 1, 30.0)]),
        (LeasedMessage(1, "t", None, b"k", 4, 1, 30.0),),
    ),
    (
        lambda c: c.settle_batch("l", "g", "c", [BatchSettle(1, True, 4)]),
        mm.SettleBatch("l", "g", "c", (mm.BatchSettle(1, True, 4),)),
        mm.settled_batch(["settled"]),
        ("settled",),
    ),
    (lambda c: c.group_info("l", "g"), mm.GroupInfo("l", "g"), mm.group_info(STATE), STATE),
]


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(
    peer, call, request_sent, answer, result
):
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests() == [request_sent]


@pytest.mark.parametrize(("call", "request_sent", "answer", "result"), CALLS)
def test_a_refusal_raises_the_brokers_text_and_the_connection_lives(
    peer, call, request_sent, answer, result
):
    command = answer[5]
    peer.will_accept(mm.error(command, "no room"))
    with client_of(peer) as client:
        with pytest.raises(MamamiaError, match=r"^no room$"):
            call(client)
        peer.ends[0].sendall(answer)
        assert call(client) == result
    assert peer.requests() == [request_sent] * 2


def test_requests_sent_together_are_answered_in_order(peer):
    peer.will_accept(mm.produced(0), mm.error(3, "no"), mm.acquired_nothing())
    requests = [mm.Produce("l", b"x"), mm.Settle("l", "g", 1, "c", True), mm.Acquire("l", "g", "c")]
    with client_of(peer) as client:
        assert client.send_many(requests) == [mm.Produced(0), mm.Failed("no"), mm.Acquired(None)]
        assert client.send_many([]) == []
    assert peer.requests() == requests


def test_more_bytes_than_any_buffer_holds_can_be_sent_together():
    """The peer reads no request before its last answer is taken: neither waits for ever."""
    ours, theirs = socket.socketpair()
    payload = bytes(10_000)

    def echo() -> None:
        reader, decoder, answered = mm.FrameReader(), mm.Decoder(), 0
        while answered < COUNT:
            for command, body in reader.feed(ours.recv(65_536)):
                decoder.decode(command, body)
                ours.sendall(mm.acquired(answered, "l", payload, 0, None))
                answered += 1

    thread = threading.Thread(target=echo)
    thread.start()
    requests = [mm.Acquire("l", "g", "c" * 200)] * COUNT
    with ours, MamamiaClient("b:1", connect=lambda *_: theirs, timeout=60.0) as client:
        answers = client.send_many(requests)
        thread.join(60.0)
    assert [one.message.id for one in answers] == list(range(COUNT))


COUNT = 3_000
SETTLE = mm.Settle("l", "g", 1, "c", True)
PRODUCE = mm.Produce("l", b"x")


@pytest.mark.parametrize(
    "request_sent",
    [
        SETTLE,
        mm.Extend("l", "g", "c", 1),
        mm.GroupInfo("l", "g"),
        mm.SettleBatch("l", "g", "c", (mm.BatchSettle(1, True),)),
        mm.Release("l", "g", "c"),
        mm.Cancel("l", 1),
        mm.ProduceBatch("l", (mm.BatchMessage(b"x"),), "p", 1),
    ],
)
def test_what_is_harmless_twice_is_sent_again_once(peer, request_sent):
    answers = {
        3: mm.settled(),
        0x81: mm.extended(1.0),
        0x84: mm.settled_batch(["settled"]),
        0x85: mm.group_info(STATE),
        0x86: mm.released(1),
        0x87: mm.cancelled(True),
        0x82: mm.produced_batch([1]),
    }
    answer = answers[mm.COMMANDS[type(request_sent)]]
    peer.will_accept(then_close=True)
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert len(client.send_many([request_sent])) == 1
    assert peer.requests(0) == peer.requests(1) == [request_sent]


@pytest.mark.parametrize(
    "request_sent",
    [PRODUCE, mm.Acquire("l", "g", "c"), mm.ProduceBatch("l", (mm.BatchMessage(b"x"),))],
)
def test_what_is_not_harmless_twice_is_not_sent_again(peer, request_sent):
    """The next call finds a new connection."""
    peer.will_accept(then_close=True)
    peer.will_accept(mm.produced(4))
    with client_of(peer) as client:
        with pytest.raises(ConnectionLost):
            client.send_many([request_sent])
        assert client.produce("l", b"x") == 4


def test_it_is_sent_again_when_asked_for(peer):
    peer.will_accept(then_close=True)
    peer.will_accept(mm.produced(4))
    with client_of(peer, resend=True) as client:
        assert client.produce("l", b"x") == 4
    assert peer.requests(0) == peer.requests(1) == [PRODUCE]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (mm.settled(), "command 3 was answered where 1 was asked"),
        (mm.frame(1, b"\xc1"), "cannot be read"),
        ((mm.MAX_LENGTH + 1).to_bytes(4, "big"), "length is 10485761"),
        (mm.produced(0) * 2, "without a request"),
    ],
)
def test_a_peer_out_of_step_is_dropped(peer, answer, match):
    peer.will_accept(answer)
    peer.will_accept(mm.produced(9))
    with client_of(peer) as client:
        with pytest.raises(OutOfStep, match=match):
            client.produce("l", b"x")
        assert client.produce("l", b"x") == 9


def test_a_wait_adds_to_the_timeout(peer):
    peer.will_accept()
    with (
        MamamiaClient("b:1", connect=peer.connect, timeout=0.01) as client,
        pytest.raises(TimeoutError, match=r"within 0\.03 seconds"),
    ):
        client.acquire("l", "g", "c", wait=0.02)


def test_an_argument_without_a_wire_form_leaves_a_usable_client(peer):
    peer.will_accept(mm.settled())
    with client_of(peer) as client:
        with pytest.raises(ValueError, match="message_id must be"):
            client.settle("l", "g", 1 << 70, "c")
        client.settle("l", "g", 1, "c")


def test_a_large_answer_arrives_over_tls(tmp_path):
    payload = bytes(1_000_000)
    answer = mm.acquired(0, "l", payload, 0, None)
    with (
        over_tls(tmp_path, mm.FrameReader().feed, answer) as (connect, context),
        MamamiaClient("broker:9000", connect=connect, ssl_context=context, timeout=60.0) as client,
    ):
        assert client.acquire("l", "g", "c") == mm.Message(0, "l", payload, None)


def test_importing_the_blocking_client_does_not_import_twisted():
    code = "import sys, brokerd.client.mamamia; assert 'twisted' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
