"""Mutate valid conversations: bytes, fields, whole frames, and their division into chunks.

Every choice comes from the given `Random`: the same seed gives the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from tests.fuzz.wire import Framing, FuzzedFormat

FRAMES_MAX = 40
FRAME_BYTES_MAX = 200_000
"""Limit of a mutated frame, so that doubling has an end."""
LONG_BYTES = 150_000
"""More than the smaller of the tried limits on a frame."""
HUGE = 0.004
"""Probability of a huge request."""
REFITS = 0.75
"""Probability that a changed frame gets its new length in the header."""
NOISE_BYTES_MAX = 300
CUTS_MAX = 12
SINGLE_BYTES_MAX = 800
"""Longer conversations are not sent byte by byte."""

_NUMBER = re.compile(rb"-?\d+")
_DECIMALS = (
    b"0",
    b"-1",
    b"1.0",
    b"1e3",
    b"1e309",
    b"00",
    b"255",
    b"256",
    b"2147483648",
    b"4294967295",
    b"4294967296",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    b"9" * 400,
    b"NaN",
    b"null",
    b"true",
    b'""',
    b"[]",
    b"{}",
)
Mutation = Callable[[Random, FuzzedFormat, bytes], bytes]


def conversation(rng: Random, wire: FuzzedFormat) -> list[bytes]:
    """Return the frames of one connection, some of them mutated."""
    if rng.random() < 0.02:
        return [rng.randbytes(rng.randrange(1, NOISE_BYTES_MAX))]
    frames = wire.huge(rng) if rng.random() < HUGE else _valid(rng, wire)
    if rng.random() < 0.15:  # two conversations, one after the other or interleaved
        frames = _spliced(rng, frames, _valid(rng, wire))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        if not frames:
            break
        if rng.random() < 0.2:
            _change_order(rng, frames)
        else:
            index = rng.randrange(len(frames))
            frames[index] = _mutated(rng, wire, frames, index)
    if wire.greeting and rng.random() < 0.95:
        frames = [*wire.greeting, *frames]
    if frames and rng.random() < 0.02:
        frames.append(_long_unfinished(rng, wire, frames[-1]))
    elif frames and rng.random() < 0.1:
        frames[-1] = frames[-1][: rng.randrange(len(frames[-1]) + 1)]
    return frames


def _valid(rng: Random, wire: FuzzedFormat) -> list[bytes]:
    """Return new valid requests, or a piece of the golden file."""
    golden = wire.golden()
    if golden and rng.random() < 0.3:
        start = rng.randrange(len(golden))
        return list(golden[start : start + rng.randrange(1, 12)])
    return wire.requests(rng)


def _long_unfinished(rng: Random, wire: FuzzedFormat, frame: bytes) -> bytes:
    """Return the head of a frame that claims to be long, and much of its body."""
    claimed = rng.choice((LONG_BYTES + 1, wire.frame_bytes_max, 1 << 31, (1 << 32) - 1))
    if wire.framing is None:
        at = rng.randrange(len(frame) + 1)
    else:
        at = wire.framing.length_at
    return frame[:at] + claimed.to_bytes(4, "big") + frame[at + 4 :] + b"\xff" * LONG_BYTES


def _spliced(rng: Random, one: list[bytes], other: list[bytes]) -> list[bytes]:
    if not one or not other or rng.random() < 0.5:
        return (one + other)[:FRAMES_MAX]
    head, tail = rng.choice(one), rng.choice(other)
    joined = head[: rng.randrange(len(head) + 1)] + tail[rng.randrange(len(tail) + 1) :]
    at = rng.randrange(len(one))
    return [*one[:at], joined, *one[at + 1 :]]


def _change_order(rng: Random, frames: list[bytes]) -> None:
    """Double, drop or swap whole frames."""
    kind = rng.randrange(3)
    one = rng.randrange(len(frames))
    if kind == 0:
        frames.insert(rng.randrange(len(frames) + 1), frames[one])
    elif kind == 1:
        del frames[one]
    else:
        other = rng.randrange(len(frames))
        frames[one], frames[other] = frames[other], frames[one]


def _mutated(rng: Random, wire: FuzzedFormat, frames: Sequence[bytes], index: int) -> bytes:
    frame = frames[index]
    if rng.random() < 0.1:
        donor = rng.choice(frames)
        changed = frame[: rng.randrange(len(frame) + 1)] + donor[rng.randrange(len(donor) + 1) :]
    else:
        changed = rng.choice(_MUTATIONS)(rng, wire, frame)
    changed = changed[: max(FRAME_BYTES_MAX, len(frame) + NOISE_BYTES_MAX)]
    if wire.framing is not None and rng.random() < REFITS:
        changed = wire.framing.fitted(changed)
    return changed


# -- one frame --------------------------------------------------------------------------------


def _flip_bits(rng: Random, _wire: FuzzedFormat, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set_byte(rng: Random, _: FuzzedFormat, frame: bytes) -> bytes:
    if not frame:
        return frame
    at = rng.randrange(min(len(frame), 16)) if rng.random() < 0.5 else rng.randrange(len(frame))
    value = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return frame[:at] + bytes([value]) + frame[at + 1 :]


def _insert(rng: Random, _: FuzzedFormat, frame: bytes) -> bytes:
    at = rng.randrange(len(frame) + 1)
    return frame[:at] + rng.randbytes(rng.choice((1, 1, 2, 4, 30))) + frame[at:]


def _insert_token(rng: Random, wire: FuzzedFormat, frame: bytes) -> bytes:
    """Insert a token between two bytes, or overwrite as many bytes with it."""
    if not wire.tokens:
        return _insert(rng, wire, frame)
    token = rng.choice(wire.tokens)
    at = rng.randrange(len(frame) + 1)
    return frame[:at] + token + frame[at + rng.choice((0, 0, 1, len(token))) :]


def _delete(rng: Random, _: FuzzedFormat, frame: bytes) -> bytes:
    at = rng.randrange(len(frame) + 1)
    return frame[:at] + frame[at + rng.choice((1, 1, 2, 4, 20)) :]


def _truncate(rng: Random, _: FuzzedFormat, frame: bytes) -> bytes:
    return frame[: rng.randrange(len(frame) + 1)]


def _repeat(rng: Random, _: FuzzedFormat, frame: bytes) -> bytes:
    at = rng.randrange(len(frame) + 1)
    piece = frame[at : at + rng.choice((1, 2, 4, 16, 64))]
    return frame[:at] + piece * rng.choice((2, 2, 3, 50, 1000)) + frame[at + len(piece) :]


def _swap_fields(rng: Random, _: FuzzedFormat, frame: bytes) -> bytes:
    size = rng.choice((1, 2, 4, 4, 8))
    if len(frame) < 2 * size:
        return frame
    one, other = sorted(rng.randrange(len(frame) - size + 1) for _ in range(2))
    if other - one < size:
        return frame
    middle = frame[one + size : other]
    return (
        frame[:one]
        + frame[other : other + size]
        + middle
        + frame[one : one + size]
        + frame[other + size :]
    )


def _edge_field(rng: Random, wire: FuzzedFormat, frame: bytes) -> bytes:
    """Set a count, length, offset or similar field to an edge value."""
    numbers = list(_NUMBER.finditer(frame)) if wire.text else []
    if numbers and rng.random() < 0.7:
        found = rng.choice(numbers)
        return frame[: found.start()] + rng.choice(_DECIMALS) + frame[found.end() :]
    width = rng.choice((1, 2, 2, 4, 4, 4, 8))
    if len(frame) < width:
        return frame
    at = _field_at(rng, wire.framing, frame, width)
    value = int.from_bytes(frame[at : at + width], "big")
    rest = len(frame) - at - width
    edge = rng.choice(
        (
            0,
            1,
            value + 1,
            value - 1,
            rest,
            rest + 1,
            rest - 1,
            1 << 31,
            (1 << 31) - 1,
            (1 << 32) - 1,
            (1 << 8 * width) - 1,
            1 << (8 * width - 1),
            wire.frame_bytes_max,
            wire.frame_bytes_max + 1,
        )
    )
    return frame[:at] + (edge % (1 << 8 * width)).to_bytes(width, "big") + frame[at + width :]


def _field_at(rng: Random, framing: Framing | None, frame: bytes, width: int) -> int:
    """Return a position that looks like a length of the following bytes; or any position."""
    if framing is not None and width == 4 and rng.random() < 0.25:
        return min(framing.length_at, len(frame) - width)
    places = len(frame) - width + 1
    start = rng.randrange(places)
    if rng.random() < 0.6:
        for at in range(start, min(places, start + 64)):
            value = int.from_bytes(frame[at : at + width], "big")
            if 0 < value <= len(frame) - at - width:
                return at
    return start


_MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits,
    _set_byte,
    _set_byte,
    _insert,
    _insert_token,
    _insert_token,
    _delete,
    _truncate,
    _repeat,
    _swap_fields,
    _edge_field,
    _edge_field,
    _edge_field,
    _edge_field,
)


# -- chunks -----------------------------------------------------------------------------------


def chunks(rng: Random, frames: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the same bytes, divided as they arrive."""
    data = b"".join(frames)
    kind = rng.random()
    if kind < 0.3 or len(data) < 2:
        pieces = [data]
    elif kind < 0.45:
        pieces = list(frames)
    elif kind < 0.6 and len(data) <= SINGLE_BYTES_MAX:
        pieces = [data[at : at + 1] for at in range(len(data))]
    elif kind < 0.8 and len(frames) > 1:  # a chunk ends within the next frame's first bytes
        at = len(b"".join(frames[: rng.randrange(1, len(frames))])) + rng.randrange(9)
        pieces = [data[:at], data[at:]]
    else:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(1, CUTS_MAX)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    return tuple(piece for piece in pieces if piece)
