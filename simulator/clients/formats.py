# Tests: tests/simulator/test_format_clients.py
"""The wire and the requests of the clients of each format except Mamamia."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from simulator.clients.blipmq import BlipMQRequests, BlipMQWire
from simulator.clients.conversation import Wire
from simulator.clients.credentials import Credentials
from simulator.clients.flymq import FlyMQRequests, FlyMQWire
from simulator.clients.links import Connect
from simulator.clients.mega import MegaRequests, MegaWire
from simulator.clients.rustlog import RustLogRequests, RustLogWire
from simulator.clients.wire_client import Requests, WireClient
from simulator.history.operations import History
from simulator.machine.world import World
from simulator.plan import ClientPlan, WireFormat


def wire_of(wire_format: WireFormat, chance: Random, logs_in: bool = False) -> Callable[[], Wire]:
    """Return the factory of wires, one for each connection. It may use random numbers.

    With ``logs_in`` the client sends its login itself, where the format has one.
    """
    wires: dict[WireFormat, Callable[[], Wire]] = {
        "rustlog": RustLogWire,
        "mega": partial(MegaWire, chance),
        "blipmq": partial(BlipMQWire, None) if logs_in else BlipMQWire,
        "flymq": partial(FlyMQWire, chance),
    }
    return wires[wire_format]


def requests_of(
    wire_format: WireFormat, history: History, credentials: Credentials
) -> Callable[[ClientPlan, Random], Requests]:
    """Return the factory of a client's requests."""
    makers: dict[WireFormat, Callable[[ClientPlan, Random], Requests]] = {
        "rustlog": RustLogRequests,
        "mega": MegaRequests,
        "blipmq": partial(BlipMQRequests, history, credentials=credentials),
        "flymq": partial(FlyMQRequests, credentials=credentials),
    }
    return makers[wire_format]


def make_format_client(
    plan: ClientPlan,
    world: World,
    connect: Connect,
    history: History,
    credentials: Credentials,
) -> WireClient:
    """Return the client of a plan of another format than Mamamia."""
    wire = wire_of(plan.format, Random(f"{plan.seed}/wire"), bool(plan.login))
    requests = requests_of(plan.format, history, credentials)
    return WireClient(plan, world, connect, history, wire, requests)
