# Tests: tests/sim/test_clients.py
"""A random Mamamia client."""

from __future__ import annotations

from brokerd.sim.clients.links import Connect
from brokerd.sim.clients.mamamia_wire import MamamiaWire
from brokerd.sim.clients.requests import RequestMaker
from brokerd.sim.clients.wire_client import WireClient
from brokerd.sim.history import History
from brokerd.sim.plan import ClientPlan
from brokerd.sim.world import World


class MamamiaClient(WireClient):
    """A `WireClient` that speaks Mamamia."""

    def __init__(self, plan: ClientPlan, world: World, connect: Connect, history: History) -> None:
        super().__init__(plan, world, connect, history, MamamiaWire, RequestMaker)
