"""``python -m tests.archive.file_calls``: stop each archive command at each of its file calls.

A command changes files only by the methods of `RealDisk` and `RealFile`. For each call of a command
a fork of this process runs the command and fails there:

``kill``
    The process gets SIGKILL before the call. Half of the bytes of a write are written.
``full``
    From the call on, each call that needs space fails with ENOSPC. Half of the bytes of the first
    such write are written.

After each fault the tables must be whole for all readers. Then the command runs again without a
fault, and a complete rollup follows. The rows must be exactly those of a command without a fault.
No file may hold bytes of an erased record. No file may be left that no version needs.

Nothing here needs Spark. Exit codes: 0 all held, 1 a promise broken.
"""

from __future__ import annotations

import argparse
import errno
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

import brokerd.archive.iceberg.export  # noqa: F401  (each fork would import it)
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.layout import LAYOUTS, RECORDS
from brokerd.archive.delta import vacuum
from brokerd.archive.delta.log_files import COMMITS
from brokerd.archive.delta.table import Table
from brokerd.archive.erase import EraseJob, run_erase
from brokerd.archive.job import Job, run_job
from brokerd.archive.recover import RecoverJob, run_recover
from brokerd.archive.run import Settings
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.archive.storage.disk import RealDisk, RealFile
from brokerd.archive.storage.store import open_store
from brokerd.archive.typed.layouts import typed_layouts
from brokerd.errors import BrokerdError
from tests.archive.adding import open_to_writers
from tests.archive.inline import NO_LIMIT, map_here
from tests.archive.making import LOG_ID
from tests.archive.test_typed_tables import Orders

KEY = bytes.fromhex("f1a7c3905be2884d0e6ab93fd52c7716e8")
"""A key that no compression shortens, so that a search of raw bytes finds it."""
HOUR_MS = 3_600_000
MIB = 1 << 20
SETTINGS = Settings(
    file_bytes=MIB,
    local_lot_bytes=MIB,
    derived=False,
    retention=False,
    compaction=False,
    typed=True,
    iceberg=True,
    vacuum_hours=0,
)
CALLS = (
    *((RealDisk, name) for name in ("create", "mkdir", "link", "rename", "unlink")),
    *((RealDisk, name) for name in ("sync_directory",)),
    *((RealFile, name) for name in ("pwrite", "sync")),
)
NEEDS_SPACE = ("create", "mkdir", "link", "rename", "pwrite", "sync")

Row = tuple[Any, ...]
"""(topic id, partition, offset, key, value) of a record"""


# -- Faults --------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """A fault at a call, by its number from 0 on; -1 for none."""

    kind: str = "kill"
    call: int = -1


def install(fault: Fault) -> list[str]:
    """Make the calls of this process fail. Return a list that gets the name of each call."""
    seen: list[str] = []
    for owner, name in CALLS:
        setattr(owner, name, _failing(getattr(owner, name), name, fault, seen))
    os.fsync = lambda fd: None  # the machine does not lose power here
    return seen


