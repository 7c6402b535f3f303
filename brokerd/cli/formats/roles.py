# Tests: tests/test_bench_formats.py
"""Roles that the formats share: the same request over and over, and reading along a log.

A format parses its answers with a `ParseAnswer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.cli.scenarios import Step, Tally

REFUSED = -1


class ParsedAnswer(NamedTuple):
    """One whole answer."""

    stop: int
    """Where it ends."""
    messages: int
    """That it stands for; `REFUSED` for an error."""
    next_offset: int = 0
    """Where to read on."""


ParseAnswer = Callable[[bytes, int], ParsedAnswer | None]
"""The answer that begins at this place of the bytes; None while it is not whole."""


class RepeatRole:
    """Sends one request over and over and counts what the answers stand for.

    :param template: the whole request.
    :param window: requests in flight.
    """

    def __init__(self, template: bytes, window: int, parse: ParseAnswer) -> None:
        self.tally = Tally()
        self._window = window
        self._size = len(template)
        self._block = memoryview(template * window)
        self._parse = parse
        self._stopped = False

    def first(self) -> tuple[bytes | memoryview, int]:
        return self._block, self._window

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        parse, tally = self._parse, self.tally
        found = at = 0
        while (answer := parse(data, at)) is not None:
            stop, messages, _ = answer
            if messages == REFUSED:
                tally.refused(data[at:stop])
            else:
                tally.produced += messages
            found += 1
            at = stop
        replies = 0 if self._stopped else found
        return Step(found, at, self._block[: replies * self._size], replies)


class FollowRole:
    """Reads records by offset, from several places at a time, each along the next offsets.

    Behind the last record each begins again at the first.

    :param make: the request that reads at an offset.
    :param starts: where the requests in flight begin; as many are in flight.
    :param records: how many records there are.
    """

    def __init__(
        self, make: Callable[[int], bytes], starts: list[int], records: int, parse: ParseAnswer
    ) -> None:
        self.tally = Tally()
        self._make = make
        self._starts = starts
        self._records = records
        self._parse = parse
        self._stopped = False

    def first(self) -> tuple[bytes | memoryview, int]:
        return b"".join(map(self._make, self._starts)), len(self._starts)

    def stop(self) -> None:
        self._stopped = True

    def answers(self, data: bytes) -> Step:
        parse, make, tally, records = self._parse, self._make, self.tally, self._records
        reply: list[bytes] = []
        found = at = 0
        while (answer := parse(data, at)) is not None:
            stop, messages, offset = answer
            if messages == REFUSED:
                tally.refused(data[at:stop])
                offset = 0
            else:
                tally.consumed += messages
            reply.append(make(offset if offset < records else 0))
            found += 1
            at = stop
        if self._stopped:
            reply = []
        return Step(found, at, b"".join(reply), len(reply))


def spread(number: int, connections: int, window: int, records: int) -> list[int]:
    """Where the requests in flight of a connection begin, evenly over the records."""
    share = max(1, connections * window)
    return [(number * window + slot) * records // share for slot in range(window)]
