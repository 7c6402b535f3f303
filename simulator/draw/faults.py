# Tests: tests/simulator/test_plan.py
"""Draw the faults of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

from msgspec.structs import replace

from simulator.draw.chance import MS, SECOND, Chance, DrawContext
from simulator.plan import (
    AnyFault,
    ClockStep,
    DiskCall,
    DiskError,
    Drop,
    Kill,
    NoSpace,
    PowerLoss,
    PowerModel,
    Rot,
    SlowDisk,
    Stall,
    Stop,
    StopReading,
)

CRASHES_MAX = 6
POWER_MODELS: tuple[PowerModel, ...] = get_args(PowerModel)

CLOCK_STEPS_US = (
    MS,
    900 * MS,
    90 * SECOND,
    3_700 * SECOND,
    86_400 * SECOND,
    3 * 31_557_600 * SECOND,
)


def draw_faults(context: DrawContext, clients: list[str]) -> tuple[AnyFault, ...]:
    crashes: list[AnyFault] = []
    others: list[AnyFault] = []
    for feature, draw in CRASHES.items():
        if feature in context.features:
            crashes += [draw(context) for _ in range(context.chance.scale(1, 3))]
    context.chance.shuffle(crashes)
    del crashes[CRASHES_MAX:]
    if "crashes in recovery" in context.features:
        crashes += [
            draw_recovery_crash(context, crash.at_us) for crash in crashes if context.chance.on(0.5)
        ][: CRASHES_MAX - len(crashes)]
    if "crashes in stops" in context.features:
        stops = [crash.at_us for crash in crashes if isinstance(crash, Stop)]
        crashes += [draw_crash_of(context, at_us) for at_us in stops][: CRASHES_MAX - len(crashes)]
    for feature, draw_other in OTHERS.items():
        if feature in context.features:
            others += [draw_other(context, clients) for _ in range(context.chance.scale(1, 4))]
    return tuple(sorted(crashes + others, key=lambda fault: fault.at_us))


def draw_down(chance: Chance) -> int:
    return chance.scale(1, 10_000) * MS


RARE_CALLS: tuple[DiskCall, ...] = ("create", "rename", "truncate", "unlink", "sync_directory")
"""Calls that change the set of files: critical and rare."""


class Moment(NamedTuple):
    """The delay of a crash after its time: fields of `CallFault`."""

    at_call: int | None = None
    at_name: DiskCall | None = None
    at_stuck: bool = False


def draw_moment(context: DrawContext) -> Moment:
    """Draw a moment, nearly always at a disk call; a disk cannot tell apart other moments."""
    chance = context.chance
    if chance.on(0.15):
        return Moment()
    if "stuck syncs" in context.features and chance.on(0.5):
        return Moment(chance.scale(1, 8), at_stuck=True)
    if chance.on(0.4):
        return Moment(chance.scale(1, 8), chance.one(RARE_CALLS))
    return Moment(chance.scale(1, 400))


def draw_kill(context: DrawContext) -> AnyFault:
    moment = draw_moment(context)
    return Kill(at_us=context.when(), down_us=draw_down(context.chance), **moment._asdict())


def draw_power_loss(context: DrawContext) -> AnyFault:
    chance = context.chance
    moment = draw_moment(context)
    return PowerLoss(
        at_us=context.when(),
        model=chance.one(POWER_MODELS),
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
        **moment._asdict(),
    )


def draw_stop(context: DrawContext) -> AnyFault:
    return Stop(at_us=context.when(), down_us=draw_down(context.chance))


def draw_disk_error(context: DrawContext) -> AnyFault:
    chance = context.chance
    calls: tuple[DiskCall, ...] = get_args(DiskCall)
    call: DiskCall = chance.one(("pwrite", "sync")) if chance.on(0.6) else chance.one(calls)
    writes = call in ("pwrite", "create", "truncate")
    return DiskError(
        at_us=context.when(),
        at_call=chance.scale(1, 60),
        from_boot="crashes in recovery" in context.features and chance.on(0.3),
        call=call,
        error=chance.one(("EIO", "ENOSPC", "EDQUOT")) if writes else "EIO",
        short=call == "pwrite" and chance.on(0.4),
        power=chance.one(POWER_MODELS) if chance.on(0.4) else None,
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
    )


def draw_recovery_crash(context: DrawContext, crash_us: int) -> AnyFault:
    """Draw a second crash at one of the first disk calls of the boot after a crash."""
    return replace(draw_crash_of(context, crash_us, 120), from_boot=True)


def draw_crash_of(context: DrawContext, at_us: int, calls_max: int = 40) -> Kill | PowerLoss:
    """Draw a crash at one of the first disk calls after a time: of a stop, or of a start."""
    chance = context.chance
    at_call = chance.scale(1, calls_max)
    if chance.on(0.4):
        return Kill(at_us=at_us, at_call=at_call, down_us=draw_down(chance))
    return PowerLoss(
        at_us=at_us,
        at_call=at_call,
        model=chance.one(POWER_MODELS),
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
    )


CRASHES: dict[str, Callable[[DrawContext], AnyFault]] = {
    "kills": draw_kill,
    "power losses": draw_power_loss,
    "stops": draw_stop,
    "disk errors": draw_disk_error,
}


def draw_no_space(context: DrawContext, clients: list[str]) -> AnyFault:
    return NoSpace(at_us=context.when(), for_us=2 * draw_span(context))


def draw_slow_disk(context: DrawContext, clients: list[str]) -> AnyFault:
    return SlowDisk(
        at_us=context.when(), for_us=draw_span(context), factor=context.chance.scale(2, 1_000)
    )


def draw_drop(context: DrawContext, clients: list[str]) -> AnyFault:
    return Drop(at_us=context.when(), client=context.chance.one(clients))


def draw_stall(context: DrawContext, clients: list[str]) -> AnyFault:
    return Stall(
        at_us=context.when(), for_us=draw_span(context), client=context.chance.one(clients)
    )


def draw_stop_reading(context: DrawContext, clients: list[str]) -> AnyFault:
    return StopReading(
        at_us=context.when(), for_us=draw_span(context), client=context.chance.one(clients)
    )


def draw_clock_step(context: DrawContext, clients: list[str]) -> AnyFault:
    chance = context.chance
    by_us = chance.scale(1, chance.one(CLOCK_STEPS_US))
    return ClockStep(at_us=context.when(), by_us=by_us if chance.on(0.5) else -by_us)


def draw_span(context: DrawContext) -> int:
    return context.chance.scale(MS, max(MS, context.end_us // 4))


def draw_rot(context: DrawContext, clients: list[str]) -> AnyFault:
    return Rot(at_us=context.when(), seed=context.chance.getrandbits(32))


OTHERS: dict[str, Callable[[DrawContext, list[str]], AnyFault]] = {
    "full disk": draw_no_space,
    "slow disk": draw_slow_disk,
    "drops": draw_drop,
    "stalls": draw_stall,
    "slow readers": draw_stop_reading,
    "clock steps": draw_clock_step,
    "rot": draw_rot,
}
