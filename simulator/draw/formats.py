# Tests: tests/simulator/test_plan.py
"""Draw the clients of other formats and their faults.

The draw has its own random numbers, so the other parts of the plan do not depend on it. A run has
some of the formats.
"""

from __future__ import annotations

from msgspec.structs import replace

from simulator.draw.chance import MS, SECOND, Chance, DrawContext
from simulator.draw.clients import draw_keys, draw_vandal
from simulator.draw.faults import OTHERS
from simulator.plan import (
    Action,
    AnyFault,
    ClientPlan,
    Plan,
    Settings,
    WireFormat,
)

FORMATS: dict[WireFormat, float] = {"rustlog": 0.2, "mega": 0.15, "blipmq": 0.2, "flymq": 0.25}
"""Probability of each format."""
FORMATS_MAX = 3
NEEDS_FSYNC: frozenset[WireFormat] = frozenset(("blipmq",))
"""Formats for runs that lose nothing: their producers do not learn the places of records."""
MANY_GROUPS: frozenset[WireFormat] = frozenset(("blipmq",))
"""Formats whose clients make groups; each group has a group partition in every partition."""
OPERATIONS_MIN, OPERATIONS_MAX = 20, 300
FEW_OPERATIONS = 30
"""The most operations of a client in runs that write snapshots of many group partitions."""

MIXES: dict[WireFormat, dict[Action, int]] = {
    "rustlog": {
        "produce_batch": 8,
        "read": 10,
        "commit": 4,
        "committed": 3,
        "position": 1,
        "create_topic": 1,
        "list_topics": 1,
    },
    "mega": {"produce": 8, "read": 12, "create_topic": 1},
    "blipmq": {
        "produce": 10,
        "subscribe": 1,
        "poll": 14,
        "acknowledge": 10,
        "acknowledge_again": 1,
        "forget": 2,
    },
    "flymq": {
        "produce": 10,
        "read": 10,
        "read_one": 3,
        "commit": 4,
        "reset_offset": 1,
        "committed": 2,
        "lag": 2,
        "position": 2,
        "create_topic": 1,
        "delete_topic": 1,
        "list_topics": 1,
        "cancel": 1,
        "begin": 2,
        "stage": 8,
        "commit_transaction": 3,
        "roll_back": 1,
    },
}
"""Actions of clients. A draw removes some from each client."""

ESSENTIAL: dict[WireFormat, frozenset[Action]] = {
    "rustlog": frozenset(),
    "mega": frozenset(),
    "blipmq": frozenset(("produce", "subscribe", "poll")),
    "flymq": frozenset(),
}
"""Actions that no draw removes: without them, subscriptions are not tested."""

TRANSACTIONS: frozenset[Action] = frozenset(("begin", "stage", "commit_transaction", "roll_back"))
"""Actions for runs that lose nothing, because a commit does not learn the places of its records."""

TAILED: frozenset[WireFormat] = frozenset(("rustlog", "mega", "flymq"))
"""Formats with a client that reads at the end of a partition all the time."""
TAIL_READS = 300

LOOKS_BACK = 0.4
"""Probability of subscriptions that begin in the past, where there are any."""

CONNECTION_FAULTS = "drops", "stalls", "slow readers"
"""Faults of a client's connection."""


def add_formats(plan: Plan, context: DrawContext) -> Plan:
    """Return the plan, with clients of other formats if any are drawn.

    ``context`` has its own random numbers.
    """
    chance = context.chance
    spoken = [name for name, p in FORMATS.items() if chance.on(p)]
    if "lazy durability" in context.features:
        spoken = [name for name in spoken if name not in NEEDS_FSYNC]
    chance.shuffle(spoken)
    if "many partitions" in context.features:
        spoken = [name for name in spoken[:1] if name not in MANY_GROUPS]
    clients: list[ClientPlan] = []
    for name in spoken[:FORMATS_MAX]:
        for _ in range(chance.randint(1, 2)):
            clients.append(draw_client(context, plan, f"f{len(clients)}", name))
    tailed = [name for name in spoken[:FORMATS_MAX] if name in TAILED]
    if tailed and chance.on(0.6) and "many partitions" not in context.features:
        clients.append(draw_tail(context, plan, f"f{len(clients)}", chance.one(tailed)))
    if not clients:
        return plan
    if "vandals" in context.features:
        vandal = draw_vandal(context, f"f{len(clients)}")
        clients.append(replace(vandal, format=chance.one(clients).format))
    return replace(
        plan,
        settings=draw_settings(chance, plan.settings),
        clients=(*plan.clients, *clients),
        faults=draw_connection_faults(context, plan, clients),
    )


