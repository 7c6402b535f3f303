# Tests: tests/simulator/test_crashpoints.py
"""Crash at every disk call, and print the results. See docs/simulator.rst.

python -m simulator.crashpoints
python -m simulator.crashpoints --jobs 2 --model tear
python -m simulator.crashpoints --workload changes --every 11
python -m simulator.crashpoints --only broker:123
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from simulator.crashpoints.sweep import WORKLOADS, Finding, Outcome, sweep
from simulator.machine.crash import CrashModel

SHOWN_MAX = 20
"""The most findings that are printed."""


class Share(NamedTuple):
    """The points of a workload that one process checks."""

    workload: str
    models: tuple[CrashModel, ...]
    first: int
    """The first point to check."""
    step: int
    """Distance to the next point; 0 for a single point."""

    def wants(self, number: int) -> bool:
        if not self.step:
            return number == self.first
        return number % self.step == self.first % self.step


def swept(share: Share) -> Outcome:
    """Check one share and return its outcome."""
    return sweep(share.workload, share.wants, share.models)


def joined(outcomes: list[Outcome]) -> Outcome:
    """Join the outcomes of all shares of a workload."""
    first = outcomes[0]
    checks = sum((outcome.checks for outcome in outcomes), Counter())
    findings = dict.fromkeys(one for outcome in outcomes for one in outcome.findings)
    return first._replace(checks=checks, findings=sorted(findings, key=_order))


def _order(finding: Finding) -> tuple[int, str]:
    return (finding.point.number if finding.point else 0, finding.model or "")


def shares(arguments: argparse.Namespace) -> list[Share]:
    """Return the shares: one for each job and workload."""
    models = (arguments.model,) if arguments.model else tuple(CrashModel)
    if arguments.only:
        workload, number = arguments.only
        return [Share(workload, models, number, 0)]
    jobs: int = arguments.jobs
    every: int = arguments.every
    return [
        Share(workload, models, n * every, jobs * every)
        for n in range(jobs)
        for workload in arguments.workload or WORKLOADS
    ]


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """Format counts and results by workload and disk call."""
    yield f"{'workload':<16}{'disk call':<16}{'points':>8}{'checks':>8}{'violations':>12}"
    for outcome in outcomes:
        wrong = Counter(f.point.call for f in outcome.findings if f.point is not None)
        sides = outcome.points // max(1, outcome.calls.total())
        for call in sorted(outcome.calls):
            row = (outcome.calls[call] * sides, outcome.checks[call], wrong[call])
            yield f"{outcome.workload:<16}{call:<16}{row[0]:>8}{row[1]:>8}{row[2]:>12}"


def told(finding: Finding) -> str:
    """Format a finding, with the command that repeats it."""
    if finding.point is None or finding.model is None:
        return finding.text
    again = f"--only {finding.point.workload}:{finding.point.number} --model {finding.model}"
    return (
        f"{finding.point}, {finding.model}: {finding.text}\n"
        f"    again: python -m simulator.crashpoints {again}"
    )


def point_number(text: str) -> tuple[str, int]:
    """Parse ``WORKLOAD:NUMBER``."""
    workload, _, number = text.partition(":")
    if workload not in WORKLOADS or not number.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no point: write one such as broker:123")
    return workload, int(number)


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m simulator.crashpoints", description="Crash at every disk call."
    )
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options.add_argument("--only", type=point_number, metavar="WORKLOAD:NUMBER", help="one point")
    options.add_argument("--model", type=CrashModel, choices=list(CrashModel), help="one model")
    options.add_argument(
        "--workload", action="append", choices=list(WORKLOADS), help="only this one (and others)"
    )
    options.add_argument(
        "--every", type=int, default=1, metavar="N", help="only every Nth point of a workload"
    )
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command and return the exit code: 1 if a point failed."""
    options = parser()
    arguments = options.parse_args(argv)
    if arguments.jobs < 1:
        options.error("--jobs must be at least 1")
    if arguments.every < 1:
        options.error("--every must be at least 1")
    began = time.monotonic()
    todo = shares(arguments)
    if arguments.jobs == 1 or len(todo) == 1:
        done = list(map(swept, todo))
    else:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            done = list(pool.map(swept, todo))
    names = dict.fromkeys(outcome.workload for outcome in done)
    outcomes = [joined([one for one in done if one.workload == name]) for name in names]
    print("\n".join(table(outcomes)))
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    for finding in findings[:SHOWN_MAX]:
        print(told(finding))
    points = sum(outcome.points for outcome in outcomes)
    checks = sum(outcome.checks.total() for outcome in outcomes)
    losses = sum(outcome.losses for outcome in outcomes)
    seconds = time.monotonic() - began
    print(
        f"{points} crash points, {checks} checks, {len(findings)} violations, "
        f"{losses} acknowledged losses, {seconds:.0f} s"
    )
    return 1 if findings or not checks else 0


if __name__ == "__main__":
    sys.exit(main())
