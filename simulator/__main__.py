# Tests: tests/simulator/test_main.py
"""Run seeds, replay one, shrink a failing one. See docs/simulator.rst.

python -m simulator --seeds 0..1000
python -m simulator --replay 17
python -m simulator --replay plan.json --shrink
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
from twisted.logger import globalLogBeginner

from simulator.draw import generate
from simulator.plan import Plan
from simulator.run import Result, run
from simulator.shrink import shrink

AHEAD_SEEDS = 64
"""Seeds that each process may be ahead of the oldest one that still runs."""
SHRINK_RUNS = 300
PYTHON = os.path.relpath(sys.executable)
VIOLATIONS_SHOWN = 20
LINE_CHARACTERS = 400
"""Characters that a campaign shows of a violation."""
PROGRESS_SEEDS = 1_000


class Outcome(NamedTuple):
    """The judgement of a run, without its trace."""

    seed: int
    digest: str
    violations: list[str]
    counts: Counter[str]


def prepare() -> None:
    """Prepare a process for many runs."""
    keep_no_log()
    import simulator.archive.files  # noqa: F401 - with pyarrow and deltalake, for later runs

    # Every run ends with a collection. It need not visit the objects of all modules again.
    gc.collect()
    gc.freeze()


def keep_no_log() -> None:
    """Drop log events that Twisted keeps until the log begins: they refer to whole brokers."""
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)


def outcome_of(seed: int) -> Outcome:
    """Run one seed and return its outcome."""
    result = run(generate(seed))
    return Outcome(seed, result.digest, texts(result), result.counts)


def texts(result: Result) -> list[str]:
    """Format the violations, one line each."""
    return [f"{found.promise}: {found.text}" for found in result.violations]


def one_line(text: str) -> str:
    """Return a text in one line. A long one loses its middle: the end of a traceback says most."""
    line = " ".join(text.split())
    if len(line) <= LINE_CHARACTERS:
        return line
    half = LINE_CHARACTERS // 2
    return f"{line[:half]} ... {line[-half:]}"


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Run seeds, in their order, in as many processes as there are jobs."""
    if jobs == 1:
        prepare()
        yield from map(outcome_of, seeds)
        return
    with ProcessPoolExecutor(jobs, initializer=prepare) as pool:
        # The seeds may be endless, and a slow one must not keep the other processes waiting.
        pending: deque[Future[Outcome]] = deque()
        try:
            for seed in seeds:
                pending.append(pool.submit(outcome_of, seed))
                if len(pending) == jobs * AHEAD_SEEDS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def seed_range(text: str) -> range:
    """Parse ``A..B``, both included, or one seed."""
    first, dots, last = text.partition("..")
    try:
        begin = int(first)
        end = int(last) if dots else begin
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not A..B, such as 0..999") from None
    if not 0 <= begin <= end:
        raise argparse.ArgumentTypeError(f"{text!r} has no seeds: write A..B with 0 <= A <= B")
    return range(begin, end + 1)


