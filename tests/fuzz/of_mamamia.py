"""Mamamia for the fuzzer."""

from __future__ import annotations

from random import Random
from typing import Any

import msgpack

from brokerd.broker import Broker, Clock
from brokerd.codecs import mamamia as mm
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.mamamia.connection import MamamiaFactory
from tests.fuzz.wire import Ask, Framing, FuzzedFormat

LOGS = ("orders", "p", "", "é", "o" * 255, "one", "two")
_FRAMING = Framing(length_at=0, uncounted=4, length_min=2)
GROUPS = ("g", "h", "")
CLIENTS = ("c1", "c2", "")
SECONDS = (0.0, 0.001, 1.0, 30.0, 1e9)
IDS = (0, 1, 2, 3, 5, 1 << 48, (1 << 48) + 1, (1 << 63) - 1)


def _value(rng: Random) -> tuple[bytes, int]:
    size = rng.choice((0, 1, 5, 5, 40, 40, 700, 5_000))
    objects: tuple[Any, ...] = (
        rng.randbytes(size),
        "é" * size,
        {"n": size, "list": [None, True, -1, 1.5]},
        rng.randrange(1 << 63),
        msgpack.Timestamp(1, 2),
    )
    return mm.pack_payload(rng.choice(objects))


def _fields(rng: Random) -> tuple[Any, ...]:
    return (
        *_value(rng),
        rng.choice((None, None, mm.pack_metadata({"ts": 1.5}), mm.pack_metadata({}))),
        rng.choice((None, None, b"", b"k", b"key" * 9)),
        rng.choice((None, None, None, 0, 1, 7)),
        rng.choice((None, None, None, 0.001, 60.0)),
        rng.choice((None, None, None, 0.0, 0.05, 3600.0)),
    )


def _settle(rng: Random, message_id: int) -> mm.BatchSettle:
    return mm.BatchSettle(
        message_id,
        rng.random() < 0.7,
        rng.choice((None, 0, 1, 1 << 62)),
        rng.choice((None, 0.0, 2.0)),
        rng.choice(("", "why")),
        rng.random() < 0.1,
    )


def _request(rng: Random) -> mm.Request:
    log_id, group_id, client_id = rng.choice(LOGS), rng.choice(GROUPS), rng.choice(CLIENTS)
    group = log_id, group_id, client_id
    message_id = rng.choice(IDS)
    kind = rng.randrange(14)
    if kind <= 3:
        return mm.Produce(log_id, *_fields(rng))
    if kind <= 5:
        wait = rng.choice((0.0, 0.0, 5.0))
        return mm.Acquire(*group, rng.choice(SECONDS), wait)
    if kind <= 7:
        one = _settle(rng, message_id)
        return mm.Settle(
            log_id, group_id, message_id, client_id, one.success, one.delay, one.reason, one.dead
        )
    if kind == 8:
        messages = tuple(mm.BatchMessage(*_fields(rng)) for _ in range(rng.randrange(1, 6)))
        producer = rng.choice(((None, None), ("p", rng.randrange(3))))
        return mm.ProduceBatch(log_id, messages, *producer)
    if kind == 9:
        wait = rng.choice((0.0, 0.0, 5.0))
        return mm.AcquireBatch(*group, rng.choice((1, 2, 100)), rng.choice(SECONDS), wait)
    if kind == 10:
        settles = tuple(_settle(rng, rng.choice(IDS)) for _ in range(rng.randrange(1, 6)))
        return mm.SettleBatch(*group, settles)
    if kind == 11:
        return mm.Extend(*group, message_id, rng.choice(SECONDS))
    if kind == 12:
        ids = rng.choice((None, (message_id,), IDS))
        return mm.Release(*group, ids)
    return rng.choice((mm.GroupInfo(log_id, group_id), mm.Cancel(log_id, rng.randrange(5))))


def requests(rng: Random) -> list[bytes]:
    """Return requests of all kinds, on few topics, so that they affect one another."""
    return [mm.encode_request(_request(rng)) for _ in range(rng.randrange(1, 24))]


