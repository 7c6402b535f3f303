# Tests: tests/simulator/test_archive_files.py
"""An archive of real files on a simulated disk, and the real job that fills it.

`FiledArchive` takes the place of `simulator.archive.view.SimArchive`: the broker reads it with
`brokerd.archive.serve.delta_archive`. `FiledArchiver` runs `brokerd.archive.job.run_job`; functions
of Spark tasks run in its process. The job is a process of the machine: time passes at its calls of
the disk, it may be killed at each, and a power loss takes what it has not synced.
"""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from brokerd.archive.contract.bounds import FILE_NAME, decode_bounds
from brokerd.archive.contract.pin import FILE_NAME as PIN_NAME
from brokerd.archive.delta.checkpoints import checkpoint_if_due
from brokerd.archive.job import Job, JobReport, run_job
from brokerd.archive.run import Settings
from brokerd.archive.serve.delta_archive import DeltaArchive, DeltaArchiveView
from brokerd.archive.storage import local
from brokerd.errors import BrokerdError, DamagedData
from simulator.archive.inline_spark import (
    NO_SPARK,
    InlineSpark,
    NoSpark,
    checkpoint_files,
    free_name,
    memory_directory,
    no_spark,
)
from simulator.archive.rollup import Archiver
from simulator.archive.view import Key, SimArchive, Wait
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.crash import CrashModel
from simulator.machine.disk import Call, PowerLost, SimDisk
from simulator.machine.threads import Process, current_thread
from simulator.machine.tree_disk import TreeDisk
from simulator.machine.world import World
from simulator.plan import Rollup

ROOT = Path("/sim/archive")
EVERY_COMMITS = 3
"""Checkpoints are due after so many commits."""
CALLS = 10
"""Disk calls of the job for each step of a plan: the time of a step, and steps before a kill."""
LOT_BYTES = 64 << 10
"""Bytes of a lot for each segment that a plan allows."""
FILE_BYTES = 16 << 10
ROOM = 1 << 60
SWITCHING = frozenset({"create", "sync", "rename", "link", "unlink", "mkdir", "sync_directory"})
"""Calls of the job during which time passes."""


