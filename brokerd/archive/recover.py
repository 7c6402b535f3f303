# Tests: tests/archive/test_recover.py
"""The job of ``brokerctl archive recover``: docs/archive-log.rst, "What to do".

It holds the locks of a rollup. It finds commits of other programs in all tables, checks that the
versions before them have their files, and sets the commits aside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from brokerd.archive.contract.layout import LAYOUTS, Layout
from brokerd.archive.data_dir import archive_lock, check_data_dir, read_bounds, rollup_lock
from brokerd.archive.delta.foreign import ForeignCommits, find_foreign, missing_files, set_aside
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.delta.table import Table
from brokerd.archive.errors import JobFailed
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store
from brokerd.archive.typed.layouts import typed_layouts


class RecoverJob(NamedTuple):
    """The configuration of a recovery."""

    data_dir: Path
    root: Place
    """The archive."""
    now_ms: Callable[[], int]
    """The wall clock in milliseconds, for the history of the tables."""
    confirm: Callable[[str], None] = lambda question: None
    """Asks before the first change. Raises an exception to stop."""


class RecoveredTable(NamedTuple):
    """A table whose foreign commits were set aside."""

    name: str
    version: int
    """The newest version now."""
    commits: int
    """The number of commits that were set aside."""
    reason: str
    """Why brokerd refused the first of them."""
    aside: str
    """The directory with the commits, relative to the archive."""


def run_recover(job: RecoverJob) -> list[RecoveredTable]:
    """Set aside the commits of other programs in all tables, and keep these programs out.

    :return: the tables that had such commits.
    :raises RollupLocked: a rollup is at work.
    :raises JobFailed: a file of the version before is gone.
    :raises ForeignArchive: a commit of brokerd follows.
    :raises BrokerdError: the archive belongs to another log, or cannot be read.
    """
    check_data_dir(job.data_dir)
    with rollup_lock(job.data_dir), archive_lock(job.root):
        log_id = read_bounds(job.data_dir)[0].log_id
        found: dict[str, ForeignCommits] = {}
        layouts = {**LAYOUTS}
        layouts.update({one.name: one for one in typed_layouts(open_store(job.root))})
        for layout in layouts.values():
            table = job.root / layout.name
            if not open_store(table).names(COMMITS):
                continue
            foreign = find_foreign(table, log_id)
            if foreign is None:
                continue
            missing = missing_files(table, foreign.before)
            if missing:
                raise JobFailed(
                    f"{table}: version {foreign.before.version}, the last of brokerd, needs "
                    f"{len(missing)} files that are gone, such as {missing[0]!r}: restore them "
                    "from a backup, and run this again"
                )
            found[layout.name] = foreign
        if found:
            commits = ", ".join(
                f"{one.first} to {one.last} of {name}" for name, one in found.items()
            )
            job.confirm(f"set aside the commits {commits}")
        return [_recover(job, layouts[name], log_id, one) for name, one in found.items()]


def _recover(job: RecoverJob, layout: Layout, log_id: str, found: ForeignCommits) -> RecoveredTable:
    name = layout.name
    aside = set_aside(job.root / name, found)
    table = Table(job.root, layout, log_id)
    table.keep_out_writers(job.now_ms())
    return RecoveredTable(
        name, table.version, found.last - found.before.version, found.reason, f"{name}/{aside}"
    )
