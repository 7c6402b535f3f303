# Tests: tests/simulator/test_crashpoints.py
"""Runs of a plan that lose their power at each disk call, judged by the oracle.

One point is one run: the same plan with a loss of power at one call. Or the process is killed at
the call, which loses nothing, starts again, and the power goes at a drawn call of the next life.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import NamedTuple, get_args

from msgspec.structs import replace

from simulator.crashpoints.points import CHANGING, LOST
from simulator.machine.crash import CrashModel
from simulator.oracle import Violation
from simulator.plan import DiskCall, Kill, Plan, PowerLoss, PowerModel
from simulator.run import Result, run

CALLS_MAX = 400
"""The power goes at the latest at this call of a life after a SIGKILL. A start makes about 40."""
DOWN_US = 20_000


class Strike(NamedTuple):
    """A loss of power, or a SIGKILL, before the effect of the ``nth`` call of a name."""

    call: DiskCall
    nth: int


def strikes(plan: Plan) -> list[Strike]:
    """Return all strikes: each call that changes the disk while clients work."""
    calls = Counter(_calls(run(plan)))
    names: tuple[DiskCall, ...] = get_args(DiskCall)
    return [
        Strike(name, nth) for name in names if name in CHANGING for nth in range(1, calls[name] + 1)
    ]


def problems(plan: Plan, strike: Strike, model: CrashModel) -> list[str]:
    """Return the faults of the run that loses power at this point."""
    loss = PowerLoss(
        at_us=0,
        at_call=strike.nth,
        at_name=strike.call,
        model=_power_model(model),
        seed=strike.nth,
        down_us=DOWN_US,
    )
    result = run(replace(plan, faults=(loss, *plan.faults)))
    went = any(boot.end == "power" for boot in result.history.boots[:-2])
    return _texts(result) if went else [*_texts(result), "the power never went"]


def problems_after_kill(plan: Plan, strike: Strike, model: CrashModel, chance: Random) -> list[str]:
    """Return the faults of the run that is killed at this point and loses power in the next life.

    If that life makes fewer calls than drawn, the power goes at its end.
    """
    kill = Kill(at_us=0, at_call=strike.nth, at_name=strike.call, down_us=DOWN_US)
    loss = PowerLoss(
        at_us=1,
        at_call=round(CALLS_MAX ** chance.random()),
        from_boot=True,
        model=_power_model(model),
        seed=strike.nth,
        down_us=DOWN_US,
    )
    result = run(replace(plan, faults=(kill, loss, *plan.faults)))
    was_killed = any(boot.end == "killed" for boot in result.history.boots)
    return _texts(result) if was_killed else [*_texts(result), "the process was never killed"]


def _power_model(model: CrashModel) -> PowerModel:
    powers: tuple[PowerModel, ...] = get_args(PowerModel)
    (power,) = (name for name in powers if name == model.value)
    return power


def _texts(result: Result) -> list[str]:
    return [f"{lost(each)}{each.promise}: {each.text}" for each in result.violations]


def lost(violation: Violation) -> str:
    """Return the first word of the text: `LOST` for an acknowledged loss, else ""."""
    return LOST if violation.promise in ("P1-kept", "P1-settled") else ""


def _calls(result: Result) -> Iterator[str]:
    """Yield the disk calls from the moment that the broker serves to the end of its work."""
    is_serving = False
    for line in result.lines:
        words = line.split()
        if words[1:2] == ["ready"]:
            is_serving = True
        elif is_serving and words[1:4] == ["end", "of", "the"]:
            return
        elif is_serving and words[1:2] == ["disk"]:
            yield words[2]
