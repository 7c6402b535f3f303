# Tests: tests/test_bench_formats.py
"""Roles that several formats share: repeat one request, and read a topic by offset.

A format parses its answers with a `ParseAnswer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from brokerd.cli.bench.scenarios import Step, Tally

REFUSED = -1


class ParsedAnswer(NamedTuple):
    """One complete answer."""

    stop: int
    """Position of its end."""
    messages: int
    """Messages in it; `REFUSED` for an error."""
    next_offset: int = 0
    """Offset of the next read."""


ParseAnswer = Callable[[bytes, int], ParsedAnswer | None]
"""Parses the answer at a position of the bytes; returns None while it is incomplete."""


class RepeatRole:
    """Repeats one request and counts the messages of its answers.

    :param template: the encoded request.
    :param window: requests in flight.
    :param head_bytes: bytes at the begin of an answer that tell its size and whether it is an
        error. Answers with the same ones are counted in one step.
    """

    def __init__(self, template: bytes, window: int, parse: ParseAnswer, head_bytes: int) -> None:
        self.tally = Tally()
        self._window = window
        self._size = len(template)
        self._block = memoryview(template * window)
        self._parse = parse
        self._head_bytes = head_bytes
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
                found, at = found + 1, stop
            else:
                count = 1 if found else count_equal_answers(data, stop, self._head_bytes)
                tally.produced += messages * count
                found, at = found + count, at + (stop - at) * count
        replies = 0 if self._stopped else found
        return Step(found, at, self._block[: replies * self._size], replies)


def count_equal_answers(data: bytes, size: int, head_bytes: int) -> int:
    """Return how many complete answers of ``size`` bytes begin with the bytes of the first.

    Returns 1 if an answer of the data begins with other bytes.
    """
    count = len(data) // size
    stop = count * size
    for at in range(head_bytes):
        if data[at:stop:size].count(data[at : at + 1]) < count:
            return 1
    return count


class FollowRole:
    """Reads records by offset, from several positions at a time.

    After the last record each position starts again at the first.

    :param make: encodes the request for an offset.
    :param starts: first offset of each request in flight.
    :param records: number of records in the topic.
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
    """Return start offsets for the requests in flight, spread evenly over the records."""
    share = max(1, connections * window)
    return [(number * window + slot) * records // share for slot in range(window)]
