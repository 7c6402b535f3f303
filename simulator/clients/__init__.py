# Tests: tests/simulator/test_clients.py
"""Random clients of a simulated broker, one module per wire format, and the auditor.

docs/simulator.rst, section "Clients", describes their actions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from simulator.clients.auditor import Auditor
from simulator.clients.conversation import WrongAnswer
from simulator.clients.credentials import Credentials
from simulator.clients.direct import DirectClient
from simulator.clients.formats import make_format_client
from simulator.clients.links import Connect, Link
from simulator.clients.mamamia import MamamiaClient
from simulator.clients.operator import Operator
from simulator.clients.registrar import Registrar
from simulator.clients.scripted import AuditFailed
from simulator.clients.vandal import Vandal
from simulator.history.operations import History
from simulator.machine.machine import Machine
from simulator.machine.world import World
from simulator.plan import ClientPlan

__all__ = [
    "AuditFailed",
    "Auditor",
    "Client",
    "Connect",
    "Credentials",
    "DirectClient",
    "Link",
    "MamamiaClient",
    "Operator",
    "Registrar",
    "Vandal",
    "WrongAnswer",
    "make_client",
]


class Client(Protocol):
    """The interface of a client to its run."""

    plan: ClientPlan
    finished: bool
    on_finished: Callable[[], None]
    """Called once, when the client has finished."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """Send no more requests. Finish when all requests are answered or lost."""

    def hang_up(self) -> None:
        """Finish now."""

    def note_arrivals(self) -> None:
        """Complete the history at the end of the run, when no byte is in flight."""


def make_client(
    plan: ClientPlan,
    world: World,
    connect: Connect,
    machine: Machine,
    history: History,
    credentials: Credentials | None = None,
) -> Client:
    """Return the client of a plan. ``start()`` begins it. ``credentials`` are those of the run."""
    credentials = credentials or Credentials()
    if plan.role == "operator":
        return Operator(plan, world, DirectClient(plan.name, world, machine, history))
    if plan.role == "registrar":
        direct = DirectClient(plan.name, world, machine, history)
        return Registrar(plan, world, direct, history.principal, credentials)
    if plan.role == "vandal":
        return Vandal(plan, world, connect, history)
    if plan.format != "mamamia":
        return make_format_client(plan, world, connect, history, credentials)
    return MamamiaClient(plan, world, connect, history)
