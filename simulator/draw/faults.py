# Tests: tests/simulator/test_plan.py
"""Draw the faults of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, get_args

from msgspec.structs import replace

from simulator.draw.chance import MS, SECOND, Chance, Frame
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
    if "crashes in stops" in frame.features:
        stops = [crash.at_us for crash in crashes if isinstance(crash, Stop)]
        crashes += [draw_crash_of(frame, at_us) for at_us in stops][: CRASHES_MAX - len(crashes)]
    for feature, draw_other in OTHERS.items():
        if feature in frame.features:
            others += [draw_other(frame, clients) for _ in range(frame.chance.scale(1, 4))]
    return tuple(sorted(crashes + others, key=lambda fault: fault.at_us))


def draw_down(chance: Chance) -> int:
    return chance.scale(1, 10_000) * MS


RARE_CALLS: tuple[DiskCall, ...] = ("create", "rename", "truncate", "unlink", "sync_directory")
"""Calls between which files change places: much happens there, and seldom."""


class Moment(NamedTuple):
    """The delay of a crash after its time: fields of `CallFault`."""

    at_call: int | None = None
    at_name: DiskCall | None = None
    at_stuck: bool = False


def draw_moment(frame: Frame) -> Moment:
    """Nearly always at a disk call: what lies between two is all the same to a disk."""
    chance = frame.chance
    if chance.on(0.15):
        return Moment()
    if "stuck syncs" in frame.features and chance.on(0.5):
        return Moment(chance.scale(1, 8), at_stuck=True)
    if chance.on(0.4):
        return Moment(chance.scale(1, 8), chance.one(RARE_CALLS))
    return Moment(chance.scale(1, 400))


def draw_kill(frame: Frame) -> AnyFault:
    moment = draw_moment(frame)
    return Kill(at_us=frame.when(), down_us=draw_down(frame.chance), **moment._asdict())


def draw_power_loss(frame: Frame) -> AnyFault:
    chance = frame.chance
    moment = draw_moment(frame)
    return PowerLoss(
        at_us=frame.when(),
        model=chance.one(POWER_MODELS),
        seed=chance.getrandbits(32),
        down_us=draw_down(chance),
        **moment._asdict(),
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
    return replace(draw_crash_of(frame, crash_us, 120), from_boot=True)


def draw_crash_of(frame: Frame, at_us: int, calls_max: int = 40) -> Kill | PowerLoss:
    """A crash at one of the first disk calls after a moment: of a stop, or of a start."""
    chance = frame.chance
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


def draw_rot(frame: Frame, clients: list[str]) -> AnyFault:
    return Rot(at_us=frame.when(), seed=frame.chance.getrandbits(32))


OTHERS: dict[str, Callable[[Frame, list[str]], AnyFault]] = {
    "full disk": draw_no_space,
    "slow disk": draw_slow_disk,
    "drops": draw_drop,
    "stalls": draw_stall,
    "slow readers": draw_stop_reading,
    "clock steps": draw_clock_step,
    "rot": draw_rot,
}
