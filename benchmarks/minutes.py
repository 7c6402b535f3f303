# Tests: tests/test_bench_minutes.py
"""Measure what a minute's records cost on their way into the archive, and how soon they are there.

``python -m benchmarks.minutes``. The part ``lots`` makes archives of 1, 10 and 100 lots of 100,000
records, and then archives further lots as ``brokerd-rollup --follow`` does: from sealed segments to
committed Delta files. It counts the processor time of the whole process. The part ``visible`` lets
a broker take 50,000 records/s beside ``brokerd-rollup --follow --seal``, and counts the seconds
from the time at which a batch is due to the commit that makes it visible. Method and figures:
docs/benchmarks.rst.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from brokerd.archive.contract.bounds import FILE_NAME, decode_bounds
from brokerd.archive.delta.tables import Tables
from brokerd.archive.job import NO_LIMIT, Job, run_job
from brokerd.archive.run import Settings
from brokerd.archive.serve.delta_archive import DeltaArchive
from brokerd.cli.bench.machine import describe
from brokerd.cli.server import Server, find
from brokerd.client.rustlog import RustlogClient

from .children import ChildFailed, answer, run_child
from .long_log import Shape, make_log
from .process import BrokerFailed, BrokerProcess, die_with_parent

LOT_RECORDS = 100_000
LOTS = 8
"""Lots that are measured for each size of the archive."""
SIZES = (1, 10, 100)
RATE = 50_000
BATCH_RECORDS = 1_000
PARTITIONS = 4
TOPIC = "bench"
FORMAT = "rustlog"
"""The format of the load: its batches cost broker and client the least."""
_CHILD_SECONDS = 3600.0
_WAIT_SECONDS = 120.0
"""Most seconds between the end of the load and the visibility of its last record."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parse(arguments)
    if options.step:
        return answer(partial(_lots, **json.loads(options.step)))

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            report = measure(Path(name), options, show)
    except (ChildFailed, BrokerFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.minutes", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--part", choices=("lots", "visible"), help="only this part")
    parser.add_argument("--records", type=int, default=LOT_RECORDS, help="records of a lot")
    parser.add_argument("--size", type=int, action="append", help="lots of the archive; repeated")
    parser.add_argument("--rate", type=int, default=RATE, help="records/s of the part visible")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load in the part visible")
    parser.add_argument("--set", action="append", default=[], help="a setting of the rollup")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(
    directory: Path, options: argparse.Namespace, show: Callable[[str], None]
) -> dict[str, Any]:
    """Run the parts in a directory and return the figures."""
    machine = describe(directory)
    show(f"{machine.text()}; 200-byte values")
    report: dict[str, Any] = {"machine": asdict(machine)}
    if options.part in (None, "lots"):
        sizes = options.size or SIZES
        report["lots"] = list(_measure_lots(directory, options.records, sizes, show))
    if options.part in (None, "visible"):
        report["visible"] = _measure_visible(directory, options, show)
    return report


# -- Processor time of a lot ---------------------------------------------------------------------


