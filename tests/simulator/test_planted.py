"""The list of planted bugs: each still has its one place, and what searches print is understood."""

from __future__ import annotations

import ast
import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted import BUGS
from tests.planted.__main__ import Result, cell, main, table
from tests.planted.bug import ROOT, Bug, Edit, Planted, bug, changed, copy_tree, line_of, plant
from tests.planted.search import SEARCHES, Catch, Search, hunt


@pytest.mark.parametrize("one", BUGS, ids=lambda one: one.name)
def test_a_bug_has_exactly_one_place_for_each_edit_and_leaves_sound_python(
    one: Bug, tmp_path: Path
) -> None:
    for edit in one.edits:
        target = tmp_path / edit.file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text((ROOT / edit.file).read_text())
    plant(one, tmp_path)
    for edit in one.edits:
        text = (tmp_path / edit.file).read_text()
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse((ROOT / edit.file).read_text()))


def test_the_page_has_a_row_with_an_answer_for_each_bug() -> None:
    page = (ROOT / "docs" / "simulator.rst").read_text()
    table = page.partition(":header: bug, simulator, crash points, suite")[2]
    lines = [line.strip() for line in table.partition("\nWhy neither")[0].splitlines()]
    rows = {
        row[0].strip("`"): row[1:] for row in csv.reader(filter(None, lines), skipinitialspace=True)
    }
    assert set(rows) == {one.name for one in BUGS}
    for name, cells in rows.items():
        assert len(cells) == 3, name
        assert any(cell and cell != "not found" for cell in cells), name


def test_there_are_as_many_bugs_as_promised_with_names_of_their_own() -> None:
    assert len(BUGS) >= 60
    assert len({one.name for one in BUGS}) == len(BUGS)


@pytest.mark.parametrize("text", ["nothing of it", "twice twice"])
def test_a_place_that_is_gone_or_not_the_only_one_is_refused(text: str) -> None:
    with pytest.raises(Planted, match="mend the list"):
        changed(text, Edit("brokerd/x.py", "twice", "once"))


def test_the_line_of_an_edit_is_where_it_begins_to_differ(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("one\ntwo\nthree\nfour\n")
    assert line_of(Edit("x.py", "two\nthree\n", "two\n3\n"), tmp_path) == 3


OUTPUTS = [
    ("simulator", "seed 17: P1-kept: record 3 of t0/0 was seen: and is gone", "P1-kept", "17"),
    (
        "crash points",
        "broker:12 (before sync of 0000.wal), tear: LOST: record 3",
        "LOST: record 3",
        "broker:12",
    ),
    (
        "suite",
        "FAILED tests/wal/test_log.py::test_one[a b - c] - AssertionError: no",
        "FAILED",
        "tests/wal/test_log.py::test_one[a b - c]",
    ),
    (
        "suite",
        "FAILED tests/wal/test_log.py::test_one",
        "FAILED",
        "tests/wal/test_log.py::test_one",
    ),
    (
        "flips",
        "running, index: /data/wal/0.idx at 512 ^ 0x80, index, column: WRONG PAYLOAD: it is b''",
        "WRONG PAYLOAD",
        "0.idx",
    ),
]


@pytest.mark.parametrize(("name", "line", "what", "where"), OUTPUTS)
def test_what_a_search_prints_of_a_violation_is_understood(
    name: str, line: str, what: str, where: str
) -> None:
    search = next(search for search in SEARCHES if search.name == name)
    match = search.found.match(line)
    assert match is not None
    assert (match["what"], match["where"]) == (what, where)


def a_search(root: Path, again: str = "silent", **programs: str) -> Search:
    """One that runs these programs, in order."""
    for name, program in {"silent": "print('nothing')", **programs}.items():
        (root / f"{name}.py").write_text(program)
    return SEARCHES[0]._replace(stages=("silent", *programs), again=again)


ENDLESS = "while True: print('seed 5: P1-kept: gone')"


def test_a_search_ends_with_the_first_violation(tmp_path: Path) -> None:
    catch = hunt(a_search(tmp_path, endless=ENDLESS), tmp_path, tmp_path, 1, 1)
    assert (catch.what, catch.where, catch.is_proof) == ("P1-kept", "5", True)


@pytest.mark.parametrize(
    ("name", "plan", "promise"),
    [
        ("replay-not-atomic", "replay-in-two-frames", "P4-atomic"),
        ("late-timer", "late-timer", "P5-served"),
        ("delete-for-an-unsynced-snapshot", "killed-before-a-sync", "P1-readings"),
        ("login-ten-times-as-late", "login-over", "P8-closed"),
        ("idle-while-it-waits", "shared-identity", "P8-closed"),
        ("archive-seen-long-ago", "older-archive", "was not read"),
        ("expire-after-a-jump", "wrong-clock", "P1-kept"),
        ("trust-at-once", "wrong-clock", "P1-kept"),
        ("forget-the-clock", "wrong-clock", "P1-kept"),
    ],
)
def test_a_plan_made_by_hand_finds_what_seeds_do_not(
    name: str, plan: str, promise: str, tmp_path: Path
) -> None:
    copy_tree(tmp_path)
    plant(next(one for one in BUGS if one.name == name), tmp_path)
    path = Path(__file__).parent / "regressions" / f"{plan}.json"
    done = subprocess.run(
        [sys.executable, "-m", "simulator", "--quiet", "--replay", str(path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert promise in done.stdout


def test_what_is_found_without_the_bug_too_is_no_catch(tmp_path: Path) -> None:
    one = bug("slip", "it slips", "wal/log.py", ("a", "b"))
    catch = hunt(a_search(tmp_path, "endless", endless=ENDLESS), tmp_path, tmp_path, 1, 1)
    assert not catch.is_proof
    assert cell(catch) == "5 fails without the bug too"
    assert not Result(one, {"simulator": catch}).caught


def test_a_search_that_finds_nothing_or_breaks_down_says_so(tmp_path: Path) -> None:
    assert hunt(a_search(tmp_path), tmp_path, tmp_path, 1, 1).what == ""
    search = a_search(tmp_path, broken="raise SystemExit('no such thing')")
    assert hunt(search, tmp_path, tmp_path, 1, 1).what == "it ended with 1: no such thing"


def test_the_table_names_bug_line_and_catch() -> None:
    one = bug("slip", "it slips", "wal/log.py", ('"""The write-ahead log:', '"""A log:'))
    result = Result(one, {"simulator": Catch("P1-kept", "17", 2.4), "flips": Catch("", "", 9)})
    lines = list(table([result]))
    assert "   * - slip" in lines
    assert "     - wal/log.py:2" in lines
    assert "     - P1-kept, 17, 2 s" in lines
    assert cell(result.catches["flips"]) == "not in 9 s"


def test_a_name_that_is_not_on_the_list_is_refused_with_those_that_are() -> None:
    with pytest.raises(SystemExit, match=r"no bug 'typo'; there are skip-fsync,"):
        main(["--only", "typo"])
