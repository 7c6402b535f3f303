"""Crashes at the disk calls of the rollup: a slice of the points, and faults that it finds."""

from __future__ import annotations

import os
from typing import Any

import pytest

from brokerd.archive.contract.layout import EVENTS, RECORDS
from brokerd.archive.delta.log_files import COMMITS
from simulator.crashpoints.rollup import ARCHIVE, JOURNAL, RollupScript
from simulator.crashpoints.sweep import Outcome, sweep
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimFile
from simulator.machine.tree_disk import TreeDisk


def slice_of(every: int, *models: CrashModel) -> Outcome:
    return sweep("rollup", lambda number: number % every == 1, models or tuple(CrashModel))


@pytest.mark.parametrize("every", [400, pytest.param(40, marks=pytest.mark.slow)])
def test_no_record_is_lost_or_doubled_at_a_crash_point(every: int) -> None:
    """`python -m simulator.crashpoints` checks all points."""
    outcome = slice_of(every)
    assert not outcome.findings, "\n".join(map(str, outcome.findings))
    assert outcome.points >= 400
    assert {"mkdir", "link", "rename", "unlink", "sync_directory"} <= outcome.calls.keys()


def test_the_workload_ingests_merges_vacuums_and_deletes_the_journal() -> None:
    script = RollupScript()
    created: list[str] = []
    enter = script.disk.enter

    def note(call: Any) -> None:
        created.append(f"{call.name} {call.path}")
        enter(call)

    script.disk.enter = note
    script.play()
    assert script.disk.list(JOURNAL) == []
    for table in (RECORDS, EVENTS):
        log = script.disk.list(f"{ARCHIVE}/{table.name}/{COMMITS}")
        assert any(".checkpoint" in name for name in log)
    files = f"unlink {ARCHIVE}/{RECORDS.name}/bucket="
    assert any(call.startswith(files) for call in created), "no file was vacuumed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "directory",
    [f"{ARCHIVE}/{RECORDS.name}", f"{ARCHIVE}/{RECORDS.name}/{COMMITS}", "bucket"],
)
def test_a_directory_that_is_never_synced_is_found(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table's directory has the entries of the buckets, the others those of their files."""
    sync = TreeDisk.sync_directory

    def leave_out(disk: TreeDisk, path: str) -> None:
        if path != directory and not os.path.basename(path).startswith(f"{directory}="):
            sync(disk, path)

    monkeypatch.setattr(TreeDisk, "sync_directory", leave_out)
    assert slice_of(20, CrashModel.DROP).findings


@pytest.mark.slow
def test_a_file_that_is_never_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda file: None)
    assert slice_of(20, CrashModel.DROP).findings