def draw_client(context: DrawContext, plan: Plan, name: str, wire_format: WireFormat) -> ClientPlan:
    chance, features = context.chance, context.features
    has_many = "many partitions" in features
    operations = chance.scale(OPERATIONS_MIN, FEW_OPERATIONS if has_many else OPERATIONS_MAX)
    window = chance.scale(2, 20) if chance.on(0.6) else 1
    groups = sorted({group for client in plan.clients for group in client.groups})
    possible = {
        action: weight
        for action, weight in MIXES[wire_format].items()
        if "lazy durability" not in features or action not in TRANSACTIONS
    }
    mix = {
        action: weight * (chance.randint(0, 3) or action in ESSENTIAL[wire_format])
        for action, weight in possible.items()
    }
    later = wire_format == "flymq" and "schedules" in features
    expires = wire_format == "flymq" and "expiry" in features
    return ClientPlan(
        name=name,
        identity=name,
        role="worker",
        format=wire_format,
        seed=chance.getrandbits(32),
        begin_us=0 if chance.on(0.7) else context.when() // 2,
        operations=operations,
        window=window,
        think_us=int(context.end_us * (window + 1) / operations * chance.uniform(0.05, 1)),
        topics=tuple(
            sorted(chance.sample(plan.topics, chance.randint(1, len(plan.topics))), key=str)
        ),
        groups=tuple(groups) if wire_format in ("rustlog", "flymq") else (),
        mix={action: weight for action, weight in mix.items() if weight} or possible,
        batch_max=chance.scale(2, 40),
        payload_bytes_max=chance.one((0, 50, 300, 1_000, 2_000)),
        large_permille=chance.randint(1, 20) if "large payloads" in features else 0,
        empty_permille=chance.randint(1, 300) if "empty payloads" in features else 0,
        keys=draw_keys(context),
        partition_permille=chance.randint(1, 1_000) if chance.on(0.5) else 0,
        filter_permille=chance.randint(1, 500) if chance.on(0.5) else 0,
        qos_0_permille=chance.one((0, 0, 300, 1_000)),
        patience_us=chance.scale(200, 5_000) * MS if "impatience" in features else 60 * SECOND,
        reconnect_us_max=chance.scale(1, 2_000) * MS,
        delayed_permille=chance.randint(1, 500) if later else 0,
        schedule_us_max=chance.scale(1, 20_000) * MS if later else 0,
        ttl_permille=chance.randint(1, 500) if expires else 0,
        ttl_us_max=chance.scale(10, 60_000) * MS if expires else 0,
    )


def draw_tail(context: DrawContext, plan: Plan, name: str, wire_format: WireFormat) -> ClientPlan:
    """Draw a client that always reads at the end, where it would see undurable records."""
    reader = draw_client(context, plan, name, wire_format)
    return replace(
        reader,
        begin_us=0,
        operations=TAIL_READS,
        window=1,
        think_us=2 * context.end_us // TAIL_READS,
        topics=(context.chance.one(plan.topics),),
        mix={"read": 1},
    )


def draw_settings(chance: Chance, settings: Settings) -> Settings:
    """Draw the settings of the formats and return them with the others."""
    return replace(
        settings,
        blipmq_max_deliveries=chance.randint(0, 5),
        blipmq_retry_base_us=chance.scale(10, 3_000) * MS,
        blipmq_grace_seconds=chance.scale(1, 10) if chance.on(0.1) else 3_600,
    )


def add_look_back(plan: Plan, chance: Chance) -> Plan:
    """Return the plan, in which subscriptions may begin in the past. ``chance`` is its own."""
    if "blipmq" not in plan.formats or not chance.on(LOOKS_BACK):
        return plan
    look_back_us = chance.scale(1, 60_000) * MS
    return replace(plan, settings=replace(plan.settings, blipmq_look_back_us=look_back_us))


def draw_connection_faults(
    context: DrawContext, plan: Plan, clients: list[ClientPlan]
) -> tuple[AnyFault, ...]:
    """Return the faults of the plan with new faults of some new clients' connections."""
    faults: list[AnyFault] = []
    names = [client.name for client in clients]
    for feature in CONNECTION_FAULTS:
        if context.chance.on(0.3):
            faults += [OTHERS[feature](context, names) for _ in range(context.chance.scale(1, 3))]
    return tuple(sorted([*plan.faults, *faults], key=lambda fault: fault.at_us))
