# Tests: tests/sim/test_plan.py
"""A plan from a seed.

In the manner of swarm testing (Groce et al., ISSTA 2012) each seed first switches whole features on
or off, and then draws numbers for those that are on: a run with one kind of fault and two kinds of
requests reaches states that runs with a little of everything do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar, get_args

from brokerd.sim.plan import (
    Action,
    AnyFault,
    ClientPlan,
    ClockStep,
    DiskCall,
    DiskError,
    DiskTimes,
    Drop,
    Kill,
    Network,
    NoSpace,
    Plan,
    PowerLoss,
    PowerModel,
    Role,
    Settings,
    SlowDisk,
    Stall,
    Stop,
    StopReading,
    Topic,
)

T = TypeVar("T")

KIB = 1024
MS = 1_000
SECOND = 1_000_000
CRASHES_MAX = 6
OPERATIONS_MIN, OPERATIONS_MAX = 100, 1_500
POWER_MODELS: tuple[PowerModel, ...] = get_args(PowerModel)

FEATURES = {
    # faults
    "kills": 0.4,
    "power losses": 0.5,
    "stops": 0.3,
    "disk errors": 0.35,
    "crashes in recovery": 0.4,
    "full disk": 0.2,
    "small disk": 0.1,
    "slow disk": 0.25,
    "drops": 0.4,
    "stalls": 0.3,
    "slow readers": 0.3,
    "clock steps": 0.4,
    # the broker
    "small segments": 0.7,
    "segments by age": 0.2,
    "snapshots": 0.6,
    "small caches": 0.5,
    "small buffers": 0.3,
    "back-off": 0.3,
    "attempts": 0.5,
    "lazy durability": 0.15,
    # the wire
    "splits": 0.4,
    "far away": 0.2,
    "impatience": 0.2,
    # what clients do
    "pipelining": 0.6,
    "batches": 0.6,
    "waits": 0.4,
    "tokens": 0.6,
    "failures": 0.6,
    "delays": 0.4,
    "extends": 0.4,
    "late settles": 0.4,
    "settles again": 0.4,
    "foreign settles": 0.3,
    "blind settles": 0.2,
    "forgets": 0.3,
    "short leases": 0.5,
    "spent leases": 0.05,
    "shared identities": 0.2,
    "partitions": 0.4,
    "keys": 0.3,
    "metadata": 0.4,
    "large payloads": 0.15,
    "odd names": 0.1,
    "vandals": 0.2,
}
"""How likely each is."""

NEEDS: dict[Action, str] = {
    "produce_batch": "batches",
    "acquire_batch": "batches",
    "settle_batch": "batches",
    "extend": "extends",
    "settle_again": "settles again",
    "settle_foreign": "foreign settles",
    "settle_blind": "blind settles",
    "forget": "forgets",
}
"""What a client never does without a feature."""

MIXES: dict[Role, dict[Action, int]] = {
    "producer": {"produce": 10, "produce_batch": 5},
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
    },
    "watcher": {"look": 1},
    "vandal": {},
}

DISKS = (
    DiskTimes(),
    DiskTimes(
        write_us_min=10, write_us_max=100, sync_us_min=300, sync_us_max=3_000, other_us_max=200
    ),
    DiskTimes(
        read_us_min=100,
        read_us_max=12_000,
        write_us_min=20,
        write_us_max=8_000,
        sync_us_min=4_000,
        sync_us_max=30_000,
        other_us_max=5_000,
    ),
    DiskTimes(
        read_us_max=50_000,
        write_us_max=50_000,
        sync_us_min=100,
        sync_us_max=400_000,
        other_us_max=50_000,
    ),
)
"""A fast one, a usual one, one that spins, and one that is sick."""

CLOCK_STEPS_US = (
    MS,
    900 * MS,
    90 * SECOND,
    3_700 * SECOND,
    86_400 * SECOND,
    3 * 31_557_600 * SECOND,
)


class Chance(Random):
    """Numbers as plans need them."""

    def on(self, probability: float) -> bool:
        return self.random() < probability

    def scale(self, low: int, high: int) -> int:
        """An integer from ``low`` (at least 1) to ``high``, each magnitude as likely."""
        return min(high, int(low * ((high + 1) / low) ** self.random()))

    def one(self, options: Sequence[T]) -> T:
        return options[self.randrange(len(options))]


@dataclass(frozen=True)
class Frame:
    """What the parts of a plan have in common while it is drawn."""

    chance: Chance
    features: frozenset[str]
    end_us: int

    def when(self) -> int:
        return self.chance.randrange(self.end_us)


def generate(seed: int) -> Plan:
    """The plan of a seed: the same for ever, as long as this module does not change."""
    chance = Chance(f"plan/{seed}")
    features = frozenset(name for name, p in FEATURES.items() if chance.on(p))
    frame = Frame(chance, features, chance.scale(5, 120) * SECOND)
    topics = draw_topics(frame)
    clients = draw_clients(frame, topics)
    return Plan(
        seed=seed,
        end_us=frame.end_us,
        settings=draw_settings(frame),
        network=draw_network(frame),
        disk=chance.one(DISKS),
        topics=topics,
        clients=clients,
        faults=draw_faults(frame, [client.name for client in clients]),
    )


# -- settings --------------------------------------------------------------------------------------


def draw_settings(frame: Frame) -> Settings:
    chance, features = frame.chance, frame.features
    segment_bytes = 1 << chance.one((16, 16, 17, 18)) if "small segments" in features else 1 << 20
    small_caches = "small caches" in features
    small_buffers = "small buffers" in features
    usual = Settings()
    return Settings(
        segment_bytes=segment_bytes,
        segment_age_seconds=chance.randint(1, 10) if "segments by age" in features else 900,
        snapshot_interval_bytes=(
            chance.scale(8 * KIB, 512 * KIB)
            if "snapshots" in features
            else usual.snapshot_interval_bytes
        ),
        tail_cache_bytes=chance.one((0, 4 * KIB, 64 * KIB)) if small_caches else 64 << 20,
        read_cache_bytes=chance.one((0, 4 * KIB, 64 * KIB)) if small_caches else 32 << 20,
        frame_bytes=chance.one((64 * KIB, 256 * KIB)) if small_buffers else usual.frame_bytes,
        max_uncommitted_bytes=64 * KIB if small_buffers else usual.max_uncommitted_bytes,
        in_flight_bytes=64 * KIB if small_buffers else usual.in_flight_bytes,
        in_flight_requests=chance.one((1, 4, 10_000)) if small_buffers else 10_000,
        max_attempts=chance.randint(1, 5) if "attempts" in features else 3,
        attempts=chance.one(("failures", "grants")) if "attempts" in features else "failures",
        backoff_base_us=chance.scale(10, 3_000) * MS if "back-off" in features else 0,
        backoff_max_us=chance.scale(1_000, 20_000) * MS if "back-off" in features else 600 * SECOND,
        durability=draw_durability(chance) if "lazy durability" in features else "fsync",
        capacity_bytes=segment_bytes * chance.randint(4, 12) if "small disk" in features else None,
    )


def draw_durability(chance: Chance) -> str:
    return "os" if chance.on(0.4) else f"interval:{chance.scale(1, 1_000)}"


def draw_network(frame: Frame) -> Network:
    chance = frame.chance
    low, high = (1_000, 80_000) if "far away" in frame.features else (20, 600)
    return Network(
        latency_us_min=low,
        latency_us_max=chance.scale(low, high),
        split_permille=chance.randint(10, 600) if "splits" in frame.features else 0,
    )


# -- clients ---------------------------------------------------------------------------------------


def draw_topics(frame: Frame) -> tuple[Topic, ...]:
    chance = frame.chance
    names = [f"t{number}" for number in range(chance.scale(1, 4))]
    if "odd names" in frame.features:
        names[0] = chance.one(("", "заказы/../orders", "t" * 255))
    return tuple(
        Topic(
            name=name,
            partitions=(
                chance.randint(2, 6) if "partitions" in frame.features and chance.on(0.6) else 1
            ),
        )
        for name in names
    )


def draw_clients(frame: Frame, topics: tuple[Topic, ...]) -> tuple[ClientPlan, ...]:
    """At least one that produces and one that consumes; vandals come on top."""
    chance = frame.chance
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
        shared = clients and "shared identities" in frame.features and chance.on(0.5)
        identity = chance.one(clients).identity if shared else name
        clients.append(draw_client(frame, name, identity, role, share, topics, groups))
    if "vandals" in frame.features:
        clients.append(draw_vandal(frame, f"c{len(roles)}"))
    return tuple(clients)


def draw_client(
    frame: Frame,
    name: str,
    identity: str,
    role: Role,
    operations: int,
    topics: tuple[Topic, ...],
    groups: tuple[str, ...],
) -> ClientPlan:
    chance, features = frame.chance, frame.features

    def share(feature: str, high: int) -> int:
        return chance.randint(1, high) if feature in features else 0

    duration_us_min, duration_us_max = draw_durations(frame)
    window = chance.scale(2, 30) if "pipelining" in features else 1
    return ClientPlan(
        name=name,
        identity=identity,
        role=role,
        seed=chance.getrandbits(32),
        begin_us=0 if chance.on(0.7) else frame.when() // 2,
        operations=operations,
        window=window,
        think_us=int(frame.end_us * (window + 1) / operations * chance.uniform(0.05, 1)),
        topics=tuple(sorted(chance.sample(topics, chance.randint(1, len(topics))), key=str)),
        groups=tuple(sorted(chance.sample(groups, chance.randint(1, len(groups))))),
        mix={
            action: weight * chance.randint(1, 4)
            for action, weight in MIXES[role].items()
            if NEEDS.get(action, "") in features | {""}
        },
        batch_max=chance.scale(2, 40),
        payload_bytes_max=chance.one((0, 50, 300, 1_000, 2_000)),
        large_permille=share("large payloads", 30),
        keys=share("keys", 8),
        partition_permille=share("partitions", 1_000),
        metadata_permille=share("metadata", 1_000),
        duration_us_min=duration_us_min,
        duration_us_max=duration_us_max,
        wait_us_max=chance.scale(10, 10_000) * MS if "waits" in features else 0,
        failure_permille=share("failures", 900),
        delay_us_max=chance.scale(1, 20_000) * MS if "delays" in features else 0,
        late_permille=share("late settles", 400),
        token_permille=share("tokens", 1_000),
        patience_us=chance.scale(200, 5_000) * MS if "impatience" in features else 60 * SECOND,
        reconnect_us_max=chance.scale(1, 2_000) * MS,
    )


def draw_durations(frame: Frame) -> tuple[int, int]:
    """The shortest and the longest lease a client takes."""
    chance = frame.chance
    if "short leases" in frame.features:
        low = chance.scale(1, 500) * MS
        high = low + chance.scale(1, 3_000) * MS
    else:
        low = chance.scale(1, 30) * SECOND
        high = low + chance.scale(1, 30) * SECOND
    return (-SECOND if "spent leases" in frame.features else low), high


def draw_vandal(frame: Frame, name: str) -> ClientPlan:
    chance = frame.chance
    visits = chance.scale(1, 30)
    return ClientPlan(
        name=name,
        identity=name,
        role="vandal",
        seed=chance.getrandbits(32),
        operations=visits,
        think_us=2 * frame.end_us // visits,
        topics=(),
        reconnect_us_max=chance.scale(1, 1_000) * MS,
    )


# -- faults ----------------------------------------------------------------------------------------


def draw_faults(frame: Frame, clients: list[str]) -> tuple[AnyFault, ...]:
    crashes: list[AnyFault] = []
    others: list[AnyFault] = []
    for feature, draw in CRASHES.items():
        if feature in frame.features:
            crashes += [draw(frame) for _ in range(frame.chance.scale(1, 3))]
    frame.chance.shuffle(crashes)
    del crashes[CRASHES_MAX:]
    if "crashes in recovery" in frame.features:
        crashes += [
            draw_recovery_crash(frame, crash.at_us) for crash in crashes if frame.chance.on(0.5)
        ][: CRASHES_MAX - len(crashes)]
    for feature, draw_other in OTHERS.items():
        if feature in frame.features:
            others += [draw_other(frame, clients) for _ in range(frame.chance.scale(1, 4))]
    return tuple(sorted(crashes + others, key=lambda fault: fault.at_us))


def draw_down(chance: Chance) -> int:
    return chance.scale(1, 10_000) * MS


def draw_call(chance: Chance) -> int | None:
    """Nearly always at a disk call: what lies between two is all the same to a disk."""
    return chance.scale(1, 400) if chance.on(0.85) else None


def draw_kill(frame: Frame) -> AnyFault:
    chance = frame.chance
    return Kill(at_us=frame.when(), at_call=draw_call(chance), down_us=draw_down(chance))


def draw_power_loss(frame: Frame) -> AnyFault:
    chance = frame.chance
    return PowerLoss(
        at_us=frame.when(),
        at_call=draw_call(chance),
        model=chance.one(POWER_MODELS),
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
    )


def draw_stop(frame: Frame) -> AnyFault:
    return Stop(at_us=frame.when(), down_us=draw_down(frame.chance))


def draw_disk_error(frame: Frame) -> AnyFault:
    chance = frame.chance
    calls: tuple[DiskCall, ...] = get_args(DiskCall)
    call: DiskCall = chance.one(("pwrite", "sync")) if chance.on(0.6) else chance.one(calls)
    writes = call in ("pwrite", "create", "truncate")
    return DiskError(
        at_us=frame.when(),
        at_call=chance.scale(1, 60),
        from_boot="crashes in recovery" in frame.features and chance.on(0.3),
        call=call,
        error=chance.one(("EIO", "ENOSPC", "EDQUOT")) if writes else "EIO",
        short=call == "pwrite" and chance.on(0.4),
        power=chance.one(POWER_MODELS) if chance.on(0.4) else None,
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
    )


def draw_recovery_crash(frame: Frame, crash_us: int) -> AnyFault:
    """Another crash at one of the first disk calls of the boot after a crash."""
    chance = frame.chance
    at_call = chance.scale(1, 120)
    if chance.on(0.4):
        return Kill(at_us=crash_us, at_call=at_call, from_boot=True, down_us=draw_down(chance))
    return PowerLoss(
        at_us=crash_us,
        at_call=at_call,
        from_boot=True,
        model=chance.one(POWER_MODELS),
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
    )


CRASHES: dict[str, Callable[[Frame], AnyFault]] = {
    "kills": draw_kill,
    "power losses": draw_power_loss,
    "stops": draw_stop,
    "disk errors": draw_disk_error,
}


def draw_no_space(frame: Frame, clients: list[str]) -> AnyFault:
    return NoSpace(at_us=frame.when(), for_us=2 * draw_span(frame))


def draw_slow_disk(frame: Frame, clients: list[str]) -> AnyFault:
    return SlowDisk(
        at_us=frame.when(), for_us=draw_span(frame), factor=frame.chance.scale(2, 1_000)
    )


def draw_drop(frame: Frame, clients: list[str]) -> AnyFault:
    return Drop(at_us=frame.when(), client=frame.chance.one(clients))


def draw_stall(frame: Frame, clients: list[str]) -> AnyFault:
    return Stall(at_us=frame.when(), for_us=draw_span(frame), client=frame.chance.one(clients))


def draw_stop_reading(frame: Frame, clients: list[str]) -> AnyFault:
    return StopReading(
        at_us=frame.when(), for_us=draw_span(frame), client=frame.chance.one(clients)
    )


def draw_clock_step(frame: Frame, clients: list[str]) -> AnyFault:
    chance = frame.chance
    by_us = chance.scale(1, chance.one(CLOCK_STEPS_US))
    return ClockStep(at_us=frame.when(), by_us=by_us if chance.on(0.5) else -by_us)


def draw_span(frame: Frame) -> int:
    return frame.chance.scale(MS, max(MS, frame.end_us // 4))


OTHERS: dict[str, Callable[[Frame, list[str]], AnyFault]] = {
    "full disk": draw_no_space,
    "slow disk": draw_slow_disk,
    "drops": draw_drop,
    "stalls": draw_stall,
    "slow readers": draw_stop_reading,
    "clock steps": draw_clock_step,
}
