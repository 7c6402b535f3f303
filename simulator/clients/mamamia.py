# Tests: tests/simulator/test_clients.py
"""A random Mamamia client."""

from __future__ import annotations

from simulator.clients.links import Connect
from simulator.clients.mamamia_wire import MamamiaWire
from simulator.clients.requests import RequestMaker
from simulator.clients.wire_client import WireClient
from simulator.history import History
from simulator.plan import ClientPlan
from simulator.world import World


class MamamiaClient(WireClient):
    """A `WireClient` that speaks Mamamia."""

    def __init__(self, plan: ClientPlan, world: World, connect: Connect, history: History) -> None:
        super().__init__(plan, world, connect, history, MamamiaWire, RequestMaker)
