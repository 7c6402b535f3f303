# Tests: tests/protocols/test_rustlog.py, tests/protocols/test_rustlog_refusals.py
"""What RustLog answers to what cannot be done, in the words of each dialect.

The texts of the binary dialect are the reference server's, those of JSON the document's where it
has any (page, section Errors).
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
    """A request is refused, in two wordings. What they repeat of it is `escaped`."""

    def __init__(self, code: int, binary: str, json: str) -> None:
        super().__init__(json)
        self.code = code
        self._binary = escaped(binary)
        self._json = escaped(json)

    def answer(self, dialect: Dialect) -> Failed:
        return Failed(self.code, self._binary if dialect is Dialect.BINARY else self._json)


class Wording(NamedTuple):
    """A code, and what stands before a reason in each dialect."""

    code: int
    binary: str
    json: str

    def because(self, reason: object) -> Refusal:
        return Refusal(self.code, f"{self.binary}: {reason}", f"{self.json}: {reason}")


PRODUCE_FAILED = Wording(OTHER, "Failed to write record", "failed to write record")
FETCH_FAILED = Wording(FETCH, "Fetch failed", "fetch failed")
COMMIT_FAILED = Wording(COMMIT, "Offset commit failed", "offset commit failed")
CREATE_FAILED = Wording(OTHER, "CreateTopic failed", "create topic failed")
LIST_FAILED = Wording(OTHER, "ListTopics failed", "list topics failed")
BAD_COUNT = Wording(COUNT, "Invalid partition count", "invalid partition count")


def not_understood(problem: RequestError) -> Refusal:
    """A payload that is no request; the codec has worded it for its dialect."""
    if isinstance(problem, TooManyRecords):
        return PRODUCE_FAILED.because(problem)
    return Refusal(DECODE, str(problem), str(problem))


def not_allowed(problem: Exception) -> Refusal:
    """A request that its principal may not make, whether or not what it names exists."""
    code = LOG_IN if isinstance(problem, AuthenticationRequired) else FORBIDDEN
    return Refusal(code, str(problem), str(problem))


def wrong_frame(problem: FrameLengthError) -> Refusal:
    """A length after which the stream cannot be followed."""
    if problem.length == 0:
        binary, json = "invalid protocol: zero-length frame", "zero-length frame"
    else:
        sizes = f"{problem.length} bytes (max: {problem.limit})"
        binary, json = f"frame too large: {sizes}", f"max frame size exceeded: {sizes}"
    return Refusal(FRAME, f"Frame error: {binary}", json)


def _place_missing(topic: str, partition: int) -> str:
    return f"partition not found: topic={topic}, partition={partition}"


def no_place(topic: str, partition: int) -> Refusal:
    """A Produce or Fetch of a topic or partition that there is not."""
    return Refusal(
        MISSING,
        f"Topic or partition does not exist: topic={topic}, partition={partition}",
        _place_missing(topic, partition),
    )


def out_of_range(topic: str, partition: int, offset: int, start: int) -> Refusal:
    """A Fetch below the first record that is kept; JSON only."""
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
