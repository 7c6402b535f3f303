"""The fuzzer's view of a wire format: how to serve, speak, break and check it.

A format is one module, ``tests/fuzz/of_NAME.py``, with a `FuzzedFormat` of the name ``FORMAT``.
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
"""The name of a run of all formats, on one broker and the same topics."""
RUNS = (*NAMES, MIXED)

Split = tuple[list[bytes], bool]
"""Whole requests, and whether the next bytes can be no request at all."""

Ask = Callable[[bytes, int], bytes]
"""Sends bytes over an open connection and returns the given number of answers."""


class Framing(NamedTuple):
    """A length field in front of each frame, u32 big-endian."""

    length_at: int
    """Its position in the frame."""
    uncounted: int
    """Number of bytes of a frame that it does not count."""
    length_min: int

    def fitted(self, frame: bytes) -> bytes:
        """Return the frame with its real length."""
        if len(frame) < max(self.uncounted, self.length_at + 4):
            return frame
        length = (len(frame) - self.uncounted).to_bytes(4, "big")
        return frame[: self.length_at] + length + frame[self.length_at + 4 :]

    def split(self, stream: bytes, length_max: int) -> Split:
        """Return the whole frames of a stream, and whether a wrong length follows them."""
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
    """A client that sends only valid requests and knows each right answer."""

    def step(self, ask: Ask) -> None:
        """Produce records of its own and read them back.

        :raises AssertionError: an answer is wrong.
        """

    def read_back(self, ask: Ask) -> None:
        """Read all its records from the first to the last, as after a restart.

        :raises AssertionError: an answer is wrong.
        """


@dataclass(frozen=True)
class FuzzedFormat:
    """One wire format; sizes in bytes."""

    name: str
    factory: Callable[[Broker, Clock, Limits, bool], ConnectionFactory]
    """Makes the factory; the last argument chooses settings that differ from the defaults."""
    topics: tuple[str, ...]
    """The topics that most requests name."""
    requests: Callable[[Random], list[bytes]]
    """Makes a valid conversation: some whole requests, which may refer to one another."""
    huge: Callable[[Random], list[bytes]]
    """Makes some requests with a large one among them; used rarely."""
    greeting: tuple[bytes, ...]
    """Requests that must come first on a connection."""
    witness: Callable[[Random], Witness]
    read_answers: Callable[[bytes, list[bytes]], int]
    """Returns the number of answers in these bytes.

    The requests are whole ones; other bytes may follow them. Any exception means that a client of
    the format could not read the answers.
    """
    framing: Framing | None
    split: Callable[[bytes, int], Split]
    """Splits a client's bytes, given the largest length, by other code than the broker's."""
    frame_bytes_max: int
    """The format's own limit on a length field, or on a payload where frames have no length."""
    owes: Callable[[bytes], bool]
    """Returns whether this request always gets an answer; no request gets more than one."""
    closes_upon: Callable[[bytes], bool]
    """Returns whether the broker may close the connection after this request."""
    tokens: tuple[bytes, ...]
    """Pieces that decoders may fail on."""
    header_bytes: int = 8
    """The most bytes of an unfinished frame that its length does not count."""
    inflates: bool = False
    """Whether a frame may be compressed, and grow to the limit on frames."""
    has_long_polls: bool = False
    """Whether a request may ask for a later answer."""
    text: bool = False
    """Whether frames hold text with numbers in decimal digits."""
    held: Callable[[Any], int] = lambda connection: connection._reader.partial_bytes
    """Returns the bytes of an incomplete frame that the broker's connection holds."""

    def golden(self) -> Sequence[bytes]:
        """Return the requests of the golden file, in its order."""
        return _golden(self.name)


@cache
def _golden(name: str) -> tuple[bytes, ...]:
    return tuple(data for (_, way), data in golden(name).items() if way == ">")


Wires = Mapping[str, FuzzedFormat]
"""The formats of a run, by name."""


@cache
def wires_of(run: str) -> Wires:
    """Return the formats of a run of `RUNS`.

    :raises ValueError: the name is unknown.
    """
    if run == MIXED:
        return {name: _format(name) for name in NAMES}
    if run not in NAMES:
        raise ValueError(f"{run!r} is none of {', '.join(RUNS)}")
    return {run: _format(run)}


def _format(name: str) -> FuzzedFormat:
    found: FuzzedFormat = importlib.import_module(f"tests.fuzz.of_{name}").FORMAT
    return found
