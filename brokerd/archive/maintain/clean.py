# Tests: tests/archive/test_clean.py
"""Removes records from the table of records, and merges its files: docs/archive-tables.rst.

1. Statistics of files select the candidates (`file_stats`, `selection`).
2. Spark examines their rows and stages the rows to drop (`retention`, `compaction`).
3. Tasks rewrite files without the dropped rows (`rewrite`).

Each group of files is one commit, so the next run continues a stopped run. Merges that change no
row are commits of their own, which streams over the Delta log pass over. The step runs after
`brokerd.archive.derive.hourly`, which has to count the records first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.archive.cluster.file_check import FileCheck, check_files
from brokerd.archive.contract.layout import BUCKETS, RECORDS, parse_records_name
from brokerd.archive.delta.actions import add_file
from brokerd.archive.errors import JobFailed
from brokerd.archive.maintain.compaction import (
    CompactionDrops,
    Tombstones,
    write_compaction_drops,
)
from brokerd.archive.maintain.compaction_state import (
    CompactionState,
    PartitionState,
    read_state,
    write_state,
)
from brokerd.archive.maintain.file_stats import (
    EXPIRY_UNKNOWN,
    NO_EXPIRY,
    RecordsFile,
    read_file_stats,
)
from brokerd.archive.maintain.merge_sort import REASONS
from brokerd.archive.maintain.retention import write_retention_drops
from brokerd.archive.maintain.retention_bounds import RetentionBounds, bounds_by_bucket
from brokerd.archive.maintain.rewrite import RewriteFailure, RewriteResult, RewriteUnit, rewrite
from brokerd.archive.maintain.selection import (
    Partition,
    PartitionExtent,
    compaction_bounds,
    files_to_merge,
    partition_extents,
    partitions_of_unreadable,
    partitions_to_compact,
)
from brokerd.archive.parquet.plain_file import StagedFile
from brokerd.archive.parquet.writer import FileInfo
from brokerd.archive.run import Run, StepReport, count_text

SMALL_PART = 32
"""A file below this fraction of ``file_bytes`` is rewritten if any row is removed."""
OWN_PART = 8
"""A partition of at least this fraction of ``file_bytes`` gets its own file."""

_REASON_TEXTS = {
    "deleted": "of deleted topics",
    "trimmed": "below start offsets",
    "expired": "expired",
    "superseded": "superseded by later ones of their keys",
    "tombstone": "old tombstones",
}


def clean(run: Run) -> StepReport:
    """Remove records and merge files by the settings of the run, and return the report.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict, OSError.
    Commits before an error stay.
    """
    totals = _Totals()
    _Cleaner(run, totals).clean()
    return totals.report()


@dataclass
class _Totals:
    """Totals of a step."""

    removed: Counter[str] = field(default_factory=Counter)
    """The number of records by reason."""
    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0

    def report(self) -> StepReport:
        numbers = {name: self.removed[name] for name in REASONS}
        numbers["files_removed"], numbers["files_added"] = self.files_removed, self.files_added
        numbers["bytes_removed"], numbers["bytes_added"] = self.bytes_removed, self.bytes_added
        lines = []
        total = self.removed.total()
        if total:
            reasons = [name for name in REASONS if self.removed[name]]
            parts = [f"{self.removed[name]:,} {_REASON_TEXTS[name]}" for name in reasons]
            lines.append(f"removed {count_text(total, 'record')}: {', '.join(parts)}")
        if self.files_added:
            new = count_text(self.files_added, "file")
            lines.append(f"replaced {self.files_removed:,} by {new} of records")
        elif self.files_removed:
            lines.append(f"removed {count_text(self.files_removed, 'file')} without records left")
        return StepReport("clean", numbers, lines)


@dataclass
class _Selection:
    """The files to examine or rewrite."""

    merge: list[list[RecordsFile]]
    """Groups of files to merge."""
    extents: Mapping[Partition, PartitionExtent]
    """Extents of the partitions that can be compacted."""
    partitions: set[Partition]
    """Partitions to compact now."""
    compact: list[RecordsFile] = field(default_factory=list)
    """All files with records of these partitions."""
    expire: list[RecordsFile] = field(default_factory=list)
    """Files with expired records."""
    trim: list[RecordsFile] = field(default_factory=list)
    """Files with records of deleted topics or below start offsets."""

    def examined(self) -> dict[str, RecordsFile]:
        """Return the files to examine row by row, by path."""
        return {one.path: one for one in (*self.trim, *self.expire, *self.compact)}

    def exclude(self, paths: Collection[str]) -> None:
        """Remove damaged files, groups with such files, and partitions in such files."""
        unknown = {one[:2] for file in self.compact if file.path in paths for one in file.extents}
        self.partitions -= unknown
        self.merge = [unit for unit in self.merge if not any(file.path in paths for file in unit)]
        for files in (self.compact, self.expire, self.trim):
            files[:] = [file for file in files if file.path not in paths]


class _DropFiles:
    """Staged files with the dropped rows of files of records."""

    def __init__(self, staged: Iterable[StagedFile]) -> None:
        self._by_name: dict[str, list[StagedFile]] = {}
        for one in staged:
            self._by_name.setdefault(one.value, []).append(one)

    def _of(self, path: str) -> list[StagedFile]:
        return self._by_name.get(path.rpartition("/")[2], [])

    def paths(self, path: str) -> tuple[str, ...]:
        """Return the staged files of a file of records."""
        return tuple(one.path for one in self._of(path))

    def rows(self, path: str) -> int:
        """Return the number of dropped rows. A row with two reasons counts twice."""
        return sum(one.rows for one in self._of(path))


class _Cleaner:
    """One attempt of `clean`."""

    def __init__(self, run: Run, totals: _Totals) -> None:
        self._run = run
        self._totals = totals
        self._settings = run.settings
        self._table = run.tables.newest(RECORDS)
        self._state = read_state(run.root, run.bounds.log_id, self._table.version)
        self._below = compaction_bounds(run.bounds, run.only) if run.settings.compaction else {}
        self._removable_below = {
            (topic.id, index): partition.compact_below
            for topic, index, partition in run.bounds.partitions()
            if run.only is None or topic.id in run.only
        }
        self._bounds = [RetentionBounds()] * BUCKETS
        self._now_us = 0
        if run.settings.retention:
            self._bounds = bounds_by_bucket(run.bounds, run.only)
            self._now_us = run.bounds.time_us if run.bounds.time_settled else 0
        self._files, unreadable = read_file_stats(
            run, self._table, self._bounds, self._below, self._state.expiry
        )
        self._problems = list(unreadable.values())
        self._blocked = partitions_of_unreadable(unreadable, self._below)
        reads_footers = run.settings.retention or run.settings.compaction
        self._expiry = {
            one.name.footer_hash: one.expires_us
            for one in self._files.values()
            if reads_footers or one.expires_us != EXPIRY_UNKNOWN
        }

    def clean(self) -> None:
        """Select, examine and rewrite files, and save the state."""
        run = self._run
        run.failpoint("clean planned")
        self._remove_whole_files()
        selection = self._select()
        checks = self._check(selection)
        with run.frames.staging() as directory:
            retention = self._retention_drops(selection, f"{directory}/retention")
            compaction = self._compaction_drops(selection, checks, f"{directory}/compaction")
            run.failpoint("clean examined")
            drops = _DropFiles([*retention, *compaction.drops])
            rewritten = self._rewrite(self._units(selection, drops))
        self._save_state(selection, compaction.tombstones, rewritten)
        if self._problems:
            raise JobFailed("; ".join([*self._problems[:3], *self._blocked_text()]))

    # -- Selecting and examining ---------------------------------------------------------------

    def _select(self) -> _Selection:
        settings, files = self._settings, list(self._files.values())
        states = {(one.topic_id, one.partition): one for one in self._state.partitions}
        extents, percent = partition_extents(files), settings.rewrite_percent
        selection = _Selection(
            files_to_merge(files, settings.file_bytes, self._run.only, self._run.merge_growth)
            if settings.merge
            else [],
            extents,
            partitions_to_compact(extents, self._below, states, percent, self._old_us())
            - self._blocked,
        )
        for file in files:
            if 0 < file.expires_us <= self._now_us and self._has_removable_offsets(file):
                selection.expire.append(file)
            if any(one[:2] in selection.partitions for one in file.extents):
                selection.compact.append(file)
        merged = {file.path for unit in selection.merge for file in unit}
        rewritten = merged | set(selection.examined())
        for file in files:
            if file.removable and (
                file.path in rewritten or self._is_worth_rewriting(file, file.removable)
            ):
                selection.trim.append(file)
        return selection

    def _has_removable_offsets(self, file: RecordsFile) -> bool:
        """Return whether the name of a file allows records below ``compact_below``."""
        only = file.name.only
        return only is None or only.first < self._removable_below.get(only[:2], 0)

    def _old_us(self) -> int:
        """Return the append time up to which tombstones are old; 0 if no tombstone is old."""
        bounds = self._run.bounds
        old_us = bounds.time_us - self._settings.tombstone_seconds * 1_000_000
        return old_us if bounds.time_settled else 0

    def _is_worth_rewriting(self, file: RecordsFile, share: float) -> bool:
        """Return whether to rewrite a file to remove a share of its rows, from 0 to 1."""
        is_small = file.size * SMALL_PART <= self._settings.file_bytes
        return file.has_deleted or is_small or share * 100 >= self._settings.rewrite_percent

    def _check(self, selection: _Selection) -> list[FileCheck]:
        """Verify the files to examine, and exclude damaged files. Return the sound files."""
        sizes = {file.path: file.size for file in selection.examined().values()}
        table = self._table.path
        checks = check_files(self._run.spark, table, sizes, "check files")
        bad = {one.path: one.problem for one in checks if one.problem}
        selection.exclude(bad)
        self._problems += [f"{text}; restore it from a backup" for text in bad.values()]
        return [one for one in checks if not one.problem]

    def _retention_drops(self, selection: _Selection, directory: str) -> list[StagedFile]:
        trimmed = [file.path for file in selection.trim]
        expiring = {file.path.rpartition("/")[2]: file for file in selection.expire}
        if not (trimmed or expiring):
            return []
        with self._run.spark.job_group("retention"):
            paths = [file.path for file in selection.expire]
            result = write_retention_drops(self._run, trimmed, paths, directory)
        for name, file in expiring.items():
            self._expiry[file.name.footer_hash] = result.expiry.get(name, NO_EXPIRY)
        return result.drops

    def _compaction_drops(
        self, selection: _Selection, checks: list[FileCheck], directory: str
    ) -> CompactionDrops:
        if not selection.partitions:
            return CompactionDrops([])
        paths = {file.path for file in selection.compact}
        files = [one for one in checks if one.path in paths]
        with self._run.spark.job_group("compaction"):
            return write_compaction_drops(self._run, files, selection.partitions, directory)

    # -- Rewriting ---------------------------------------------------------------------------

    def _remove_whole_files(self) -> None:
        """Remove the files that hold only removable offsets."""
        whole = [file for file in self._files.values() if file.removable >= 1]
        if not whole:
            return
        self._commit([], [file.path for file in whole])
        for file in whole:
            self._totals.removed["deleted" if file.has_deleted else "trimmed"] += file.rows
            self._forget(file.path)

    def _units(self, selection: _Selection, drops: _DropFiles) -> list[RewriteUnit]:
        """Return the groups to merge, and the other files with enough dropped rows."""
        units = [self._unit(files, drops) for files in selection.merge]
        merged = {path for unit in units for path in unit.paths}
        for file in selection.examined().values():
            rows = 0 if file.path in merged else drops.rows(file.path)
            if rows and self._is_worth_rewriting(file, rows / file.rows):
                units.append(self._unit([file], drops))
        return units

    def _unit(self, files: Sequence[RecordsFile], drops: _DropFiles) -> RewriteUnit:
        name, bounds = files[0].name, RetentionBounds()
        if any(file.removable for file in files):
            bounds = self._bounds[name.bucket]
        if name.only is not None:
            bounds = bounds.of_partition(name.only.topic_id, name.only.partition)
        size = self._settings.file_bytes
        return RewriteUnit(
            root=self._run.root,
            table=RECORDS.name,
            log_id=self._run.bounds.log_id,
            paths=tuple(file.path for file in files),
            drops={file.path: drops.paths(file.path) for file in files},
            bounds=bounds,
            file_bytes=size,
            own_bytes=size // OWN_PART,
        )

    def _rewrite(self, units: Sequence[RewriteUnit]) -> set[str]:
        """Rewrite and commit units, one lot at a time. Return the paths of the removed files."""
        rewritten: set[str] = set()
        for lot in self._lots(units):
            results = self._run.spark.map("rewrite files", rewrite, lot)
            done = [one for one in results if isinstance(one, RewriteResult)]
            self._problems += [one.text for one in results if isinstance(one, RewriteFailure)]
            removed = [path for one in done for path in one.paths]
            merged = [one for one in done if self._has_same_rows(one)]
            changed = [one for one in done if not self._has_same_rows(one)]
            for group, data_change in ((merged, False), (changed, True)):
                paths = [path for one in group for path in one.paths]
                if paths:
                    added = [info for one in group for info in one.added]
                    self._commit(added, paths, data_change=data_change)
            for one in done:
                self._totals.removed.update(one.removed)
            rewritten.update(removed)
        return rewritten

    def _has_same_rows(self, result: RewriteResult) -> bool:
        """Return whether the new files have all rows of the removed files."""
        before = sum(self._files[path].rows for path in result.paths)
        return before == sum(info.rows for info in result.added)

    def _lots(self, units: Sequence[RewriteUnit]) -> Iterator[list[RewriteUnit]]:
        """Yield units in lots of about ``lot_bytes``."""
        lot: list[RewriteUnit] = []
        total = 0
        for unit in units:
            size = sum(self._files[path].size for path in unit.paths)
            if lot and total + size > self._settings.lot_bytes:
                yield lot
                lot, total = [], 0
            lot.append(unit)
            total += size
        if lot:
            yield lot

    def _commit(
        self, infos: Sequence[FileInfo], removed: Sequence[str], *, data_change: bool = True
    ) -> None:
        run, totals = self._run, self._totals
        run.failpoint("before clean commit")
        self._table.commit(
            [add_file(info) for info in infos],
            removed,
            now_ms=run.now_ms(),
            operation="CLEAN" if data_change else "OPTIMIZE",
            data_change=data_change,
        )
        run.failpoint("after clean commit")
        totals.files_removed += len(removed)
        totals.files_added += len(infos)
        totals.bytes_removed += sum(self._files[path].size for path in removed)
        totals.bytes_added += sum(info.size for info in infos)
        for info in infos:
            expires_us = NO_EXPIRY
            if info.expiring:
                expires_us = max(EXPIRY_UNKNOWN, info.minimum["expires_at"])
            self._expiry[parse_records_name(info.path).footer_hash] = expires_us

    def _blocked_text(self) -> list[str]:
        if not self._blocked:
            return []
        count = count_text(len(self._blocked), "partition")
        return [f"compaction waits for unreadable files in {count}"]

    # -- State -------------------------------------------------------------------------------

    def _forget(self, path: str) -> None:
        file = self._files.pop(path)
        self._expiry.pop(file.name.footer_hash, None)

    def _save_state(
        self,
        selection: _Selection,
        tombstones: Mapping[Partition, Tombstones],
        rewritten: Collection[str],
    ) -> None:
        """Save the state of compaction for the next run."""
        changed = {one[:2] for path in rewritten for one in self._files[path].extents}
        for path in rewritten:
            self._forget(path)
        states = {
            (one.topic_id, one.partition): one
            for one in self._state.partitions
            if (one.topic_id, one.partition) in self._below or not self._settings.compaction
        }
        for partition in selection.partitions:
            left = tombstones.get(partition, Tombstones())
            end = selection.extents[partition].end
            below = min(end, self._below[partition])
            again = left.wait and partition in changed
            states[partition] = PartitionState(*partition, end, below, left.young_us, again)
        log_id, version = self._run.bounds.log_id, self._table.version
        state = CompactionState(log_id, version, self._expiry, sorted(states.values()))
        if state != self._state:
            write_state(self._run.root, state)
