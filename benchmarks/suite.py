# Tests: tests/test_bench.py
"""The rates of ``make bench``: each scenario beside what the disk itself does with such commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from brokerd.cli.bench import commit_bytes, commits
from brokerd.cli.machine import sync_rate
from brokerd.cli.measure import Figures, Plan, default_backlog, fill, measure, new_log

from .admin import fetch_status
from .process import BrokerProcess
from .responder import Responder

_RAW_SECONDS_MAX = 0.5
_WARM_UP_SECONDS_MAX = 0.5


@dataclass(frozen=True)
class Line:
    """One scenario's figures and the commits the broker made for them."""

    figures: Figures
    broker_cores: float
    """Processor time of the broker by time: 1.0 is one core kept busy."""
    commits_per_s: float
    bytes_per_commit: int
    raw_fdatasync_per_s: float
    """Measured right after, with blocks of ``bytes_per_commit``."""


def plans(address: str, seconds: float) -> Iterator[Plan]:
    """The scenarios of ``make bench``, plain commands first."""
    shapes = [
        *product(("produce", "acquire-settle"), ((1, 1), (64, 1), (16, 64))),
        *product(("produce-batch", "acquire-settle-batch"), ((8, 4),)),
    ]
    for scenario, (connections, window) in shapes:
        yield Plan(
            scenario,
            address,
            connections,
            window,
            seconds=seconds,
            warm_up_seconds=min(_WARM_UP_SECONDS_MAX, seconds),
            batch=100,
        )


def measure_line(broker: BrokerProcess, plan: Plan, directory: Path) -> Line:
    """Run one scenario and measure the disk right after it.

    The commits counted include those of the warm-up, not those of the backlog.

    :raises BenchFailed: when there is nothing to measure.
    :raises AdminFailed: when the broker does not tell its commits.
    """
    log = new_log()
    if plan.scenario.startswith("acquire-settle"):
        fill(plan.address, log, default_backlog(plan), plan.size)
    before = fetch_status(broker.admin)
    cpu_before = broker.cpu_seconds()
    figures = measure(plan, log)
    seconds = figures.seconds + plan.warm_up_seconds
    cores = (broker.cpu_seconds() - cpu_before) / seconds
    after = fetch_status(broker.admin)
    count = commits(after)[0] - commits(before)[0]
    size = commit_bytes(before, after)
    rate = sync_rate(directory, size, min(_RAW_SECONDS_MAX, plan.seconds))
    return Line(figures, round(cores, 2), round(count / seconds, 1), size, rate)


def ceilings(seconds: float) -> list[Figures]:
    """What the load generator reaches against a dummy that does no work."""
    found = []
    for scenario in ("produce", "acquire-settle"):
        with Responder() as dummy:
            plan = Plan(scenario, dummy.address, 16, 64, seconds=seconds, backlog=1)
            found.append(measure(plan))
    return found


def run(
    broker: BrokerProcess, seconds: float, directory: Path, show: Callable[[Line], None]
) -> list[Line]:
    """Measure every scenario against a running broker, showing each as it is there."""
    lines = []
    for plan in plans(broker.address, seconds):
        line = measure_line(broker, plan, directory)
        show(line)
        lines.append(line)
    return lines