def natural(text: str) -> int:
    """Parse a seed."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed: write 0, 1, 2...")
    return int(text)


def duration(text: str) -> float:
    """Parse a finite number of seconds."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def load_plan(text: str) -> Plan:
    """Return the plan of a seed, or of a file that `Plan.to_json` wrote."""
    if text.isascii() and text.isdigit():
        return generate(int(text))
    try:
        plan = Plan.from_json(Path(text).read_bytes())
        check_clients(plan)
        return plan
    except OSError as error:
        raise SystemExit(f"cannot read the plan {text}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise SystemExit(f"{text} is not a plan: {error}") from None


def check_clients(plan: Plan) -> None:
    """Raise msgspec.ValidationError for a fault of a client that is not in the plan."""
    names = [client.name for client in plan.clients]
    for number, fault in enumerate(plan.faults):
        name = getattr(fault, "client", None)
        if name is not None and name not in names:
            raise msgspec.ValidationError(
                f"faults[{number}] is of a client {name!r}, which is none of {names}"
            )


def replay(plan: Plan, is_quiet: bool = False) -> Result:
    """Run one plan, and print its trace and its judgement."""
    result = run(plan)
    if not is_quiet:
        print("\n".join(result.lines))
    print(f"seed {plan.seed}: digest {result.digest}")
    for found in result.violations[:VIOLATIONS_SHOWN]:
        requests = "".join(f" #{number}" for number in found.operations)
        print(f"VIOLATION of {found.promise}: {found.text}{requests and f' (requests{requests})'}")
    asked = result.counts["operations"]
    if not result.violations:
        print("no violation" if asked else "nothing was asked, so nothing was judged")
    else:
        print(f"{len(result.violations)} violations")
    return result


def cut_down(plan: Plan, directory: Path) -> Path:
    """Shrink a failing plan, and write the smaller plan to a file."""
    promise = run(plan).violations[0].promise

    def fails(candidate: Plan) -> bool:
        return any(found.promise == promise for found in run(candidate).violations)

    smaller = shrink(plan, fails, SHRINK_RUNS)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"seed-{plan.seed}.json"
    path.write_bytes(smaller.to_json() + b"\n")
    return path


def campaign(seeds: Iterable[int], jobs: int, seconds: float | None) -> int:
    """Run seeds and print a summary. Return the number of failed ones."""
    began = time.monotonic()
    counts: Counter[str] = Counter()
    failed = 0
    for outcome in outcomes(seeds, jobs):
        counts += outcome.counts
        if outcome.violations:
            failed += 1
            print(f"seed {outcome.seed}: {one_line(outcome.violations[0])}", flush=True)
            print(f"  {PYTHON} -m simulator --replay {outcome.seed}", flush=True)
        if counts["runs"] % PROGRESS_SEEDS == 0:
            elapsed = time.monotonic() - began
            so_far = f"{counts['runs']} seeds, {failed} with a violation, {elapsed:.0f} s"
            print(f"... {so_far}", flush=True)
        if seconds is not None and time.monotonic() - began > seconds:
            break
    elapsed = time.monotonic() - began
    for name, number in sorted(counts.items()):
        print(f"{number:12,}  {name}")
    runs = counts["runs"]
    print(
        f"{runs} seeds, {failed} with a violation, {elapsed:.1f} s, {jobs} processes, "
        f"{runs / elapsed:.1f} seeds/s"
    )
    return failed


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=seed_range, metavar="A..B", help="run these seeds")
    parser.add_argument(
        "--soak", type=duration, metavar="SECONDS", help="run seed after seed for so long"
    )
    parser.add_argument(
        "--from", type=natural, default=0, dest="begin", help="first seed of --soak"
    )
    parser.add_argument("--replay", metavar="SEED|FILE", help="run one and print its trace")
    parser.add_argument("--quiet", action="store_true", help="with --replay: only the judgement")
    parser.add_argument("--plan", metavar="SEED", type=natural, help="print the plan of a seed")
    parser.add_argument("--shrink", action="store_true", help="with --replay: cut a failure down")
    parser.add_argument("--out", type=Path, default=Path(".sim"), help="where --shrink writes to")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parsed = parser.parse_args(given)
    if parsed.jobs < 1:
        parser.error("--jobs must be at least 1")
    if parsed.shrink and parsed.replay is None:
        parser.error("--shrink wants to know what: --replay SEED or FILE")
    return parsed


def main(given: list[str]) -> int:
    """Return the exit code: 1 if a run failed."""
    options = arguments(given)
    if options.plan is not None:
        print(generate(options.plan).to_json().decode())
        return 0
    if options.replay is not None:
        (prepare if options.shrink else keep_no_log)()
        plan = load_plan(options.replay)
        failed = replay(plan, options.quiet or options.shrink).failed
        if options.shrink:
            print(f"cut down to {cut_down(plan, options.out)}" if failed else "nothing to cut down")
        return int(failed)
    if options.soak is not None:
        return int(campaign(count(options.begin), options.jobs, options.soak) > 0)
    seeds = options.seeds or range(100)
    return int(campaign(seeds, options.jobs, None) > 0)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
