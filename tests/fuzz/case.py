"""A conversation of the fuzzer with one broker, as a value and as a readable file.

A file has lines::

    # a comment about the case
    run mixed
    broker tight
    connection mamamia eof
    > 00 00 00 05 01 01 81 00 01
    connection rustlog silence unread beside
    > 00 00

Each line with ``>`` is a chunk, as it arrives at the broker. After the last chunk the client of a
connection does one of four things. It closes its sending side, once the broker has no more work
(``eof``) or right behind the chunk (``haste``). It vanishes (``cut``). Or it sends no more until
the broker's time limit ends the connection (``silence``). With ``unread`` the client does not read
until then. With ``beside`` the connection runs at the same time as the one before it.
"""

from __future__ import annotations

from typing import NamedTuple

ENDINGS = ("eof", "haste", "cut", "silence")
_UNREAD, _BESIDE = "unread", "beside"


class Delivery(NamedTuple):
    """The actions of one client on one connection."""

    wire: str
    """The name of its format."""
    chunks: tuple[bytes, ...]
    ending: str = "eof"
    reads: bool = True
    beside: bool = False

    def line(self) -> str:
        """Return its first line in a file."""
        manners = [] if self.reads else [_UNREAD]
        manners += [_BESIDE] if self.beside else []
        return " ".join(["connection", self.wire, self.ending, *manners])


class Case(NamedTuple):
    """The conversations with one broker."""

    run: str
    """The formats of the broker: a name of `tests.fuzz.wire.RUNS`."""
    setup: str
    """The setup of the broker: a name of `tests.fuzz.brokers.SETUPS`."""
    deliveries: tuple[Delivery, ...]

    def text(self, about: str = "") -> str:
        """Return the text of the file."""
        lines = [f"# {line}".rstrip() for line in about.splitlines()]
        lines += [f"run {self.run}", f"broker {self.setup}"]
        for delivery in self.deliveries:
            lines.append(delivery.line())
            lines += [f"> {chunk.hex(' ')}" for chunk in delivery.chunks]
        return "\n".join(lines) + "\n"

    @property
    def size(self) -> int:
        """Return the number of bytes on the wire."""
        return sum(len(chunk) for delivery in self.deliveries for chunk in delivery.chunks)


def parse_case(text: str) -> Case:
    """Parse a file.

    :raises ValueError: with the invalid line.
    """
    run, setup = "", ""
    deliveries: list[Delivery] = []
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        if word == "run":
            run = rest
        elif word == "broker":
            setup = rest
        elif word == "connection":
            wire, _, manner = rest.partition(" ")
            ending, *manners = manner.split() or [""]
            if ending not in ENDINGS or not {_UNREAD, _BESIDE}.issuperset(manners):
                raise ValueError(f"line {number}: a connection ends by {', '.join(ENDINGS)}")
            reads, beside = _UNREAD not in manners, _BESIDE in manners
            deliveries.append(Delivery(wire, (), ending, reads, beside))
        elif word == ">" and deliveries:
            last = deliveries[-1]
            deliveries[-1] = last._replace(chunks=(*last.chunks, bytes.fromhex(rest)))
        else:
            raise ValueError(f"line {number}: {line!r} is no line of a case")
    if not run or not setup or not deliveries:
        raise ValueError("a case has a run, a broker and at least one connection")
    return Case(run, setup, tuple(deliveries))
