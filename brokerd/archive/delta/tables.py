# Tests: tests/archive/test_table.py
"""Opens and creates the tables of an archive.

If the address holds other files or the archive of another log, brokerd raises ForeignArchive. For
an archive of a later version it raises NewerFormat. In both cases it changes nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from brokerd.archive.contract.layout import ARCHIVE_APP, LAYOUTS, RECORDS, Layout
from brokerd.archive.contract.view import ArchiveUnavailable, ForeignArchive
from brokerd.archive.delta.actions import create_actions, transaction_action
from brokerd.archive.delta.log_files import COMMITS, commit_name, encode_commit
from brokerd.archive.delta.table import Table
from brokerd.archive.storage.address import Place
from brokerd.archive.storage.store import Store, open_store

BESIDE_TABLES = ("bounds", "compaction", "lost+found", "rollup.lock", "schemas", "typed", "wal")
"""Names that may exist beside the tables before the first table is created."""


class Tables(dict[str, Table]):
    """The tables of an archive by name. A run opens each table once."""

    def __init__(self, tables: Mapping[str, Table] | None = None) -> None:
        super().__init__(tables or {})
        self.typed: dict[str, Table] = {}
        """The open typed tables, by their path in the archive."""

    def clear(self) -> None:
        """Forget all tables, so that the next run opens them again."""
        super().clear()
        self.typed.clear()

    def newest(self, layout: Layout) -> Table:
        """Return a table at its newest version."""
        table = self[layout.name]
        table.refresh()
        return table


def ensure_tables(root: Place, log_id: str, now_ms: int, tables: Tables | None = None) -> Tables:
    """Open all tables of a log's archive, and create absent tables. Return them by name.

    :param root: the address of the archive. An absent directory is made.
    :param tables: the result of `open_tables`, or None to open them here.
    :raises ForeignArchive: the address holds other files, or the archive of another log.
    :raises NewerFormat: a later version of brokerd created it.
    :raises ArchiveUnavailable: the disk or the server reports an error.
    """
    tables = open_tables(root, log_id) if tables is None else tables
    if not tables and not open_store(root).supports_put_if_absent(f"{RECORDS.name}/{COMMITS}"):
        raise ArchiveUnavailable(
            f"{root}: the server ignores If-None-Match and overwrites files, so commits could be "
            "lost; use a server that supports it"
        )
    for layout in LAYOUTS.values():
        if layout.name not in tables:
            create_table(root, layout, log_id, now_ms)
            tables[layout.name] = Table(root, layout, log_id)
    return tables


def open_tables(root: Place, log_id: str) -> Tables:
    """Open the existing tables, and return them by name.

    Raises the errors of `ensure_tables`, also if absent tables cannot be created or existing tables
    cannot be written.
    """
    store = open_store(root)
    _check_root(store)
    missing = [layout for layout in LAYOUTS.values() if not is_table(store, layout.name)]
    for layout in missing:
        _check_empty(store, layout.name)
    present = [layout for layout in LAYOUTS.values() if layout not in missing]
    tables = Tables({layout.name: Table(root, layout, log_id) for layout in present})
    written = [layout.name for layout in present]
    written += [f"{name}/{COMMITS}" for name in written]
    store.check_writable([*written, *([""] if missing else [])])
    return tables


def _check_root(store: Store) -> None:
    root = store.place
    if store.is_file(""):
        raise ForeignArchive(f"{root} is not a directory; set archive.uri to a directory")
    names = store.names("")
    if COMMITS in names:
        raise ForeignArchive(f"{root} is a Delta table itself; set archive.uri to a directory")
    strange = sorted(names - set(LAYOUTS) - set(BESIDE_TABLES))
    if strange and not any(is_table(store, name) for name in LAYOUTS):
        raise ForeignArchive(
            f"{root} already holds other files, such as {strange[0]!r}; set archive.uri to an "
            "empty directory, or to a new one"
        )


def is_table(store: Store, name: str) -> bool:
    """Return whether a directory of an archive holds a table."""
    return any(found.endswith((".json", ".parquet")) for found in store.names(f"{name}/{COMMITS}"))


def _check_empty(store: Store, name: str) -> None:
    """Check that a table can be created. An interrupted creation leaves an empty log directory."""
    path = store.place / name
    if store.is_file(name):
        raise ForeignArchive(f"{path} is not a directory; remove it")
    strange = sorted(store.names(name) - {COMMITS})
    if strange:
        raise ForeignArchive(
            f"{path} holds {strange[0]!r}, but no Delta log: restore {COMMITS}, or set archive.uri "
            "to an empty directory"
        )


def create_table(
    root: Place,
    layout: Layout,
    log_id: str,
    now_ms: int,
    properties: Mapping[str, str] | None = None,
) -> None:
    """Create a table, unless another process has just created it."""
    number = 1 + secrets.randbelow((1 << 62) - 1)
    actions = create_actions(layout, log_id, now_ms, properties)
    actions.append(transaction_action(ARCHIVE_APP, number, now_ms))
    data = encode_commit(actions, "CREATE TABLE", now_ms)
    store = open_store(root)
    store.make_directory(f"{layout.name}/{COMMITS}")
    store.put_if_absent(f"{layout.name}/{COMMITS}/{commit_name(0)}", data)
