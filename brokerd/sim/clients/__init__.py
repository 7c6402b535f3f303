# Tests: tests/sim/test_clients.py
"""Random clients of a simulated broker, one module per wire format, and the auditor of a run's end.

docs/simulator.rst, section "Clients", says what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from brokerd.sim.clients.auditor import Auditor
from brokerd.sim.clients.conversation import WrongAnswer
from brokerd.sim.clients.direct import Direct
from brokerd.sim.clients.formats import make_format_client
from brokerd.sim.clients.links import Connect, Link
from brokerd.sim.clients.mamamia import MamamiaClient
from brokerd.sim.clients.operator import Operator
from brokerd.sim.clients.scripted import AuditFailed
from brokerd.sim.clients.vandal import Vandal
from brokerd.sim.history import History
from brokerd.sim.machine import Machine
from brokerd.sim.plan import ClientPlan
from brokerd.sim.world import World

__all__ = [
    "AuditFailed",
    "Auditor",
    "Client",
    "Connect",
    "Direct",
    "Link",
    "MamamiaClient",
    "Operator",
    "Vandal",
    "WrongAnswer",
    "make_client",
]


class Client(Protocol):
    """What a run does with its clients."""

    plan: ClientPlan
    finished: bool
    on_finished: Callable[[], None]
    """Called once."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Begin nothing more; finish when what was begun is answered or lost."""

    def hang_up(self) -> None:
        """Finish now."""

    def note_arrivals(self) -> None:
        """Complete the history at the run's end, when nothing is under way any more."""


def make_client(
    plan: ClientPlan, world: World, connect: Connect, machine: Machine, history: History
) -> Client:
    """The client of a plan; it begins with ``start()``."""
    if plan.role == "operator":
        return Operator(plan, world, Direct(plan.name, world, machine, history))
    if plan.role == "vandal":
        return Vandal(plan, world, connect, history)
    if plan.format != "mamamia":
        return make_format_client(plan, world, connect, history)
    return MamamiaClient(plan, world, connect, history)
