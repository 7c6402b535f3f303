# Tests: tests/simulator/test_plan.py
"""Draw the clients of a plan."""

from __future__ import annotations

from simulator.draw.chance import KIB, MS, SECOND, DrawContext
from simulator.plan import Action, ClientPlan, Role, Topic

OPERATIONS_MIN, OPERATIONS_MAX = 100, 1_500

NEEDS: dict[Action, str] = {
    "produce_batch": "batches",
    "acquire_batch": "batches",
    "settle_batch": "batches",
    "extend": "extends",
    "settle_again": "settles again",
    "settle_foreign": "foreign settles",
    "settle_blind": "blind settles",
    "forget": "forgets",
    "release": "wire releases",
    "cancel": "schedules",
}
"""Actions that a client has only with a feature."""

MIXES: dict[Role, dict[Action, int]] = {
    "producer": {"produce": 10, "produce_batch": 5, "cancel": 1},
    "consumer": {
        "acquire": 10,
        "acquire_batch": 6,
        "settle": 12,
        "settle_batch": 6,
        "extend": 2,
        "settle_again": 1,
        "settle_foreign": 1,
        "settle_blind": 1,
        "forget": 2,
        "release": 1,
        "cancel": 1,
        "look": 1,
    },
    "worker": {
        "produce": 8,
        "produce_batch": 3,
        "acquire": 8,
        "acquire_batch": 3,
        "settle": 9,
        "settle_batch": 3,
        "extend": 1,
        "settle_again": 1,
        "settle_foreign": 1,
        "settle_blind": 1,
        "forget": 1,
        "release": 1,
        "cancel": 1,
    },
    "watcher": {"look": 1},
    "vandal": {},
    "operator": {"letters": 1, "describe": 2},
}

OPERATES: dict[str, dict[Action, int]] = {
    "pauses": {"pause": 3, "resume": 4},
    "group settings": {"configure": 3},
    "key order": {"configure": 1},
    "seeks": {"seek": 3},
    "group deletions": {"delete_group": 2},
    "releases": {"release": 4},
    "letter changes": {"replay": 3, "purge": 1},
    "trims": {"trim": 6},
    "retention": {"configure_topic": 4},
    "topic deletions": {"delete_topic": 2},
    "schedules": {"cancel": 1},
}
"""Actions of an operator, by feature."""


def draw_clients(context: DrawContext, topics: tuple[Topic, ...]) -> tuple[ClientPlan, ...]:
    """Draw at least one producer and one consumer, and sometimes vandals."""
    chance = context.chance
    roles: list[Role] = ["worker"] if chance.on(0.3) else ["producer", "consumer"]
    roles += [chance.one(("producer", "consumer", "worker")) for _ in range(chance.randint(0, 4))]
    if chance.on(0.3):
        roles.append("watcher")
    groups = tuple(f"g{number}" for number in range(chance.scale(1, 3)))
    operations = chance.scale(OPERATIONS_MIN, OPERATIONS_MAX)
    shares = [0.2 if role == "watcher" else chance.uniform(0.3, 1) for role in roles]
    clients: list[ClientPlan] = []
    for number, role in enumerate(roles):
        share = max(1, int(operations * shares[number] / sum(shares)))
        name = f"c{number}"
        shared = clients and "shared identities" in context.features and chance.on(0.5)
        identity = chance.one(clients).identity if shared else name
        clients.append(draw_client(context, name, identity, role, share, topics, groups))
    owners = tuple(sorted({client.identity for client in clients}))
    if "operators" in context.features:
        operator = draw_operator(context, f"c{len(clients)}", topics, groups, owners)
        clients.append(operator)
    if "vandals" in context.features:
        clients.append(draw_vandal(context, f"c{len(clients)}"))
    return tuple(clients)