def _measure_lots(
    directory: Path, records: int, sizes: Sequence[int], show: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    show(f"processor seconds of a lot of {records:,} records, sealed journal to Delta commits")
    show(f"{'lots before':>12}{'files':>7}{'median':>9}{'mean':>9}{'longest':>9}{'wall':>9}")
    for size in sizes:
        data_dir = directory / f"lots{size}"
        make_log(data_dir, Shape((size + LOTS) * records, 200, segment_records=records))
        spec = {"data_dir": str(data_dir), "size": size}
        found = run_child("benchmarks.minutes", spec, _CHILD_SECONDS)
        spent = found["processor_seconds"]
        line = {
            "size": size,
            "files": found["files"],
            "records": records,
            "median": statistics.median(spent),
            "mean": statistics.fmean(spent),
            "longest": max(spent),
            "wall_median": statistics.median(found["wall_seconds"]),
        }
        show(
            f"{size:>12}{line['files']:>7}{line['median']:>9.2f}{line['mean']:>9.2f}"
            f"{line['longest']:>9.2f}{line['wall_median']:>9.2f}"
        )
        yield line


def _lots(data_dir: str, size: int) -> dict[str, Any]:
    """Archive ``size`` segments at once, then each other one alone. Return the figures."""
    data = Path(data_dir)
    paths = sorted((data / "wal").glob("*.wal"))
    later = data / "later"
    later.mkdir()
    for path in paths[size:]:
        for one in (path, path.with_suffix(".idx")):
            one.rename(later / one.name)
    job = Job(
        data_dir=data,
        root=data / "archive",
        settings=Settings(local_lot_bytes=NO_LIMIT),
        open_spark=_no_spark,
        now_ms=lambda: time.time_ns() // 1_000_000,
        free_bytes=lambda path: NO_LIMIT,
        is_small=True,
        tables=Tables(),
    )
    _run(job)
    files = len(list((data / "archive" / "records").rglob("*.parquet")))
    processor, wall = [], []
    for path in paths[size:]:
        for one in (path, path.with_suffix(".idx")):
            (later / one.name).rename(one)
        began, spent = time.monotonic(), time.process_time()
        report = _run(job)
        processor.append(time.process_time() - spent)
        wall.append(time.monotonic() - began)
        if report.ingest.segments != 1:
            raise ChildFailed(f"a run took {report.ingest.segments} segments, not 1")
    return {"processor_seconds": processor, "wall_seconds": wall, "files": files}


def _run(job: Job) -> Any:
    report = run_job(job)
    if report.problems:
        raise ChildFailed("; ".join(report.problems))
    return report


def _no_spark() -> NoReturn:
    raise ChildFailed("a lot of this size needs no Spark")


# -- From append to visible ----------------------------------------------------------------------


def _measure_visible(
    directory: Path, options: argparse.Namespace, show: Callable[[str], None]
) -> dict[str, Any]:
    data_dir = directory / "visible"
    with BrokerProcess(data_dir, directory / "log", formats=(FORMAT,)) as broker:
        broker.start(_CHILD_SECONDS)
        admin = Server(find(f"http://{broker.admin}", str(data_dir)))
        admin.post("topics", name=TOPIC, partitions=PARTITIONS)
        rollup = _follow(data_dir, directory / "rollup.log", options.set)
        try:
            _await_first_round(rollup, directory / "rollup.log")
            started = _cpu_seconds(rollup.pid)
            spent = -_cpu_seconds(broker.pid)
            found = _load(broker, data_dir, options.rate, options.seconds)
            found["broker_processor_seconds"] = spent + _cpu_seconds(broker.pid)
            found["rollup_processor_seconds"] = _cpu_seconds(rollup.pid) - started
            if rollup.poll() is not None:
                raise ChildFailed(f"brokerd-rollup ended with {rollup.returncode}")
        finally:
            rollup.send_signal(signal.SIGTERM)
            rollup.wait()
        broker.stop()
    lots = found["records"] / LOT_RECORDS
    found["rollup_seconds_a_lot"] = found["rollup_processor_seconds"] / lots
    show(
        f"{found['records']:,} records at {found['rate']:,.0f}/s (asked: {options.rate:,}); "
        f"append to visible p50 {found['p50']:.1f} s, p95 {found['p95']:.1f} s, "
        f"longest {found['longest']:.1f} s; from the broker's answer "
        f"p50 {found['stored_p50']:.1f} s, p95 {found['stored_p95']:.1f} s"
    )
    show(
        f"processor seconds: rollup {found['rollup_processor_seconds']:.1f}, "
        f"{found['rollup_seconds_a_lot']:.2f} for 100,000 records; "
        f"broker {found['broker_processor_seconds']:.1f}"
    )
    return found


def _follow(data_dir: Path, log: Path, settings: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "brokerd.rollup", "--data-dir", str(data_dir)]
    command += ["--follow", "--seal", *(f"--set={one}" for one in settings)]
    with log.open("ab") as file:
        return subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
        )


