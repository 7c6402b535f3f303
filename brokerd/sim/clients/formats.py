# Tests: tests/sim/test_format_clients.py
"""Which wire and which requests the clients of each format have; Mamamia's are apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from brokerd.sim.clients.blipmq import BlipMQRequests, BlipMQWire
from brokerd.sim.clients.conversation import Wire
from brokerd.sim.clients.flymq import FlyMQRequests, FlyMQWire
from brokerd.sim.clients.links import Connect
from brokerd.sim.clients.mega import MegaRequests, MegaWire
from brokerd.sim.clients.rustlog import RustLogRequests, RustLogWire
from brokerd.sim.clients.wire_client import Requests, WireClient
from brokerd.sim.history import History
from brokerd.sim.plan import ClientPlan, WireFormat
from brokerd.sim.world import World


def wire_of(wire_format: WireFormat, chance: Random) -> Callable[[], Wire]:
    """What makes a wire for each connection; it may have a chance of its own."""
    wires: dict[WireFormat, Callable[[], Wire]] = {
        "rustlog": RustLogWire,
        "mega": partial(MegaWire, chance),
        "blipmq": BlipMQWire,
        "flymq": partial(FlyMQWire, chance),
    }
    return wires[wire_format]


def requests_of(
    wire_format: WireFormat, history: History
) -> Callable[[ClientPlan, Random], Requests]:
    """What makes the requests of a client."""
    makers: dict[WireFormat, Callable[[ClientPlan, Random], Requests]] = {
        "rustlog": RustLogRequests,
        "mega": MegaRequests,
        "blipmq": partial(BlipMQRequests, history),
        "flymq": FlyMQRequests,
    }
    return makers[wire_format]


def make_format_client(
    plan: ClientPlan, world: World, connect: Connect, history: History
) -> WireClient:
    """The client of a plan that does not speak Mamamia."""
    wire = wire_of(plan.format, Random(f"{plan.seed}/wire"))
    requests = requests_of(plan.format, history)
    return WireClient(plan, world, connect, history, wire, requests)