def _failing(
    call: Callable[..., Any], name: str, fault: Fault, seen: list[str]
) -> Callable[..., Any]:
    def do(self: Any, *arguments: Any) -> Any:
        number = len(seen)
        seen.append(name)
        is_first = number == fault.call
        is_full = fault.kind == "full" and 0 <= fault.call <= number and name in NEEDS_SPACE
        if is_first and name == "pwrite":
            data, position = arguments
            call(self, memoryview(data)[: len(data) // 2], position)
        if is_first and fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_full:
            path = arguments[:1] if name not in ("pwrite", "sync") else ()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *path)
        return call(self, *arguments)

    return do


class Ended(NamedTuple):
    """The end of a fork."""

    killed: bool
    value: Any = None
    error: str = ""
    """The text of an expected error."""
    crash: str = ""
    """The traceback of another exception."""


def in_fork(function: Callable[..., Any], *arguments: Any) -> Ended:
    """Call a function in a fork of this process, and return its result."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        try:
            ended = Ended(False, function(*arguments))
        except (BrokerdError, OSError) as error:
            ended = Ended(False, error=f"{type(error).__name__}: {error}")
        except BaseException:
            ended = Ended(False, crash=traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(ended, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return Ended(True)
    assert not status, f"a fork ended with status {status}"
    found: Ended = pickle.loads(data)
    return found


# -- The log and its archive ---------------------------------------------------------------------


def make(path: Path) -> Orders:
    """Make a data directory with an archive, and with segments that the archive lacks."""
    data = Orders(path)
    data.log.time_us = _now_ms() * 1000 + 3_600_000_000
    data.register(n="integer", s="string")
    for turn in range(17):
        _add(data, turn)
        data.log.seal()
        data.publish()
        run_job(_job(data, is_small=True))
    data.register(n="integer", s="string", extra="string")
    for turn in range(17, 20):
        _add(data, turn)
        data.log.seal()
    data.publish()
    return data


def _add(data: Orders, turn: int) -> None:
    for partition in (0, 1):
        keys = [b"other", KEY, None]
        values = [f'{{"n": {turn}, "s": "{word}"}}' for word in ("one", KEY.hex(), "three")]
        texts = [*(value.encode() for value in values), b"no JSON"]
        data.append(1, partition, *texts, keys=[*keys, KEY])
        data.append(17, partition, b"of %d" % turn, b"same key", keys=[None, KEY])
    data.append(2, 0, b"of 2, %d" % turn, keys=[KEY])
    data.lease(1, "workers", turn, f"owner-{turn}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000 + 3 * HOUR_MS


def _job(data: Orders, **changes: Any) -> Job:
    given = {
        "data_dir": data.path,
        "root": data.root,
        "settings": SETTINGS,
        "open_spark": nullcontext,
        "now_ms": _now_ms,
        "free_bytes": lambda path: NO_LIMIT,
    }
    return Job(**{**given, **changes})


# -- Commands ------------------------------------------------------------------------------------


def roll(data: Orders) -> str:
    """Run a complete rollup. Return its problems."""
    return "; ".join(run_job(_job(data)).problems)


def follow(data: Orders) -> str:
    """Run a small round."""
    return "; ".join(run_job(_job(data, is_small=True)).problems)


def erase(data: Orders) -> str:
    """Erase the key from topic 1."""
    job = EraseJob(data.path, data.root, SETTINGS, _now_ms, "topic-1", KEY)
    report = run_erase(job)
    assert not report.found_after
    return "; ".join(report.problems)


def recover(data: Orders) -> str:
    """Set aside the commits of another program."""
    run_recover(RecoverJob(data.path, data.root, _now_ms))
    return ""


def remove_archive(data: Orders) -> None:
    """Let the first rollup come again."""
    shutil.rmtree(data.root)


def change_by_others(data: Orders) -> None:
    """Delete rows by another program."""
    for name in (RECORDS.name, "typed/1/rows"):
        open_to_writers(data.root / name)
        table = DeltaTable(str(data.root / name))
        table.delete('"partition" = 1')
        table.create_checkpoint()


def change_type(data: Orders) -> None:
    """Register a version with another type, so that the typed table is made anew."""
    data.register(n="string", s="string")
    data.publish()


class Scenario(NamedTuple):
    """A command, and its state before."""

    command: Callable[[Orders], str]
    before: tuple[Callable[[Orders], Any], ...] = ()
    erases: bool = False
    """Whether the records of the key are gone at the end."""
    is_whole: bool = True
    """Whether brokerd reads the archive before the command."""


SCENARIOS = {
    "rollup": Scenario(roll),
    "first rollup": Scenario(roll, (remove_archive,)),
    "follow": Scenario(follow),
    "erase": Scenario(erase, (roll,), erases=True),
    "rollup after erase": Scenario(roll, (roll, erase), erases=True),
    "table anew": Scenario(roll, (change_type,)),
    "recover": Scenario(recover, (remove_archive, follow, change_by_others), is_whole=False),
}


# -- Readers -------------------------------------------------------------------------------------


class View(NamedTuple):
    """The rows that each kind of reader sees."""

    records: Counter[Row]
    events: Counter[Row]
    served: Counter[tuple[int, int, int]]
    """(topic id, partition, offset) that a broker finds."""
    typed: Counter[tuple[int, int]]
    """(partition, offset) of both typed tables."""
    iceberg: Counter[Row]


def look(data: Orders, with_iceberg: bool = True) -> View:
    """Read all tables."""

    def rows(table: str) -> list[dict[str, Any]]:
        place = data.root / table
        if not open_store(place).names(COMMITS):
            return []
        found: list[dict[str, Any]] = DeltaTable(str(place)).to_pyarrow_table().to_pylist()
        return found

    names = ("topic_id", "partition", "offset", "key", "value")
    records = Counter(tuple(row[name] for name in names) for row in rows(RECORDS.name))
    events = Counter((row["lsn"], row["seq"], row["owner"]) for row in rows("events"))
    typed: Counter[tuple[int, int]] = Counter()
    for layout in typed_layouts(open_store(data.root)):
        typed.update((row["partition"], row["offset"]) for row in rows(layout.name))
    iceberg: Counter[Row] = Counter()
    hint = data.root / RECORDS.name / "metadata" / "version-hint.text"
    if with_iceberg and hint.exists():
        scan = StaticTable.from_metadata(f"file://{data.root / RECORDS.name}").scan()
        found = scan.to_arrow().to_pylist()
        iceberg.update(tuple(row[name] for name in names) for row in found)
    return View(records, events, _served(data), typed, iceberg)


def _served(data: Orders) -> Counter[tuple[int, int, int]]:
    view = DeltaArchive(data.root, LOG_ID).refresh()
    found: Counter[tuple[int, int, int]] = Counter()
    if view is None:
        return found
    for (topic_id, partition), end in data.log.next.items():
        offset = 0
        while offset < end:
            piece = view.read(topic_id, partition, offset, MIB)
            if piece is None:
                break
            found.update((topic_id, partition, at) for at in piece.offsets)
            offset = piece.end
    return found


def files_with(data: Orders, *needles: bytes) -> list[str]:
    """Return the files of the archive with some bytes, raw or in a column of a Parquet file."""
    found = []
    for path in sorted(path for path in data.root.rglob("*") if path.is_file()):
        content = path.read_bytes()
        if path.suffix == ".parquet" and COMMITS not in path.parts:
            table = pq.ParquetFile(path).read()
            names = {"topic_id", "key", "value", "s"} & set(table.schema.names)
            for row in table.select(sorted(names)).to_pylist():
                if row.get("topic_id", 1) == 1:
                    content += b"".join(
                        one.encode() if isinstance(one, str) else one
                        for one in (row.get("key"), row.get("value"), row.get("s"))
                        if one
                    )
                elif row["key"] == KEY:
                    content = content.replace(KEY, b"")  # the key of another topic stays
        if any(needle in content for needle in needles):
            found.append(str(path.relative_to(data.root)))
    return found


def unneeded(data: Orders) -> list[str]:
    """Return the files of the archive that no table names, except its logs and metadata."""
    store = open_store(data.root)
    layouts = [*LAYOUTS.values(), *typed_layouts(store)]
    live = {
        f"{one.name}/{path}" for one in layouts for path in Table(data.root, one, LOG_ID).paths()
    }
    return [
        entry.path
        for entry in store.list(hidden=True)
        if (entry.path.endswith((".tmp", ".parquet")) or ".put-" in entry.path)
        and entry.path not in live
        and ".checkpoint.parquet" not in entry.path
    ]


# -- The attack ----------------------------------------------------------------------------------


class Attack:
    """The faults of one command, in a directory of its own."""

    def __init__(self, directory: Path, name: str) -> None:
        self.name = name
        self.scenario = SCENARIOS[name]
        self._work = directory / "work"
        self._kept = directory / "kept"
        self.findings: list[str] = []
        self.calls: list[str] = []
        self.texts: Counter[str] = Counter()
        """The texts of refusals, without paths."""
        ended = in_fork(_quiet, self._make)
        assert not ended.crash and not ended.error, ended
        self._data: Orders = ended.value
        self._rows = _all_rows(self._data)
        if self.scenario.is_whole:
            self._before: View = self._in_fork(look)
        self.calls = self._in_fork(_counted, self.scenario.command)
        self._in_fork(roll)
        self._after = self._in_fork(look)
        self._check_end("without a fault")

    def _make(self) -> Orders:
        data = make(self._work)
        for step in self.scenario.before:
            step(data)
        self._work.rename(self._kept)
        shutil.copytree(self._kept, self._work, copy_function=shutil.copy2)
        return data

    def _in_fork(self, function: Callable[..., Any], *arguments: Any) -> Any:
        ended = in_fork(_quiet, function, self._data, *arguments)
        if ended.crash or ended.error:
            raise AssertionError(ended.crash or ended.error)
        return ended.value

    def changes(self) -> list[int]:
        """Return the calls that follow another kind of call."""
        pairs = enumerate(zip(["", *self.calls], self.calls, strict=False))
        return [number for number, (before, call) in pairs if before != call]

    def fail(self, fault: Fault) -> None:
        """Run the command with a fault, check, run it again, and check again."""
        shutil.rmtree(self._work)
        shutil.copytree(self._kept, self._work, copy_function=shutil.copy2)
        where = f"{self.name}: {fault.kind} at call {fault.call}, {self.calls[fault.call]}"
        before = len(self.findings)
        ended = in_fork(_quiet, _faulty, self._data, self.scenario.command, fault)
        if ended.crash:
            self.findings.append(f"{where}: {ended.crash}")
        if fault.kind == "kill" and not ended.killed:
            return  # it made fewer calls
        if fault.kind == "full":
            self._check_text(where, ended)
        try:
            if self.scenario.is_whole:
                # Vacuum deletes files on a full disk also if no Iceberg metadata can be written.
                has_metadata = fault.kind != "full"
                self._check_whole(where, self._in_fork(look, has_metadata), has_metadata)
            problems = self._in_fork(self.scenario.command)
            if problems:
                self.findings.append(f"{where}: the command, run again: {problems}")
            if self.scenario.erases:
                self._check_end(f"{where}: after the command", in_typed=False)
            problems = self._in_fork(roll)
            if problems:
                self.findings.append(f"{where}: the next rollup: {problems}")
            self._check_end(where)
        except AssertionError as error:
            self.findings.append(f"{where}: {error}")
        for finding in self.findings[before:]:
            print(f"  BROKEN {finding}", flush=True)

    def _check_text(self, where: str, ended: Ended) -> None:
        text = ended.error or ended.value or ""
        words = " ".join(word for word in text.split() if "/" not in word)
        self.texts[words] += 1
        if text and "No space left on device" not in text:
            self.findings.append(f"{where}: an unclear text: {text}")
        if text and str(self._work) not in text:
            self.findings.append(f"{where}: the text names no file: {text}")

    def _check_whole(self, where: str, view: View, with_iceberg: bool) -> None:
        """Check what readers see while the command is not finished."""
        for name, rows in view._asdict().items():
            doubled = [row for row, count in rows.items() if count > 1]
            if doubled:
                self.findings.append(f"{where}: {len(doubled)} doubled in {name}: {doubled[:2]}")
        for name, rows, before in (
            ("records", view.records, self._before.records),
            ("iceberg", view.iceberg, self._before.iceberg),
        ):
            missing = list(self._stays(before) - rows)
            if missing and (with_iceberg or name == "records"):
                self.findings.append(f"{where}: {len(missing)} missing in {name}: {missing[:2]}")

    def _stays(self, rows: Counter[Row]) -> Counter[Row]:
        return Counter(row for row in rows if row in self._after.records)

    def _check_end(self, where: str, in_typed: bool = True) -> None:
        view = self._in_fork(look)
        data = self._data
        erases = self.scenario.erases
        wanted = Counter(
            row for row in self._rows if not (erases and row[0] == 1 and row[3] == KEY)
        )
        if wanted != view.records:
            self.findings.append(f"{where}: records: {_difference(view.records, wanted)}")
        if view.iceberg != view.records:
            text = _difference(view.iceberg, view.records)
            self.findings.append(f"{where}: Iceberg differs from Delta: {text}")
        if view.served != Counter(row[:3] for row in view.records):
            self.findings.append(f"{where}: the broker reads other records")
        if len(view.events) != len(data.happened) or view.events.total() != len(view.events):
            self.findings.append(f"{where}: {view.events.total()} events")
        if in_typed:
            typed = Counter((row[1], row[2]) for row in wanted if row[0] == 1)
            if typed != view.typed:
                self.findings.append(f"{where}: typed: {_difference(view.typed, typed)}")
            left = self._in_fork(unneeded)
            if left:
                self.findings.append(f"{where}: files are left: {left[:4]}")
        if self.scenario.erases:
            found = self._in_fork(files_with, KEY, KEY.hex().encode())
            found = [one for one in found if in_typed or not one.startswith("typed/")]
            if found:
                self.findings.append(f"{where}: erased bytes are in {found[:4]}")


def _all_rows(data: Orders) -> list[Row]:
    """Return all records that were appended."""
    keys: dict[tuple[int, int], list[bytes | None]] = {
        (1, 0): [b"other", KEY, None, KEY],
        (1, 1): [b"other", KEY, None, KEY],
        (17, 0): [None, KEY],
        (17, 1): [None, KEY],
        (2, 0): [KEY],
    }
    rows: list[Row] = []
    for topic_id, partition, offset, value in data.appended:
        found = keys[topic_id, partition]
        rows.append((topic_id, partition, offset, found[offset % len(found)], value))
    return rows


def _difference(found: Counter[Any], wanted: Counter[Any]) -> str:
    missing, more = wanted - found, found - wanted
    return (
        f"missing {missing.total()} {list(missing)[:2]}, too many {more.total()} {list(more)[:2]}"
    )


def _quiet(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fork, with the tasks of a job in it too."""
    SparkRunner.map = map_here  # type: ignore[method-assign,assignment]
    vacuum.LOG_HOURS = 0
    if os.fsync is _FSYNC:
        os.fsync = lambda fd: None
    return function(*arguments)


_FSYNC = os.fsync


def _counted(data: Orders, command: Callable[[Orders], str]) -> list[str]:
    seen = install(Fault())
    problems = command(data)
    assert not problems, problems
    return seen


def _faulty(data: Orders, command: Callable[[Orders], str], fault: Fault) -> str:
    install(fault)
    return command(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.archive.file_calls", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--every", type=int, default=1, help="only each N-th call; default: 1")
    parser.add_argument("--first", type=int, default=0, help="the first call; default: 0")
    parser.add_argument("--all", action="store_true", help="also each further write of a file")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="default: all")
    parser.add_argument("--fault", choices=["kill", "full"], action="append")
    options = parser.parse_args(arguments)
    findings = []
    for name in options.only or SCENARIOS:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="brokerd-file-calls-") as directory:
            attack = Attack(Path(directory), name)
            chosen = range(len(attack.calls)) if options.all else attack.changes()
            faults = [
                Fault(kind, call)
                for kind in options.fault or ("kill", "full")
                for call in chosen[options.first :: options.every]
            ]
            for fault in faults:
                attack.fail(fault)
        findings += attack.findings
        print(
            f"{name}: {len(attack.calls)} file calls, {len(faults)} faults, "
            f"{len(attack.findings)} broken, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for text, count in attack.texts.most_common():
            print(f"    full disk, {count} times: {text or 'done'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
