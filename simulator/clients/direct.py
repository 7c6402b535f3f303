# Tests: tests/simulator/test_operator.py
"""Ask the broker directly, as the admin API does, and record the calls in the history.

`brokerd.broker.calls` makes the call, waits while the broker is congested, and answers when all is
durable. If the machine ends first, the call has no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from twisted.python.failure import Failure

from brokerd.broker import Broker
from brokerd.broker.calls import call_when_admitted
from brokerd.errors import BrokerdError
from brokerd.security.guard import Guard
from simulator.clients.describe import asked, outcome
from simulator.history.operations import NEVER, History, Operation
from simulator.machine.machine import Machine
from simulator.machine.world import World

WATCH_US = 50_000
"""Time between two checks whether the broker still runs."""

Done = Callable[[Operation], None]
Finish = Callable[[Any, BrokerdError | None], None]


class Asker(Protocol):
    """The interface through which a client calls the broker."""

    @property
    def is_ready(self) -> bool:
        """Whether a broker runs and serves."""

    def perform(
        self,
        operation: Operation,
        call: Callable[[Broker], Any],
        tell: Callable[[Any], None],
        done: Done,
    ) -> None:
        """Make a call and call ``done(operation)`` at its end.

        ``tell`` first stores the answer in the operation. If the broker ends before, ``done`` is
        called without an answer. The broker must be ready.
        """

    @property
    def boot(self) -> int:
        """The number of the present life of the broker."""

    @property
    def guard(self) -> Guard:
        """The guard of the broker's listeners."""

    def perform_later(
        self,
        operation: Operation,
        begin: Callable[[Broker, Finish], None],
        tell: Callable[[Any], None],
        done: Done,
    ) -> None:
        """Make a call that may end later. It gets a callback for its result or its refusal."""


class DirectClient:
    """An `Asker` of the broker of a machine."""

    def __init__(self, name: str, world: World, machine: Machine, history: History) -> None:
        self._name = name
        self._world = world
        self._machine = machine
        self._history = history

    @property
    def is_ready(self) -> bool:
        """Whether a broker runs and serves."""
        return self._machine.is_ready

    @property
    def boot(self) -> int:
        return self._machine.boots[-1].number

    @property
    def guard(self) -> Guard:
        assert self._machine.core is not None, "there is nobody to ask"
        return self._machine.core.guard

    def perform(
        self,
        operation: Operation,
        call: Callable[[Broker], Any],
        tell: Callable[[Any], None],
        done: Done,
    ) -> None:
        """Make a call; see `Asker.perform`."""
        self._question(operation, tell, done).begin(self._broker(), call)

    def perform_later(
        self,
        operation: Operation,
        begin: Callable[[Broker, Finish], None],
        tell: Callable[[Any], None],
        done: Done,
    ) -> None:
        """Make a call; see `Asker.perform_later`."""
        self._question(operation, tell, done).begin_later(self._broker(), begin)

    def _broker(self) -> Broker:
        core = self._machine.core
        assert core is not None and self._machine.is_ready, "there is nobody to ask"
        return core.broker

    def _question(self, operation: Operation, tell: Callable[[Any], None], done: Done) -> _Question:
        """Add the operation to the history."""
        operation.number = len(self._history.operations)
        operation.boot = self._machine.boots[-1].number
        operation.sent_us = operation.arrived_us = self._world.now_us
        self._history.operations.append(operation)
        self._world.trace(f"{self._name} #{operation.number} {asked(operation)}")
        return _Question(self, operation, tell, done)

    def answered(self, operation: Operation) -> None:
        """Note the time of the answer."""
        operation.written_us = operation.answered_us = self._world.now_us
        self._world.trace(f"{self._name} #{operation.number} {outcome(operation)}")

    def is_lost(self, operation: Operation) -> bool:
        """Return whether the machine ended, so that no answer can come."""
        return not self._machine.is_up or self._machine.boots[-1].number != operation.boot

    def later(self, function: Callable[[], None]) -> None:
        """Schedule a later check."""
        self._world.call_after(WATCH_US, function)


class _Question:
    """A call that waits for its answer or for the end of the broker."""

    def __init__(
        self, direct: DirectClient, operation: Operation, tell: Callable[[Any], None], done: Done
    ) -> None:
        self._direct = direct
        self._operation = operation
        self._tell = tell
        self._done = done
        self._is_over = False

    def begin(self, broker: Broker, call: Callable[[Broker], Any]) -> None:
        call_when_admitted(broker, lambda: call(broker)).addCallbacks(self._answered, self._refused)
        self._watch()

    def begin_later(self, broker: Broker, begin: Callable[[Broker, Finish], None]) -> None:
        def finish(result: Any, error: BrokerdError | None) -> None:
            if error is None:
                broker.group_commit.when_all_durable(partial(self._answered, result))
            else:
                self._refused(Failure(error))

        call_when_admitted(broker, lambda: begin(broker, finish)).addErrback(self._refused)
        self._watch()

    def _answered(self, result: Any) -> None:
        if not self._is_over:
            self._tell(result)
            self._finish()

    def _refused(self, failure: Failure) -> None:
        failure.trap(BrokerdError)
        if not self._is_over:
            self._operation.error = str(failure.value) or type(failure.value).__name__
            self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._direct.answered(self._operation)
        self._done(self._operation)

    def _watch(self) -> None:
        if self._is_over:
            return
        if self._direct.is_lost(self._operation):
            self._is_over = True
            assert self._operation.answered_us == NEVER, "it was not answered"
            self._done(self._operation)
        else:
            self._direct.later(self._watch)
