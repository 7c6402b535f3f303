# Tests: tests/simulator/test_plan.py
"""Draw clients that send runs of like requests, which the broker carries out in one step.

The draw has its own random numbers, so the other parts of the plan do not depend on it.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulator.draw.chance import MS, SECOND, Chance
from simulator.plan import Action, ClientPlan, Plan, Role, Topic, WireFormat

RUNS = 0.12
"""Probability of clients that send runs."""
SECURE_RUNS = 0.6
"""The same with security on: a run checks its permission apart from single requests."""
OPERATIONS_MIN, OPERATIONS_MAX = 50, 200
WINDOW_MIN, WINDOW_MAX = 8, 60
DURATION_US = 20 * SECOND
PAYLOAD_BYTES_MAX = 150

MIXES: dict[Role, dict[Action, int]] = {"producer": {"produce": 1}, "consumer": {"acquire": 3}}

RUNS_OF: dict[WireFormat, tuple[Action, ...]] = {
    "mega": ("produce", "read"),
    "blipmq": ("produce",),
    "flymq": ("produce",),
}
"""Actions of other formats whose requests form runs."""


def add_runs(plan: Plan, chance: Chance) -> Plan:
    """Return the plan, with clients that send runs if they are drawn. ``chance`` is its own."""
    topics = [topic for topic in plan.topics if topic.partitions == 1]
    if not chance.on(SECURE_RUNS if plan.settings.principal else RUNS) or not topics:
        return plan
    if plan.settings.principal:
        others = Chance(f"{plan.seed}/runs of formats")
        *clients, registrar = plan.clients
        added = draw_others(plan, others, topics)
        plan = replace(plan, clients=(*clients, *added, registrar))
    topic = chance.one(topics)
    groups = sorted({group for client in plan.clients for group in client.groups})
    pairs = [draw_client(plan, chance, "r0", "producer", topic, ())]
    if groups and chance.on(0.5):
        pairs.append(draw_client(plan, chance, "r1", "consumer", topic, (chance.one(groups),)))
    return replace(plan, clients=(*pairs, *plan.clients))


def draw_others(plan: Plan, chance: Chance, topics: list[Topic]) -> list[ClientPlan]:
    """Draw a client with runs for each format that has them."""
    clients: list[ClientPlan] = []
    for wire_format in plan.formats:
        actions = RUNS_OF.get(wire_format, ())
        named = [topic for topic in topics if topic.name and topic.name.isascii()]
        if actions and named:
            name = f"o{len(clients)}"
            client = draw_client(plan, chance, name, "worker", chance.one(named), ())
            mix: dict[Action, int] = {chance.one(actions): 1}
            clients.append(replace(client, format=wire_format, mix=mix, is_plain=False))
    return clients


def draw_client(
    plan: Plan, chance: Chance, name: str, role: Role, topic: Topic, groups: tuple[str, ...]
) -> ClientPlan:
    operations = chance.scale(OPERATIONS_MIN, OPERATIONS_MAX)
    window = chance.scale(WINDOW_MIN, WINDOW_MAX)
    mix = dict(MIXES.get(role, {}))
    if groups:
        mix["settle"] = chance.randint(1, 3)
    return ClientPlan(
        name=name,
        identity=name,
        role=role,
        seed=chance.getrandbits(32),
        operations=operations,
        window=window,
        think_us=int(plan.end_us * window / operations * chance.uniform(0.05, 1)),
        topics=(topic,),
        groups=groups,
        mix=mix,
        is_plain=True,
        payload_bytes_max=PAYLOAD_BYTES_MAX,
        duration_us_min=DURATION_US,
        duration_us_max=DURATION_US,
        reconnect_us_max=chance.scale(1, 2_000) * MS,
    )