def _await_first_round(rollup: subprocess.Popen[bytes], log: Path) -> None:
    """Wait for the end of the first round, which is a complete run and starts Spark."""
    for _ in range(3_000):
        if b"took " in log.read_bytes():
            return
        if rollup.poll() is not None:
            break
        time.sleep(0.1)
    raise ChildFailed(f"the first round of brokerd-rollup failed: {log.read_text()}")


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and of its children that ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _load(broker: BrokerProcess, data_dir: Path, rate: int, seconds: float) -> dict[str, Any]:
    """Send batches when they are due, and watch the archive. Return the figures.

    A second process sends, so that watching delays no batch.
    """
    bounds = decode_bounds(_bounds(data_dir))
    (topic_id,) = (topic.id for topic in bounds.topics if topic.name == TOPIC)
    archive = DeltaArchive(data_dir / "archive", bounds.log_id)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        die_with_parent()
        _send(broker.address_of(FORMAT), rate, seconds, write)
        os._exit(0)
    os.close(write)
    waiting: list[deque[tuple[int, float, float]]] = [deque() for _ in range(PARTITIONS)]
    times: list[float] = []
    stored: list[float] = []
    sent: list[float] = []
    os.set_blocking(read, False)
    buffer, is_open = b"", True
    give_up = time.monotonic() + seconds * 10 + _WAIT_SECONDS
    while is_open or any(waiting):
        time.sleep(0.1)
        now = time.monotonic()
        if now > give_up:
            raise ChildFailed("the records did not become visible in time")
        view = archive.refresh()
        for partition, batches in enumerate(waiting):
            while (
                view
                and batches
                and view.covers(topic_id, partition, batches[0][0], batches[0][0] + 1)
            ):
                _, due, at = batches.popleft()
                times.append(time.monotonic() - due)
                stored.append(time.monotonic() - at)
        while is_open:
            try:
                data = os.read(read, 1 << 16)
            except BlockingIOError:
                break
            is_open = bool(data)
            buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            last, due, at = json.loads(line)
            partition = len(sent) % PARTITIONS
            waiting[partition].append((last, due, at))
            sent.append(at)
    os.close(read)
    os.waitpid(pid, 0)
    if len(times) < 20:
        raise ChildFailed(f"only {len(times)} batches were sent")
    count = len(times) * BATCH_RECORDS
    cuts = statistics.quantiles(times, n=20)
    return {
        "records": count,
        "rate": count / (sent[-1] - sent[0]),
        "p50": statistics.median(times),
        "p95": cuts[18],
        "longest": max(times),
        "stored_p50": statistics.median(stored),
        "stored_p95": statistics.quantiles(stored, n=20)[18],
    }


def _bounds(data_dir: Path) -> bytes:
    """Return the bounds, once they have the topic."""
    path = data_dir / "state" / FILE_NAME
    for _ in range(600):
        if path.exists() and TOPIC.encode() in path.read_bytes():
            return path.read_bytes()
        time.sleep(0.1)
    raise ChildFailed(f"{path} does not name the topic after a minute")


def _send(address: str, rate: int, seconds: float, pipe: int) -> None:
    """Send batches to the partitions in turns. Write offset, due time and present time of each."""
    half = os.urandom(100)
    values = [half + b"%0100d" % at for at in range(BATCH_RECORDS)]
    with RustlogClient(address) as client:
        began = time.monotonic()
        for number in range(int(rate * seconds / BATCH_RECORDS)):
            due = began + number * BATCH_RECORDS / rate
            time.sleep(max(0.0, due - time.monotonic()))
            first = client.produce(TOPIC, values, number % PARTITIONS)
            line = [first + BATCH_RECORDS - 1, due, time.monotonic()]
            os.write(pipe, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
