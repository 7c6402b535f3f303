# Tests: tests/simulator/test_plan.py
"""Draw the settings, topics, disk and network of a plan."""

from __future__ import annotations

from msgspec.structs import replace

from simulator.draw.chance import KIB, MS, SECOND, Chance, DrawContext
from simulator.plan import DiskTimes, Network, Settings, Topic

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
"""Disks: a fast one, a usual one, a spinning one, and a failing one."""


def draw_settings(context: DrawContext) -> Settings:
    chance, features = context.chance, context.features
    segment_bytes = 1 << chance.one((16, 16, 17, 18)) if "small segments" in features else 1 << 20
    small_caches = "small caches" in features
    small_buffers = "small buffers" in features
    usual = Settings()
    return Settings(
        segment_bytes=segment_bytes,
        segment_age_seconds=chance.randint(1, 10) if "segments by age" in features else 900,
        snapshot_interval_bytes=draw_snapshot_interval(context),
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
        retention_check_seconds=chance.randint(1, 5) if "retention" in features else 60,
        capacity_bytes=segment_bytes * chance.randint(4, 12) if "small disk" in features else None,
    )


def draw_snapshot_interval(context: DrawContext) -> int:
    """Draw the interval; short with many partitions, where a snapshot takes several steps."""
    if "many partitions" in context.features:
        return context.chance.scale(KIB, 16 * KIB)
    if "snapshots" in context.features:
        return context.chance.scale(KIB, 512 * KIB)
    return Settings().snapshot_interval_bytes


def draw_durability(chance: Chance) -> str:
    return "os" if chance.on(0.4) else f"interval:{chance.scale(1, 1_000)}"


def draw_network(context: DrawContext) -> Network:
    chance = context.chance
    low, high = (1_000, 80_000) if "far away" in context.features else (20, 600)
    return Network(
        latency_us_min=low,
        latency_us_max=chance.scale(low, high),
        split_permille=chance.randint(10, 600) if "splits" in context.features else 0,
    )


def draw_topics(context: DrawContext) -> tuple[Topic, ...]:
    chance = context.chance
    names = [f"t{number}" for number in range(chance.scale(1, 4))]
    if "odd names" in context.features:
        names[0] = chance.one(("", "заказы/../orders", "t" * 255))
    return tuple(Topic(name=name, partitions=draw_partitions(context)) for name in names)


def draw_partitions(context: DrawContext) -> int:
    """Draw a number of partitions, sometimes so many that a snapshot takes several steps."""
    chance = context.chance
    if "many partitions" in context.features:
        return chance.randint(100, 200)
    return chance.randint(2, 6) if "partitions" in context.features and chance.on(0.6) else 1


def draw_disk(context: DrawContext) -> DiskTimes:
    """Draw the times of calls. During a stuck sync, other threads do much work."""
    times = context.chance.one(DISKS)
    if "stuck syncs" not in context.features:
        return times
    return replace(
        times,
        stuck_permille=context.chance.randint(5, 50),
        stuck_us_max=times.sync_us_max + context.chance.scale(100, 3_000) * MS,
    )
