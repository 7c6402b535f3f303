# Tests: tests/test_demo.py
"""A pipelined connection for any wire format.

:meth:`Connection.exchange` sends several requests at once and returns their answers. When the
connection breaks, `Interrupted` carries the answers received so far. The caller resends the rest.
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
"""Takes received bytes and returns the answers that they complete."""


class Connection:
    """One connection; ``feed`` decodes the answers of its format.

    :raises OSError: when the broker does not accept the connection.
    """

    def __init__(self, address: str, feed: Feed) -> None:
        self._stream = Stream(address, timeout=_SILENCE_SECONDS)
        self._stream.open()
        self._feed = feed

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stream.close()

    def exchange(self, data: bytes, is_whole: Callable[[list[Any]], bool]) -> list[Any]:
        """Send requests and return their answers, once ``is_whole(answers)`` is true.

        Keep the requests of one call below a few hundred kilobytes: the call reads nothing before
        it has sent everything.

        :raises Interrupted: when the connection breaks.
        :raises WireError: when the broker is silent for a minute.
        """
        answers: list[Any] = []
        try:
            self._stream.send(data)
            while not is_whole(answers):
                answers += self._feed(self._stream.receive())
        except TimeoutError as error:
            # A killed broker closes the connection. Silence on an open one is a fault.
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
) -> Connection | None:
    """Connect, and retry while the broker is down.

    :param keep_trying: called before each attempt; the result is None once it returns False.
    """
    while keep_trying():
        try:
            return Connection(address, make_feed())
        except OSError:
            time.sleep(_RETRY_SECONDS)
    return None
