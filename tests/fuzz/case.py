"""A conversation of the fuzzer with one broker, as a value and as a file that people can read.

A file is lines::

    # what it is about
    run mixed
    broker tight
    connection mamamia eof
    > 00 00 00 05 01 01 81 00 01
    connection rustlog silence unread beside
    > 00 00

Each line with ``>`` is a chunk, as it arrives at the broker. After the last one of a connection
its client closes its sending side, when the broker has done what it can (``eof``) or right behind
the chunk (``haste``), or it vanishes (``cut``), or says nothing more until the broker has had
enough of it (``silence``). ``unread`` says that it does not read until then,
``beside`` that it comes at the same time as the connection before.
"""

from __future__ import annotations

from typing import NamedTuple

ENDINGS = ("eof", "haste", "cut", "silence")
_UNREAD, _BESIDE = "unread", "beside"


class Delivery(NamedTuple):
    """What one client does on one connection."""

    wire: str
    """The name of its format."""
    chunks: tuple[bytes, ...]
    ending: str = "eof"
    reads: bool = True
    beside: bool = False

    def line(self) -> str:
        """How it begins in a file."""
        manners = [] if self.reads else [_UNREAD]
        manners += [_BESIDE] if self.beside else []
        return " ".join(["connection", self.wire, self.ending, *manners])


class Case(NamedTuple):
    """What happens to one broker."""

    run: str
    """Which formats the broker serves: a name of `tests.fuzz.wire.RUNS`."""
    setup: str
    """Of the broker: a name of `tests.fuzz.brokers.SETUPS`."""
    deliveries: tuple[Delivery, ...]

    def text(self, about: str = "") -> str:
        """The file."""
        lines = [f"# {line}".rstrip() for line in about.splitlines()]
        lines += [f"run {self.run}", f"broker {self.setup}"]
        for delivery in self.deliveries:
            lines.append(delivery.line())
            lines += [f"> {chunk.hex(' ')}" for chunk in delivery.chunks]
        return "\n".join(lines) + "\n"

    @property
    def size(self) -> int:
        """Its bytes on the wire."""
        return sum(len(chunk) for delivery in self.deliveries for chunk in delivery.chunks)


def parse_case(text: str) -> Case:
    """Read a file.

    :raises ValueError: naming the line that makes no sense.
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
