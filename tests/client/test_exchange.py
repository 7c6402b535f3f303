"""One set of rules for all clients: what a lost connection, silence and wrong answers come to.

Each rule is tried on the client of every format that stands on `Exchange`.
"""

from __future__ import annotations

import inspect
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import pytest

from brokerd.client.errors import AddressError, ConnectionLost, OutOfStep
from brokerd.client.flymq import DELAYS, FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient
from brokerd.codecs import flymq as fm
from brokerd.codecs import mamamia as mm
from brokerd.codecs import mega
from brokerd.codecs import rustlog as rl
from tests.client.peer import Peer


class Format(NamedTuple):
    """A client, a request that may be sent twice and one that may not, and their answers."""

    client: Callable[..., Any]
    harmless: Any
    harmless_answer: bytes
    produce: Any
    produce_answer: bytes
    pauses: tuple[float, ...] = ()


BINARY = rl.CODECS[rl.Dialect.BINARY]

FORMATS = {
    "mamamia": Format(
        MamamiaClient,
        mm.GroupInfo("l", "g"),
        mm.group_info(mm.GroupState(2, 5, 3, 1, 1, 1, 0, None, 1.5, 3, 1)),
        mm.Produce("l", b"x"),
        mm.produced(0),
    ),
    "flymq": Format(
        FlymqClient,
        fm.ListTopics(),
        fm.topics(["t"]),
        fm.Produce("t", None, b"x"),
        fm.produced("t", 0, 0, 5, -1, 1),
        DELAYS,
    ),
    "mega": Format(
        MegaClient,
        mega.Consume(1, "t", 0, 0),
        mega.consumed(1, 9, 0, b"x"),
        mega.Produce(1, "t", 0, b"x"),
        mega.produced(1, 0, 0),
    ),
    "rustlog": Format(
        RustlogClient,
        rl.ListTopics(),
        BINARY.encode_answer(rl.TopicList(())),
        rl.Produce("t", 0, [b"x"]),
        BINARY.encode_answer(rl.Produced(0, 1)),
    ),
}


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer.open() as one:
        yield one


@pytest.fixture(params=FORMATS)
def of(request: pytest.FixtureRequest) -> Format:
    return FORMATS[request.param]


def client_of(peer: Peer, of: Format, **options: Any) -> Any:
    options = {"timeout": 5.0, "connect": peer.connect, **options}
    if of.pauses:
        options["sleep"] = peer.slept.append
    return of.client("broker:1", **options)


def ask(client: Any, requests: Sequence[Any]) -> list[Any]:
    answers: list[Any] = client.send_many(requests)
    return answers


def test_nobody_listening_is_the_systems_own_error_after_the_pauses_there_are(
    peer: Peer, of: Format
) -> None:
    """Nothing was sent: nobody has to wonder what became of it."""
    for request in (of.harmless, of.produce):
        peer.attempts, peer.slept[:] = 0, []
        with pytest.raises(ConnectionRefusedError, match="nobody listens"):
            ask(client_of(peer, of), [request])
        assert peer.attempts == 1 + len(of.pauses)
        assert tuple(peer.slept) == of.pauses


def test_what_does_no_harm_twice_is_sent_again_over_a_new_connection(
    peer: Peer, of: Format
) -> None:
    """The broker was started anew while nobody asked: the caller does not notice."""
    peer.will_accept(of.harmless_answer[:3], then_close=True)
    peer.will_accept(of.harmless_answer)
    with client_of(peer, of) as client:
        assert len(ask(client, [of.harmless])) == 1
    assert peer.received(0) == peer.received(1) != b""


def test_what_may_do_harm_is_not(peer: Peer, of: Format) -> None:
    peer.will_accept(then_close=True)
    peer.will_accept(of.produce_answer)
    with client_of(peer, of) as client:
        with pytest.raises(ConnectionLost, match="broker:1 closed the connection"):
            ask(client, [of.produce])
        assert peer.attempts == 1
        assert len(ask(client, [of.produce])) == 1


def test_a_produce_among_what_is_left_keeps_all_of_it_back(peer: Peer, of: Format) -> None:
    peer.will_accept(then_close=True)
    with client_of(peer, of) as client, pytest.raises(ConnectionLost):
        ask(client, [of.harmless, of.produce])
    assert peer.attempts == 1


def test_only_what_has_no_answer_is_sent_again(peer: Peer, of: Format) -> None:
    peer.will_accept(of.produce_answer, then_close=True)
    peer.will_accept(of.harmless_answer)
    with client_of(peer, of) as client:
        assert len(ask(client, [of.produce, of.harmless])) == 2
    assert peer.received(0).endswith(peer.received(1))
    assert peer.received(0) != peer.received(1)


def test_a_lost_connection_tells_the_answers_that_arrived(peer: Peer, of: Format) -> None:
    peer.will_accept(of.produce_answer, then_close=True)
    with client_of(peer, of) as client, pytest.raises(ConnectionLost) as lost:
        ask(client, [of.produce, of.produce])
    assert len(lost.value.answers) == 1


def test_a_loss_stays_one_when_nobody_listens_any_more(peer: Peer, of: Format) -> None:
    """The requests were sent: they may have been carried out."""
    peer.will_accept(of.produce_answer, then_close=True)
    with client_of(peer, of) as client, pytest.raises(ConnectionLost, match="nobody") as lost:
        ask(client, [of.produce, of.harmless])
    assert len(lost.value.answers) == 1
    assert tuple(peer.slept) == of.pauses


