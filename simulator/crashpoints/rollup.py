# Tests: tests/simulator/test_rollup_crashes.py
"""The fixed workload of the archive: the steps of the job, without Spark, on a simulated disk.

A run ingests one more sealed segment, makes checkpoints, merges files and vacuums. Then the broker
deletes the journal files that both tables hold. After a crash at any disk call, journal and table
together must hold every record; the next run must complete the archive, with each record once.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

import msgpack

from brokerd.archive.contract.bounds import Bounds, PartitionBounds, TopicBounds
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.delta.tables import Tables, ensure_tables, open_tables
from brokerd.archive.ingest.ingest import IngestReport, ingest_log
from brokerd.archive.maintain.rewrite import RewriteResult, RewriteUnit, ranges_of, rewrite
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.run import Run, Settings
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.archive.storage import local
from brokerd.archive.storage.address import Place
from brokerd.wal import WalOptions
from brokerd.walformat import (
    SEGMENT_BYTES_MIN,
    Entry,
    EntryKind,
    EventKind,
    RecordColumns,
    encode_group_events,
    encode_records,
)
from simulator.archive.inline_spark import InlineSpark, checkpoint_files, free_name
from simulator.crashpoints.points import LOST, require
from simulator.machine.bare import WAL_DIR, BareLog
from simulator.machine.crash import CrashModel
from simulator.machine.disk import SimDisk
from simulator.machine.tree_disk import TreeDisk

SEED = 3
LOG_ID = "5" * 32
DISK = "/sim"
JOURNAL = f"{DISK}/wal"
ARCHIVE = Path(DISK, "archive")
SEGMENTS = 3
HOUR_NS = 3_600 * 1_000_000_000
EVERY_COMMITS = 2
"""Checkpoints are due after so many commits."""

RecordId = tuple[int, int, int]
"""Topic id, partition and offset."""


Batches = Sequence[Sequence[bytes]]
"""The values of one batch of each topic, the topic with the id 1 first. A batch may be empty."""


def _batches(number: int) -> Batches:
    """Return the batches of a segment of the fixed workload."""
    return [[b"%d of %d" % (number, topic), b"v" * 300 * topic] for topic in (1, 2)]


class SealedLog:
    """Sealed segments that a log wrote, and their records."""

    def __init__(self, batches: Sequence[Batches] | None = None) -> None:
        """Write a log. ``batches`` are those of each segment, by default of the fixed workload."""
        self.values: dict[RecordId, bytes] = {}
        self.segments: list[dict[str, bytes]] = []
        """The files of each segment by name."""
        self._held: dict[str, dict[RecordId, bytes]] = {}
        """The records of each segment, by the name of its file."""
        given = [_batches(number) for number in range(SEGMENTS)] if batches is None else batches
        self.topics = [number for number, _ in enumerate(given[0], 1)]
        """The ids of the topics."""
        disk = SimDisk()
        options = WalOptions(segment_bytes=SEGMENT_BYTES_MIN, free_bytes_min=0)
        log = BareLog(disk, options, Random(SEED).randbytes)
        log.wal.open(0, lambda frame: None)
        log.run()
        for topic in self.topics:
            body = msgpack.packb({"op": "created", "name": f"t{topic}", "partitions": 1})
            log.wal.append([Entry(EntryKind.TOPIC, topic, 0, 0, 0, body)], 1)
        held: list[dict[RecordId, bytes]] = []
        for some in given:
            held.append({})
            for topic, values in zip(self.topics, some, strict=True):
                if values:
                    log.wal.append(self._entries(topic, values, held[-1]), 1)
            log.wal.seal()
            log.run()
        self.end_lsn = log.wal.durable_lsn
        log.close()
        names = [os.path.basename(path) for path in disk.paths(WAL_DIR)]
        sealed = sorted(name[:-4] for name in names if name.endswith(".idx"))[: len(given)]
        for stem, records in zip(sealed, held, strict=True):
            files = (f"{stem}.wal", f"{stem}.idx")
            self.segments.append({name: disk.read(f"{WAL_DIR}/{name}") for name in files})
            self._held |= dict.fromkeys(files, records)

    def _entries(
        self, topic: int, values: Sequence[bytes], held: dict[RecordId, bytes]
    ) -> list[Entry]:
        first = sum(1 for place in self.values if place[0] == topic)
        for offset, value in enumerate(values, first):
            self.values[topic, 0, offset] = held[topic, 0, offset] = value
        event = (EventKind.LEASED, first, 1_000_000, 7, 1, "owner", "")
        body = encode_records(RecordColumns(list(values)))
        return [
            Entry(EntryKind.RECORDS, topic, 0, first, len(values), body),
            Entry(EntryKind.GROUP_EVENTS, topic, 0, 0, 1, encode_group_events("g", [event])),
        ]

    def values_in(self, name: str) -> dict[RecordId, bytes]:
        """Return the records of a segment, by the name of its file."""
        return self._held[name]

    def bounds(self) -> Bounds:
        parts = [PartitionBounds(0, 1 << 40, 1 << 40)]
        topics = [TopicBounds(topic, f"t{topic}", 0, False, parts) for topic in self.topics]
        end = len(topics) + 1
        return Bounds(LOG_ID, self.end_lsn, 1_700_000_000_000_000, True, end, topics)


class Steps(NamedTuple):
    """The steps of a run, and of the broker after it."""

    settings: Settings = Settings(vacuum_hours=1)
    merges: bool = True
    """Whether it merges the files of each bucket of records into one."""
    merges_by_policy: bool = False
    """Whether it merges records and events as a run that starts no Spark does."""
    vacuums: bool = True
    deletes: bool = True
    """Whether the broker then deletes the journal files that the archive holds."""
    hours: int = 100
    """The time before the run, and again before the vacuum."""


WHOLE = Steps()


class RollupScript:
    """One play of the workload. ``chance`` gives the random names of files."""

    def __init__(
        self,
        log: SealedLog | None = None,
        disk: TreeDisk | None = None,
        archive: Place = ARCHIVE,
        chance: Random | None = None,
    ) -> None:
        self.log = log or SealedLog()
        self.disk = disk or TreeDisk(DISK)
        self.archive = archive
        self.acknowledged: dict[RecordId, bytes] = {}
        """Records of the segments that the log has sealed so far."""
        self.every_commits = EVERY_COMMITS
        """Checkpoints are due after so many commits."""
        self.report = IngestReport()
        """The report of the last run's ingest."""
        self._chance = chance or Random(SEED)

    def play(self) -> None:
        """Seal one segment after the other, and run the job after each."""
        with self.simulated():
            self.make_journal()
            for files in self.log.segments:
                self.seal(files)
                self.run_job()

    def make_journal(self) -> None:
        """Make the directory of the journal."""
        self.disk.mkdir(JOURNAL)
        self.disk.sync_directory(DISK)

    def seal(self, files: dict[str, bytes]) -> None:
        """Write the files of a sealed segment durably. Its records are acknowledged."""
        for name, data in files.items():
            file = self.disk.create(f"{JOURNAL}/{name}")
            file.pwrite(data, 0)
            file.sync()
        self.disk.sync_directory(JOURNAL)
        self.acknowledged |= self.log.values_in(next(iter(files)))

    def digest(self) -> str:
        """Return a text that is the same for the same play."""
        return self.disk.digest()

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Keep the archive on the simulated disk meanwhile."""
        with ExitStack() as stack:
            for target, replacement in self._replacements().items():
                stack.enter_context(patch(target, replacement))
            yield

    def _replacements(self) -> dict[str, object]:
        chance = self._chance
        return {
            "brokerd.archive.storage.local.LocalStore": partial(local.LocalStore, disk=self.disk),
            "secrets.token_hex": lambda size: chance.randbytes(size).hex(),
            "secrets.randbelow": chance.randrange,
            "os.urandom": chance.randbytes,
            "brokerd.archive.delta.table.checkpoint_if_due": partial(
                checkpoint_if_due, every=self.every_commits
            ),
            "deltalake.DeltaTable": partial(_CopiedTable, self),
        }

    # -- the job -------------------------------------------------------------------------------

    def run_job(self, how: Steps = WHOLE) -> None:
        """Ingest, merge, vacuum; then delete the journal files that the archive holds."""
        self.disk.now_ns += how.hours * HOUR_NS
        bounds = self.log.bounds()
        self.report = IngestReport()
        with tempfile.TemporaryDirectory() as wal:
            for path, data in self.disk.files().items():
                if os.path.dirname(path) == JOURNAL:
                    Path(wal, os.path.basename(path)).write_bytes(data)
            tables = ensure_tables(self.archive, LOG_ID, self._now_ms())
            spark = InlineSpark()
            run = Run(self.archive, bounds, how.settings, tables, spark, self._now_ms)
            ingest_log(run, Path(wal), lambda: 1 << 60, self.report)
        if how.merges:
            self._merge(tables)
        if how.merges_by_policy:
            _merge_by_policy(run)
        self.disk.now_ns += how.hours * HOUR_NS
        if how.vacuums:
            for table in tables.values():
                table.vacuum(how.settings.vacuum_hours, self._now_ms())
        if how.deletes:
            self._delete_journal()

    def _now_ms(self) -> int:
        return self.disk.now_ns // 1_000_000

    def _merge(self, tables: Tables) -> None:
        """Merge the files of each bucket into one."""
        table = tables.newest(RECORDS)
        by_bucket: dict[str, list[str]] = {}
        for path in sorted(table.paths()):
            by_bucket.setdefault(path.partition("/")[0], []).append(path)
        for paths in by_bucket.values():
            if len(paths) > 1:
                done = rewrite(RewriteUnit(self.archive, RECORDS.name, LOG_ID, tuple(paths)))
                require(isinstance(done, RewriteResult), done)
                assert isinstance(done, RewriteResult)
                table.commit([add_file(i) for i in done.added], paths, now_ms=self._now_ms())

    def _delete_journal(self) -> None:
        """Delete the segments below the LSNs of a view, as the broker does."""
        view = DeltaArchive(self.archive, LOG_ID).refresh()
        end_lsn = 0 if view is None else min(view.records_lsn, view.events_lsn)
        for name in self.disk.list(JOURNAL):
            stem, suffix = os.path.splitext(name)
            path = f"{JOURNAL}/{stem}"
            if suffix == ".wal" and int(stem) + self.disk.status(f"{path}.wal").size <= end_lsn:
                self.disk.unlink(f"{path}.wal")
                self.disk.unlink(f"{path}.idx")
        self.disk.sync_directory(JOURNAL)

    # -- checkpoints ---------------------------------------------------------------------------

    def write_checkpoint(self, table: str, version: int) -> None:
        """Let deltalake write a checkpoint of a copy, and write its files as deltalake does."""
        made = checkpoint_files(self._archive_files(), self._path_of(table), version)
        for path, data in made.items():
            self._put(path, data)

    def _path_of(self, table: str) -> str:
        """Return the path of a table on the disk, or its key in the bucket."""
        return table

    def _archive_files(self) -> dict[str, bytes]:
        return self.disk.files()

    def _put(self, path: str, data: bytes) -> None:
        # deltalake takes the first free number, and syncs nothing.
        free = free_name(path, self.disk.files())
        self.disk.create(free).pwrite(data, 0)
        self.disk.rename(free, path)

    # -- checking ------------------------------------------------------------------------------

    def problems(self, acknowledged: dict[RecordId, bytes], *, is_complete: bool) -> Iterator[str]:
        """Compare table and journal with the acknowledged records; yield the faults.

        If ``is_complete``, the table alone must hold them.
        """
        held = archived_rows(self.archive)
        archived = {place for place, _ in held}
        for (place, value), times in held.items():
            if times > 1:
                yield f"record {place} is {times} times in the table"
            if self.log.values.get(place) != value:
                yield f"record {place} has another value in the table"
        names = set(self.disk.list(JOURNAL))
        for stem in {name[:20] for name in names}:
            if {f"{stem}.wal", f"{stem}.idx"} <= names and not is_complete:
                archived |= self.log.values_in(f"{stem}.wal").keys()
        missing = sorted(acknowledged.keys() - archived)
        if missing:
            yield f"{LOST}{len(missing)} records are missing, the first is {missing[0]}"

    def next_run_problems(self, acknowledged: dict[RecordId, bytes]) -> Iterator[str]:
        """Look at the state after a crash, and again after the next run; yield the faults."""
        with self.simulated():
            yield from self.problems(acknowledged, is_complete=False)
            if JOURNAL not in self.disk.directories():
                return  # the log does not exist yet
            self.remove_unsealed()
            self.run_job()
            yield from self.problems(acknowledged, is_complete=True)
            self.disk.crash(CrashModel.DROP)
            yield from self.problems(acknowledged, is_complete=True)

    def remove_unsealed(self) -> None:
        """Remove a segment that the crash left half written or half deleted, as the log does."""
        names = self.disk.list(JOURNAL)
        for name in names:
            partner = name[:20] + (".idx" if name.endswith(".wal") else ".wal")
            if partner not in names:
                self.disk.unlink(f"{JOURNAL}/{name}")


def _merge_by_policy(run: Run) -> None:
    """Take the steps of a run that starts no Spark and removes no record."""
    from brokerd.archive.job import steps  # It imports pyspark.

    settings = run.settings._replace(
        derived=False, retention=False, compaction=False, merge=True, events_days=0
    )
    for step in steps(settings):
        step(replace(run, settings=settings))


class _CopiedTable:
    """Stands for `deltalake.DeltaTable`, which cannot see a simulated disk or bucket."""

    def __init__(
        self, script: RollupScript, table: str, version: int, storage_options: object
    ) -> None:
        self._script = script
        self._table = table
        self._version = version

    def create_checkpoint(self) -> None:
        self._script.write_checkpoint(self._table, self._version)


def check_rollup(script: RollupScript, acknowledged: dict[RecordId, bytes]) -> list[str]:
    """Return the faults of what a crash left to ``script``. The check changes it."""
    try:
        return list(script.next_run_problems(acknowledged))
    except Exception:
        return [traceback.format_exc()]  # any error: the job should have gone on


def archived_rows(archive: Place) -> Counter[tuple[RecordId, bytes]]:
    """Read each row of the table of records, and count how often it is there."""
    rows: Counter[tuple[RecordId, bytes]] = Counter()
    table = open_tables(archive, LOG_ID).get(RECORDS.name)
    for path in [] if table is None else table.paths():
        file = open_file(archive / RECORDS.name, path)
        for topic_id, partition, first, end in ranges_of(file):
            while first < end:
                found = file.read(topic_id, partition, first, 1 << 20)
                assert found is not None
                for offset, value in zip(found.offsets, found.columns.values, strict=True):
                    rows[(topic_id, partition, offset), bytes(value)] += 1
                first = found.end
    return rows
