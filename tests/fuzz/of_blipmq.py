"""BlipMQ for the fuzzer."""

from __future__ import annotations

from random import Random

from brokerd.broker import Broker, Clock
from brokerd.codecs import blipmq as bm
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.blipmq.connection import BlipmqFactory, BlipmqSettings
from tests.fuzz.wire import Ask, Framing, FuzzedFormat

TOPICS = ("demo", "orders", "t", "é", "n" * 255, "n" * 256, "__brokerd.x", "t" * 65_000)
KEY = "bench-key"
IDS = (1, 1, 2, 3, 4, 5, 0, 1 << 63, (1 << 64) - 1)
TAGS = (1, 2, 3, 0, (1 << 48) + 1, (1 << 64) - 1)
_FRAMING = Framing(length_at=0, uncounted=4, length_min=bm.MIN_LENGTH)
_ANSWERED = frozenset(map(int, (bm.FrameType.HELLO, bm.FrameType.AUTH, bm.FrameType.SUBSCRIBE)))
_PING = int(bm.FrameType.PING)
_TYPE_AT = 4


def requests(rng: Random) -> list[bytes]:
    """Return requests of clients that publish, subscribe, poll and acknowledge."""
    topics = rng.choice((TOPICS[:2], TOPICS[:2], TOPICS))
    return [
        bm.encode(_message(rng, rng.choice(topics), number))
        for number in range(3, rng.randrange(4, 30))
    ]


def _message(rng: Random, topic: str, number: int) -> bm.Message:
    kind = rng.randrange(16)
    if kind <= 4:
        message = rng.randbytes(rng.choice((0, 1, 8, 100, 4_096)))
        return bm.Publish(number, rng.randrange(2), topic, message)
    if kind <= 6:
        return bm.Subscribe(number, topic, rng.randrange(2))
    if kind <= 10:
        return bm.Poll(number, rng.choice(IDS))
    if kind <= 13:
        return bm.Ack(rng.choice(TAGS), rng.choice(IDS))
    return rng.choice(
        (
            bm.Ping(number),
            bm.Pong(number),
            bm.Nack(number, 500, "from a client"),
            bm.Hello(number),
            bm.Auth(number, "key"),
        )
    )


def huge(rng: Random) -> list[bytes]:
    """Return a message of almost a megabyte, and subscriptions that receive it."""
    topic = TOPICS[0]
    message = bytes(rng.choice((100_000, 900_000)))
    sent: list[bm.Message] = [bm.Subscribe(3, topic, 1), bm.Subscribe(4, topic, 0)]
    sent += [bm.Publish(5, 1, topic, message), bm.Publish(6, 0, topic, message)]
    sent += [bm.Poll(number, rng.randrange(1, 9)) for number in range(7, 15)]
    return [bm.encode(one) for one in sent]


def read_answers(data: bytes, requests: list[bytes]) -> int:
    """Decode every answer, check that brokers send its kind, and return the number."""
    reader = bm.frame_reader()
    frames = reader.feed(data)
    assert reader.error is None, reader.error
    assert not reader.partial_bytes, "the last answer is cut off"
    for frame in frames:
        message = bm.decode(frame)
        assert isinstance(message, bm.Ack | bm.Nack | bm.Pong | bm.Publish), message
        assert not isinstance(message, bm.Ack) or message.correlation_id in _ids(requests)
    return len(frames)


def _ids(requests: list[bytes]) -> set[int]:
    return {bm.correlation_id_of(request[_TYPE_AT:]) for request in requests}


class BlipmqWitness:
    """Publishes to topics of its own, polls and acknowledges.

    Any client may poll and acknowledge for any subscription. So only the step that makes a
    subscription uses it, and no other client uses its topic.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._done: list[tuple[int, int]] = []
        """Subscriptions, each with the tag of its only message."""

    def step(self, ask: Ask) -> None:
        topic = f"the witness of BlipMQ {len(self._done)}"
        (subscribed,) = _answers(ask, 1, bm.Subscribe(11, topic, 1))
        assert isinstance(subscribed, bm.Ack), subscribed
        assert subscribed.correlation_id == 11 and subscribed.subscription_id, subscribed
        mine = subscribed.subscription_id
        durable, fleeting = self._rng.randbytes(20), self._rng.randbytes(300)
        once, again, pong = _answers(
            ask,
            3,
            bm.Publish(12, 1, topic, durable),
            bm.Publish(13, 0, topic, fleeting),
            bm.Poll(14, mine),
            bm.Poll(15, mine),
            bm.Poll(16, mine),
            bm.Ping(17),
        )
        assert isinstance(once, bm.Publish), once
        tag = once.correlation_id
        assert once == bm.Publish(tag, 1, topic, durable), once
        assert again == bm.Publish(15, 0, topic, fleeting), again
        assert pong == bm.Pong(17), pong
        self._done.append((mine, tag))
        self._is_settled(ask, mine, bm.Ack(tag, mine))

    def read_back(self, ask: Ask) -> None:
        for mine, tag in self._done:
            answers = _answers(ask, 2, bm.Ack(tag, mine), bm.Poll(20, mine), bm.Ping(21))
            assert answers == [self._unknown(tag), bm.Pong(21)], answers

    def _is_settled(self, ask: Ask, mine: int, ack: bm.Ack) -> None:
        answers = _answers(ask, 2, ack, bm.Poll(18, mine), ack, bm.Ping(19))
        assert answers == [self._unknown(ack.correlation_id), bm.Pong(19)], answers

    @staticmethod
    def _unknown(tag: int) -> bm.Nack:
        return bm.Nack(tag, bm.Code.UNKNOWN, bm.UNKNOWN_DELIVERY)


def _answers(ask: Ask, count: int, *sent: bm.Message) -> list[bm.Message]:
    data = ask(b"".join(map(bm.encode, sent)), count)
    return [bm.decode(frame) for frame in bm.frame_reader().feed(data)]


def _closes_upon(request: bytes) -> bool:
    try:
        bm.type_of(request[_TYPE_AT:])
    except bm.UnknownFrameType:
        return True
    return False


def _factory(broker: Broker, clock: Clock, limits: Limits, other: bool) -> BlipmqFactory:
    settings = BlipmqSettings()
    if other:
        settings = BlipmqSettings((KEY,), 2, grace_us=60_000_000, look_back_us=30_000_000)
    return BlipmqFactory(broker, clock, limits, settings)


FORMAT = FuzzedFormat(
    name="blipmq",
    factory=_factory,
    topics=TOPICS[:2],
    requests=requests,
    huge=huge,
    greeting=(bm.encode(bm.Hello(1)), bm.encode(bm.Auth(2, KEY))),
    witness=BlipmqWitness,
    read_answers=read_answers,
    framing=_FRAMING,
    split=_FRAMING.split,
    frame_bytes_max=bm.MAX_LENGTH,
    owes=lambda request: request[_TYPE_AT] in _ANSWERED or request[_TYPE_AT] == _PING,
    closes_upon=_closes_upon,
    tokens=(
        b"\x00",
        b"\x01",
        b"\x02",
        b"\x03",
        b"\x04",
        b"\x05",
        b"\x09",
        b"\x0a",
        b"\x00\x00",
        b"\xff\xff",
        b"\xff" * 8,
        b"\x80" + bytes(7),
        b"\x00\x05bench",
        b"\xed\xa0\x80",
        b"\xff\xfe",
        b"\n",
        b"\x00\x07dev-key",
        b"\x00\x01",
        b"\x00\x02",
    ),
)