def huge(rng: Random) -> list[bytes]:
    """Return a message of almost a megabyte, alone or in a batch, and an acquire of it."""
    value = rng.randbytes(rng.choice((100_000, 900_000)))
    one = mm.Produce("one", value)
    two = mm.ProduceBatch("one", (mm.BatchMessage(value), mm.BatchMessage(value[:70_000])))
    lease = mm.AcquireBatch("one", "g", "c1", 10, 30.0)
    return [mm.encode_request(request) for request in (rng.choice((one, two)), lease)]


def read_answers(data: bytes, _: list[bytes]) -> int:
    """Decode every answer as a client does; return the number."""
    reader = mm.FrameReader()
    frames = reader.feed(data)
    for command, body in frames:
        try:
            mm.decode_response(command, body)
        except mm.RequestError:
            # The broker must refuse a command that no client has.
            assert "error" in msgpack.unpackb(body), body
    assert reader.error is None, reader.error
    assert not reader.partial_bytes, "the last answer is cut off"
    return len(frames)


class MamamiaWitness:
    """Produces, leases and settles on a topic of its own."""

    LOG, GROUP, CLIENT = "the witness of Mamamia", "its group", "it"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._values: list[bytes] = []

    def step(self, ask: Ask) -> None:
        value, number = self._rng.randbytes(self._rng.choice((0, 1, 20, 300))), len(self._values)
        log, group, client = self.LOG, self.GROUP, self.CLIENT
        self._values.append(value)
        answers = _answers(
            ask,
            mm.Produce(log, value),
            mm.Acquire(log, group, client, 30.0),
            mm.Settle(log, group, number, client, True),
        )
        message = mm.Message(number, log, value, None)
        assert answers == [mm.Produced(number), mm.Acquired(message), mm.Settled()], answers

    def read_back(self, ask: Ask) -> None:
        group = f"reads back {self._rng.random()}"
        for number, value in enumerate(self._values):
            (answer,) = _answers(ask, mm.Acquire(self.LOG, group, self.CLIENT, 30.0))
            assert answer == mm.Acquired(mm.Message(number, self.LOG, value, None)), answer
        (answer,) = _answers(ask, mm.Acquire(self.LOG, self.GROUP, self.CLIENT, 30.0))
        assert answer == mm.Acquired(None), answer


def _answers(ask: Ask, *sent: mm.Request) -> list[mm.Answer]:
    data = ask(b"".join(map(mm.encode_request, sent)), len(sent))
    return [mm.decode_response(*frame) for frame in mm.FrameReader().feed(data)]


def _closes_upon(frame: bytes) -> bool:
    """Return whether the body cannot be decoded: that closes the connection without an answer."""
    try:
        mm.Decoder().decode(frame[5], frame[6:])
    except mm.BodyError:
        return True
    except mm.RequestError:
        return False
    return False


def _factory(broker: Broker, clock: Clock, limits: Limits, _: bool) -> MamamiaFactory:
    return MamamiaFactory(broker, clock, limits)


FORMAT = FuzzedFormat(
    name="mamamia",
    factory=_factory,
    topics=("orders", "p", "one"),
    requests=requests,
    huge=huge,
    greeting=(),
    witness=MamamiaWitness,
    read_answers=read_answers,
    framing=_FRAMING,
    split=_FRAMING.split,
    frame_bytes_max=mm.MAX_LENGTH,
    owes=lambda request: True,
    closes_upon=_closes_upon,
    has_long_polls=True,
    tokens=(
        b"\xc0",
        b"\xc1",
        b"\xc3",
        b"\xc4\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xd5\xff\x00\x00",
        b"\xc7\x05\xff12345",
        b"\xd9\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdc\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xde\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 600,
        b"\x81\xa1a" * 300,
        b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
        b"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00",
        b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\xa4wait\xcb\x40\x14\x00\x00\x00\x00\x00\x00",
        b"\xa9partition\xcd\x7f\xfe",
        b"\xa5delay\xcb\x43\xe0\x00\x00\x00\x00\x00\x00",
        b"\xa3max\xce\xff\xff\xff\xff",
        b"\xff",
        b"\xed\xa0\x80",
    ),
)
