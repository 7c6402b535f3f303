# Tests: tests/simulator/test_clients.py
"""A random Mamamia client."""

from __future__ import annotations

from simulator.clients.links import Connect
from simulator.clients.mamamia_wire import MamamiaWire
from simulator.clients.requests import RequestMaker
from simulator.clients.wire_client import WireClient
from simulator.history.operations import History
from simulator.machine.world import World
from simulator.plan import ClientPlan


class MamamiaClient(WireClient):
    """A `WireClient` that speaks Mamamia."""

    def __init__(self, plan: ClientPlan, world: World, connect: Connect, history: History) -> None:
        super().__init__(plan, world, connect, history, MamamiaWire, RequestMaker)
