# Tests: tests/archive/test_clean.py
"""Takes out of the table of records what need not be kept, and merges its files.

What goes, and why, is docs/archive-tables.rst. First the Delta log, the names of files and footers
tell what may be worth it (`brokerd.archive.maintain.survey`, `choosing`). Then Spark looks at the
rows of these files (`transforms`) and says which go, and tasks write files anew (`rewriting`). Each
group of files is one commit: a run that is stopped has done some of the work, and the next does the
rest.

It has to run after what came since the last run was counted (`brokerd.archive.derive.hourly`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from brokerd.archive.cluster.file_check import Checked, check_files
from brokerd.archive.cluster.frames import StagedFile, staging
from brokerd.archive.contract.layout import BUCKETS, RECORDS, parse_records_name
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.maintain.compaction import Compacted, Tombstones, write_compaction_drops
from brokerd.archive.maintain.compaction_state import (
    CompactionState,
    PartitionLook,
    read_looked,
    write_looked,
)
from brokerd.archive.maintain.merge_sort import REASONS
from brokerd.archive.maintain.retention import write_retention_drops
from brokerd.archive.maintain.rewrite import Refused, Rewritten, Trims, Unit, rewrite
from brokerd.archive.maintain.selection import (
    Extent,
    Partition,
    compactable,
    files_to_merge,
    held_of,
    partitions_to_look_at,
)
from brokerd.archive.maintain.survey import AT_ONCE, NEVER, RecordsFile, survey, trims_by_bucket
from brokerd.archive.parquet.writer import FileInfo
from brokerd.archive.run import JobFailed, Run, StepReport, counted

TRIES = 3
"""How often all is begun again because somebody else changed the table."""
SMALL_PART = 32
"""A file with less than this part of a file's size is written anew if anything of it goes."""
OWN_PART = 8
"""A partition with at least this part of a file's size gets a file of its own."""


def clean(run: Run) -> StepReport:
    """Remove and merge, as the settings of the run say.

    Raises JobFailed, ArchiveUnavailable, ForeignArchive, NewerFormat, TableConflict, OSError. What
    is committed by then stays.
    """
    done = _Done()
    for is_last in (*[False] * (TRIES - 1), True):
        try:
            _Cleaning(run, done).do()
            break
        except TableConflict:
            if is_last:
                raise
    return done.report()


@dataclass
class _Done:
    """What was done so far."""

    gone: Counter[str] = field(default_factory=Counter)
    """Records, by reason."""
    files_removed: int = 0
    files_added: int = 0
    bytes_removed: int = 0
    bytes_added: int = 0

    def report(self) -> StepReport:
        numbers = {name: self.gone[name] for name in REASONS}
        numbers["files_removed"], numbers["files_added"] = self.files_removed, self.files_added
        numbers["bytes_removed"], numbers["bytes_added"] = self.bytes_removed, self.bytes_added
        lines = []
        if self.gone.total():
            parts = [f"{self.gone[name]:,} {_WORDS[name]}" for name in REASONS if self.gone[name]]
            lines.append(f"removed {counted(self.gone.total(), 'record')}: {', '.join(parts)}")
        if self.files_added:
            wrote = counted(self.files_added, "file")
            lines.append(f"wrote {wrote} of records in the place of {self.files_removed:,}")
        elif self.files_removed:
            gone = counted(self.files_removed, "file")
            lines.append(f"took {gone} of records away, of which nothing is kept")
        return StepReport("clean", numbers, lines)


_WORDS = {
    "deleted": "of deleted topics",
    "trimmed": "below start offsets",
    "expired": "expired",
    "superseded": "superseded by later ones of their keys",
    "tombstone": "old tombstones",
}


@dataclass
class _Choice:
    """Files to look at, or to write anew anyway; by path."""

    merged: list[list[RecordsFile]]
    held: Mapping[Partition, Extent]
    """What there is of the partitions that may be compacted."""
    partitions: set[Partition]
    """To be compacted now."""
    compacted: list[RecordsFile] = field(default_factory=list)
    """All that hold records of these."""
    expiring: list[RecordsFile] = field(default_factory=list)
    trimmed: list[RecordsFile] = field(default_factory=list)

    def looked_at(self) -> dict[str, RecordsFile]:
        """Files whose rows are looked at."""
        return {one.path: one for one in (*self.trimmed, *self.expiring, *self.compacted)}

    def leave_out(self, paths: Collection[str]) -> None:
        """Forget files, and the partitions of which nobody can say what they hold."""
        lost = {one[:2] for file in self.compacted if file.path in paths for one in file.held}
        self.partitions -= lost
        self.merged = [unit for unit in self.merged if not any(file.path in paths for file in unit)]
        for files in (self.compacted, self.expiring, self.trimmed):
            files[:] = [file for file in files if file.path not in paths]