def test_it_is_tried_so_often_and_no_more(peer: Peer, of: Format) -> None:
    for _ in range(9):
        peer.will_accept(then_close=True)
    with client_of(peer, of) as client, pytest.raises(ConnectionLost, match="closed"):
        ask(client, [of.harmless])
    assert peer.attempts == 1 + (len(of.pauses) or 1)


@pytest.mark.parametrize("answer", ["wrong", "too many"])
def test_out_of_step_is_a_loss_that_nobody_tries_again(peer: Peer, of: Format, answer: str) -> None:
    """It would get the same again. The next call has a connection of its own."""
    wrong = b"\xff" * 20 if answer == "wrong" else of.harmless_answer * 2
    peer.will_accept(wrong)
    peer.will_accept(of.harmless_answer)
    with client_of(peer, of) as client:
        with pytest.raises(OutOfStep, match="broker:1: "):
            ask(client, [of.harmless])
        assert (peer.attempts, peer.slept) == (1, [])
        assert len(ask(client, [of.harmless])) == 1


def test_answers_before_the_wrong_one_are_told(peer: Peer, of: Format) -> None:
    peer.will_accept(of.produce_answer + b"\xff" * 20)
    with client_of(peer, of) as client, pytest.raises(OutOfStep) as lost:
        ask(client, [of.produce, of.harmless])
    assert len(lost.value.answers) == 1


def test_silence_is_a_timeout_and_nothing_is_sent_again(peer: Peer, of: Format) -> None:
    peer.will_accept()
    peer.will_accept(of.harmless_answer)
    with client_of(peer, of, timeout=0.01) as client:
        with pytest.raises(TimeoutError, match=r"no answer from broker:1 within 0\.01 seconds"):
            ask(client, [of.harmless])
        assert peer.attempts == 1
        assert len(ask(client, [of.harmless])) == 1


@pytest.mark.parametrize("name", ["mamamia", "flymq"])
def test_all_is_sent_again_when_asked_for_but_out_of_step(peer: Peer, name: str) -> None:
    """Also after a timeout."""
    of = FORMATS[name]
    peer.will_accept()
    peer.will_accept(of.produce_answer)
    with client_of(peer, of, resend=True, timeout=0.01) as client:
        assert len(ask(client, [of.produce])) == 1
        peer.answer(b"\xff" * 20)
        with pytest.raises(OutOfStep):
            ask(client, [of.produce])
    assert peer.received(0) * 2 == peer.received(1)


def test_nothing_to_ask_needs_no_connection(peer: Peer, of: Format) -> None:
    assert ask(client_of(peer, of), []) == []
    assert peer.attempts == 0


def test_answers_may_come_in_any_pieces(peer: Peer, of: Format) -> None:
    peer.will_accept(of.harmless_answer, of.produce_answer, in_bytes=True)
    with client_of(peer, of) as client:
        assert len(ask(client, [of.harmless, of.produce])) == 2


def test_more_bytes_than_any_buffer_holds_can_be_sent_together(of: Format) -> None:
    """The peer reads no request before its last answer is taken: neither waits for ever."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)

    def serve() -> None:
        size = len(ours.recv(65_536))
        ours.sendall(of.harmless_answer)
        asked = 0
        while data := ours.recv(65_536):
            whole = asked // size
            asked += len(data)
            ours.sendall(of.harmless_answer * (asked // size - whole))

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        with of.client("b:1", connect=lambda *_: theirs, timeout=60.0) as client:
            ask(client, [of.harmless])
            answers = ask(client, [of.harmless] * 3_000)
        thread.join(60.0)
    assert len(answers) == 3_000


@pytest.mark.parametrize("name", ["mamamia", "flymq"])
def test_a_request_larger_than_any_buffer_is_sent_to_who_answers_only_then(name: str) -> None:
    ours, theirs = socket.socketpair()
    large = {
        "mamamia": mm.Produce("l", bytes(5_000_000)),
        "flymq": fm.Produce("t", None, bytes(5_000_000)),
    }

    def serve() -> None:
        asked = 0
        while asked < 5_000_000:
            asked += len(ours.recv(65_536))
        ours.sendall(FORMATS[name].produce_answer)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours, FORMATS[name].client("b:1", connect=lambda *_: theirs, timeout=60.0) as client:
        assert len(ask(client, [large[name]])) == 1
        thread.join(60.0)


def test_what_is_raised_can_be_imported_with_the_asynchronous_client() -> None:
    module = import_module("brokerd.client.mamamia_async")
    assert {"AddressError", "ConnectionLost", "MamamiaError", "OutOfStep"} <= set(module.__all__)


@pytest.mark.parametrize("name", ["blipmq", *FORMATS])
def test_what_a_client_raises_can_be_imported_with_it(name: str) -> None:
    module = import_module(f"brokerd.client.{name}")
    assert module.AddressError is AddressError
    assert module.ConnectionLost is ConnectionLost
    assert module.OutOfStep is OutOfStep
    (kind,) = (one for one in vars(module) if one.lower() == f"{name}client")
    with pytest.raises(AddressError):
        vars(module)[kind]("nowhere")
    assert {"AddressError", "ConnectionLost", "OutOfStep"} <= set(module.__all__)
    assert inspect.signature(vars(module)[kind]).parameters["timeout"].default == 60.0
