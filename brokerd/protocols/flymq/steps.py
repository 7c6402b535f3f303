# Tests: tests/protocols/test_flymq_steps.py
"""Long work on a FlyMQ request, and work that reads records: a generator that runs in slices.

The generator yields None after each piece of work of less than a millisecond. To read records it
yields a callable like `Broker.reader.fetch` with its place and limits bound, and is sent a `Read`.
Its return value is the result of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from brokerd.broker import Fetched
from brokerd.errors import BrokerdError
from brokerd.protocols.base.slices import SLICE_SECONDS
from brokerd.protocols.flymq.request import Done, RequestConnection
from brokerd.values import Record

T = TypeVar("T")


class Read(NamedTuple):
    """Result of `Broker.reader.fetch`."""

    records: Sequence[Record]
    next_offset: int
    error: Exception | None


Reading = Callable[[Fetched], object]
Steps = Generator[Reading | None, Any, T]
"""Is sent a `Read` after it yields a `Reading`, else None."""


def run_steps(connection: RequestConnection, request: object, make: Callable[[], Steps[T]]) -> T:
    """Run the steps that ``make`` returns once, and return their result.

    They begin when all earlier writes of the connection are durable, so that they can read them.
    Raises `FrameOnHold` as `RequestConnection.await_result`, and the refusal of the steps.
    """

    def ask(done: Done[T]) -> None:
        _StepsRun(connection, make(), done).begin()

    return connection.await_result(request, ask)


class _StepsRun(Generic[T]):
    """Steps in progress."""

    def __init__(self, connection: RequestConnection, steps: Steps[T], done: Done[T]) -> None:
        self._connection = connection
        self._steps = steps
        self._done = done
        self._given: Read | None = None

    def begin(self) -> None:
        journal = self._connection.journal
        if self._connection.written_ticket > journal.durable_ticket:
            journal.when_all_durable(self._go_on_later)
        else:
            self._go_on_later()

    def _go_on_later(self) -> None:
        connection = self._connection
        connection.factory.slices.add(partial(connection.guarded, self._go_on))

    def _go_on(self) -> None:
        """Run steps until the slice ends, a step reads records, or the last step is done."""
        connection = self._connection
        if connection.gone:
            return
        connection.listen()
        clock = connection.factory.clock
        end_seconds = clock.seconds() + SLICE_SECONDS
        try:
            while True:
                given, self._given = self._given, None
                reading = self._steps.send(given)
                if reading is not None:
                    reading(self._take)
                    return
                if clock.seconds() > end_seconds:
                    self._go_on_later()
                    return
        except StopIteration as stop:
            self._done(stop.value, None)
        except BrokerdError as refusal:
            self._done(None, refusal)

    def _take(self, records: Sequence[Record], next_offset: int, error: Exception | None) -> None:
        self._given = Read(records, next_offset, error)
        self._go_on_later()
