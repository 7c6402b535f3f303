# Tests: tests/archive/test_iceberg.py
"""The step of the job that writes Iceberg metadata (docs/catalogs.rst).

It reads the Delta commits since the version of the newest snapshot, and adds a snapshot for each.
The metadata is derived: if it is missing, the step writes it again.
"""

from __future__ import annotations

import pyarrow.compute as pc

from brokerd.archive.contract.layout import LAYOUTS, LOG_ID_PROPERTY, Layout
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.delta.table import Table
from brokerd.archive.iceberg.catalog import CatalogTables
from brokerd.archive.iceberg.changes import changes_after, whole_table
from brokerd.archive.iceberg.metadata_files import MetadataFiles, Version, location_of
from brokerd.archive.iceberg.snapshots import History, Totals
from brokerd.archive.iceberg.table_format import new_metadata
from brokerd.archive.run import Run, StepReport, count_text
from brokerd.archive.storage.store import open_store

HOUR_MS = 3_600_000


def write_iceberg(run: Run, *, cleans: bool, keeps_older: bool = True) -> StepReport:
    """Add the newest versions of all tables to their Iceberg metadata, then to the catalog.

    If the catalog fails, the metadata of all tables is up to date. Snapshots whose files vacuum may
    delete go first.

    :param cleans: delete unused metadata files.
    :param keeps_older: False: only the newest snapshot of each table stays.
    :raises JobFailed: metadata is damaged, or the catalog has another table of this name.
    :raises ArchiveUnavailable: disk, server or catalog reports an error.
    """
    settings = run.settings
    catalog = None
    if settings.iceberg_catalog:
        catalog = CatalogTables(settings.iceberg_catalog, settings.iceberg_namespace)
    added = removed = 0
    written: list[tuple[Layout, MetadataFiles, History, int]] = []
    for layout in LAYOUTS.values():
        if layout.name not in run.tables:
            continue
        run.failpoint(f"before iceberg of {layout.name}")
        table = run.tables.newest(layout)
        files = MetadataFiles(table.path)
        found = files.newest()
        if found is None:
            files.prepare()
        history = _history(files, table, found, run)
        history = _add_changes(history, table, run)
        expired = history.expire(_first_version(table, run) if keeps_older else table.version)
        added, removed = added + history.added, removed + expired
        number = found.number if found is not None else 0
        if found is None or history.metadata is not found.metadata:
            number += 1
            run.failpoint(f"before iceberg metadata of {layout.name}")
            files.publish(Version(number, history.metadata))
        run.failpoint(f"before iceberg hint of {layout.name}")
        files.set_hint(number)
        written.append((layout, files, history, number))
    for layout, files, history, number in written:
        if catalog is not None:
            catalog.update(layout.name, history.metadata, files.metadata_location(number))
        if cleans:
            files.clean(history.used_files(), run.now_ms() - HOUR_MS)
    lines = [f"wrote {count_text(added, 'Iceberg snapshot')}"] if added else []
    return StepReport("iceberg", {"snapshots": added, "expired": removed}, lines)


def _history(files: MetadataFiles, table: Table, found: Version | None, run: Run) -> History:
    """Return the history to continue. A table that has moved gets a new one."""
    location, log_id = location_of(table.path), run.bounds.log_id
    if found is not None:
        metadata = found.metadata
        is_same = metadata.location == location
        if is_same and metadata.properties.get(LOG_ID_PROPERTY) == log_id:
            history = History(files, table.layout, metadata)
            if history.delta_version <= table.version:
                return history
    return History(files, table.layout, new_metadata(table.layout, location, log_id))


def _add_changes(history: History, table: Table, run: Run) -> History:
    """Add the versions that the history lacks; all of the table if they are gone."""
    changes = changes_after(table, history.delta_version)
    if changes is not None:
        for change in changes:
            history.add(change)
        if history.totals() == _totals(table):
            history.reach(table.version)
            return history
    metadata = new_metadata(table.layout, location_of(table.path), run.bounds.log_id)
    history = History(history.files, table.layout, metadata)
    history.add(whole_table(table, run.now_ms()))
    if history.totals() != _totals(table):
        raise history.files.damaged("it has other files than the Delta log")
    history.reach(table.version)
    return history


def _totals(table: Table) -> Totals:
    """Return the totals of the table's files that have rows."""
    rows = table.files["rows"]
    return Totals(int(pc.sum(pc.greater(rows, 0)).as_py() or 0), int(pc.sum(rows).as_py() or 0))


def _first_version(table: Table, run: Run) -> int:
    """Return the oldest version whose files vacuum keeps; -1 for all."""
    if not run.settings.vacuum:
        return -1
    now_ms = min(run.now_ms(), run.bounds.time_us // 1000)
    cutoff_ms = now_ms - run.settings.vacuum_hours * HOUR_MS
    found = -1
    for entry in open_store(table.path).list(COMMITS, hidden=True):
        name = entry.path.rpartition("/")[2]
        stem, _, suffix = name.partition(".")
        if suffix == "json" and stem.isdigit() and entry.changed_ms < cutoff_ms:
            found = max(found, int(stem))
    return found
