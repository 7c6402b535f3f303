# Tests: tests/protocols/test_rustlog.py, tests/protocols/test_rustlog_refusals.py
"""RustLog's error answers, in the words of each dialect.

The texts of the binary dialect are the reference server's. Those of JSON are the document's where
it has any (page, section Errors).
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.codecs.rustlog import (
    Dialect,
    Failed,
    FrameLengthError,
    RequestError,
    TooManyRecords,
)
from brokerd.errors import AuthenticationRequired, escaped

FRAME, DECODE, FETCH, COMMIT = 1, 2, 4, 5
MISSING, EXISTS, COUNT, NO_TOPIC, NO_PARTITION = 10, 11, 12, 13, 14
LOG_IN, FORBIDDEN = 401, 403
OTHER = 500


class Refusal(Exception):
    """The refusal of a request, with a text for each dialect. Quoted input is `escaped`."""

    def __init__(self, code: int, binary: str, json: str) -> None:
        super().__init__(json)
        self.code = code
        self.cause_name = ""
        """Name of the error behind it, for the metrics; "" without one."""
        self._binary = escaped(binary)
        self._json = escaped(json)

    def answer(self, dialect: Dialect) -> Failed:
        return Failed(self.code, self._binary if dialect is Dialect.BINARY else self._json)


class Wording(NamedTuple):
    """A code, and the prefix of its texts in each dialect."""

    code: int
    binary: str
    json: str

    def because(self, reason: object) -> Refusal:
        refusal = Refusal(self.code, f"{self.binary}: {reason}", f"{self.json}: {reason}")
        refusal.cause_name = type(reason).__name__ if isinstance(reason, Exception) else ""
        return refusal


PRODUCE_FAILED = Wording(OTHER, "Failed to write record", "failed to write record")
FETCH_FAILED = Wording(FETCH, "Fetch failed", "fetch failed")
COMMIT_FAILED = Wording(COMMIT, "Offset commit failed", "offset commit failed")
CREATE_FAILED = Wording(OTHER, "CreateTopic failed", "create topic failed")
LIST_FAILED = Wording(OTHER, "ListTopics failed", "list topics failed")
BAD_COUNT = Wording(COUNT, "Invalid partition count", "invalid partition count")


def not_understood(problem: RequestError) -> Refusal:
    """Refuse a malformed payload. The codec's text fits the dialect."""
    if isinstance(problem, TooManyRecords):
        return PRODUCE_FAILED.because(problem)
    return Refusal(DECODE, str(problem), str(problem))


def not_allowed(problem: Exception) -> Refusal:
    """Refuse a request that the client has no permission for."""
    code = LOG_IN if isinstance(problem, AuthenticationRequired) else FORBIDDEN
    return Refusal(code, str(problem), str(problem))


def wrong_frame(problem: FrameLengthError) -> Refusal:
    """Refuse a frame length that makes the rest of the stream unreadable."""
    if problem.length == 0:
        binary, json = "invalid protocol: zero-length frame", "zero-length frame"
    else:
        sizes = f"{problem.length} bytes (max: {problem.limit})"
        binary, json = f"frame too large: {sizes}", f"max frame size exceeded: {sizes}"
    return Refusal(FRAME, f"Frame error: {binary}", json)


def _place_missing(topic: str, partition: int) -> str:
    return f"partition not found: topic={topic}, partition={partition}"


def no_place(topic: str, partition: int) -> Refusal:
    """Refuse a Produce or Fetch of an unknown topic or partition."""
    return Refusal(
        MISSING,
        f"Topic or partition does not exist: topic={topic}, partition={partition}",
        _place_missing(topic, partition),
    )


def out_of_range(topic: str, partition: int, offset: int, start: int) -> Refusal:
    """Refuse a Fetch below the start offset; JSON only."""
    text = (
        f"offset out of range: topic={topic}, partition={partition}, offset={offset}: "
        f"the records begin at {start}"
    )
    return Refusal(FETCH, text, text)


def topic_exists(topic: str) -> Refusal:
    return Refusal(EXISTS, f"Topic '{topic}' already exists", f"topic already exists: {topic}")


def no_topic(topic: str) -> Refusal:
    return Refusal(
        NO_TOPIC, f"DescribeTopic failed: Topic '{topic}' not found", f"topic not found: {topic}"
    )


def no_partition(topic: str, partition: int) -> Refusal:
    return Refusal(
        NO_PARTITION,
        f"DescribePartition failed: Partition {partition} not found in topic '{topic}'",
        _place_missing(topic, partition),
    )
