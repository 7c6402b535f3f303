# Tests: tests/client/test_exchange.py
"""Requests and their answers, in order, on a connection that may be lost: the rules of all clients.

* No connection: that `OSError`, after the client's pauses if any. No request was sent.
* The connection ends before the last answer: unanswered requests are sent again over a new
  connection if they are idempotent. Otherwise `ConnectionLost` is raised.
* No bytes in time: `TimeoutError`. No request is sent again.
* A wrong answer: `OutOfStep`, a `ConnectionLost`. No request is sent again.

After each error the connection is closed, and the next call opens another one.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from brokerd.client.errors import ConnectionLost, OutOfStep
from brokerd.client.stream import Stream

AT_ONCE = (0.0,)
"""One attempt more, without a pause."""

_IN_FLIGHT_MAX = 1_000
_OUTGOING_BYTES = 65_536
"""Hand over no more requests while this much waits to be sent."""

Asked = TypeVar("Asked")
Told = TypeVar("Told")
Expected = TypeVar("Expected", contravariant=True)
Read = TypeVar("Read", covariant=True)


class Reader(Protocol[Expected, Read]):
    """The answers of one connection; `brokerd.codecs.answers.AnswerReader` is one."""

    @property
    def error(self) -> Exception | None: ...

    def expect(self, request: Expected, /) -> None: ...

    def feed(self, data: bytes, /) -> Sequence[Read]: ...


class Exchange(Generic[Asked, Told]):
    """The connection of one client.

    :param new_reader: makes the reader of one connection's answers.
    :param encode: returns a request's bytes.
    :param harmless_twice: returns whether a request is idempotent.
    :param resend: send any request again, and after a timeout too.
    :param delays: seconds before each new attempt, for one call; then its error is raised. A delay
        of 0 applies to a lost connection only, not to a refused one.
    :param sleep: waits this number of seconds.
    :param greeting: the first request of each connection, or None. ``greeted`` gets its answer and
        may raise: then the connection is closed and no attempt follows.
    """

    def __init__(
        self,
        stream: Stream,
        new_reader: Callable[[], Reader[Asked, Told]],
        encode: Callable[[Asked], bytes],
        harmless_twice: Callable[[Asked], bool],
        *,
        resend: bool = False,
        delays: Sequence[float] = AT_ONCE,
        sleep: Callable[[float], None] = time.sleep,
        greeting: Callable[[], Asked | None] = lambda: None,
        greeted: Callable[[Told], object] = lambda answer: None,
    ) -> None:
        self._stream = stream
        self._new_reader = new_reader
        self._encode = encode
        self._harmless_twice = harmless_twice
        self._resend = resend
        self._delays = tuple(delays)
        self._sleep = sleep
        self._greeting = greeting
        self._greeted = greeted
        self._reader = new_reader()

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._stream.close()

    def send_many(self, requests: Sequence[Asked], wait: float = 0.0) -> list[Told]:
        """Send requests without waiting for each answer; return the answers in order.

        :param wait: seconds that an answer may take by itself; they add to the stream's timeout.
        :raises ConnectionLost: with the answers received so far.

        Errors of ``encode`` are raised before any request is sent.
        """
        frames = [self._encode(request) for request in requests]
        answers: list[Told] = []
        delays = iter(self._delays)
        was_lost = False
        while len(answers) < len(frames):
            try:
                self._connect(delays)
            except OSError as error:
                if was_lost:
                    raise ConnectionLost(str(error), answers) from error
                raise
            try:
                self._exchange(requests, frames, answers, wait)
            except OSError as error:
                delay = next(delays, None)
                if delay is None or not self._may_send_again(error, requests[len(answers) :]):
                    raise _with_answers(error, answers) from error.__cause__
                was_lost = True
                if delay:
                    self._sleep(delay)
        return answers

    def _connect(self, delays: Iterator[float]) -> None:
        """Connect if not connected; after a failure try again after each remaining pause."""
        while not self._stream.connected:
            try:
                self._open()
            except (ssl.SSLCertVerificationError, OutOfStep):
                raise
            except OSError:
                pause = next(filter(None, delays), None)
                if pause is None:
                    raise
                self._sleep(pause)

    def _open(self) -> None:
        """Connect and send the greeting. A connection without its greeting is closed."""
        try:
            self._stream.open()
            self._reader = self._new_reader()
            greeting = self._greeting()
            if greeting is not None:
                answers: list[Told] = []
                self._exchange([greeting], [self._encode(greeting)], answers, 0.0)
                self._greeted(answers[0])
        except BaseException:
            self.close()
            raise

    def _may_send_again(self, error: OSError, rest: Sequence[Asked]) -> bool:
        """Return whether unanswered requests may be sent again."""
        if isinstance(error, OutOfStep):
            return False
        if self._resend:
            return True
        return isinstance(error, ConnectionLost) and all(map(self._harmless_twice, rest))

    def _exchange(
        self,
        requests: Sequence[Asked],
        frames: Sequence[bytes],
        answers: list[Told],
        wait: float,
    ) -> None:
        """Send the unanswered requests and collect their answers."""
        finished = False
        try:
            self._pipeline(requests, frames, answers, self._stream.timeout + wait)
            finished = True
        finally:
            if not finished:  # the next call needs a new connection
                self.close()

    def _pipeline(
        self,
        requests: Sequence[Asked],
        frames: Sequence[bytes],
        answers: list[Told],
        timeout: float,
    ) -> None:
        stream, reader = self._stream, self._reader
        outgoing = bytearray()
        upcoming = len(answers)
        while len(answers) < len(frames):
            while (
                upcoming < len(frames)
                and upcoming - len(answers) < _IN_FLIGHT_MAX
                and len(outgoing) < _OUTGOING_BYTES
            ):
                outgoing += frames[upcoming]
                reader.expect(requests[upcoming])
                upcoming += 1
            answers += reader.feed(stream.transfer(outgoing, timeout))
            if reader.error is not None:
                raise OutOfStep(f"{stream.address}: {reader.error}")


def _with_answers(error: OSError, answers: Sequence[Told]) -> OSError:
    """Return the error to raise with some answers received; a timeout stays a timeout."""
    if isinstance(error, ConnectionLost):
        error.answers = tuple(answers)
    return error
