# Tests: tests/simulator/test_plan.py
"""Draw the archive of a plan: settings, rollups and faults.

The draw has its own random numbers, so the other parts of the plan do not depend on it. Segments
are small and sealed by age, and snapshots are frequent, so that the log shrinks soon.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from simulator.draw.chance import KIB, MS, SECOND, Chance, DrawContext
from simulator.draw.faults import draw_span
from simulator.plan import (
    AnyFault,
    ArchiveAway,
    ArchiveDamage,
    ArchiveSlow,
    ClientPlan,
    Plan,
    Rollup,
    Seal,
    Settings,
)

ARCHIVE = 0.4
"""Probability that a run has an archive."""
FILES = 0.4
"""Probability that an archive has real files."""
ROLLUPS_MAX = 16
COMPACTS = 0.4
LONG_US = 12 * SECOND
"""The least time away for an archive of which an older copy comes back."""
EXCLUDES = "many partitions"
"""Runs with this feature have no archive, because they have too much to keep."""


def add_archive(plan: Plan, context: DrawContext) -> Plan:
    """Return the plan, with an archive if it is drawn.

    ``context`` has its own random numbers.
    """
    chance, features = context.chance, context.features
    if not chance.on(ARCHIVE) or EXCLUDES in features:
        return plan
    plan = replace(
        plan,
        settings=draw_settings(context, plan.settings),
        faults=tuple(sorted([*plan.faults, *draw_events(context)], key=lambda one: one.at_us)),
    )
    if "topic deletions" in features or not chance.on(COMPACTS):
        return plan
    topics = {topic.name: replace(topic, compact=chance.on(0.7)) for topic in plan.topics}
    clients = [
        replace(client, topics=tuple(topics[topic.name] for topic in client.topics))
        for client in plan.clients
    ]
    return replace(
        plan,
        topics=tuple(topics.values()),
        clients=tuple(with_keys(context, client) for client in clients),
    )


def add_files(plan: Plan, chance: Chance) -> Plan:
    """Return the plan; some archives have real files now, which the real job writes.

    These do not know damage.
    """
    is_plain = not any(isinstance(fault, ArchiveDamage) for fault in plan.faults)
    if not (plan.settings.archive and chance.on(FILES) and is_plain):
        return plan
    return replace(plan, settings=replace(plan.settings, archive_files=True))


def draw_settings(context: DrawContext, settings: Settings) -> Settings:
    chance = context.chance
    settings = replace(
        settings,
        archive=True,
        archive_poll_seconds=chance.randint(1, 5),
        archive_keep_wal_bytes=chance.one((0, 0, 0, 64 * KIB, 256 * KIB)),
        archive_deletes=chance.on(0.95),
    )
    if chance.on(0.15):
        return settings
    return replace(
        settings,
        segment_bytes=64 * KIB,
        segment_age_seconds=chance.randint(1, 4),
        snapshot_interval_bytes=chance.scale(KIB, 32 * KIB),
        tail_cache_bytes=chance.one((0, 4 * KIB, settings.tail_cache_bytes)),
        read_cache_bytes=chance.one((0, 4 * KIB, settings.read_cache_bytes)),
    )


def draw_events(context: DrawContext) -> list[AnyFault]:
    """Draw rollups, and now and then faults of the archive."""
    chance = context.chance
    events: list[AnyFault] = [draw_rollup(context) for _ in range(chance.scale(3, ROLLUPS_MAX))]
    for likely, draw in ARCHIVE_FAULTS:
        if chance.on(likely):
            events += [draw(context) for _ in range(chance.scale(1, 4))]
    return events


def draw_rollup(context: DrawContext) -> Rollup:
    chance = context.chance
    return Rollup(
        at_us=context.when(),
        step_us=chance.scale(100, 500 * MS),
        steps_max=chance.scale(1, 20) if chance.on(0.3) else None,
        lot_segments=chance.scale(1, 100),
        cleans=chance.on(0.8),
        vacuums=chance.on(0.5),
    )


def draw_seal(context: DrawContext) -> AnyFault:
    return Seal(at_us=context.when())


def draw_away(context: DrawContext) -> AnyFault:
    chance = context.chance
    gone, span_us = chance.on(0.3), draw_span(context)
    if "slow disk" in context.features or chance.on(0.6):
        return ArchiveAway(at_us=context.when(), for_us=span_us, gone=gone)
    at_us = chance.randrange(max(1, context.end_us - LONG_US))
    return ArchiveAway(at_us=at_us, for_us=LONG_US + span_us, gone=gone, older=True)


def draw_slow(context: DrawContext) -> AnyFault:
    factor = context.chance.scale(2, 3_000)
    return ArchiveSlow(at_us=context.when(), for_us=draw_span(context), factor=factor)


def draw_damage(context: DrawContext) -> AnyFault:
    return ArchiveDamage(at_us=context.when(), seed=context.chance.getrandbits(32))


ARCHIVE_FAULTS: tuple[tuple[float, Callable[[DrawContext], AnyFault]], ...] = (
    (0.5, draw_seal),
    (0.35, draw_away),
    (0.2, draw_slow),
    (0.12, draw_damage),
)


def with_keys(context: DrawContext, client: ClientPlan) -> ClientPlan:
    """Return the client; if it sends anything, it uses few keys again and again."""
    if client.keys or client.role == "vandal" or client.format not in ("mamamia", "flymq"):
        return client
    return replace(client, keys=context.chance.scale(1, 20))
