# Tests: tests/simulator/test_planted.py
"""Plant bugs in copies of the broker, one at a time, and report which search finds each how fast.

python -m tests.planted
python -m tests.planted --only skip-fsync --only reuse-offset --seeds 300 --jobs 2

Each bug is a slip of a line or two, at a named line, that start-up and the first answers do not
reveal. The copy holds ``brokerd/``, ``simulator/`` and ``tests/`` from the working tree; nothing
else is touched. Each of the `SEARCHES` runs on the copy until it finds something. A copy without
the bug must then pass at the same seed, point or test. docs/simulator.rst, section "Planted bugs",
keeps the printed table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import BUGS
from .bug import Bug, copy_tree, places, plant
from .search import SEARCHES, Catch, Search, hunt

SEEDS = 300


class Result(NamedTuple):
    """The results of the searches for one bug, by name of the search."""

    bug: Bug
    catches: dict[str, Catch]

    @property
    def caught(self) -> bool:
        return any(catch.what and catch.is_proof for catch in self.catches.values())


def try_out(
    one: Bug, searches: Iterable[Search], seeds: int, jobs: int, *, first: bool = False
) -> Result:
    """Plant a bug in a copy of the tree and search for it.

    :param first: stop after the first search that finds it. The tests named in the list come first:
        they take seconds.
    """
    if first:
        searches = sorted(searches, key=lambda search: search.name != "suite")
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        root, sound = Path(directory, "planted"), Path(directory, "sound")
        copy_tree(root)
        shutil.copytree(root, sound)
        plant(one, root)
        catches: dict[str, Catch] = {}
        for search in searches:
            if search.name == "suite" and not one.tests:
                continue
            is_found = any(catch.what and catch.is_proof for catch in catches.values())
            if is_found and (first or search is SEARCHES[-1]):
                continue
            tests = " ".join(f"tests/{name}" for name in one.tests.split())
            catches[search.name] = hunt(search, root, sound, seeds, jobs, tests)
    return Result(one, catches)


def cell(catch: Catch | None) -> str:
    """Return the cell of the table for one search."""
    if catch is None:
        return ""
    if not catch.what:
        return f"not in {catch.seconds:.0f} s"
    if not catch.is_proof:
        return f"{catch.where} fails without the bug too"
    where = f", {catch.where}" if catch.where else ""
    return f"{catch.what[:60].strip()}{where}, {catch.seconds:.0f} s"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Yield the lines of a table in reStructuredText."""
    rows = [["bug", "line", *(search.name for search in SEARCHES)]]
    for result in results:
        cells = [cell(result.catches.get(search.name)) for search in SEARCHES]
        rows.append([result.bug.name, places(result.bug), *cells])
    yield ".. list-table::"
    yield "   :header-rows: 1"
    yield ""
    for row in rows:
        yield from (
            f"   {'* -' if n == 0 else '  -'} {text}".rstrip() for n, text in enumerate(row)
        )


def chosen(names: Sequence[str] | None, known: Sequence[str], what: str) -> list[str]:
    """Return ``names``, or all known ones. Raises SystemExit for an unknown one."""
    for name in names or ():
        if name not in known:
            raise SystemExit(f"there is no {what} {name!r}; there are {', '.join(known)}")
    return list(names or known)


def main(given: list[str]) -> int:
    """Run the command and return the exit code: 1 if a bug was not caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", metavar="NAME", help="only this bug")
    parser.add_argument("--search", action="append", metavar="NAME", help="only this search")
    parser.add_argument("--first", action="store_true", help="one search that finds it is enough")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds are tried")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(given)
    names = chosen(options.only, [one.name for one in BUGS], "bug")
    wanted = chosen(options.search, [search.name for search in SEARCHES], "search")
    searches = [search for search in SEARCHES if search.name in wanted]
    results: list[Result] = []
    for one in BUGS:
        if one.name in names:
            result = try_out(one, searches, options.seeds, options.jobs, first=options.first)
            results.append(result)
            told = (f"{name}: {cell(catch)}" for name, catch in result.catches.items())
            print(f"{one.name}: {'; '.join(told)}", flush=True)
    print()
    print("\n".join(table(results)))
    missed = [result.bug.name for result in results if not result.caught]
    print(f"\n{len(results)} bugs, {len(missed)} not caught: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
