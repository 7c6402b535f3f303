"""Fuzz one format, or all at once: brokers in memory, one after another, until the time is over.

Broker number N of a seed is a function of the seed, the format and N alone, so any broker can be
repeated. After a finding the broker is left, and its case is shrunk.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from random import Random
from time import monotonic
from typing import NamedTuple

from tests.fuzz import mutate
from tests.fuzz.brokers import SETUPS
from tests.fuzz.case import ENDINGS, Case, Delivery
from tests.fuzz.desk import Counts, Desk, run_case
from tests.fuzz.found import Found
from tests.fuzz.shrink import shrink
from tests.fuzz.wire import Wires

CONNECTIONS = 100
"""The most connections to one broker."""
MEASURED = 1 / 16
"""Share of the connections that are measured with tracemalloc, which slows everything down."""
FAILURES_MAX = 5


class Failure(NamedTuple):
    """A case with a forbidden outcome."""

    seed: int
    broker: int | None
    """Number of the broker in the run; None for the broker on real sockets."""
    case: Case
    found: Found
    is_repeatable: bool

    def about(self) -> str:
        again = "" if self.is_repeatable else "\nThe case alone does not show it again."
        where = "sockets" if self.broker is None else f"broker {self.broker}"
        return f"seed {self.seed}, {where}\n{self.found}{again}"


@dataclass
class Result:
    """The result of a run."""

    run: str
    seconds: float = 0.0
    """Duration without the time for shrinking."""
    peak_bytes: int = 0
    """Peak memory of the whole process, if it did only this run."""
    counts: Counts = field(default_factory=Counts)
    on_sockets: Counts = field(default_factory=Counts)
    failures: list[Failure] = field(default_factory=list)


def fuzz(
    run: str,
    wires: Wires,
    seed: int,
    is_over: Callable[[int], bool],
    slow_ms: float = inf,
    shrink_seconds: float = 20.0,
    failures_max: int = FAILURES_MAX,
) -> Result:
    """Fuzz the formats of a run until ``is_over(brokers so far)`` or enough failures."""
    result = Result(run)
    known: set[str] = set()
    for number in count():
        if is_over(number) or len(result.failures) >= failures_max:
            break
        began = monotonic()
        failure = _one_broker(run, wires, seed, number, result.counts, slow_ms, is_over)
        result.seconds += monotonic() - began
        if failure is not None and failure.found.signature not in known:
            known.add(failure.found.signature)
            result.failures.append(_cut_down(wires, failure, slow_ms, shrink_seconds))
    return result


def _one_broker(
    run: str,
    wires: Wires,
    seed: int,
    number: int,
    counts: Counts,
    slow_ms: float,
    is_over: Callable[[int], bool],
) -> Failure | None:
    rng = Random(f"{seed}/{run}/{number}")
    setup = rng.choice(tuple(SETUPS))
    made: list[Delivery] = []
    try:
        desk = Desk(wires, setup, counts, slow_ms)
        while len(made) < CONNECTIONS and not is_over(number):
            group = draw(rng, wires)
            made += group
            desk.deliver(group, measured=rng.random() < MEASURED)
        desk.finish()
    except Found as found:
        case = Case(run, setup, tuple(made))
        return Failure(seed, number, case, found, is_repeatable=False)
    finally:
        gc.collect()  # now, and not in a turn of the next broker
    return None


def draw(rng: Random, wires: Wires) -> list[Delivery]:
    """Draw one client, or several at the same time."""
    deliveries = []
    for number in range(rng.choice((1, 1, 1, 2, 4))):
        wire = rng.choice(tuple(wires.values()))
        pieces = mutate.chunks(rng, mutate.conversation(rng, wire))
        ending = rng.choices(ENDINGS, (3, 3, 2, 1))[0]
        reads = rng.random() < 0.85
        deliveries.append(Delivery(wire.name, pieces, ending, reads, beside=number > 0))
    return deliveries


def _cut_down(wires: Wires, failure: Failure, slow_ms: float, seconds: float) -> Failure:
    """Return the smallest case with the same failure, found within about ``seconds``."""
    signature = failure.found.signature

    def shows(case: Case) -> Found | None:
        found = run_case(wires, case, slow_ms)
        return found if found is not None and found.signature == signature else None

    if shows(failure.case) is None:
        return failure
    deadline = monotonic() + seconds
    case = shrink(failure.case, lambda one: shows(one) is not None, lambda: monotonic() > deadline)
    found = shows(case)
    return failure._replace(case=case, found=found or failure.found, is_repeatable=True)
