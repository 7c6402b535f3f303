# Tests: tests/simulator/test_rollup_crashes.py
"""The fixed workload of the archive: the steps of the job, without Spark, on a simulated disk.

A run ingests one more sealed segment, makes checkpoints, merges files and vacuums. Then the broker
deletes the journal files that both tables hold. After a crash at any disk call, journal and table
together must hold every record; the next run must complete the archive, with each record once.
"""

from __future__ import annotations

import os
import pickle
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import NoReturn, TypeVar
from unittest.mock import patch

import msgpack
from deltalake import DeltaTable

from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import Bounds, PartitionBounds, TopicBounds
from brokerd.archive.contract.layout import RECORDS
from brokerd.archive.delta.actions import add_file
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.delta.log_files import COMMITS
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

Item = TypeVar("Item")
Result = TypeVar("Result")
RecordId = tuple[int, int, int]
"""Topic id, partition and offset."""


class SealedLog:
    """Sealed segments that a log wrote, and their records."""

    def __init__(self) -> None:
        self.values: dict[RecordId, bytes] = {}
        self.segments: list[dict[str, bytes]] = []
        """The files of each segment by name."""
        disk = SimDisk()
        options = WalOptions(segment_bytes=SEGMENT_BYTES_MIN, free_bytes_min=0)
        log = BareLog(disk, options, Random(SEED).randbytes)
        log.wal.open(0, lambda frame: None)
        log.run()
        for topic in (1, 2):
            body = msgpack.packb({"op": "created", "name": f"t{topic}", "partitions": 1})
            log.wal.append([Entry(EntryKind.TOPIC, topic, 0, 0, 0, body)], 1)
        for number in range(SEGMENTS):
            for topic in (1, 2):
                log.wal.append(self._entries(topic, number), 1)
            log.wal.seal()
            log.run()
        self.end_lsn = log.wal.durable_lsn
        log.close()
        names = [os.path.basename(path) for path in disk.paths(WAL_DIR)]
        sealed = sorted(name[:-4] for name in names if name.endswith(".idx"))[:SEGMENTS]
        for stem in sealed:
            files = (f"{stem}.wal", f"{stem}.idx")
            self.segments.append({name: disk.read(f"{WAL_DIR}/{name}") for name in files})

    def _entries(self, topic: int, number: int) -> list[Entry]:
        values = [b"%d of %d" % (number, topic), b"v" * 300 * topic]
        for at, value in enumerate(values):
            self.values[topic, 0, 2 * number + at] = value
        event = (EventKind.LEASED, 2 * number, 1_000_000, 7, 1, "owner", "")
        body = encode_records(RecordColumns(values))
        return [
            Entry(EntryKind.RECORDS, topic, 0, 2 * number, 2, body),
            Entry(EntryKind.GROUP_EVENTS, topic, 0, 0, 1, encode_group_events("g", [event])),
        ]

    def values_in(self, name: str) -> dict[RecordId, bytes]:
        """Return the records of a segment, by the name of its file."""
        number = next(at for at, files in enumerate(self.segments) if name in files)
        return {place: v for place, v in self.values.items() if place[2] // 2 == number}

    def bounds(self) -> Bounds:
        parts = [PartitionBounds(0, 1 << 40, 1 << 40)]
        topics = [TopicBounds(number, f"t{number}", 0, False, parts) for number in (1, 2)]
        return Bounds(LOG_ID, self.end_lsn, 1_700_000_000_000_000, True, 3, topics)


class InlineSpark(SparkRunner):
    """Calls the functions of tasks in this process."""

    def __init__(self) -> None:
        super().__init__(_no_spark)

    def is_local(self) -> bool:
        return True

    def map(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        return [function(item) for item in pickle.loads(pickle.dumps(items))]


def _no_spark() -> NoReturn:
    raise AssertionError("a step needs Spark")


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
        self._chance = chance or Random(SEED)

    def play(self) -> None:
        """Seal one segment after the other, and run the job after each."""
        with self.simulated():
            self.disk.mkdir(JOURNAL)
            self.disk.sync_directory(DISK)
            for files in self.log.segments:
                for name, data in files.items():
                    file = self.disk.create(f"{JOURNAL}/{name}")
                    file.pwrite(data, 0)
                    file.sync()
                self.disk.sync_directory(JOURNAL)
                self.acknowledged |= self.log.values_in(next(iter(files)))
                self.run_job()

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
                checkpoint_if_due, every=EVERY_COMMITS
            ),
            "deltalake.DeltaTable": partial(_CopiedTable, self),
        }

    # -- the job -------------------------------------------------------------------------------

    def run_job(self) -> None:
        """Ingest, merge, vacuum; then delete the journal files that the archive holds."""
        self.disk.now_ns += 100 * HOUR_NS
        bounds = self.log.bounds()
        with tempfile.TemporaryDirectory() as wal:
            for path, data in self.disk.files().items():
                if os.path.dirname(path) == JOURNAL:
                    Path(wal, os.path.basename(path)).write_bytes(data)
            tables = ensure_tables(self.archive, LOG_ID, self._now_ms())
            run = Run(
                self.archive, bounds, Settings(vacuum_hours=1), tables, InlineSpark(), self._now_ms
            )
            ingest_log(run, Path(wal), lambda: 1 << 60, IngestReport())
        self._merge(tables)
        self.disk.now_ns += 100 * HOUR_NS
        for table in tables.values():
            table.vacuum(1, self._now_ms())
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
        log = f"{self._path_of(table)}/{COMMITS}"
        with tempfile.TemporaryDirectory() as copy:
            there = Path(copy, COMMITS)
            there.mkdir()
            for path, data in self._archive_files().items():
                if os.path.dirname(path) == log:
                    (there / os.path.basename(path)).write_bytes(data)
            before = {path.name for path in there.iterdir()}
            DeltaTable(copy, version=version).create_checkpoint()
            for made in sorted(there.iterdir()):
                if made.name not in before:
                    self._put(f"{log}/{made.name}", made.read_bytes())

    def _path_of(self, table: str) -> str:
        """Return the path of a table on the disk, or its key in the bucket."""
        return table

    def _archive_files(self) -> dict[str, bytes]:
        return self.disk.files()

    def _put(self, path: str, data: bytes) -> None:
        # deltalake takes the first free number, and syncs nothing.
        taken = self.disk.files()
        free = next(name for n in count(1) if (name := f"{path}#{n}") not in taken)
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
            self._remove_unsealed()
            self.run_job()
            yield from self.problems(acknowledged, is_complete=True)
            self.disk.crash(CrashModel.DROP)
            yield from self.problems(acknowledged, is_complete=True)

    def _remove_unsealed(self) -> None:
        """Remove a segment that the crash left half written or half deleted, as the log does."""
        names = self.disk.list(JOURNAL)
        for name in names:
            partner = name[:20] + (".idx" if name.endswith(".wal") else ".wal")
            if partner not in names:
                self.disk.unlink(f"{JOURNAL}/{name}")


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
