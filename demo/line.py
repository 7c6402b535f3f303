# Tests: tests/test_demo.py
"""A pipelined connection of any wire format, which tells what was answered before it broke.

Contract: :meth:`Line.exchange` sends bytes in one go and returns the answers to them. When the
connection breaks, `Interrupted` carries the answers that came before; nothing is sent again here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from benchmarks.wire import Interrupted, WireError
from brokerd.client.stream import Stream

_SILENCE_SECONDS = 60.0
_RETRY_SECONDS = 0.01

Feed = Callable[[bytes], Sequence[Any]]
"""Takes bytes in and returns the answers they complete."""


class Line:
    """One connection; ``feed`` is that of a reader of its format.

    :raises OSError: when nobody listens at the address.
    """

    def __init__(self, address: str, feed: Feed) -> None:
        self._stream = Stream(address, timeout=_SILENCE_SECONDS)
        self._stream.open()
        self._feed = feed

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.close()

    def exchange(self, data: bytes, is_whole: Callable[[list[Any]], bool]) -> list[Any]:
        """Send requests and return their answers, which are all there when ``is_whole`` says so.

        Keep the requests of one call below some hundred kilobytes: nothing is read until all is
        sent.

        :raises Interrupted: when the connection breaks.
        :raises WireError: when the broker is silent for a minute.
        """
        answers: list[Any] = []
        try:
            self._stream.send(data)
            while not is_whole(answers):
                answers += self._feed(self._stream.receive())
        except TimeoutError as error:
            # A crash ends a connection; silence on an open one is the broker's fault.
            raise WireError(str(error)) from error
        except OSError as error:
            raise Interrupted(answers, str(error)) from error
        return answers

    def ask(self, data: bytes) -> Any:
        """Send one request and return its answer."""
        (answer,) = self.exchange(data, bool)
        return answer


def dial(
    address: str, make_feed: Callable[[], Feed], keep_trying: Callable[[], bool]
) -> Line | None:
    """Connect, again and again while the broker is away.

    :param keep_trying: asked before each attempt; when it says no, the result is None.
    """
    while keep_trying():
        try:
            return Line(address, make_feed())
        except OSError:
            time.sleep(_RETRY_SECONDS)
    return None
