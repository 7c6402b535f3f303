# Tests: tests/protocols/test_flymq_steps.py, tests/protocols/test_rustlog.py
"""Long work on a request: a generator that runs in cooperative slices.

The generator yields None after each piece of work of a few milliseconds at most. To wait, it yields
a function that takes a callback: `Broker.reader.fetch` with its place and limits bound, or
`GroupCommit.when_uncongested`. The generator is sent the arguments of the callback as a tuple. Its
return value is the result of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from heapq import merge
from typing import Any, Final, Generic, TypeVar

from brokerd.broker import Congested
from brokerd.broker.slices import SLICE_SECONDS
from brokerd.errors import BrokerdError, without_traceback
from brokerd.protocols.base.connection import Connection

T = TypeVar("T")
Done = Callable[[T | None, Exception | None], None]
"""Takes the result, or the error in place of one."""
Wait = Callable[[Callable[..., None]], object]
Steps = Generator[Wait | None, Any, T]

SORTED_NAMES: Final = 5_000
"""Names that one step sorts: a millisecond or two."""


def admitted(connection: Connection, apply: Callable[[], T]) -> Steps[T]:
    """Return the result of ``apply``, which is called again while it raises `Congested`.

    It then keeps its place among the requests that wait for room in the log.
    """
    try:
        return apply()
    except Congested:
        result, refusal = yield partial(_apply_later, connection, apply)
    if refusal is not None:
        raise refusal
    return result  # type: ignore[no-any-return]


def _apply_later(connection: Connection, apply: Callable[[], T], done: Callable[..., None]) -> None:
    """Call ``apply`` when the log has room, and ``done`` with its result or its refusal."""

    def attempt() -> None:
        if connection.gone:
            return
        try:
            done(apply(), None)
        except Congested:
            _apply_later(connection, apply, done)
        except BrokerdError as refusal:
            done(None, without_traceback(refusal))

    connection.group_commit.when_uncongested(partial(connection.close_on_fault, attempt))


def sorted_names(names: Iterable[str]) -> Steps[Iterator[str]]:
    """Return an iterator over sorted names. A topic may have 200,000 groups: 0.1 s in one step."""
    left = list(names)
    runs = []
    for first in range(0, len(left), SORTED_NAMES):
        runs.append(sorted(left[first : first + SORTED_NAMES]))
        yield None
    return merge(*runs)


class StepsRun(Generic[T]):
    """Steps in progress. They end early when their connection closes."""

    def __init__(self, connection: Connection, steps: Steps[T], done: Done[T]) -> None:
        self._connection = connection
        self._steps = steps
        self._done = done
        self._given: tuple[Any, ...] | None = None

    def start(self) -> None:
        """Run the first steps in a later reactor turn."""
        connection = self._connection
        connection.factory.slices.add(
            partial(connection.close_on_fault, self._run_slice), connection.slice_owner()
        )

    def _run_slice(self) -> None:
        """Run steps until the slice ends, a step waits, or the last step is done."""
        connection = self._connection
        if connection.gone:
            return
        connection.listen()
        clock = connection.factory.clock
        end_seconds = clock.seconds() + SLICE_SECONDS
        try:
            while True:
                given, self._given = self._given, None
                wait = self._steps.send(given)
                if wait is not None:
                    wait(self._resume)
                    return
                if clock.seconds() > end_seconds:
                    self.start()
                    return
        except StopIteration as stop:
            self._done(stop.value, None)
        except BrokerdError as refusal:
            self._done(None, refusal)

    def _resume(self, *given: Any) -> None:
        self._given = given
        self.start()
