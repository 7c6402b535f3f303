# Tests: tests/spark/test_sink_sender.py
"""Sends batches to a broker, each of them once. No pyspark.

A sender has lanes. A lane is a producer id of its own, and its next batch leaves only when the
broker has confirmed the one before. So a sequence that the broker calls older than the newest is
stored, and a batch that is sent again is not stored again. All lanes send at the same time, over
one connection: a *round*.

The broker forgets the producers that were idle longest (``limits.producers``).
`Sender.has_sequence` asks for a sequence without storing a record: with a partition that no topic
has. The broker looks for the sequence first.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from brokerd.client.errors import ConnectionLost, OutOfStep
from brokerd.codecs.mamamia import (
    Answer,
    BatchMessage,
    Failed,
    ProduceBatch,
    ProducedBatch,
    Request,
)
from brokerd.errors import BrokerdError
from brokerd.spark.sink.blocks import Block
from brokerd.values import MAX_PARTITIONS

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 3.0

_OLD = " is older than its newest"
_NO_PARTITION = " has no partition "
_TEMPORARY = ("the broker is shutting down", "free some space", "no allocated segment has room")
"""Parts of the texts of refusals after which the same request may succeed, unchanged."""


class Refused(BrokerdError):
    """The broker refuses the rows for a reason that waiting does not remove."""


class NotReachable(BrokerdError):
    """The broker did not confirm the rows in time."""


class SequenceTaken(BrokerdError):
    """Another program has used the sink's sequences."""


class Client(Protocol):
    """A connection that `brokerd.client.mamamia.MamamiaClient` implements."""

    def send_many(self, requests: Sequence[Request]) -> list[Answer]: ...


class Numbered(NamedTuple):
    """A block with its place in the micro-batch."""

    lane: int
    sequence: int
    block: Block


class Sender:
    """Sends rounds of blocks.

    :param producer: the first part of the producer ids; a lane adds its number.
    :param retry_seconds: how long to try without any confirmation.
    :param clock: monotonic seconds.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        client: Client,
        server: str,
        producer: str,
        retry_seconds: float,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._client = client
        self._server = server
        self._producer = producer
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._sleep = sleep
        self._is_admitted = False

    def send(self, blocks: Sequence[Numbered]) -> None:
        """Send blocks of different lanes; return when the broker has all of them.

        The first call asks for a sequence before: the broker answers this small request if a
        permission is missing. It would close the connection after a large one.

        :raises Refused: the broker refuses one. It may have others.
        :raises NotReachable: the broker did not answer in time. It may have some.
        """

        def is_stored(request: ProduceBatch, answer: Answer) -> bool:
            if isinstance(answer, ProducedBatch):
                self._check_count(request, len(answer.message_ids))
                return True
            return _is_old(answer) or self._again(request, answer)

        if blocks and not self._is_admitted:
            first = blocks[0]
            self.has_sequence(first.block.topic, first.lane, first.sequence)
        self._deliver([self._request(one) for one in blocks], is_stored)

    def has_sequence(self, topic: str, lane: int, sequence: int) -> bool:
        """Return whether the broker remembers a batch, or a later one of its producer."""
        return self.has_any([(topic, lane, sequence)])

    def has_any(self, batches: Sequence[tuple[str, int, int]]) -> bool:
        """Return `has_sequence` for any of some batches: topic, lane and sequence. Ask at once."""
        message = BatchMessage(b"", partition=MAX_PARTITIONS - 1)
        found = False

        def is_answer(request: ProduceBatch, answer: Answer) -> bool:
            nonlocal found
            is_known = isinstance(answer, ProducedBatch) or _is_old(answer)
            is_absent = isinstance(answer, Failed) and _NO_PARTITION in answer.text
            found = found or is_known
            return is_known or is_absent or self._again(request, answer)

        self._deliver(
            [
                ProduceBatch(topic, (message,), self._producer_id(lane), sequence)
                for topic, lane, sequence in batches
            ],
            is_answer,
        )
        self._is_admitted = True
        return found

    def _deliver(
        self, requests: Sequence[ProduceBatch], is_done: Callable[[ProduceBatch, Answer], bool]
    ) -> None:
        """Send requests, and send those again that have no answer or are not done."""
        pending = list(requests)
        began, pause = self._clock(), FIRST_PAUSE
        problem = ""
        while pending:
            answers, failure = self._attempt(pending)
            left = [
                request
                for index, request in enumerate(pending)
                if index >= len(answers) or not is_done(request, answers[index])
            ]
            if len(left) < len(pending):
                began, pause = self._clock(), FIRST_PAUSE
            pending = left
            if not pending:
                return
            refusals = [one.text for one in answers if isinstance(one, Failed)]
            problem = failure or next(iter(refusals), problem)
            waited = self._clock() - began
            if waited >= self._retry_seconds:
                raise self._not_reachable(pending, waited, problem)
            self._sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _attempt(self, requests: Sequence[ProduceBatch]) -> tuple[Sequence[Answer], str]:
        """Send requests; return the answers that came, and the text of a failure or ""."""
        try:
            return self._client.send_many(requests), ""
        except (ssl.SSLCertVerificationError, OutOfStep) as error:
            raise Refused(
                f"{self._server} is not the broker that the sink expects: {error}"
            ) from error
        except OSError as error:
            answers = error.answers if isinstance(error, ConnectionLost) else ()
            return answers, str(error) or type(error).__name__

    def _request(self, numbered: Numbered) -> ProduceBatch:
        lane, sequence, (topic, messages) = numbered
        return ProduceBatch(topic, messages, self._producer_id(lane), sequence)

    def _producer_id(self, lane: int) -> str:
        return f"{self._producer}.{lane}"

    def _again(self, request: ProduceBatch, answer: Answer) -> bool:
        """Return False: the request is to be sent again.

        :raises Refused: waiting does not remove the reason of the refusal.
        """
        text = answer.text if isinstance(answer, Failed) else f"an answer {type(answer).__name__}"
        if not any(part in text for part in _TEMPORARY):
            raise Refused(f"{self._server} refused rows for the topic {request.log_id!r}: {text}")
        return False

    def _check_count(self, request: ProduceBatch, stored: int) -> None:
        if stored != len(request.messages):
            raise SequenceTaken(
                f"{self._server} has stored {stored} records of topic {request.log_id!r} as batch "
                f"{request.sequence} of producer {request.producer_id!r}, and the sink sends "
                f"{len(request.messages)}: another stream with a copy of this checkpoint or "
                "staging directory writes there; begin with new ones"
            )

    def _not_reachable(
        self, pending: Sequence[ProduceBatch], waited: float, problem: str
    ) -> NotReachable:
        text = f"{self._server} confirmed no rows for {waited:.0f} s (retrySeconds): {problem}; "
        text += "start the write again when the broker is back"
        if "closed" in problem:
            largest = max(sum(len(one.value) for one in request.messages) for request in pending)
            text += (
                ". A broker closes the connection for a frame above limits.frame_bytes: batches "
                f"have up to {largest} bytes of values here (batchBytes)"
            )
        return NotReachable(text)


def _is_old(answer: Answer) -> bool:
    return isinstance(answer, Failed) and _OLD in answer.text
