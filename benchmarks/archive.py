# Tests: tests/test_bench_archive.py
"""Measure how fast a rollup archives a log, and how fast a broker reads the archive.

``python -m benchmarks.archive``. A rollup runs with Spark on 1, 2 and 4 cores: once in a session
that has run a job before (warm), then as the command ``brokerd-rollup`` (cold). For comparison the
same run measures as many plain processes without Spark. They decode the same tasks and write the
same Parquet, but check nothing. Both sync the files that they write. Method and figures:
docs/benchmarks.rst.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from brokerd.archive.cluster.session import SparkOptions, spark_session
from brokerd.archive.contract.bounds import decode_bounds
from brokerd.archive.contract.layout import RECORDS, arrow_schema
from brokerd.archive.ingest.plan import Lot, LotLimits, RecordsSplit, plan_lot
from brokerd.archive.job import NO_LIMIT, Job, run_job
from brokerd.archive.journal.records import read_records
from brokerd.archive.journal.sealed import batches_of, open_sealed
from brokerd.archive.parquet.row_groups import GROUP_ROWS
from brokerd.archive.parquet.writer import parquet_options
from brokerd.archive.run import Settings
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.cli.bench.machine import describe
from brokerd.codecs.flymq import Fetch, Opcode, encode_request

from .admin import fetch_status
from .children import ChildFailed, answer, run_child
from .long_log import LOG_ID, PARTITIONS, TOPICS, Shape, make_log
from .process import BrokerFailed, BrokerProcess

MIB = 1 << 20
CORES = (1, 2, 4)
LOOKS = 200
"""Number of cold fetches that are timed."""
FETCH_RECORDS = 500
_CHILD_SECONDS = 3600.0
_ONLY_ROLLUP = Settings(derived=False, retention=False, compaction=False, merge=False, vacuum=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parse(arguments)
    if options.step:
        step = json.loads(options.step)
        return answer(partial(_STEPS[step.pop("do")], **step))

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            report = measure(Path(name), options.scale, options.cores, show)
    except (ChildFailed, BrokerFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.archive", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="1: 10 M records (default: 1)")
    parser.add_argument(
        "--cores", type=int, action="append", help="may be repeated (default: 1, 2 and 4)"
    )
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(
    directory: Path,
    scale: float,
    cores: Sequence[int] | None,
    show: Callable[[str], None],
    frames: Sequence[int] = (200, 10),
) -> dict[str, Any]:
    """Run all measurements in a directory and return the figures.

    :param scale: 1 is 10 M records of 200 bytes.
    :param frames: records of a frame. Each number makes a log of its own; only the first log is
        read back.
    """
    machine = describe(directory)
    counts = [n for n in cores or CORES if n <= machine.cores] or [machine.cores]
    show(f"{machine.text()}; 200-byte values")
    report: dict[str, Any] = {"machine": asdict(machine), "rollups": []}
    for frame_records in frames:
        shape = Shape(int(10_000_000 * scale), frame_records)
        data_dir = directory / f"log{frame_records}"
        size = make_log(data_dir, shape)
        show(
            f"{shape.records:,} records, frames of {frame_records}: {size / MIB:,.0f} MiB of log; "
            "files are synced by both, the job reads back and proves what it wrote"
        )
        show(f"{'':<28}{'cores':>6}{'records/s':>14}{'MB/s':>9}{'of plain':>10}{'driver MiB':>12}")
        for count in counts:
            report["rollups"] += _rollups(data_dir, shape, size, count, show)
        if frame_records == frames[0]:
            report["command"] = _command(data_dir, shape, size, max(counts), show)
            report |= _read_back(data_dir, show)
            report["sequential"] = _sequential(data_dir, shape, show)
        shutil.rmtree(data_dir)
    return report


# -- Into the archive ----------------------------------------------------------------------------


def _rollups(
    data_dir: Path, shape: Shape, size: int, cores: int, show: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    spec = {"data_dir": str(data_dir), "cores": cores}
    plain = run_child("benchmarks.archive", {"do": "plain", **spec}, _CHILD_SECONDS)
    spark = run_child("benchmarks.archive", {"do": "spark", **spec}, _CHILD_SECONDS)
    for name, found in (("plain, decode and write", plain), ("job, warm", spark)):
        line = _rate(name, shape, size, cores, found["seconds"])
        line["of_plain"] = plain["seconds"] / found["seconds"]
        line["driver_bytes"] = found.get("driver_bytes", 0)
        show(_rate_text(line))
        yield line
    only = _rate("plain, write only", shape, size, cores, plain["write_seconds"])
    only["of_plain"] = plain["seconds"] / plain["write_seconds"]
    only["driver_bytes"] = 0
    show(_rate_text(only))
    yield only


def _rate(name: str, shape: Shape, size: int, cores: int, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "frame_records": shape.frame_records,
        "cores": cores,
        "seconds": seconds,
        "records_per_s": shape.records / seconds,
        "mb_per_s": size / 1e6 / seconds,
    }


def _rate_text(line: dict[str, Any]) -> str:
    return (
        f"  {line['name']:<26}{line['cores']:>6}{line['records_per_s']:>14,.0f}"
        f"{line['mb_per_s']:>9,.0f}{line['of_plain']:>10.0%}{line['driver_bytes'] / MIB:>12,.0f}"
    )


def _plan(data_dir: Path) -> Lot:
    bounds = decode_bounds((data_dir / "state" / "bounds").read_bytes())
    return plan_lot(
        data_dir / "wal",
        bounds,
        0,
        0,
        LotLimits(NO_LIMIT, Settings().file_bytes, NO_LIMIT),
    )


def _plain(data_dir: str, cores: int) -> dict[str, Any]:
    """Decode and write the same tasks in Python processes; return the figures."""
    lot = _plan(Path(data_dir))
    with (
        tempfile.TemporaryDirectory(dir=data_dir) as out,
        get_context("spawn").Pool(cores) as pool,
    ):
        pool.map(abs, range(cores * 4))  # starts the processes
        began = time.monotonic()
        done = pool.map(partial(_write_plain, out), lot.records, chunksize=1)
        seconds = time.monotonic() - began
    return {"seconds": seconds, "write_seconds": sum(done) / cores}


def _write_plain(out: str, split: RecordsSplit) -> float:
    """Decode and write the records of a task; return the seconds spent on writing."""
    writing = 0.0
    path = Path(out, f"{random.getrandbits(64):x}.parquet")
    options = parquet_options(RECORDS)
    with pq.ParquetWriter(path, arrow_schema(RECORDS), **options) as writer:
        for ordinal, segment in enumerate(split.segments):
            opened = open_sealed(segment.path)
            pieces = split.pieces[split.pieces["segment"] == ordinal]
            runs = [np.arange(row, row + rows) for row, rows in pieces[["row", "rows"]].tolist()]
            batches = batches_of(opened.index).select(np.concatenate(runs))
            for batch in read_records(opened, batches, split.topics):
                began = time.monotonic()
                writer.write_table(pa.Table.from_batches([batch]), row_group_size=GROUP_ROWS)
                writing += time.monotonic() - began
        began = time.monotonic()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return writing + time.monotonic() - began


def _spark(data_dir: str, cores: int) -> dict[str, Any]:
    """Run the job twice in one session and return the figures of the second run."""
    data = Path(data_dir)
    options = SparkOptions(f"local[{cores}]")
    with spark_session("bench", options, data / "run" / "rollup", os.environ) as session:
        for root in (data / "warm", data / "archive"):
            shutil.rmtree(root, ignore_errors=True)
            job = Job(
                data_dir=data,
                root=root,
                settings=_ONLY_ROLLUP,
                open_spark=lambda: nullcontext(session),
                now_ms=lambda: time.time_ns() // 1_000_000,
                free_bytes=lambda path: shutil.disk_usage(path).free,
            )
            began = time.monotonic()
            report = run_job(job)
            seconds = time.monotonic() - began
            if report.problems:
                raise ChildFailed("; ".join(report.problems))
            driver_bytes = _driver_bytes()
        shutil.rmtree(data / "warm")
    return {"seconds": seconds, "driver_bytes": driver_bytes}


def _driver_bytes() -> int:
    """Return the peak memory in bytes of this process and of Java, its child."""
    java = 0
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            status = Path("/proc", child, "status").read_text()
            if "\nVmHWM:" in status and status.startswith("Name:\tjava"):
                java += int(status.split("VmHWM:")[1].split()[0]) << 10
    return java + (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def _command(
    data_dir: Path, shape: Shape, size: int, cores: int, show: Callable[[str], None]
) -> dict[str, Any]:
    """Run the command with all of its steps and return the figures."""
    shutil.rmtree(data_dir / "archive", ignore_errors=True)
    command = [sys.executable, "-m", "brokerd.rollup", "--data-dir", str(data_dir)]
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--master", f"local[{cores}]"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ChildFailed(f"brokerd-rollup: {done.stderr.strip()}")
    line = _rate("brokerd-rollup, cold, all", shape, size, cores, time.monotonic() - began)
    show(
        f"  {line['name']:<26}{cores:>6}{line['records_per_s']:>14,.0f}{line['mb_per_s']:>9,.0f}"
        f"  {line['seconds']:.1f} s"
    )
    return line


# -- And back ------------------------------------------------------------------------------------


def _read_back(data_dir: Path, show: Callable[[str], None]) -> dict[str, Any]:
    found = run_child(
        "benchmarks.archive", {"do": "look", "data_dir": str(data_dir)}, _CHILD_SECONDS
    )
    for name in ("cold", "footer_cached"):
        times = found[name]
        show(
            f"  {FETCH_RECORDS} records, {name.replace('_', ' ')}: "
            f"p50 {times['p50_ms']:.1f} ms, p95 {times['p95_ms']:.1f} ms"
        )
    return {"look": found}


def _look(data_dir: str) -> dict[str, Any]:
    """Time single fetches at random places; drop the system's cache of the files before each."""
    root = Path(data_dir, "archive")
    chance = random.Random(1)
    archive = DeltaArchive(root, LOG_ID)
    view = archive.refresh()
    assert view is not None
    ends = {key: _end(view, *key) for key in _group_partitions()}
    times: dict[str, list[float]] = {"cold": [], "footer_cached": []}
    for name, spent in times.items():
        for _ in range(LOOKS):
            if name == "cold":
                view = DeltaArchive(root, LOG_ID).refresh()
                assert view is not None
            group_partition = chance.choice(list(ends))
            offset = chance.randrange(max(1, ends[group_partition] - FETCH_RECORDS))
            _drop_cached(root)
            began = time.monotonic()
            rows = view.read(*group_partition, offset, FETCH_RECORDS * 200)
            spent.append((time.monotonic() - began) * 1e3)
            assert rows is not None and rows.first == offset
    return {
        name: {"p50_ms": statistics.median(t), "p95_ms": statistics.quantiles(t, n=20)[18]}
        for name, t in times.items()
    }


