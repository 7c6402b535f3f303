"""Fuzz the wire formats, or replay a case. See docs/fuzzing.rst.

python -m tests.fuzz --seconds 60
python -m tests.fuzz --format mamamia --seed 7
python -m tests.fuzz --replay tests/fuzz/found/CASE.txt
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from twisted.logger import globalLogBeginner

from tests.fuzz.apart import fuzz_apart
from tests.fuzz.case import parse_case
from tests.fuzz.desk import SLOW_MS, run_case
from tests.fuzz.run import Failure, Result
from tests.fuzz.wire import RUNS, wires_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code: 1 after a finding."""
    options = _options(arguments)
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    if options.replay:
        return _replay(options.replay)
    print(f"seed {options.seed}", flush=True)
    names = options.format or RUNS
    failed = False
    with ProcessPoolExecutor(
        min(options.jobs, len(names)), get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        runs = [pool.submit(fuzz_apart, name, options.seed, options.seconds) for name in names]
        for run in runs:
            result = run.result()
            print(summary(result), flush=True)
            for failure in result.failures:
                failed = True
                _tell(failure, options.out)
    return int(failed)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seconds", type=float, default=60.0, help="for each format")
    parser.add_argument("--format", action="append", choices=RUNS, help="all, unless given")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="formats at once")
    parser.add_argument("--out", type=Path, default=Path(".fuzz"), help="where cases are written")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="a case")
    return parser.parse_args(arguments)


def summary(result: Result) -> str:
    """Return two lines for people."""
    counts, real = result.counts, result.on_sockets
    return (
        f"{result.run:8} {counts.frames:,} frames in {result.seconds:.0f} s  "
        f"{counts.connections:,} connections  {counts.answers:,} answers  "
        f"{counts.closed:,} closed by the broker  {counts.restarts:,} restarts\n"
        f"         {counts.witnessed:,} times the witness was right  "
        f"longest turn {counts.longest_turn_ms:.0f} ms  peak {result.peak_bytes >> 20} MiB  "
        f"on sockets besides: {real.frames:,} frames, {real.connections:,} connections\n"
        f"         {len(result.failures)} failures"
    )


def _tell(failure: Failure, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    where = "sockets" if failure.broker is None else failure.broker
    path = directory / f"{failure.case.run}-{failure.seed}-{where}.txt"
    text = failure.case.text(failure.about())
    path.write_text(text)
    print(f"\n{path}\n{text[:4000]}", flush=True)
    print(f"again: {os.path.relpath(sys.executable)} -m tests.fuzz --replay {path}", flush=True)


def _replay(path: Path) -> int:
    case = parse_case(path.read_text())
    found = run_case(wires_of(case.run), case, SLOW_MS)
    print("nothing was found" if found is None else found)
    return int(found is not None)


if __name__ == "__main__":
    sys.exit(main())
