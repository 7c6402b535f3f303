# Tests: tests/simulator/test_crashpoints.py
"""Runs of a plan that lose their power at each disk call, judged by the oracle.

One point is one run: the same plan with a loss of power at one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, get_args

from msgspec.structs import replace

from simulator.crashpoints.points import CHANGING, LOST
from simulator.machine.crash import CrashModel
from simulator.oracle import Violation
from simulator.plan import DiskCall, Plan, PowerLoss, PowerModel
from simulator.run import Result, run


class Strike(NamedTuple):
    """A loss of power before the effect of the ``nth`` call of a name."""

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
    powers: tuple[PowerModel, ...] = get_args(PowerModel)
    (power,) = (name for name in powers if name == model.value)
    loss = PowerLoss(
        at_us=0,
        at_call=strike.nth,
        at_name=strike.call,
        model=power,
        seed=strike.nth,
        down_us=20_000,
    )
    result = run(replace(plan, faults=(loss, *plan.faults)))
    found = [f"{lost(each)}{each.promise}: {each.text}" for each in result.violations]
    went = any(boot.end == "power" for boot in result.history.boots[:-2])
    return found if went else [*found, "the power never went"]


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
