# Tests: tests/simulator/test_clients.py
"""A client that follows a script step by step and repeats refused requests, for audits.

It sends requests of its format through a connection, and makes admin calls directly. A call needs
no connection: the broker may end one as idle while a call takes long, and the call goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from brokerd.errors import BrokerdError
from simulator.clients.admin_calls import AdminCall
from simulator.clients.conversation import Ask, Conversation, Wire
from simulator.clients.describe import asked
from simulator.clients.direct import Asker
from simulator.clients.links import Connect
from simulator.clients.registry_calls import RegistryCall
from simulator.history.operations import History, Operation
from simulator.machine.world import World

RETRY_US = 1_000_000
RETRIES = 60
"""How often a refused request is repeated. The broker may need a second to find space."""
LOSSES_MAX = 5
"""Connections that an audit may lose with a request that waits for its answer."""
NO_GROUP = "has no group"
"""Part of the broker's refusal for an unknown group."""

Step = Callable[[], Ask | AdminCall | RegistryCall] | int
"""A step of a script: a request whose answer it needs, or a wait in microseconds."""
Script = Generator[Step, Operation, None]


class AuditFailed(BrokerdError):
    """The broker refused, or did not serve, a correct client."""


def insist(
    make: Callable[[], Ask | AdminCall | RegistryCall],
    accepts: Callable[[Operation], bool] = lambda operation: False,
) -> Generator[Step, Operation, Operation]:
    """Repeat a request until it succeeds, or until ``accepts`` allows the refusal."""
    for _ in range(RETRIES):
        operation = yield make
        if not operation.error or NO_GROUP in operation.error or accepts(operation):
            return operation
        yield RETRY_US
    raise AuditFailed(f"{asked(operation)} is refused for ever: {operation.error}")


class ScriptedClient:
    """A client that begins with ``start()`` and calls ``done()`` at the end of its script.

    Raises AuditFailed, in the next event of the world, if the broker does not let it finish.
    """

    def __init__(
        self,
        name: str,
        world: World,
        connect: Connect,
        direct: Asker,
        history: History,
        wire: Callable[[], Wire],
        script: Script,
        done: Callable[[], None],
    ) -> None:
        self._name = name
        self._world = world
        self._connect_link = connect
        self._direct = direct
        self._history = history
        self._wire = wire
        self._script = script
        self._done = done
        self._wanted: Callable[[], Ask | AdminCall | RegistryCall] | None = None
        """The request of the connection without an answer."""
        self._losses = 0
        self._is_over = False
        self._conversation: Conversation | None = None

    def start(self) -> None:
        """Begin."""
        self._connect()
        self._advance()

    def _advance(self, operation: Operation | None = None) -> None:
        """Take the next step of the script; None begins it or ends a wait."""
        try:
            step = next(self._script) if operation is None else self._script.send(operation)
        except StopIteration:
            self._finish()
            return
        if isinstance(step, int):
            self._world.call_after(step, self._advance)
            return
        wanted = step()
        if isinstance(wanted, AdminCall):
            self._direct.perform(*wanted, self._advance)
        elif isinstance(wanted, RegistryCall):
            self._direct.perform_later(*wanted, self._advance)
        else:
            self._wanted = step
            self._ask()

    def _ask(self) -> None:
        """Send the request without an answer, anew on each connection."""
        if self._wanted is None or self._conversation is None:
            return
        ask = self._wanted()
        assert isinstance(ask, Ask), "calls need no connection"
        self._conversation.ask(ask)

    def _answered(self, operation: Operation) -> None:
        self._wanted = None
        self._advance(operation)

    def _finish(self) -> None:
        self._is_over = True
        if self._conversation is not None:
            self._conversation.hang_up()
        self._done()

    def _connect(self) -> None:
        self._conversation = Conversation(
            self._name,
            self._world,
            self._connect_link,
            self._history,
            self._answered,
            self._lost,
            self._wire(),
        )

    def _lost(self, why: str) -> None:
        self._conversation = None
        self._losses += self._wanted is not None
        if self._losses > LOSSES_MAX:
            raise AuditFailed(f"the audit lost its connection {self._losses} times: {why}")
        self._world.call_after(RETRY_US, self._reconnect)

    def _reconnect(self) -> None:
        if not self._is_over:
            self._connect()
            self._ask()