class FiledArchive(SimArchive):
    """The files of an archive. The faults of `SimArchive` but damage strike it."""

    has_files = True

    def __init__(self, world: World) -> None:
        super().__init__()
        self.disk = TreeDisk(str(ROOT.parent))
        self._names = world.chance("archive names")
        self._losses = world.chance("archive losses")
        self._copies: list[tuple[int, list[str], dict[str, bytes]]] = []
        """Copies of the whole archive: the LSN that both tables reach, directories, files."""

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Keep the files of every archive on the simulated disk meanwhile."""
        names = self._names
        replacements: dict[str, Any] = {
            "brokerd.archive.storage.local.LocalStore": partial(local.LocalStore, disk=self.disk),
            "brokerd.archive.job.SparkRunner": InlineSpark,
            "brokerd.archive.job.archive_lock": lambda root: nullcontext(),
            "secrets.token_hex": lambda size=32: names.randbytes(size).hex(),
            "secrets.randbelow": names.randrange,
            "os.urandom": names.randbytes,
            "brokerd.archive.delta.table.checkpoint_if_due": partial(
                checkpoint_if_due, every=EVERY_COMMITS
            ),
            "deltalake.DeltaTable": partial(_CopiedTable, self.disk),
        }
        with ExitStack() as stack:
            for target, replacement in replacements.items():
                stack.enter_context(patch(target, replacement))
            yield

    def lose_power(self, model: CrashModel) -> None:
        self.disk.crash(model, self._losses)

    def copy(self) -> None:
        """Copy the whole archive, as an operator does between two rollups."""
        self._copies.append((self.lsn(), self.disk.directories(), self.disk.files()))

    def restore(self, lsn: int) -> None:
        found = next((copy for copy in self._copies if copy[0] >= lsn), None)
        if found is None:
            return
        _, directories, files = found
        disk = self.disk
        for path in (*disk.files(), *reversed(disk.directories())):
            disk.unlink(path)
        for path in directories:
            disk.mkdir(path)
        for path, data in files.items():
            file = disk.create(path)
            file.pwrite(data, 0)
            file.sync()
        for path in (disk.root, *directories):
            disk.sync_directory(path)

    def lsn(self) -> int:
        view = self._view()
        return 0 if view is None else min(view.records_lsn, view.events_lsn)

    def events_lsn(self) -> int:
        view = self._view()
        return 0 if view is None else view.events_lsn

    def covered(self) -> Mapping[Key, Sequence[tuple[int, int]]]:
        view = self._view()
        if view is None:
            return {}
        partitions = {
            (topic_id, partition)
            for topic_id in range(1, view.max_topic_id + 1)
            for partition in range(PARTITIONS_MAX)
        }
        found = {key: [(p.first, p.end) for p in view.pieces(*key)] for key in partitions}
        return {key: ranges for key, ranges in found.items() if ranges}

    def _view(self) -> DeltaArchiveView | None:
        return DeltaArchive(ROOT, self.log_id).refresh() if self.log_id else None

    def opened(self, log_id: str, wait: Wait) -> OpenedFiles:
        return OpenedFiles(self, log_id, wait)


PARTITIONS_MAX = 16
"""The most partitions of a topic of a run with such an archive."""


class _CopiedTable:
    """Stands for `deltalake.DeltaTable`, which cannot see a simulated disk."""

    def __init__(
        self, disk: TreeDisk, table: str, version: int, storage_options: object = None
    ) -> None:
        self._disk, self._table, self._version = disk, table, version

    def create_checkpoint(self) -> None:
        files = self._disk.files()
        for path, data in checkpoint_files(files, self._table, self._version).items():
            draft = free_name(path, files)  # deltalake syncs nothing
            self._disk.create(draft).pwrite(data, 0)
            self._disk.rename(draft, path)


class OpenedFiles:
    """The archive of a log, as one process sees it; ``wait`` is called before each read."""

    def __init__(self, archive: FiledArchive, log_id: str, wait: Wait) -> None:
        self._archive = archive
        self._wait = wait
        self._delta = DeltaArchive(ROOT, log_id)
        self._inner: DeltaArchiveView | None = None
        self._view: FilesView | None = None

    def refresh(self) -> FilesView | None:
        """See `brokerd.archive.contract.view.Archive.refresh`."""
        self._wait()
        archive = self._archive
        if archive.problem or archive.is_gone:
            archive.failed_looks += 1
            archive.reach()
            return None
        inner = self._delta.refresh()
        if inner is None:
            self._inner = self._view = None
        elif inner is not self._inner:
            self._inner, self._view = inner, FilesView(archive, inner, self._wait)
        return self._view


class FilesView:
    """One version; see `brokerd.archive.contract.view.ArchiveView`."""

    def __init__(self, archive: FiledArchive, view: DeltaArchiveView, wait: Wait) -> None:
        self._archive = archive
        self._inner = view
        self._wait = wait

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        return partial(self._call, value) if callable(value) else value

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        self._wait()
        self._archive.reach()
        return method(*arguments)


class FiledArchiver(Archiver):
    """Runs the real job on a `FiledArchive`, once at a time."""

    def __init__(
        self,
        world: World,
        disk: SimDisk,
        archive: FiledArchive,
        failed: Callable[[str], None],
        wall_seconds: Callable[[], float],
    ) -> None:
        super().__init__(world, disk, archive, failed)
        self._files = archive
        self._wall_seconds = wall_seconds
        self._process: Process | None = None
        self._how = Rollup(at_us=0)
        self._calls = 0
        self._calls_max: int | None = None
        self._mirror: _Mirror | None = None
        archive.disk.enter = self._enter

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self, how: Rollup) -> None:
        if self.is_running:
            self._world.trace("rollup: another one is at work")
            return
        self.runs += 1
        self._how, self._calls = how, 0
        self._calls_max = None if how.steps_max is None else how.steps_max * CALLS
        self._process = process = Process(self._world)
        process.call_after(0, process.add_thread(partial(self._run, process)).begin)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._world.trace("rollup killed")
            process.end()

    def _run(self, process: Process) -> None:
        """Run the job in a thread of its process."""
        with tempfile.TemporaryDirectory(dir=memory_directory()) as directory:
            self._mirror = _Mirror(self._disk, Path(directory))
            reasons = self._job(process, Path(directory))
        if process is self._process:
            self._process = None
            for reason in reasons:
                self._failed(reason.replace(directory, "."))

    def _job(self, process: Process, directory: Path) -> list[str]:
        """Run the job, and return the reasons for which it cannot continue."""
        assert self._mirror is not None
        self._mirror.update()
        if not (directory / "state" / FILE_NAME).exists():
            self._world.trace("rollup began before there are bounds")
            return []
        how = self._how
        if not self._files.log_id:
            self._files.log_id = self._mirror.log_id()
        job = Job(
            directory,
            ROOT,
            Settings(
                lot_bytes=how.lot_segments * LOT_BYTES,
                local_lot_bytes=ROOM,
                file_bytes=FILE_BYTES,
                derived=False,
                retention=how.cleans,
                compaction=False,
                vacuum=how.vacuums,
                vacuum_hours=0,
            ),
            no_spark,
            lambda: int(self._wall_seconds() * 1000),
            lambda path: ROOM,
            failpoint=self._pass,
        )
        self._world.trace("rollup began")
        try:
            report = run_job(job)
        except NoSpark:
            return []
        except (BrokerdError, OSError) as error:
            return [f"{type(error).__name__}: {error}"]
        except Exception:  # any error: the job ends with a traceback
            return [traceback.format_exc()]
        self.lots += report.ingest.lots
        self._files.copy()
        self._world.trace(f"rollup done: {_counts_of(report)}")
        return [one for one in report.problems if NO_SPARK not in one]

    def _pass(self, name: str) -> None:
        self._world.trace(f"rollup {name}")

    def _enter(self, call: Call) -> None:
        """Let time pass at the job's calls of the disk. Other calls are of the broker."""
        thread = current_thread()
        if thread is None or thread.process is not self._process:
            if thread is not None and not thread.process.alive:
                raise PowerLost
            return
        self._calls += 1
        if self._calls == self._calls_max:
            self._world.trace(f"rollup killed at {call.name} of {call.path}")
            process, self._process = self._process, None
            process.end()
            raise PowerLost
        if call.name in SWITCHING:
            thread.process.sleep(max(1, self._how.step_us // CALLS))
            self._files.disk.now_ns = int(self._wall_seconds() * 1e9)
            assert self._mirror is not None
            self._mirror.update()


def _counts_of(report: JobReport) -> str:
    done = report.ingest
    steps = "; ".join(line for step in report.steps for line in step.lines)
    return f"{done.lots} lots, {done.records} records, {done.events} events. {steps}".rstrip()


class _Mirror:
    """Copies the files of the log that the job reads into a real directory, again and again."""

    def __init__(self, disk: SimDisk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._copied: dict[str, tuple[int, bool]] = {}
        for name in ("wal", "state"):
            (directory / name).mkdir()

    def update(self) -> None:
        """Copy new and changed files, and remove those that are gone."""
        wal = {path: self._disk.size_of(path) for path in self._disk.paths(WAL_DIR)}
        state = [f"{STATE_DIR}/{name}" for name in (FILE_NAME, PIN_NAME)]
        there = set(self._disk.paths(STATE_DIR))
        for path in [path for path in self._copied if path not in wal and path not in there]:
            del self._copied[path]
            self._real(path).unlink()
        for path, size in wal.items():
            if path.endswith((".wal", ".idx", ".deleted")):
                # Only sealed segments are read. Their indexes come last.
                seen = size, f"{path[:-4]}.idx" in wal
                if self._copied.get(path) != seen:
                    self._copy(path)
                    self._copied[path] = seen
        for path in state:
            if path in there:
                self._copy(path)
                self._copied[path] = 0, False

    def log_id(self) -> str:
        """Return the id of the log; "" if the bounds have rotted, with which the job fails."""
        try:
            return decode_bounds(self._disk.read(f"{STATE_DIR}/{FILE_NAME}")).log_id
        except DamagedData:
            return ""

    def _copy(self, path: str) -> None:
        real = self._real(path)
        draft = real.with_name(f".{real.name}")
        draft.write_bytes(self._disk.read(path))
        os.replace(draft, real)

    def _real(self, path: str) -> Path:
        directory, name = os.path.split(path)
        return self._directory / os.path.basename(directory) / name
