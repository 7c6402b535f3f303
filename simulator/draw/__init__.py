# Tests: tests/simulator/test_plan.py
"""Draw a plan from a seed.

As in swarm testing (Groce et al., ISSTA 2012) each seed first switches whole features on or off,
and then draws numbers for the active ones. A run with few kinds of faults and requests reaches
states that a mixture does not.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.draw.archive import add_archive, add_files
from simulator.draw.broker import draw_disk, draw_network, draw_settings, draw_topics
from simulator.draw.chance import FEATURES, LATER, NEEDS_FSYNC, SECOND, Chance, DrawContext
from simulator.draw.clients import MIXES, NEEDS, draw_clients
from simulator.draw.faults import CRASHES_MAX, draw_faults
from simulator.draw.formats import FORMATS, add_formats, add_look_back
from simulator.draw.options import (
    add_defaults,
    add_options,
    add_questions,
    add_searches,
    add_streams,
    add_times,
)
from simulator.draw.registry import add_logins, add_registrar
from simulator.draw.runs import add_runs
from simulator.plan import Plan

__all__ = ["CRASHES_MAX", "FEATURES", "FORMATS", "MIXES", "NEEDS", "generate"]


def draw_features(chance: Chance) -> frozenset[str]:
    """Draw the features of a run. With removal, segments are small, so that some are deleted."""
    features = {name for name, p in FEATURES.items() if chance.on(p)}
    if "lazy durability" in features:
        features -= NEEDS_FSYNC
    if features & {"retention", "trims"} and chance.on(0.8):
        features |= {"small segments", "snapshots", "segments by age"}
    return frozenset(features)


def generate(seed: int) -> Plan:
    """Return the plan of a seed. It stays the same until this package changes."""
    chance = Chance(f"plan/{seed}")
    later = Chance(f"plan/{seed}/later")
    features = draw_features(chance) | {name for name, p in LATER.items() if later.on(p)}
    context = DrawContext(chance, features, chance.scale(5, 120) * SECOND)
    topics = draw_topics(context)
    clients = draw_clients(context, topics)
    plan = Plan(
        seed=seed,
        end_us=context.end_us,
        settings=draw_settings(context),
        network=draw_network(context),
        disk=draw_disk(context),
        topics=topics,
        clients=clients,
        faults=draw_faults(context, [client.name for client in clients]),
    )
    plan = add_formats(plan, replace(context, chance=Chance(f"plan/{seed}/formats")))
    plan = add_look_back(plan, Chance(f"plan/{seed}/look back"))
    plan = add_archive(plan, replace(context, chance=Chance(f"plan/{seed}/archive")))
    plan = add_files(plan, Chance(f"plan/{seed}/archive files"))
    plan = add_registrar(plan, replace(context, chance=Chance(f"plan/{seed}/registry")))
    plan = add_runs(plan, Chance(f"plan/{seed}/runs"))
    plan = add_logins(plan, Chance(f"plan/{seed}/logins"))
    plan = add_options(plan, replace(context, chance=Chance(f"plan/{seed}/options")))
    plan = add_defaults(plan, replace(context, chance=Chance(f"plan/{seed}/defaults")))
    plan = add_times(plan, Chance(f"plan/{seed}/times"))
    return add_searches(add_questions(add_streams(plan)))