def draw_client(
    context: DrawContext,
    name: str,
    identity: str,
    role: Role,
    operations: int,
    topics: tuple[Topic, ...],
    groups: tuple[str, ...],
) -> ClientPlan:
    chance, features = context.chance, context.features

    def share(feature: str, high: int) -> int:
        return chance.randint(1, high) if feature in features else 0

    duration_us_min, duration_us_max = draw_durations(context)
    window = chance.scale(2, 30) if "pipelining" in features else 1
    is_empty = "empty payloads" in features
    # Only records of nothing at all can need more than one batch in the log.
    is_bare = is_empty and chance.on(0.6)
    return ClientPlan(
        name=name,
        identity=identity,
        role=role,
        seed=chance.getrandbits(32),
        begin_us=0 if chance.on(0.7) else context.when() // 2,
        operations=operations,
        window=window,
        think_us=int(context.end_us * (window + 1) / operations * chance.uniform(0.05, 1)),
        topics=tuple(sorted(chance.sample(topics, chance.randint(1, len(topics))), key=str)),
        groups=tuple(sorted(chance.sample(groups, chance.randint(1, len(groups))))),
        mix={
            action: weight * chance.randint(1, 4)
            for action, weight in MIXES[role].items()
            if NEEDS.get(action, "") in features | {""}
        },
        batch_max=chance.scale(100, 500) if is_bare else chance.scale(2, 40),
        payload_bytes_max=chance.one((0, 50, 300, 1_000, 2_000)),
        large_permille=share("large payloads", 30),
        empty_permille=1_000 if is_bare else chance.randint(1, 1_000) if is_empty else 0,
        keys=0 if is_bare else draw_keys(context),
        partition_permille=share("partitions", 1_000),
        metadata_permille=0 if is_bare else share("metadata", 1_000),
        duration_us_min=duration_us_min,
        duration_us_max=duration_us_max,
        wait_us_max=chance.scale(10, 10_000) * MS if "waits" in features else 0,
        failure_permille=share("failures", 900),
        delay_us_max=chance.scale(1, 20_000) * MS if "delays" in features else 0,
        late_permille=share("late settles", 400),
        token_permille=share("tokens", 1_000),
        verdict_permille=300 if "verdicts" in features else 0,
        delayed_permille=share("schedules", 500),
        schedule_us_max=chance.scale(1, 20_000) * MS if "schedules" in features else 0,
        ttl_permille=share("expiry", 700),
        ttl_us_max=chance.scale(10, 60_000) * MS if "expiry" in features else 0,
        default_permille=share("default durations", 1_000),
        resends="resends" in features and chance.on(0.8),
        patience_us=chance.scale(200, 5_000) * MS if "impatience" in features else 60 * SECOND,
        reconnect_us_max=chance.scale(1, 2_000) * MS,
    )


def draw_keys(context: DrawContext) -> int:
    """Draw a number of keys; with key order, messages nearly always have a key."""
    if "key order" in context.features and context.chance.on(0.9):
        return context.chance.scale(1, 20)
    return context.chance.randint(1, 8) if "keys" in context.features else 0


def draw_durations(context: DrawContext) -> tuple[int, int]:
    """Draw the shortest and the longest lease of a client, in microseconds."""
    chance = context.chance
    if "short leases" in context.features:
        low = chance.scale(1, 500) * MS
        high = low + chance.scale(1, 3_000) * MS
    else:
        low = chance.scale(1, 30) * SECOND
        high = low + chance.scale(1, 30) * SECOND
    return (-SECOND if "spent leases" in context.features else low), high


def draw_operator(
    context: DrawContext,
    name: str,
    topics: tuple[Topic, ...],
    groups: tuple[str, ...],
    owners: tuple[str, ...],
) -> ClientPlan:
    """Draw a client that changes groups and topics."""
    chance, features = context.chance, context.features
    mix = dict(MIXES["operator"])
    for feature in sorted(features & {*OPERATES}):
        mix |= {action: mix.get(action, 0) + n for action, n in OPERATES[feature].items()}
    operations = chance.scale(5, 60)
    is_ordered = "key order" in features
    return ClientPlan(
        name=name,
        identity=name,
        role="operator",
        seed=chance.getrandbits(32),
        begin_us=0 if chance.on(0.5) else context.when() // 2,
        operations=operations,
        think_us=2 * context.end_us // operations,
        topics=topics,
        groups=groups,
        mix=mix,
        owners=owners,
        ordered_permille=chance.choice((500, 1_000)) if is_ordered else 0,
        aged_permille=500 if "aged letters" in features else 0,
        configures_first=is_ordered and chance.on(0.7),
        retention_us_max=chance.scale(100, 10_000) * MS if "retention" in features else 0,
        retention_bytes_max=chance.scale(KIB, 256 * KIB) if "retention" in features else 0,
        ttl_us_max=chance.scale(10, 60_000) * MS if "expiry" in features else 0,
    )


def draw_vandal(context: DrawContext, name: str) -> ClientPlan:
    chance = context.chance
    visits = chance.scale(1, 30)
    return ClientPlan(
        name=name,
        identity=name,
        role="vandal",
        seed=chance.getrandbits(32),
        operations=visits,
        think_us=2 * context.end_us // visits,
        topics=(),
        reconnect_us_max=chance.scale(1, 1_000) * MS,
    )