def _group_partitions() -> Iterator[tuple[int, int]]:
    for topic in range(TOPICS):
        for partition in range(PARTITIONS):
            yield topic + 1, partition


def _end(view: Any, topic_id: int, partition: int) -> int:
    """Find the end offset of a partition in the archive by bisection."""
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        if view.covers(topic_id, partition, middle, middle + 1):
            low = middle + 1
        else:
            high = middle
    return low


def _drop_cached(root: Path) -> None:
    for path in root.glob("records/*/*.parquet"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def _sequential(data_dir: Path, shape: Shape, show: Callable[[str], None]) -> dict[str, Any]:
    """Time FlyMQ FETCH from offset 0 on a broker whose log was deleted after archiving."""
    settings = ("archive.keep_wal_bytes=0", "retention.check_seconds=1")
    with BrokerProcess(data_dir, data_dir / "log", settings, formats=("flymq",)) as broker:
        broker.start(_CHILD_SECONDS)
        _await_deletion(broker)
        spec = {"do": "fetch", "address": broker.address_of("flymq"), "records": shape.records}
        found = run_child("benchmarks.archive", spec, _CHILD_SECONDS)
        durability = fetch_status(broker.admin)["durability"]
        broker.stop()
    show(
        f"  FlyMQ FETCH of {FETCH_RECORDS}, 0 to the end, durability {durability}: "
        f"{found['records_per_s']:,.0f} records/s, {found['mb_per_s']:,.0f} MB/s of values"
    )
    return found


def _await_deletion(broker: BrokerProcess) -> None:
    """Wait until the log is almost empty."""
    for _ in range(600):
        if len(list((broker.data_dir / "wal").glob("*.idx"))) < 3:
            return
        time.sleep(0.5)
    raise BrokerFailed("the log was not deleted within 5 minutes although it is archived")


READERS = 4
"""Number of connections that read at once, each from its own partition."""
READ_RECORDS = 2_000


def _fetch(address: str, records: int) -> dict[str, Any]:
    """Read all partitions from offset 0 to the end, `READERS` at a time; return the figures."""
    group_partitions = [(topic, index) for topic in range(TOPICS) for index in range(PARTITIONS)]
    began = time.monotonic()
    with ThreadPoolExecutor(READERS) as pool:
        counts = list(pool.map(partial(_follow, address), group_partitions))
    seconds = time.monotonic() - began
    if sum(counts) != records:
        raise ChildFailed(f"{sum(counts):,} records came back, not {records:,}")
    return {
        "seconds": seconds,
        "records_per_s": records / seconds,
        "mb_per_s": records * 200 / 1e6 / seconds,
    }


_HEAD = Struct(">xxBxI")
"""The opcode and the payload length of a frame."""
_COUNT_NEXT = Struct(">IQ")
_FETCHED = np.dtype([("offset", ">u8"), ("key", ">u4"), ("value", ">u4"), ("bytes", "V200")])
"""A record in an answer to FETCH, without a key and with a value of 200 bytes."""


def _follow(address: str, group_partition: tuple[int, int]) -> int:
    """Fetch a partition from offset 0 to its end, check each record, and return their number.

    All answers are received into the same memory. New memory for each answer would cost the reader
    as much time as the broker needs to answer.
    """
    topic, partition = group_partition
    host, port = address.rsplit(":", 1)
    offset = 0
    room = memoryview(bytearray(_COUNT_NEXT.size + READ_RECORDS * _FETCHED.itemsize))
    with socket.create_connection((host, int(port))) as sock:
        while True:
            request = Fetch(f"bench{topic}", partition, offset, READ_RECORDS, "", True)
            sock.sendall(encode_request(request))
            opcode, length = _HEAD.unpack(_receive(sock, room[: _HEAD.size]))
            answer = _receive(sock, room[:length])
            if opcode != Opcode.FETCH or length > len(room):
                raise ChildFailed(
                    f"FETCH at {offset} of {group_partition} was refused: {bytes(answer)!r}"
                )
            count, next_offset = _COUNT_NEXT.unpack_from(answer)
            records = np.frombuffer(answer[_COUNT_NEXT.size :], _FETCHED)
            if len(records) != count or not _are_due(records, offset):
                raise ChildFailed(
                    f"FETCH at {offset} of {group_partition}: not the records that are due"
                )
            if not count:
                return offset
            offset = next_offset


def _receive(sock: socket.socket, room: memoryview) -> memoryview:
    """Fill ``room`` from the socket and return the part that was filled."""
    at = 0
    while at < len(room):
        size = sock.recv_into(room[at:])
        if not size:
            raise ChildFailed("the broker hung up")
        at += size
    return room


def _are_due(records: npt.NDArray[np.void], first: int) -> bool:
    """Return whether these records start at offset ``first`` and have the expected values."""
    due = np.arange(first, first + len(records))
    lengths_fit = (records["key"] == 0) & (records["value"] == 200)
    return bool((lengths_fit & (records["offset"] == due)).all())


_STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "plain": _plain,
    "spark": _spark,
    "look": _look,
    "fetch": _fetch,
}

if __name__ == "__main__":
    sys.exit(main())
