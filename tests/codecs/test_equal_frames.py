"""Frames of one size, which a reader cuts in one step, are those that it reads one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.codecs import blipmq, flymq, mamamia, mega
from brokerd.codecs.blipmq import Ping, Publish, pongs, publish_run
from brokerd.codecs.flymq.requests import produce_run
from brokerd.codecs.rustlog import CODECS, Dialect, FrameReader, Produce
from tests.codecs.every import Reader

COUNT = 24
LIMIT = 1 << 16


def numbered(number: int) -> bytes:
    return b"value %02d" % number


FORMATS: dict[str, tuple[Callable[[], Reader], Callable[[int], bytes]]] = {
    "mamamia": (
        lambda: mamamia.FrameReader(LIMIT),
        lambda number: mamamia.encode_request(mamamia.Produce("t", numbered(number))),
    ),
    "flymq": (
        lambda: flymq.FrameReader(LIMIT),
        lambda number: flymq.encode_request(flymq.Produce("t", None, numbered(number))),
    ),
    "blipmq": (
        lambda: blipmq.frame_reader(LIMIT),
        lambda number: (
            blipmq.encode(Publish(number, 1, "t", numbered(number)))
            + blipmq.encode(Ping(1000 + number))
        ),
    ),
    "rustlog": (
        lambda: FrameReader(LIMIT),
        lambda number: CODECS[Dialect.BINARY].encode_request(Produce("t", 0, (numbered(number),))),
    ),
    "mega": (
        lambda: mega.RequestReader(LIMIT),
        lambda number: mega.encode_request(mega.Produce(number, "t", -number, numbered(number))),
    ),
}
every = pytest.mark.parametrize("name", FORMATS)


def outcome(reader: Reader, data: bytes, piece: int) -> tuple[list[Any], str, int]:
    """Feed bytes in pieces; return the frames, the error and the bytes that are held."""
    frames = [
        frame for at in range(0, len(data), piece) for frame in reader.feed(data[at : at + piece])
    ]
    return frames, str(reader.error), reader.partial_bytes


@every
@pytest.mark.parametrize("count", [1, 2, 7, 12, 13, 600])
def test_equal_frames_and_a_part_of_the_next_are_read(name: str, count: int) -> None:
    make, frame = FORMATS[name]
    whole = b"".join(map(frame, [number % 90 for number in range(count)]))
    begun = frame(1)[:-3]
    alone = outcome(make(), whole, 1)
    assert make().feed(whole) == alone[0]
    reader = make()
    reader.feed(whole + begun)
    assert reader.partial_bytes > 0
    assert reader.feed(frame(1)[-3:])[-1] == make().feed(frame(1))[-1]


@every
def test_one_other_byte_anywhere_is_read_as_one_by_one(name: str) -> None:
    make, frame = FORMATS[name]
    whole = b"".join(map(frame, range(COUNT)))
    size = len(frame(0))
    for at in range(len(whole) // size * 2, len(whole), 1 if name != "mega" else 3):
        for bits in 1, 0x80:
            damaged = bytearray(whole)
            damaged[at] ^= bits
            assert outcome(make(), bytes(damaged), len(whole)) == outcome(
                make(), bytes(damaged), size - 1
            ), at


def test_values_of_equal_flymq_requests_are_those_of_each() -> None:
    """A request with a key, for another partition, compressed or for another topic ends the run."""
    frames = flymq.FrameReader(LIMIT).feed(b"".join(map(FORMATS["flymq"][1], range(COUNT))))
    values = list(map(numbered, range(COUNT)))
    assert produce_run(frames) == ("t", values)
    opcode, flags, payload = frames[9]
    for at in range(len(payload)):
        changed = payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]
        others = [*frames[:9], (opcode, flags, changed), *frames[10:]]
        if numbered(9) in changed:
            assert produce_run(others) == ("t", values[:9]), at
        else:
            assert produce_run(others)[1][:9] == values[:9], at
            assert len(produce_run(others)[1]) == COUNT, at
    for other in (opcode + 1, flags, payload), (opcode, flags | 2, payload):
        assert produce_run([*frames[:9], other, *frames[10:]]) == ("t", values[:9])
        assert produce_run([other] * COUNT) in (("", []), ("t", []))


def test_answers_to_equal_flymq_requests_are_those_to_each() -> None:
    for sizes in [7] * 9, [7, 8, 7], [0]:
        assert flymq.produced_run("t", 5, 99, sizes) == b"".join(
            flymq.produced("t", 0, offset, 99, -1, size) for offset, size in enumerate(sizes, 5)
        )


def test_a_run_of_blipmq_ends_before_another_topic_type_or_a_long_ping() -> None:
    frames = blipmq.frame_reader(LIMIT).feed(b"".join(map(FORMATS["blipmq"][1], range(COUNT))))
    topic, messages, pings = publish_run(frames)
    assert (topic, messages) == ("t", list(map(numbered, range(COUNT))))
    assert pongs(pings) == b"".join(
        blipmq.encode(blipmq.Pong(1000 + number)) for number in range(COUNT)
    )
    assert pongs([]) == b""
    publish, ping = frames[8:10]
    for at, other in [
        (8, publish[:9] + b"\0" + publish[10:]),
        (8, publish[:12] + b"u" + publish[13:]),
        (8, b"\x09" + publish[1:]),
        (9, ping + b"\0"),
        (9, b"\x09" + ping[1:]),
    ]:
        run = publish_run([*frames[:at], other, *frames[at + 1 :]])
        assert run == ("t", messages[: (at + 1) // 2], pings[: at // 2]), (at, other)
