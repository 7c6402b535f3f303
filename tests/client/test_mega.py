"""What a user of the blocking MEGA client observes, against a scripted peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.client.mega import Code, Consumed, Dialect, MegaClient, MegaError, OutOfStep
from brokerd.codecs import mega
from brokerd.errors import RecordTooLarge
from tests.client.peer import Peer, over_tls

NOW = 1_700_000_000.123
NOW_MS = 1_700_000_000_123


class MegaPeer(Peer):
    def requests(self, connection: int = 0) -> list[Any]:
        return mega.RequestReader().feed(self.received(connection))


@pytest.fixture
def peer() -> Iterator[MegaPeer]:
    with MegaPeer.open() as one:
        yield one


def client_of(peer: MegaPeer, **options: object) -> MegaClient:
    options = {"timeout": 5.0, "clock": lambda: NOW, **options}
    return MegaClient("broker:8080", connect=peer.connect, **options)  # type: ignore[arg-type]


CALLS: list[tuple[Callable[[MegaClient], object], mega.Request, bytes, object]] = [
    (
        lambda c: c.create_topic("t"),
        mega.CreateTopic(1, "t", NOW_MS),
        mega.created(1, NOW_MS, "t"),
        None,
    ),
    (
        lambda c: c.produce("t", b"\0\xff"),
        mega.Produce(1, "t", NOW_MS, b"\0\xff"),
        mega.produced(1, NOW_MS, 7),
        7,
    ),
    (
        lambda c: c.produce("t", b"", timestamp=-5),
        mega.Produce(1, "t", -5, b""),
        mega.produced(1, -5, 0),
        0,
    ),
    (
        lambda c: c.consume("t", 3),
        mega.Consume(1, "t", NOW_MS, 3),
        mega.consumed(1, 9, 5, b"x"),
        Consumed(1, 9, 6, b"x"),
    ),
]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_each_call_sends_one_request_in_its_dialect(
    peer: MegaPeer, number: int, dialect: Dialect
) -> None:
    call, request, answer, result = CALLS[number]
    peer.will_accept(answer)
    with client_of(peer, dialect=dialect) as client:
        assert call(client) == result
    assert peer.received() == mega.encode_request(request, dialect)


@pytest.mark.parametrize("code", Code)
def test_a_refusal_is_an_error_with_its_code_and_the_connection_lives(
    peer: MegaPeer, code: Code
) -> None:
    peer.will_accept(mega.refused(1, code), mega.produced(2, NOW_MS, 4), in_bytes=True)
    client = client_of(peer)
    with pytest.raises(MegaError, match=f"{code.name}.*'t'") as refusal:
        client.consume("t", 3)
    assert refusal.value.code is code
    assert ("not permitted" in str(refusal.value)) == (code is Code.INVALID_REQUEST)
    assert client.produce("t", b"x") == 4


def test_reading_follows_the_next_offset_to_the_end(peer: MegaPeer) -> None:
    """So that removed records are passed over, and nothing is read twice."""
    found = [mega.consumed(1, 9, 0, b"a"), mega.consumed(2, 9, 6, b"b"), mega.refused(3, 6)]
    peer.will_accept(*found, in_bytes=True)
    assert [message.payload for message in client_of(peer).read("t")] == [b"a", b"b"]
    assert [request.offset for request in peer.requests()] == [0, 1, 7]


def test_reading_ends_where_offsets_do(peer: MegaPeer) -> None:
    peer.will_accept(mega.consumed(1, 9, mega.MAX_OFFSET, b"last"))
    assert len(list(client_of(peer).read("t", mega.MAX_OFFSET))) == 1


def test_a_record_too_large_to_be_read_is_told_with_its_offset(peer: MegaPeer) -> None:
    """So that a reader can go on behind it."""
    found = [mega.consumed(1, 9, 6, b"a"), mega.refused(2, 3), mega.refused(3, 6)]
    peer.will_accept(*found, in_bytes=True)
    client = client_of(peer)
    reading = client.read("t", 6)
    assert next(reading).payload == b"a"
    with pytest.raises(MegaError, match=r"MESSAGE_TOO_LARGE.* of 't' from offset 7 on") as refusal:
        next(reading)
    assert refusal.value.offset == 7
    assert list(client.read("t", refusal.value.offset + 1)) == []
    assert peer.requests()[-1].offset == 8


def test_reading_an_unknown_topic_is_an_error(peer: MegaPeer) -> None:
    peer.will_accept(mega.refused(1, 4))
    with pytest.raises(MegaError, match="TOPIC_NOT_FOUND"):
        list(client_of(peer).read("t"))


def test_many_produces_are_under_way_at_a_time(peer: MegaPeer) -> None:
    peer.will_accept(*(mega.produced(number, NOW_MS, 10 + number) for number in range(1, 1001)))
    client = client_of(peer)
    assert client.produce_many("t", [b"%d" % number for number in range(1000)]) == list(
        range(11, 1011)
    )
    assert len(peer.requests()) == 1000


def test_a_refusal_among_many_is_raised(peer: MegaPeer) -> None:
    peer.will_accept(mega.produced(1, NOW_MS, 0), mega.refused(2, 9), mega.produced(3, NOW_MS, 1))
    with pytest.raises(MegaError, match="RESOURCE_EXHAUSTED"):
        client_of(peer).produce_many("t", [b"a", b"b", b"c"])


OUT_OF_STEP = {
    "another id": mega.produced(9, NOW_MS, 0),
    "a flag of 7": b"\0\0\0\1\7" + bytes(12),
    "the reference's message to idle clients": bytes.fromhex("00000000 00 08"),
    "an answer too many": mega.produced(1, NOW_MS, 0) + mega.produced(2, NOW_MS, 0),
}


@pytest.mark.parametrize("name", OUT_OF_STEP)
def test_a_stream_out_of_step_is_given_up(peer: MegaPeer, name: str) -> None:
    """No answer is taken for that of another request."""
    peer.will_accept(OUT_OF_STEP[name])
    peer.will_accept(mega.produced(2, NOW_MS, 5))
    client = client_of(peer)
    with pytest.raises(OutOfStep):
        client.produce("t", b"x")
    assert client.produce("t", b"y") == 5


WRONG: list[tuple[Callable[[MegaClient], object], type[Exception], str]] = [
    (lambda c: c.produce("t", bytes(mega.MAX_PAYLOAD_BYTES + 1)), RecordTooLarge, "1048577"),
    (lambda c: c.consume("t", 1 << 31), ValueError, "offset"),
    (lambda c: c.consume("t", "0"), TypeError, "offset"),  # type: ignore[arg-type]
    (lambda c: c.create_topic(b"t"), TypeError, "topic"),  # type: ignore[arg-type]
    (lambda c: c.produce("t", b"x", timestamp=1.5), TypeError, "timestamp"),  # type: ignore[arg-type]
    (lambda c: c.produce("t", b"x", timestamp=1 << 63), ValueError, "timestamp"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments_are_refused_before_anything_is_sent(peer: MegaPeer, number: int) -> None:
    call, kind, text = WRONG[number]
    with pytest.raises(kind, match=text):
        call(client_of(peer))


def test_it_speaks_tls(tmp_path: Path) -> None:
    answer = mega.produced(1, NOW_MS, 3)
    with (
        over_tls(tmp_path, mega.RequestReader().feed, answer) as (connect, context),
        MegaClient(
            "broker:8080",
            timeout=60.0,
            ssl_context=context,
            server_hostname="broker",
            connect=connect,
        ) as client,
    ):
        assert client.produce("t", b"x") == 3
