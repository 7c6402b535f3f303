"""What a user of the blocking RustLog client observes in both dialects, against a scripted peer."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerd.client.rustlog import (
    ConnectionLost,
    Dialect,
    OutOfStep,
    Records,
    RustlogClient,
    RustlogError,
)
from brokerd.codecs import rustlog as rl
from brokerd.errors import RecordTooLarge
from brokerd.protocols.rustlog.refusals import out_of_range
from tests.client.peer import Peer
from tests.codecs.test_rustlog_golden import plain

MIB = 1 << 20
both = pytest.mark.parametrize("dialect", Dialect)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer.open() as one:
        yield one


def client_of(peer: Peer, dialect: Dialect = Dialect.BINARY, **options: Any) -> RustlogClient:
    options = {"timeout": 5.0, "connect": peer.connect, **options}
    return RustlogClient("broker:9092", dialect=dialect, **options)


def written(dialect: Dialect, *answers: rl.Answer) -> bytes:
    return b"".join(map(rl.CODECS[dialect].encode_answer, answers))


def requests(peer: Peer, dialect: Dialect, connection: int = 0) -> list[Any]:
    payloads = rl.FrameReader().feed(peer.received(connection))
    return [rl.CODECS[dialect].decode_request(payload) for payload in payloads]


PAIR = rl.Fetched([4, 5], [b"a", b""], 6)
CALLS: list[tuple[Callable[[RustlogClient], object], rl.Request, rl.Answer, object]] = [
    (lambda c: c.ping(), rl.Ping(), rl.Pong(), None),
    (lambda c: c.create_topic("t", 3), rl.CreateTopic("t", 3), rl.TopicCreated(), None),
    (
        lambda c: c.produce("t", [b"\0\xff", b""], 2),
        rl.Produce("t", 2, [b"\0\xff", b""]),
        rl.Produced(7, 2),
        7,
    ),
    (
        lambda c: c.fetch("t", 4, 2, 99, "g"),
        rl.Fetch("t", 2, 4, 99, "g"),
        PAIR,
        Records([4, 5], [b"a", b""], 6),
    ),
    (
        lambda c: c.fetch("t", 4),
        rl.Fetch("t", 0, 4, MIB, None),
        rl.Fetched((), (), 4),
        Records([], [], 4),
    ),
    (
        lambda c: c.commit("t", "g", 9, 1),
        rl.OffsetCommit("t", 1, "g", 9),
        rl.OffsetCommitted(True),
        True,
    ),
    (lambda c: c.committed("t", "g", 1), rl.OffsetFetch("t", 1, "g"), rl.OffsetFetched(9), 9),
    (lambda c: c.committed("t", "g"), rl.OffsetFetch("t", 0, "g"), rl.OffsetFetched(None), None),
    (
        lambda c: c.topics(),
        rl.ListTopics(),
        rl.TopicList((rl.TopicSummary("a", 1), rl.TopicSummary("b", 2))),
        {"a": 1, "b": 2},
    ),
    (
        lambda c: c.next_offsets("t"),
        rl.DescribeTopic("t"),
        rl.TopicDescription("t", (3, 4)),
        (3, 4),
    ),
    (
        lambda c: c.next_offset("t", 1),
        rl.DescribePartition("t", 1),
        rl.PartitionDescription("t", 1, 4),
        4,
    ),
    (lambda c: c.metrics(), rl.MetricsFetch(), rl.Metrics("x 1\n"), "x 1\n"),
]


@both
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_each_call_sends_one_request_in_its_dialect(
    peer: Peer, number: int, dialect: Dialect
) -> None:
    call, request, answer, result = CALLS[number]
    peer.will_accept(written(dialect, answer))
    with client_of(peer, dialect) as client:
        assert plain(call(client)) == plain(result)
    assert peer.received() == rl.CODECS[dialect].encode_request(request)


def test_records_can_be_had_as_pairs() -> None:
    assert list(Records([4, 5], [b"a", b""], 6).pairs()) == [(4, b"a"), (5, b"")]


@both
def test_a_refusal_is_an_error_with_its_text_and_the_connection_lives(
    peer: Peer, dialect: Dialect
) -> None:
    failed = rl.Failed(11, "Topic 't' already exists")
    peer.will_accept(written(dialect, failed), written(dialect, rl.Pong()), in_bytes=True)
    client = client_of(peer, dialect)
    with pytest.raises(RustlogError, match="already exists") as refusal:
        client.create_topic("t")
    assert str(refusal.value) == failed.message
    assert refusal.value.code == (11 if dialect is Dialect.BINARY else 0)
    client.ping()


def test_an_answer_nobody_asked_for_ends_the_connection(peer: Peer) -> None:
    peer.will_accept(written(Dialect.BINARY, rl.Produced(0, 1), rl.Produced(1, 1)))
    with pytest.raises(OutOfStep, match="without a request"):
        client_of(peer).produce("t", [b"x"])


@both
def test_reading_follows_the_next_offset_to_the_end(peer: Peer, dialect: Dialect) -> None:
    """So that gaps are passed over, also by answers without records, and nothing is read twice."""
    found = [
        rl.Fetched([0, 1], [b"a", b"b"], 2),
        rl.Fetched((), (), 5),
        rl.Fetched([5], [b"c"], 6),
        rl.Fetched((), (), 6),
    ]
    peer.will_accept(*[written(dialect, answer) for answer in found], in_bytes=True)
    pairs = list(client_of(peer, dialect).read("t"))
    assert pairs == [(0, b"a"), (1, b"b"), (5, b"c")]
    assert [request.offset for request in requests(peer, dialect)] == [0, 2, 5, 6]


def test_reading_in_json_begins_at_the_first_record_that_is_kept(peer: Peer) -> None:
    """The broker tells where that is. As the binary dialect does by itself."""
    told = out_of_range("t\n", 0, 0, 5).answer(Dialect.JSON)
    found = [told, rl.Fetched([5], [b"c"], 6), rl.Fetched((), (), 6)]
    peer.will_accept(*[written(Dialect.JSON, answer) for answer in found], in_bytes=True)
    assert list(client_of(peer, Dialect.JSON).read("t\n")) == [(5, b"c")]
    assert [request.offset for request in requests(peer, Dialect.JSON)] == [0, 5, 6]


@pytest.mark.parametrize("text", ["fetch failed: 7 is damaged", "offset out of range: 0"])
def test_reading_ends_with_every_other_refusal(peer: Peer, text: str) -> None:
    peer.will_accept(written(Dialect.JSON, rl.Failed(4, text)))
    with pytest.raises(RustlogError, match=text):
        list(client_of(peer, Dialect.JSON).read("t"))


def test_a_beginning_that_is_not_behind_is_not_begun_at(peer: Peer) -> None:
    """Or else a broker could keep a client busy for ever."""
    peer.will_accept(written(Dialect.JSON, out_of_range("t", 0, 5, 5).answer(Dialect.JSON)))
    with pytest.raises(RustlogError, match="out of range"):
        list(client_of(peer, Dialect.JSON).read("t", 5))


def test_many_requests_go_together_and_refusals_are_among_the_answers(peer: Peer) -> None:
    answers = [rl.Produced(0, 1), rl.Failed(10, "no"), rl.Pong()]
    peer.will_accept(written(Dialect.BINARY, *answers))
    asked = [rl.Produce("t", 0, [b"x"]), rl.Produce("u", 0, [b"x"]), rl.Ping()]
    assert client_of(peer).send_many(asked) == answers
    assert plain(requests(peer, Dialect.BINARY)) == plain(asked)


# -- lost connections -------------------------------------------------------------------------


@both
def test_what_does_no_harm_twice_is_sent_again_after_a_lost_connection(
    peer: Peer, dialect: Dialect
) -> None:
    peer.will_accept(then_close=True)
    peer.will_accept(written(dialect, rl.OffsetCommitted(True)))
    assert client_of(peer, dialect).commit("t", "g", 1) is True
    assert requests(peer, dialect, 0) == requests(peer, dialect, 1)


@pytest.mark.parametrize("call", [lambda c: c.produce("t", [b"x"]), lambda c: c.create_topic("t")])
def test_what_does_is_not(peer: Peer, call: Callable[[RustlogClient], object]) -> None:
    peer.will_accept(then_close=True)
    peer.will_accept(written(Dialect.BINARY, rl.Pong()))
    client = client_of(peer)
    with pytest.raises(ConnectionLost, match="closed"):
        call(client)
    client.ping()


@both
@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        b"\xff\xff\xff\xff",
        rl.frame(b"\x20"),
        rl.frame(b"\x02\xff\xff\xff\xff"),
        rl.frame(b'{"Fetch":{}}'),
        rl.frame(b'{"Found":{}}'),
        rl.frame(b'{"Fetch":{"records":[{"offset":0,"payload":[256]}],"next_offset":1}}'),
        rl.frame(b"[" * 5_000),
    ],
)
def test_bytes_that_are_no_answer_end_the_connection(
    peer: Peer, dialect: Dialect, data: bytes
) -> None:
    peer.will_accept(data)
    with pytest.raises(OutOfStep):
        client_of(peer, dialect).fetch("t", 0)


@both
def test_an_answer_to_something_else_ends_the_connection(peer: Peer, dialect: Dialect) -> None:
    peer.will_accept(written(dialect, rl.OffsetFetched(4)))
    peer.will_accept(written(dialect, rl.Pong()))
    client = client_of(peer, dialect)
    with pytest.raises(OutOfStep, match="OffsetFetched was answered to Produce"):
        client.produce("t", [b"x"])
    client.ping()


# -- arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.produce(b"t", [b"x"]), TypeError),
        (lambda c: c.produce("t", ["x"]), TypeError),
        (lambda c: c.produce("t", [b"x"], 1 << 32), ValueError),
        (lambda c: c.produce("t", [b"x"], True), TypeError),
        (lambda c: c.produce("\ud800", [b"x"]), ValueError),
        (lambda c: c.produce("é" * 40_000, [b"x"]), ValueError),
        (lambda c: c.fetch("t", -1), ValueError),
        (lambda c: c.fetch("t", 1 << 64), ValueError),
        (lambda c: c.fetch("t", 0, max_bytes=1 << 32), ValueError),
        (lambda c: c.fetch("t", 0, group=5), TypeError),
        (lambda c: c.commit("t", "g", 1.0), TypeError),
        (lambda c: c.create_topic("t", -1), ValueError),
        (lambda c: c.produce("t", [bytes(rl.MAX_PAYLOAD)]), RecordTooLarge),
    ],
)
def test_a_wrong_argument_is_an_error_before_anything_is_sent(
    peer: Peer, call: Callable[[RustlogClient], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(client_of(peer))
    assert peer.ends == []


def test_a_tls_context_is_used(peer: Peer) -> None:
    wrapped: list[object] = []

    class Context:
        def wrap_socket(self, opened: object, server_hostname: str) -> object:
            wrapped.append(server_hostname)
            return opened

    peer.will_accept(written(Dialect.BINARY, rl.Pong()))
    context: ssl.SSLContext = Context()  # type: ignore[assignment]
    client_of(peer, ssl_context=context).ping()
    assert wrapped == ["broker"]
