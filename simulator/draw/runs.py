# Tests: tests/simulator/test_plan.py
"""Draw clients that send runs of like requests, which the broker carries out in one step.

The draw has its own random numbers, so the other parts of the plan do not depend on it.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulator.draw.chance import MS, SECOND, Chance
from simulator.plan import Action, ClientPlan, Plan, Role, Topic

RUNS = 0.12
"""Probability of clients that send runs."""
SECURE_RUNS = 0.6
"""The same with security on: a run checks its permission apart from single requests."""
OPERATIONS_MIN, OPERATIONS_MAX = 50, 200
WINDOW_MIN, WINDOW_MAX = 8, 60
DURATION_US = 20 * SECOND
PAYLOAD_BYTES_MAX = 150

MIXES: dict[Role, dict[Action, int]] = {"producer": {"produce": 1}, "consumer": {"acquire": 3}}


def add_runs(plan: Plan, chance: Chance) -> Plan:
    """Return the plan, with clients that send runs if they are drawn. ``chance`` is its own."""
    topics = [topic for topic in plan.topics if topic.partitions == 1]
    if not chance.on(SECURE_RUNS if plan.settings.principal else RUNS) or not topics:
        return plan
    topic = chance.one(topics)
    groups = sorted({group for client in plan.clients for group in client.groups})
    clients = [draw_client(plan, chance, "r0", "producer", topic, ())]
    if groups and chance.on(0.5):
        clients.append(draw_client(plan, chance, "r1", "consumer", topic, (chance.one(groups),)))
    return replace(plan, clients=(*clients, *plan.clients))


def draw_client(
    plan: Plan, chance: Chance, name: str, role: Role, topic: Topic, groups: tuple[str, ...]
) -> ClientPlan:
    operations = chance.scale(OPERATIONS_MIN, OPERATIONS_MAX)
    window = chance.scale(WINDOW_MIN, WINDOW_MAX)
    settles: dict[Action, int] = {"settle": chance.randint(1, 3)} if groups else {}
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
        mix=MIXES[role] | settles,
        is_plain=True,
        payload_bytes_max=PAYLOAD_BYTES_MAX,
        duration_us_min=DURATION_US,
        duration_us_max=DURATION_US,
        reconnect_us_max=chance.scale(1, 2_000) * MS,
    )
