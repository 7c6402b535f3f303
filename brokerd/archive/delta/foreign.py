# Tests: tests/archive/test_recover.py
"""Sets aside the commits that another program made, so that the version before them is the newest.

The Delta log keeps its files below ``_brokerd/foreign-VERSION``. Data files are not touched: vacuum
deletes those that no commit names (docs/archive-log.rst, "What to do").
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.checkpoints import LAST_CHECKPOINT
from brokerd.archive.delta.log_files import (
    COMMITS,
    FILE_BYTES_MAX,
    SUMS,
    Snapshot,
    apply,
    checkpoint_name,
    commit_name,
    decode_checkpoint,
    decode_commit,
    sum_name,
)
from brokerd.archive.delta.log_reader import check_actions, list_log, read_checkpoint
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import open_store


class ForeignCommits(NamedTuple):
    """Commits of another program, and what is before them."""

    before: Snapshot
    """The newest version of brokerd."""
    last: int
    """The newest version of the table."""
    reason: str
    """Why brokerd refuses the first of them."""

    @property
    def first(self) -> int:
        return self.before.version + 1


def find_foreign(table: Place, log_id: str) -> ForeignCommits | None:
    """Return the commits of another program; None if brokerd accepts all commits.

    :raises ForeignArchive: the table is not one of this log.
    :raises ArchiveUnavailable: a commit before them is missing or damaged.
    """
    store, names = open_store(table), list_log(table)
    base = None
    for version in sorted(names.checksummed, reverse=True):
        checkpoint = read_checkpoint(table, version)
        if checkpoint is not None:
            actions = decode_checkpoint(checkpoint)
            check_actions(actions, log_id, table)
            base = apply(actions, version, None)
            break
    last = max(names.commits, default=-1)
    for version in range(0 if base is None else base.version + 1, last + 1):
        path = f"{COMMITS}/{commit_name(version)}"
        try:
            actions = decode_commit(store.read(path, FILE_BYTES_MAX), table / path)
            check_actions(actions, log_id, table)
        except FileNotFoundError as error:
            raise ArchiveUnavailable(
                f"{table / path} is missing, and no checkpoint replaces it; restore it from a "
                "backup"
            ) from error
        except ForeignArchive as error:
            if base is None:
                raise
            return ForeignCommits(base, last, str(error))
        base = apply(actions, version, base)
    return None


def missing_files(table: Place, snapshot: Snapshot) -> list[str]:
    """Return the files of a version that are gone, or have another size."""
    sizes = {entry.path: entry.size for entry in open_store(table).list()}
    files = zip(snapshot.files["path"].to_pylist(), snapshot.files["size"].to_pylist(), strict=True)
    return [path for path, size in files if sizes.get(path) != size]


def set_aside(table: Place, found: ForeignCommits) -> str:
    """Move the log from the first foreign commit on. Return the directory, relative to the table.

    First all files are copied. Then the newest commits go first, so that after a stop the rest of
    the foreign commits is found again.

    :raises ForeignArchive: a commit of brokerd follows, which another version of it made.
    """
    store, names = open_store(table), list_log(table)
    commits = sorted(one for one in names.commits if one >= found.first)
    for version in commits:
        _check_no_rollup(table, version)
    checkpoints = sorted(one for one in names.checkpoints if one >= found.first)
    sums = sorted(one for one in names.sums if one >= found.first)
    paths = [
        f"{COMMITS}/{LAST_CHECKPOINT}",
        *(f"{COMMITS}/{checkpoint_name(one)}" for one in checkpoints),
        *(f"{SUMS}/{sum_name(one)}" for one in sums),
        *(f"{COMMITS}/{commit_name(one)}" for one in reversed(commits)),
    ]
    aside = f"{SUMS}/foreign-{found.first}"
    store.make_directory(aside)
    present = [path for path in paths if store.exists(path)]
    for path in present:
        name = path.rpartition("/")[2]
        store.put(f"{aside}/{name}", store.read(path, FILE_BYTES_MAX))
    for path in present:
        store.delete([path])
        store.sync_directory(path.rpartition("/")[0])
    return aside


def _check_no_rollup(table: Place, version: int) -> None:
    """Raise ForeignArchive if brokerd itself changed the table in a version."""
    path = f"{COMMITS}/{commit_name(version)}"
    data = open_store(table).read(path, FILE_BYTES_MAX)
    try:
        actions = decode_commit(data, table / path)
    except (ForeignArchive, ArchiveUnavailable):
        return
    if len(actions.files) or actions.removed or actions.transactions:
        raise ForeignArchive(
            f"{table / path} is a commit of brokerd after a commit of another program; restore "
            "the table from a backup"
        )
