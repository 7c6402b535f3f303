"""A conversation of the fuzzer with one broker, as a value and as a file that people can read.

A file is lines::

    # what it is about
    format mamamia
    frame-bytes 65536
    connection eof
    > 00 00 00 05 01 01 81 00 01
    connection silence unread
    > 00 00

Each line with ``>`` is a chunk, as it arrives at the broker. After the last one of a connection its
client closes its sending side (``eof``), vanishes (``cut``), or says nothing more until the broker
has had enough of it (``silence``); ``unread`` says that it does not read until then.
"""

from __future__ import annotations

from typing import NamedTuple

ENDINGS = ("eof", "cut", "silence")


class Delivery(NamedTuple):
    """What one client does on one connection."""

    chunks: tuple[bytes, ...]
    ending: str = "eof"
    reads: bool = True


class Case(NamedTuple):
    """What happens to one broker."""

    wire: str
    frame_bytes: int
    """``limits.frame_bytes`` of the broker."""
    deliveries: tuple[Delivery, ...]

    def text(self, about: str = "") -> str:
        """The file."""
        lines = [f"# {line}".rstrip() for line in about.splitlines()]
        lines += [f"format {self.wire}", f"frame-bytes {self.frame_bytes}"]
        for delivery in self.deliveries:
            lines.append(f"connection {delivery.ending}{'' if delivery.reads else ' unread'}")
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
    wire, frame_bytes = "", 0
    deliveries: list[Delivery] = []
    for number, line in enumerate(text.splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        if word == "format":
            wire = rest
        elif word == "frame-bytes":
            frame_bytes = int(rest)
        elif word == "connection":
            ending, _, manner = rest.partition(" ")
            if ending not in ENDINGS or manner not in ("", "unread"):
                raise ValueError(f"line {number}: a connection ends by {', '.join(ENDINGS)}")
            deliveries.append(Delivery((), ending, not manner))
        elif word == ">" and deliveries:
            last = deliveries[-1]
            deliveries[-1] = last._replace(chunks=(*last.chunks, bytes.fromhex(rest)))
        else:
            raise ValueError(f"line {number}: {line!r} is no line of a case")
    if not wire or not frame_bytes or not deliveries:
        raise ValueError("a case has a format, a frame-bytes and at least one connection")
    return Case(wire, frame_bytes, tuple(deliveries))
