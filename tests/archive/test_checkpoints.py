"""Checkpoints: made now and then, proved, and never in the way of whoever reads the log."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.contract.view import ArchiveUnavailable
from brokerd.archive.delta.checkpoints import EVERY_COMMITS, LAST_CHECKPOINT
from brokerd.archive.delta.log_files import COMMITS, SUMS, checkpoint_name, sum_name
from brokerd.archive.delta.log_reader import list_log
from brokerd.archive.delta.table import Table
from brokerd.archive.delta.tables import ensure_tables
from tests.archive.adding import LOG_ID, NOW_MS, records_file


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return ensure_tables(tmp_path / "archive", LOG_ID, NOW_MS)[RECORDS.name]


def commit(table: Table, count: int) -> None:
    for _ in range(count):
        version = table.version + 1
        file = records_file(1, version * 10, version * 10 + 10, number=version)
        assert table.commit([file], transactions={"app": version}, now_ms=NOW_MS)


def again(table: Table) -> Table:
    return Table(table.path.parent, RECORDS, LOG_ID)


def checkpoint_path(table: Table, version: int) -> Path:
    return table.path / COMMITS / checkpoint_name(version)


def test_checkpoint_is_made_after_so_many_commits(table: Table) -> None:
    commit(table, 2 * EVERY_COMMITS)
    names = list_log(table.path)
    assert sorted(names.checksummed) == [EVERY_COMMITS - 1, 2 * EVERY_COMMITS - 1]
    assert DeltaTable(table.path).version() == again(table).version == 2 * EVERY_COMMITS


def test_checkpoint_that_was_not_finished_is_made_again(table: Table) -> None:
    """As the power left it: half of it is there, no sum, and the other file names it."""
    commit(table, EVERY_COMMITS)
    proved = checkpoint_path(table, EVERY_COMMITS - 1)
    half = proved.read_bytes()[:100]
    proved.write_bytes(half)
    (table.path / SUMS / sum_name(EVERY_COMMITS - 1)).unlink()
    commit(table, 1)
    made = table.version - 1
    assert list_log(table.path).checkpoints == list_log(table.path).checksummed == {made}
    assert str(made) in (table.path / COMMITS / LAST_CHECKPOINT).read_text()
    assert DeltaTable(table.path).version() == again(table).version == made + 1


def test_checkpoint_of_another_program_stays_if_the_log_needs_it(table: Table) -> None:
    """It took commits away; nothing but the checkpoint knows what they said."""
    commit(table, 3)
    DeltaTable(table.path).create_checkpoint()
    (table.path / COMMITS / f"{2:020d}.json").unlink()
    with pytest.raises(ArchiveUnavailable, match=f"{2:020d}"):
        again(table)
    assert checkpoint_path(table, 3).exists()


@pytest.mark.parametrize("bit", range(0, 8 * 4000, 2999))
def test_a_flipped_bit_of_a_checkpoint_is_not_handed_on(table: Table, bit: int) -> None:
    """The next one is made from an older one and the log, not from what is damaged."""
    commit(table, 2 * EVERY_COMMITS - 1)
    damaged = checkpoint_path(table, EVERY_COMMITS - 1)
    data = bytearray(damaged.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    damaged.write_bytes(data)
    commit(again(table), 2)
    before = again(table).paths()
    for version in range(2 * EVERY_COMMITS - 1):
        (table.path / COMMITS / f"{version:020d}.json").unlink()
    assert sorted(again(table).paths()) == sorted(before)
    assert len(before) == 2 * EVERY_COMMITS + 1


@pytest.mark.parametrize("hint", ["a version that is not there", "nothing", "rubbish"])
def test_what_names_the_newest_checkpoint_is_no_more_than_a_hint(table: Table, hint: str) -> None:
    commit(table, EVERY_COMMITS)
    path = table.path / COMMITS / LAST_CHECKPOINT
    path.write_text(
        {
            "nothing": "",
            "rubbish": "{[",
        }.get(hint, '{"version":7,"size":3}')
    )
    commit(again(table), EVERY_COMMITS)
    assert len(list_log(table.path).checksummed) == 2


def test_commit_that_cannot_make_its_checkpoint_is_not_done(table: Table) -> None:
    commit(table, EVERY_COMMITS - 1)
    checkpoint_path(table, EVERY_COMMITS - 1).mkdir()
    with pytest.raises(ArchiveUnavailable, match="checkpoint"):
        commit(table, 1)
    assert again(table).version == EVERY_COMMITS - 1


SYNCS = 7
"""Of the table, the checkpoint and the file that names it, the log, the sum, its directories."""
STEPS = 1 + SYNCS + 3
"""The sum is renamed; and then there is the commit, before and after which the log is read."""


@pytest.mark.parametrize("stop_at", range(STEPS + 1))
def test_stop_at_any_point_of_making_one_leaves_a_log_that_goes_on(
    table: Table, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    commit(table, EVERY_COMMITS - 1)
    steps: list[object] = []

    class Stopped(Exception):
        pass

    def stopping(function: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            if len(steps) == stop_at:
                raise Stopped
            steps.append(arguments)
            function(*arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", stopping(os.fsync))
        patched.setattr(os, "rename", stopping(os.rename))
        if stop_at < STEPS:
            with pytest.raises(Stopped):
                commit(table, 1)
        else:
            commit(table, 1)
    late = again(table)
    commit(late, 2)
    assert list_log(table.path).checksummed
    assert DeltaTable(table.path).version() == again(table).version == late.version
    assert late.version in (EVERY_COMMITS + 1, EVERY_COMMITS + 2)
