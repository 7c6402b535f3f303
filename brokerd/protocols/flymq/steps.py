# Tests: tests/protocols/test_flymq_steps.py
"""Work on a FlyMQ request that takes long, or has to read records: a generator, run in slices.

It yields None after each piece of work of less than a millisecond, or what reads records, as
`Broker.reader.fetch` does with a place and limits: then it is sent what was read. What it returns
is told.
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
    """What `Broker.reader.fetch` found."""

    records: Sequence[Record]
    next_offset: int
    error: Exception | None


Reading = Callable[[Fetched], object]
Steps = Generator[Reading | None, Any, T]
"""What it is sent is a `Read` if it asked for one."""


def run_steps(connection: RequestConnection, request: object, make: Callable[[], Steps[T]]) -> T:
    """What the steps that ``make`` makes return; they are run once.

    What the connection wrote before is durable then, so that it can be read. Raises `FrameOnHold`
    as `RequestConnection.await_result`, and the refusal that the steps raise.
    """

    def ask(done: Done[T]) -> None:
        _StepsRun(connection, make(), done).begin()

    return connection.await_result(request, ask)


class _StepsRun(Generic[T]):
    """Steps under way."""

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
        """Take steps until the time is over, or one wants to read, or they are at their end."""
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
