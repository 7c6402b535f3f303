# Tests: tests/simulator/test_clients.py
"""A random client of any format: bursts, pauses, and a new connection after a lost one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Protocol

from simulator.clients.conversation import Ask, Conversation, Wire
from simulator.clients.links import Connect
from simulator.history.operations import NEVER, History, Operation
from simulator.history.registry import WireLogIn
from simulator.machine.world import World
from simulator.plan import ClientPlan

PAUSE_US_MAX = 3_000_000
"""The longest pause between two connections, after any number of refused ones."""
DOUBLINGS_MAX = 10
AWAIT_LOGIN = ("blipmq",)
"""Formats whose client sends nothing before its login, because the broker answers nothing."""


class Requests(Protocol):
    """The source of a client's requests."""

    def log_in(self) -> Ask | None:
        """Return the login of a new connection; None if the client does not log in."""

    def make(self, now_us: int) -> Ask | None:
        """Return the next request; None if no drawn action is possible now."""

    def learn(self, operation: Operation) -> None:
        """Use an answer for later requests."""

    def unanswered(self, operations: Iterable[Operation]) -> None:
        """Handle the unanswered operations of a lost connection."""


class WireClient:
    """Sends ``plan.operations`` requests and finishes when all are answered or lost.

    Then it calls ``on_finished()`` once. ``wire()`` makes the wire of each connection.
    ``requests(plan, chance)`` makes the source of requests.
    """

    def __init__(
        self,
        plan: ClientPlan,
        world: World,
        connect: Connect,
        history: History,
        wire: Callable[[], Wire],
        requests: Callable[[ClientPlan, Random], Requests],
    ) -> None:
        self.plan = plan
        self.finished = False
        self.on_finished: Callable[[], None] = lambda: None
        self._world = world
        self._connect_link = connect
        self._history = history
        self._chance = Random(plan.seed)
        self._wire = wire
        self._requests = requests(plan, self._chance)
        self._left = plan.operations
        self._conversation: Conversation | None = None
        self._over: list[Conversation] = []
        """Ended conversations with unanswered requests."""
        self._full = False
        """Whether the next burst waits for an answer."""
        self._refusals = 0
        self._awaits_login = plan.format in AWAIT_LOGIN

    # -- for the run -----------------------------------------------------------------------------

    def start(self) -> None:
        self._world.call_after(self.plan.begin_us, self._connect)

    def stop(self) -> None:
        """Send no more requests. Finish when all requests are answered or lost."""
        self._left = 0
        if self._conversation is None or not self._conversation.in_flight:
            self._finish()

    def hang_up(self) -> None:
        """Finish now, answered or not."""
        self._left = 0
        self._finish()

    def note_arrivals(self) -> None:
        """Note the requests in the history that arrived after the end of their connection."""
        for conversation in self._over:
            conversation.note_arrivals()

    # -- connections -----------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.finished:
            return
        self._conversation = Conversation(
            self.plan.name,
            self._world,
            self._connect_link,
            self._history,
            self._answered,
            self._lost,
            self._wire(),
        )
        self._full = False
        login = self._requests.log_in()
        if login is not None:
            self._conversation.ask(login)
        if login is None or not self._awaits_login:
            self._world.call_after(self._think_us(), self._burst, self._conversation)
        self._world.call_after(self.plan.patience_us, self._watch, self._conversation)

    def _lost(self, why: str) -> None:
        self._leave()
        if not self._left:
            self._finish()
            return
        self._refusals = self._refusals + 1 if why == "refused" else 0
        pause_us = self._chance.randint(1, self.plan.reconnect_us_max)
        pause_us = min(pause_us << min(self._refusals, DOUBLINGS_MAX), PAUSE_US_MAX)
        self._world.call_after(pause_us, self._connect)

    def _leave(self) -> None:
        """Drop the ended connection."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None and conversation.in_flight:
            self._over.append(conversation)
            self._requests.unanswered(conversation.unanswered)

    def _watch(self, conversation: Conversation) -> None:
        """Close a connection with an overdue answer."""
        if conversation.is_over:
            return
        now_us, patience_us = self._world.now_us, self.plan.patience_us
        since_us = now_us if conversation.oldest_us == NEVER else conversation.oldest_us
        if now_us - since_us >= patience_us:
            conversation.hang_up()
            self._lost("no answer in time")
        else:
            self._world.call_at(since_us + patience_us, self._watch, conversation)

    def _finish(self) -> None:
        if self.finished:
            return
        self.finished = True
        if self._conversation is not None:
            self._conversation.hang_up()
            self._leave()
        self.on_finished()

    # -- requests --------------------------------------------------------------------------------

    def _think_us(self) -> int:
        return self._chance.randint(0, self.plan.think_us)

    def _burst(self, conversation: Conversation) -> None:
        """Send some requests in one piece."""
        if conversation.is_over or not self._left:
            return
        room = self.plan.window - conversation.in_flight
        if room <= 0:
            self._full = True
            return
        count = self._chance.randint(1, min(room, self._left))
        self._left -= count
        made = [self._requests.make(self._world.now_us) for _ in range(count)]
        conversation.ask(*(ask for ask in made if ask is not None))
        if self._left:
            self._world.call_after(self._think_us(), self._burst, conversation)
        elif not conversation.in_flight:
            self._finish()

    def _answered(self, operation: Operation) -> None:
        self._refusals = 0
        self._requests.learn(operation)
        conversation = self._conversation
        if conversation is None:
            return
        if isinstance(operation, WireLogIn) and self._awaits_login:
            if operation.error:
                conversation.hang_up()
                self._lost("the login failed")
                return
            self._world.call_after(self._think_us(), self._burst, conversation)
        if self._full and self._left:
            self._full = False
            self._world.call_after(self._think_us(), self._burst, conversation)
        if not self._left and not conversation.in_flight:
            self._finish()
