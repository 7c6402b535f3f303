"""Run mutation tests of one room or module with cosmic-ray, in a copy of the working tree.

python -m tests.mutation groups --count 60 --cosmic-ray /tmp/mutation/bin/cosmic-ray

cosmic-ray changes one operator, number, or word of the source at a time and runs the tests that
the modules of the room name. A mutant survives if they pass. The seed selects ``count`` of all
mutants; type annotations have none. Slow tests run with ``--slow`` only. docs/testing.rst, section
"Mutation tests", describes how to install cosmic-ray.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.planted.bug import ROOT, copy_tree

ROOMS = {
    "walformat": "brokerd/walformat",
    "groups": "brokerd/groups",
    "recovery": "brokerd/wal/recovery",
    "delta": "brokerd/archive/delta",
    "maintain": "brokerd/archive/maintain",
}
"""The source directory of each room."""

TESTS = "# Tests: "
"""The first line of a module begins so and names its tests."""

CONFIGURATION = """
[cosmic-ray]
module-path = "{source}"
timeout = {timeout}
excluded-modules = []
test-command = "{python} -m pytest -q -x -p no:cacheprovider -m '{marks}' --tb=no {tests}"

[cosmic-ray.distributor]
name = "local"
"""


def tests_of(source: str) -> list[str]:
    """Return the test files that a module, or the modules of a room, name."""
    named: set[str] = set()
    top = ROOT / source
    for path in [top] if top.is_file() else top.rglob("*.py"):
        first = path.read_text().partition("\n")[0]
        if first.startswith(TESTS):
            named.update(one.strip() for one in first.removeprefix(TESTS).split(","))
    return sorted(
        one for one in named if not any(one != other and one.startswith(other) for other in named)
    )


def has_tests(tests: list[str], marks: str) -> bool:
    """Return whether pytest selects one of the tests. Raises SystemExit if it cannot tell."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks, *tests]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest cannot collect {' '.join(tests)}:\n{done.stdout}")
    return done.returncode == pytest.ExitCode.OK


def annotations(source: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield begin and end (line, column) of each annotation."""
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            one = getattr(node, name, None)
            if isinstance(one, ast.expr) and one.end_lineno is not None:
                yield one.lineno, one.col_offset, one.end_lineno, one.end_col_offset or 0


def keep_some(session: Path, count: int, seed: int) -> int:
    """Keep ``count`` mutants outside annotations, delete the others, return the number of all."""
    with closing(sqlite3.connect(session)) as database, database:
        rows = database.execute(
            "SELECT job_id, module_path, start_pos_row, start_pos_col FROM mutation_specs "
            "ORDER BY module_path, start_pos_row, start_pos_col, operator_name, occurrence"
        ).fetchall()
        known = {
            path: list(annotations((ROOT / path).read_text())) for path in {row[1] for row in rows}
        }
        mutants = [
            job
            for job, path, line, column in rows
            if not any(
                (first, start) <= (line, column) < (last, end)
                for first, start, last, end in known[path]
            )
        ]
        kept = set(random.Random(seed).sample(mutants, min(count, len(mutants))))
        gone = [(row[0],) for row in rows if row[0] not in kept]
        for table in ("mutation_specs", "work_items"):
            database.executemany(f"DELETE FROM {table} WHERE job_id = ?", gone)
    return len(mutants)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = ", ".join(ROOMS)
    parser.add_argument("room", help=f"{names}, or the path of one module, such as brokerd/x.py")
    parser.add_argument("--count", type=int, default=100, help="how many mutants are tried")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of a mutant's tests")
    parser.add_argument("--seconds", type=float, help="end after this time, with what there is")
    parser.add_argument("--slow", action="store_true", help="run the slow tests, too")
    parser.add_argument("--cosmic-ray", default="cosmic-ray", metavar="PROGRAM")
    options = parser.parse_args(given)
    source = ROOMS.get(options.room, options.room)
    if not (ROOT / source).exists():
        parser.error(f"{source} does not exist; rooms are {names}")
    tests = tests_of(source)
    if not tests:
        parser.error(f"{source} names no tests: its first line must be '{TESTS}PATH, PATH'")
    marks = "not soak" if options.slow else "not slow and not soak"
    if not has_tests(tests, marks):
        advice = "" if options.slow else "; --slow runs the slow ones"
        parser.error(f"no test of {source} is selected by '{marks}': {', '.join(tests)}{advice}")
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        root = Path(directory)
        copy_tree(root)
        text = CONFIGURATION.format(
            source=source,
            marks=marks,
            tests=" ".join(tests),
            timeout=options.timeout,
            python=sys.executable,
        )
        (root / "mutation.toml").write_text(text)
        # A file that changes twice a second must not be read from the cache of compiled files.
        environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}

        def run(*arguments: str) -> str:
            command = [options.cosmic_ray, *arguments]
            done = subprocess.run(
                command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True
            )
            if done.returncode != 0:
                raise SystemExit(f"cosmic-ray {arguments[0]} failed:\n{done.stdout}")
            return done.stdout

        run("baseline", "mutation.toml")
        run("init", "mutation.toml", "session.sqlite")
        total = keep_some(root / "session.sqlite", options.count, options.seed)
        command = [options.cosmic_ray, "exec", "mutation.toml", "session.sqlite"]
        process = subprocess.Popen(command, cwd=root, env=environment, start_new_session=True)
        try:
            process.wait(options.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        outcomes: Counter[str] = Counter()
        for line in run("dump", "session.sqlite").splitlines():
            _, result = json.loads(line)
            if result is None:
                continue
            outcome = str(result["test_outcome"]).rpartition(".")[2].lower()
            if outcome == "killed" and result["output"] == "timeout":
                outcome = "timeout"
            outcomes[outcome] += 1
            if outcome == "survived":
                print(result["diff"], end="\n\n")
    killed, slow = outcomes["killed"], outcomes["timeout"]
    print(f"{options.room}: {killed} of {outcomes.total()} mutants killed, {slow} ran out of time")
    print(f"the sample has {min(options.count, total)} of {total} mutants, seed {options.seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
