# Tests: tests/archive/test_iceberg.py
"""Adds snapshots to Iceberg metadata: a snapshot for each Delta version that changes files.

A manifest is written again if a snapshot removes one of its files. Small manifests are merged as
the number of files doubles, so a table has few of them.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyiceberg.manifest import (
    ManifestEntry,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary

from brokerd.archive.contract.layout import Layout
from brokerd.archive.iceberg.changes import Change
from brokerd.archive.iceberg.metadata_files import MetadataFiles
from brokerd.archive.iceberg.table_format import FORMAT_VERSION, manifest_entry

DELTA_VERSION = "brokerd.delta-version"
LSN = "brokerd.lsn"
"""Keys of a snapshot's summary: the Delta version with the same rows, and the LSN up to which it
holds the log. The former is also a property of the table: the last version that brokerd has read,
because the versions after the last snapshot may have no files, and their commits are deleted."""
SNAPSHOTS_MAX = 500
"""The largest number of snapshots of a table. Each is in each metadata file."""
_CODEC = "deflate"


class Totals(NamedTuple):
    """What a snapshot holds."""

    files: int
    rows: int


@dataclass
class History:
    """The snapshots of a table: reads them, and adds to them."""

    files: MetadataFiles
    layout: Layout
    metadata: TableMetadataV2
    added: int = 0
    """The number of snapshots that were added."""
    _manifests: list[ManifestFile] | None = None
    """The manifests of the current snapshot, from the oldest on."""

    @property
    def delta_version(self) -> int:
        """Return the Delta version up to which the snapshots have all files; -1 for none."""
        current = self.metadata.current_snapshot()
        read = int(self.metadata.properties.get(DELTA_VERSION, -1))
        return max(read, delta_version(current)) if current is not None else read

    def reach(self, version: int) -> None:
        """Keep the last Delta version that was read, for `delta_version`. It may have no files."""
        if version > self.delta_version:
            properties = {**self.metadata.properties, DELTA_VERSION: str(version)}
            self.metadata = self.metadata.model_copy(update={"properties": properties})

    def totals(self) -> Totals:
        """Return the totals of the current snapshot."""
        manifests = self._current()
        return Totals(
            sum(_live_files(one) for one in manifests),
            sum((one.added_rows_count or 0) + (one.existing_rows_count or 0) for one in manifests),
        )

    def add(self, change: Change) -> None:
        """Add a snapshot, if a change has files with rows. Files without rows are left out."""
        added = [file for file in change.added if file.rows]
        snapshot_id = 1 + secrets.randbelow((1 << 62) - 1)
        kept, others, removed = self._split(change.removed)
        if change.added and not change.data_change:
            # Statistics of files that are in the table already.
            known = {self._path(entry) for entry in self._entries(self._current())}
            added = [file for file in added if file.path not in known]
        if not added and not removed:
            return
        entries = [manifest_entry(one, self.layout, self.metadata, snapshot_id) for one in added]
        while kept and _live_files(kept[-1]) <= len(entries) + len(others):
            others += self._entries([kept.pop()])
        if entries or others or removed:
            kept.append(self._write_manifest(snapshot_id, entries, others, removed))
        summary = {
            DELTA_VERSION: str(change.version),
            LSN: str(change.lsn if change.lsn is not None else self._lsn()),
            "added-data-files": str(len(entries)),
            "added-records": str(sum(file.rows for file in added)),
            "deleted-data-files": str(len(removed)),
            "deleted-records": str(sum(one.data_file.record_count for one in removed)),
        }
        self._add_snapshot(snapshot_id, kept, _operation(change, entries, removed), summary, change)

    def _split(
        self, removed: Sequence[str]
    ) -> tuple[list[ManifestFile], list[ManifestEntry], list[ManifestEntry]]:
        """Return the manifests without removed files, other files of the rest, removed files."""
        if not removed:
            return [*self._current()], [], []
        paths = set(removed)
        kept, others, gone = [], list[ManifestEntry](), list[ManifestEntry]()
        for manifest in self._current():
            entries = self._entries([manifest])
            found = [entry for entry in entries if self._path(entry) in paths]
            if found:
                gone += found
                others += [entry for entry in entries if self._path(entry) not in paths]
            else:
                kept.append(manifest)
        return kept, others, gone

    def _write_manifest(
        self,
        snapshot_id: int,
        added: Iterable[ManifestEntry],
        existing: Iterable[ManifestEntry],
        removed: Iterable[ManifestEntry],
    ) -> ManifestFile:
        output: Any = self.files.new_file()
        spec, schema = self.metadata.spec(), self.metadata.schema()
        with write_manifest(FORMAT_VERSION, spec, schema, output, snapshot_id, _CODEC) as writer:
            for entry in added:
                writer.add(entry)
            for entry in existing:
                writer.existing(entry)
            for entry in removed:
                writer.delete(entry)
        self.files.put(output)
        return writer.to_manifest_file()

    def _add_snapshot(
        self,
        snapshot_id: int,
        manifests: list[ManifestFile],
        operation: Operation,
        summary: dict[str, str],
        change: Change,
    ) -> None:
        parent, sequence = self.metadata.current_snapshot(), self.metadata.last_sequence_number + 1
        parent_id = parent.snapshot_id if parent is not None else None
        output: Any = self.files.new_file()
        with write_manifest_list(
            FORMAT_VERSION, output, snapshot_id, parent_id, sequence, _CODEC
        ) as writer:
            writer.add_manifests(manifests)
        self.files.put(output)
        self._manifests = self._read_list(output)
        totals = self.totals()
        snapshot = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence,
            # Times of snapshots may not decrease, but a clock may.
            timestamp_ms=max(change.time_ms, self.metadata.last_updated_ms if parent else 0),
            manifest_list=output.location,
            summary=Summary(
                operation,
                **summary,
                **{"total-data-files": str(totals.files), "total-records": str(totals.rows)},
            ),
            schema_id=self.metadata.current_schema_id,
        )
        entry = SnapshotLogEntry(snapshot_id=snapshot_id, timestamp_ms=snapshot.timestamp_ms)
        main = SnapshotRef(snapshot_id=snapshot_id, snapshot_ref_type=SnapshotRefType.BRANCH)
        self.metadata = self.metadata.model_copy(
            update={
                "snapshots": [*self.metadata.snapshots, snapshot],
                "snapshot_log": [*self.metadata.snapshot_log, entry],
                "refs": {**self.metadata.refs, MAIN_BRANCH: main},
                "current_snapshot_id": snapshot_id,
                "last_sequence_number": sequence,
                "last_updated_ms": snapshot.timestamp_ms,
            }
        )
        self.added += 1

    # -- Older snapshots -------------------------------------------------------------------------

    def expire(self, first_version: int) -> int:
        """Remove the snapshots that the versions before ``first_version`` need; keep the current.

        :return: the number of removed snapshots.
        """
        snapshots = self.metadata.snapshots
        older = [one for one in snapshots if delta_version(one) <= first_version]
        kept = [*older[-1:], *(one for one in snapshots if delta_version(one) > first_version)]
        kept = kept[-SNAPSHOTS_MAX:]
        if len(kept) == len(snapshots):
            return 0
        ids = {one.snapshot_id for one in kept}
        oldest = kept[0].model_copy(update={"parent_snapshot_id": None})
        log = [one for one in self.metadata.snapshot_log if one.snapshot_id in ids]
        self.metadata = self.metadata.model_copy(
            update={"snapshots": [oldest, *kept[1:]], "snapshot_log": log}
        )
        return len(snapshots) - len(kept)

    def used_files(self) -> Collection[str]:
        """Return the locations of all lists and manifests that the snapshots use."""
        used = set()
        for snapshot in self.metadata.snapshots:
            used.add(snapshot.manifest_list)
            manifests = self._read_list(self.files.new_input(snapshot.manifest_list))
            used.update(one.manifest_path for one in manifests)
        return used

    # -- Manifests -------------------------------------------------------------------------------

    def _current(self) -> list[ManifestFile]:
        if self._manifests is None:
            current = self.metadata.current_snapshot()
            self._manifests = (
                self._read_list(self.files.new_input(current.manifest_list)) if current else []
            )
        return self._manifests

    def _read_list(self, file: Any) -> list[ManifestFile]:
        return list(read_manifest_list(file))

    def _entries(self, manifests: Iterable[ManifestFile]) -> list[ManifestEntry]:
        io: Any = self.files
        return [entry for one in manifests for entry in one.fetch_manifest_entry(io)]

    def _path(self, entry: ManifestEntry) -> str:
        path: str = entry.data_file.file_path
        return path.removeprefix(f"{self.metadata.location}/")

    def _lsn(self) -> int:
        current = self.metadata.current_snapshot()
        return int(_property(current, LSN)) if current is not None else 0


def delta_version(snapshot: Snapshot) -> int:
    """Return the Delta version with the rows of a snapshot."""
    return int(_property(snapshot, DELTA_VERSION))


def _property(snapshot: Snapshot, name: str) -> str:
    value: str | None = snapshot.summary.additional_properties.get(name) if snapshot.summary else ""
    return value or "0"


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _operation(change: Change, added: Sequence[Any], removed: Sequence[Any]) -> Operation:
    if not removed:
        return Operation.APPEND
    if not change.data_change:
        return Operation.REPLACE
    return Operation.OVERWRITE if added else Operation.DELETE