class _Drops:
    """What says which rows of files go."""

    def __init__(self, staged: Iterable[StagedFile]) -> None:
        self._by_name: dict[str, list[StagedFile]] = {}
        for one in staged:
            self._by_name.setdefault(one.value, []).append(one)

    def _of(self, path: str) -> list[StagedFile]:
        return self._by_name.get(path.rpartition("/")[2], [])

    def paths(self, path: str) -> tuple[str, ...]:
        """Files that say it of one."""
        return tuple(one.path for one in self._of(path))

    def rows(self, path: str) -> int:
        """How many rows of one go, or a few more: for two reasons, a row counts twice."""
        return sum(one.rows for one in self._of(path))


class _Cleaning:
    """One try of `clean`."""

    def __init__(self, run: Run, done: _Done) -> None:
        self._run = run
        self._done = done
        self._settings = run.settings
        self._table = Table(run.root, RECORDS, run.bounds.log_id)
        self._looked = read_looked(run.root, run.bounds.log_id, self._table.version)
        self._below = compactable(run.bounds, run.only) if run.settings.compaction else {}
        self._trims = [Trims()] * BUCKETS
        self._now_us = 0
        if run.settings.retention:
            self._trims = trims_by_bucket(run.bounds, run.only)
            self._now_us = run.bounds.time_us if run.bounds.time_settled else 0
        self._files, self._problems = survey(
            run, self._table, self._trims, self._below, self._looked.expiry
        )
        self._expiry = {one.name.footer_hash: one.expires_us for one in self._files.values()}

    def do(self) -> None:
        """All of it."""
        run = self._run
        run.at("clean planned")
        self._remove_gone()
        choice = self._choose()
        checked = self._check(choice)
        with staging(run) as directory:
            retained = self._look_for_retention(choice, f"{directory}/retention")
            compacted = self._look_for_compaction(choice, checked, f"{directory}/compaction")
            run.at("clean looked")
            drops = _Drops([*retained, *compacted.drops])
            rewritten = self._rewrite(self._units(choice, drops))
        self._note(choice, compacted.tombstones, rewritten)
        if self._problems:
            raise JobFailed("; ".join(self._problems[:3]))

    # -- What to look at ---------------------------------------------------------------------

    def _choose(self) -> _Choice:
        settings, files = self._settings, list(self._files.values())
        looked = {(one.topic_id, one.partition): one for one in self._looked.partitions}
        held, percent = held_of(files), settings.rewrite_percent
        choice = _Choice(
            files_to_merge(files, settings.file_bytes, self._run.only) if settings.merge else [],
            held,
            partitions_to_look_at(held, self._below, looked, percent, self._old_us()),
        )
        for file in files:
            if 0 < file.expires_us <= self._now_us:
                choice.expiring.append(file)
            if any(one[:2] in choice.partitions for one in file.held):
                choice.compacted.append(file)
        touched = {file.path for unit in choice.merged for file in unit} | set(choice.looked_at())
        for file in files:
            if file.share and (file.path in touched or self._is_worth(file, file.share)):
                choice.trimmed.append(file)
        return choice

    def _old_us(self) -> int:
        """Tombstones that were appended by then are old; 0: none is."""
        bounds = self._run.bounds
        old_us = bounds.time_us - self._settings.tombstone_seconds * 1_000_000
        return old_us if bounds.time_settled else 0

    def _is_worth(self, file: RecordsFile, part: float) -> bool:
        """Whether a file is written anew if this part of it goes."""
        is_small = file.size * SMALL_PART <= self._settings.file_bytes
        return file.has_deleted or is_small or part * 100 >= self._settings.rewrite_percent

    def _check(self, choice: _Choice) -> list[Checked]:
        sizes = {file.path: file.size for file in choice.looked_at().values()}
        checked = check_files(self._run, RECORDS, sizes, "check files to look at")
        bad = {one.path: one.problem for one in checked if one.problem}
        choice.leave_out(bad)
        self._problems += [f"{text}; restore it from a backup" for text in bad.values()]
        return [one for one in checked if not one.problem]

    def _look_for_retention(self, choice: _Choice, directory: str) -> list[StagedFile]:
        trimmed = [file.path for file in choice.trimmed]
        expiring = {file.path.rpartition("/")[2]: file for file in choice.expiring}
        if not (trimmed or expiring):
            return []
        with self._run.described("retention"):
            paths = [file.path for file in choice.expiring]
            found = write_retention_drops(self._run, trimmed, paths, directory)
        for name, file in expiring.items():
            self._expiry[file.name.footer_hash] = found.expiry.get(name, NEVER)
        return found.drops

    def _look_for_compaction(
        self, choice: _Choice, checked: list[Checked], directory: str
    ) -> Compacted:
        paths = {file.path for file in choice.compacted}
        files = [one for one in checked if one.path in paths]
        if not choice.partitions:
            return Compacted([])
        with self._run.described("compaction"):
            return write_compaction_drops(self._run, files, choice.partitions, directory)

    # -- What is done ------------------------------------------------------------------------

    def _remove_gone(self) -> None:
        """Remove files of which nobody has to know anything any more."""
        gone = [file for file in self._files.values() if file.share >= 1]
        if not gone:
            return
        self._commit([], [file.path for file in gone])
        for file in gone:
            self._done.gone["deleted" if file.has_deleted else "trimmed"] += file.rows
            self._forget(file.path)

    def _units(self, choice: _Choice, drops: _Drops) -> list[Unit]:
        """What is written anew: what is merged, and files of which enough goes."""
        units = [self._unit(files, drops) for files in choice.merged]
        merged = {path for unit in units for path in unit.paths}
        for file in choice.looked_at().values():
            rows = 0 if file.path in merged else drops.rows(file.path)
            if rows and self._is_worth(file, rows / file.rows):
                units.append(self._unit([file], drops))
        return units

    def _unit(self, files: Sequence[RecordsFile], drops: _Drops) -> Unit:
        trims = self._trims[files[0].name.bucket] if any(file.share for file in files) else Trims()
        only = files[0].name.only
        if only is not None:
            trims = trims.of_partition(only.topic_id, only.partition)
        size = self._settings.file_bytes
        return Unit(
            root=self._run.root,
            table=RECORDS.name,
            log_id=self._run.bounds.log_id,
            paths=tuple(file.path for file in files),
            drops={file.path: drops.paths(file.path) for file in files},
            trims=trims,
            file_bytes=size,
            own_bytes=size // OWN_PART,
        )

    def _rewrite(self, units: Sequence[Unit]) -> set[str]:
        """Write units anew and commit them, some at a time; gives the files that are gone."""
        rewritten: set[str] = set()
        for some in self._lots(units):
            results = self._run.map("write files anew", rewrite, some)
            done = [one for one in results if isinstance(one, Rewritten)]
            self._problems += [one.text for one in results if isinstance(one, Refused)]
            removed = [path for one in done for path in one.paths]
            if removed:
                self._commit([info for one in done for info in one.added], removed)
            for one in done:
                self._done.gone.update(one.gone)
            rewritten.update(removed)
        return rewritten

    def _lots(self, units: Sequence[Unit]) -> Iterator[list[Unit]]:
        """Units of about as many bytes as a run takes in one go."""
        some: list[Unit] = []
        total = 0
        for unit in units:
            size = sum(self._files[path].size for path in unit.paths)
            if some and total + size > self._settings.lot_bytes:
                yield some
                some, total = [], 0
            some.append(unit)
            total += size
        if some:
            yield some

    def _commit(self, infos: Sequence[FileInfo], removed: Sequence[str]) -> None:
        run, done = self._run, self._done
        run.at("before clean commit")
        self._table.commit(
            [add_file(info) for info in infos], removed, now_ms=run.now_ms(), operation="CLEAN"
        )
        run.at("after clean commit")
        done.files_removed += len(removed)
        done.files_added += len(infos)
        done.bytes_removed += sum(self._files[path].size for path in removed)
        done.bytes_added += sum(info.size for info in infos)
        for info in infos:
            expires_us = max(AT_ONCE, info.minimum["expires_at"]) if info.expiring else NEVER
            self._expiry[parse_records_name(info.path).footer_hash] = expires_us

    def _forget(self, path: str) -> None:
        file = self._files.pop(path)
        self._expiry.pop(file.name.footer_hash, None)

    def _note(
        self,
        choice: _Choice,
        tombstones: Mapping[Partition, Tombstones],
        rewritten: Collection[str],
    ) -> None:
        """Write down what was looked at, for the next run."""
        touched = {one[:2] for path in rewritten for one in self._files[path].held}
        for path in rewritten:
            self._forget(path)
        looks = {
            (one.topic_id, one.partition): one
            for one in self._looked.partitions
            if (one.topic_id, one.partition) in self._below
        }
        for partition in choice.partitions:
            left = tombstones.get(partition, Tombstones())
            end = choice.held[partition].end
            below = min(end, self._below[partition])
            again = left.wait and partition in touched
            looks[partition] = PartitionLook(*partition, end, below, left.young_us, again)
        log_id, version = self._run.bounds.log_id, self._table.version
        looked = CompactionState(log_id, version, self._expiry, sorted(looks.values()))
        if looked != self._looked:
            write_looked(self._run.root, looked)
