# Tests: tests/client/test_flymq.py
"""FlyMQ requests and their answers, in order, on a stream that may be lost.

After a loss it connects again, waiting longer before each attempt, and sends requests without an
answer once more if that does no harm.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Sequence

from brokerd.client.errors import ConnectionLost
from brokerd.client.stream import Stream
from brokerd.codecs.flymq import (
    Answer,
    DeleteTopic,
    FrameReader,
    Produce,
    Request,
    ResponseError,
    decode_response,
    encode_request,
)

_WINDOW_BYTES = 32_768
"""Requests in flight: so little that sending never waits for the broker to read (it may be waiting
for its answers to be read). A larger request goes alone. More are sent when half of them are
answered: in small pieces they would take a multiple of their bytes in the socket's buffer."""
_NOT_TWICE = (Produce, DeleteTopic)


class OutOfStep(ConnectionLost):
    """What came is not an answer: a wrong magic byte, a length over 32 MiB, or unreadable."""


class Exchange:
    """The connection of one client.

    :param gzip: compress the payloads of PRODUCE.
    :param resend: send any request again after a lost connection.
    :param delays: seconds before each new attempt, for one call; then its error is raised.
    :param sleep: waits so many seconds.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        gzip: bool,
        resend: bool,
        delays: Sequence[float],
        sleep: Callable[[float], None],
    ) -> None:
        self._stream = stream
        self._gzip = gzip
        self._resend = resend
        self._delays = tuple(delays)
        self._sleep = sleep
        self._reader = FrameReader()

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._stream.close()

    def send_many(self, requests: Sequence[Request]) -> list[Answer]:
        """Send requests without waiting for each answer; the answers, in order.

        A refused request is a `Failed` among them and does not disturb the others.

        :raises ConnectionLost: with the answers that did arrive.
        :raises ValueError, struct.error: a request has no form on the wire; nothing was sent.
        """
        frames = [encode_request(one, self._gzip and isinstance(one, Produce)) for one in requests]
        answers: list[Answer] = []
        delays = iter(self._delays)
        while True:
            try:
                self._connect(delays)
                self._exchange(requests, frames, answers)
                return answers
            except OSError as error:
                delay = next(delays, None)
                if delay is None or not self._may_send_again(error, requests[len(answers) :]):
                    raise _with_answers(error, answers) from error.__cause__
            self._sleep(delay)

    def _connect(self, delays: Iterator[float]) -> None:
        """Connect if need be; when it fails, again after each of the delays that are left."""
        while not self._stream.connected:
            try:
                self._stream.open()
            except ssl.SSLCertVerificationError:
                raise
            except OSError:
                delay = next(delays, None)
                if delay is None:
                    raise
                self._sleep(delay)
            self._reader = FrameReader()

    def _may_send_again(self, error: OSError, rest: Sequence[Request]) -> bool:
        """Whether requests without an answer may be sent once more."""
        if isinstance(error, OutOfStep | ssl.SSLError):
            return False
        if self._resend:
            return True
        ended = isinstance(error, ConnectionError)
        return ended and not any(isinstance(one, _NOT_TWICE) for one in rest)

    def _exchange(
        self, requests: Sequence[Request], frames: list[bytes], answers: list[Answer]
    ) -> None:
        """Send the requests that have no answer yet and collect theirs."""
        finished = False
        try:
            self._pipeline(requests, frames, answers)
            finished = True
        finally:
            if not finished:  # half an exchange is of no use to the next one
                self.close()

    def _pipeline(
        self, requests: Sequence[Request], frames: list[bytes], answers: list[Answer]
    ) -> None:
        upcoming = len(answers)
        in_flight = 0
        while len(answers) < len(frames):
            if upcoming < len(frames) and in_flight <= _WINDOW_BYTES // 2:
                begin = upcoming
                while upcoming < len(frames) and (
                    not in_flight or in_flight + len(frames[upcoming]) <= _WINDOW_BYTES
                ):
                    in_flight += len(frames[upcoming])
                    upcoming += 1
                self._stream.send(b"".join(frames[begin:upcoming]))
            for opcode, payload in self._received():
                if len(answers) == upcoming:
                    raise OutOfStep(f"{self._stream.address} sent an answer nobody asked for")
                in_flight -= len(frames[len(answers)])
                answers.append(self._answer(requests[len(answers)], opcode, payload))

    def _received(self) -> Iterator[tuple[int, bytes]]:
        """Opcode and payload of the answers that the next bytes complete, maybe none."""
        for opcode, _, payload in self._reader.feed(self._stream.receive()):
            yield opcode, payload
        if self._reader.error is not None:
            raise OutOfStep(f"{self._stream.address}: {self._reader.error}")

    def _answer(self, request: Request, opcode: int, payload: bytes) -> Answer:
        try:
            return decode_response(request, opcode, payload)
        except ResponseError as error:
            raise OutOfStep(f"{self._stream.address}: {error}") from error


def _with_answers(error: OSError, answers: Sequence[Answer]) -> OSError:
    """The error to raise when some answers are there: a timeout stays one."""
    if isinstance(error, ConnectionLost):
        error.answers = tuple(answers)
        return error
    if isinstance(error, ConnectionError) and answers:
        return ConnectionLost(str(error), answers)
    return error
