"""What the fuzzer knows of a wire format: how to serve it, speak it, break it and check it.

A format is one module, ``tests/fuzz/of_NAME.py``, with a `WireFormat` of the name ``FORMAT``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, NamedTuple, Protocol

from brokerd.broker import Broker, Clock
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.base.factory import ConnectionFactory
from brokerd.server.sections import FORMATS
from tests.golden import golden

NAMES = FORMATS
"""The formats that can be fuzzed: all of them."""
MIXED = "mixed"
"""A run of all of them, on one broker and the same topics."""
RUNS = (*NAMES, MIXED)

Split = tuple[list[bytes], bool]
"""Whole requests, and whether what follows them can be no request at all."""

Ask = Callable[[bytes, int], bytes]
"""Send bytes over a connection that stays open, and return what came back: so many answers."""


class Framing(NamedTuple):
    """A length field in front of each frame, u32 big-endian."""

    length_at: int
    """Where it stands in the frame."""
    uncounted: int
    """How many bytes of a frame it does not count."""
    length_min: int

    def fitted(self, frame: bytes) -> bytes:
        """The frame with the length that it really has."""
        if len(frame) < max(self.uncounted, self.length_at + 4):
            return frame
        length = (len(frame) - self.uncounted).to_bytes(4, "big")
        return frame[: self.length_at] + length + frame[self.length_at + 4 :]

    def split(self, stream: bytes, length_max: int) -> Split:
        """The whole frames of a stream, and whether a length is wrong after them."""
        frames: list[bytes] = []
        position = 0
        header = self.length_at + 4
        while len(stream) - position >= header:
            length = int.from_bytes(stream[position + self.length_at : position + header], "big")
            if not self.length_min <= length <= length_max:
                return frames, True
            end = position + self.uncounted + length
            if end > len(stream):
                break
            frames.append(stream[position:end])
            position = end
        return frames, False


class Witness(Protocol):
    """A client that sends nothing but valid requests, and knows each right answer."""

    def step(self, ask: Ask) -> None:
        """Produce something of its own and read it back.

        :raises AssertionError: when an answer is not right.
        """

    def read_back(self, ask: Ask) -> None:
        """Read all of its own, from the first to the last, as after a restart.

        :raises AssertionError: when an answer is not right.
        """


@dataclass(frozen=True)
class WireFormat:
    """One wire format; sizes in bytes."""

    name: str
    factory: Callable[[Broker, Clock, Limits, bool], ConnectionFactory]
    """The last says whether its settings are to be other than by default."""
    topics: tuple[str, ...]
    """Those that requests name most."""
    requests: Callable[[Random], list[bytes]]
    """A valid conversation: some whole requests, which may refer to one another."""
    huge: Callable[[Random], list[bytes]]
    """Some requests, one of which is large in one way or another; made seldom."""
    greeting: tuple[bytes, ...]
    """Requests that have to come before all others of a connection."""
    witness: Callable[[Random], Witness]
    read_answers: Callable[[bytes, list[bytes]], int]
    """How many answers these bytes are, to these whole requests and what may follow them.

    Raises any exception when a client of the format could not read them.
    """
    framing: Framing | None
    split: Callable[[bytes, int], Split]
    """Takes apart what a client sent, given the largest length; another way than the broker's."""
    frame_bytes_max: int
    """The format's own limit on a length field, or on a payload where frames have no length."""
    owes: Callable[[bytes], bool]
    """Whether this request always gets an answer; none ever gets more than one."""
    closes_upon: Callable[[bytes], bool]
    """Whether the broker may close the connection upon this request, with or without an answer."""
    tokens: tuple[bytes, ...]
    """Pieces that decoders may trip over."""
    header_bytes: int = 8
    """At most so many bytes of an unfinished frame are not counted by its length."""
    inflates: bool = False
    """Whether a frame may be compressed, and grow to the limit on frames."""
    has_long_polls: bool = False
    """Whether a request may ask to be answered later."""
    text: bool = False
    """Whether frames hold text with numbers in decimal digits."""
    held: Callable[[Any], int] = lambda connection: connection._reader.partial_bytes
    """Bytes that a connection of the broker keeps of a frame that is not complete."""

    def golden(self) -> Sequence[bytes]:
        """The requests of the golden file, in its order."""
        return _golden(self.name)


@cache
def _golden(name: str) -> tuple[bytes, ...]:
    return tuple(data for (_, way), data in golden(name).items() if way == ">")


Wires = Mapping[str, WireFormat]
"""The formats of a run, by name."""


@cache
def wires_of(run: str) -> Wires:
    """The formats of a run of `RUNS`.

    :raises ValueError: when there is none of that name.
    """
    if run == MIXED:
        return {name: _format(name) for name in NAMES}
    if run not in NAMES:
        raise ValueError(f"{run!r} is none of {', '.join(RUNS)}")
    return {run: _format(run)}


def _format(name: str) -> WireFormat:
    found: WireFormat = importlib.import_module(f"tests.fuzz.of_{name}").FORMAT
    return found
