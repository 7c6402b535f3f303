# Tests: tests/test_bench_spark.py
"""Measure queries of Spark on the log, from the journal and from the archive.

``python -m benchmarks.spark``. Each question is asked in a session that has asked it before (warm):
once with all records in the journal, once with all in the archive. For comparison the same run lets
as many plain processes read the same splits without Spark. The plan tells what a filter leaves out.
Then `benchmarks.engines` asks another archive through several programs. Nothing is written during
the measurement, and no broker runs. Method and figures: docs/benchmarks.rst.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.archive.cluster.session import SparkOptions, spark_session
from brokerd.cli.bench.machine import describe
from brokerd.spark.location import open_location
from brokerd.spark.options import batch_request, parse_options
from brokerd.spark.plan.query_plan import Plan, Split, plan_query
from brokerd.spark.read.split_reader import read_split

from .children import ChildFailed, answer, run_child
from .engines import JAVA, table
from .long_log import BEGAN_US, FRAME_US, Shape, make_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
CORES = 4
TRIES = 3
"""How often a question is asked once the session is warm; the fastest counts."""
PARTS = ("journal", "archive", "engines")
TARGET = 4_000_000
"""Records a second that a count of all records should reach on four cores."""
_CHILD_SECONDS = 3600.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Question(NamedTuple):
    """A measured query."""

    name: str
    options: Mapping[str, str]
    where: str
    ask: str
    """An aggregate in SQL."""


def questions(shape: Shape) -> list[Question]:
    """Return the questions; the last two are about one topic and the last tenth of the time."""
    since_us = BEGAN_US + shape.frames * 9 // 10 * FRAME_US
    since = (_EPOCH + timedelta(microseconds=since_us)).isoformat()
    narrow = {"topics": "bench3", "from": since}
    condition = f"topic = 'bench3' AND append_time >= timestamp '{since}'"
    return [
        Question("count, all columns", {}, "true", "count(*)"),
        Question("count, one column", {"columns": "offset"}, "true", "count(*)"),
        Question("sum of one column", {"columns": "offset"}, "true", "sum(offset)"),
        Question("bytes of values", {"columns": "value"}, "true", "sum(octet_length(value))"),
        Question("topic and time, by options", narrow, "true", "count(*)"),
        Question("topic and time, by WHERE", {}, condition, "count(*)"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    options = _parse(arguments)
    if options.step:
        return answer(partial(_queries, **json.loads(options.step)))

    def show(line: str) -> None:
        print(line, file=sys.stderr if options.json else sys.stdout, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            report = measure(Path(name), options.scale, options.cores, show, parts=options.parts)
    except (ChildFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--scale", type=float, default=1.0, help="1: 10 M records (default: 1)")
    parser.add_argument("--cores", type=int, default=CORES, help=f"default: {CORES}")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument(
        "--part", choices=PARTS, action="append", dest="parts", help="repeatable (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def measure(
    directory: Path,
    scale: float,
    cores: int,
    show: Callable[[str], None],
    tries: int = TRIES,
    parts: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run measurements in a directory and return the figures.

    :param scale: 1 is 10 M records of 200 bytes.
    :param parts: some of `PARTS`; None: all.
    """
    machine = describe(directory)
    cores = min(cores, machine.cores)
    shape = Shape(int(10_000_000 * scale), 200)
    show(
        f"{machine.text()}; Spark on {cores} cores; "
        f"{shape.records:,} records of 200 bytes, frames of {shape.frame_records}; "
        "durability: no broker runs, nothing is written"
    )
    report: dict[str, Any] = {"machine": asdict(machine), "target": TARGET}
    wanted = parts or PARTS
    spec: dict[str, Any] = {"cores": cores, "records": shape.records, "tries": tries}
    if "journal" in wanted or "archive" in wanted:
        data_dir = directory / "data"
        show(f"{make_log(data_dir, shape) / MIB:,.0f} MiB of journal")
        _measure_source(data_dir, spec, wanted, report, show)
    if "engines" in wanted:
        data_dir = directory / "json"
        make_log(data_dir, replace(shape, is_json=True))
        _archive(data_dir, cores)
        spec["data_dir"] = str(data_dir)
        report["engines"] = run_child("benchmarks.engines", spec, _CHILD_SECONDS)
        for text in table(report["engines"]):
            show(text)
    return report


def _measure_source(
    data_dir: Path,
    spec: Mapping[str, Any],
    wanted: Sequence[str],
    report: dict[str, Any],
    show: Callable[[str], None],
) -> None:
    """Measure the format, with all records in the journal and with all in the archive."""
    for where in ("journal", "archive"):
        if where == "archive":
            _archive(data_dir, spec["cores"])
        if where not in wanted:
            continue
        found = run_child("benchmarks.spark", {"data_dir": str(data_dir), **spec}, _CHILD_SECONDS)
        report[where] = found
        show(f"{'of the ' + where:<28}{'seconds':>9}{'records/s':>14}{'of plain':>10}   read")
        for line in found["lines"]:
            show(_text(line))
    if "journal" in report:
        rate = report["journal"]["lines"][0]["records_per_s"]
        show(f"count of the journal: {rate:,.0f} records/s; wanted, on four cores: {TARGET:,}")


def _archive(data_dir: Path, cores: int) -> None:
    """Move the whole journal into an archive."""
    command = [sys.executable, "-m", "brokerd.rollup", "--data-dir", str(data_dir)]
    master = ["--master", f"local[{cores}]"]
    done = subprocess.run([*command, *master], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildFailed(f"brokerd-rollup: {done.stderr.strip()}")


def _text(line: Mapping[str, Any]) -> str:
    plain = f"{line['of_plain']:>10.0%}" if line["of_plain"] else f"{'':>10}"
    return (
        f"  {line['name']:<26}{line['seconds']:>9.2f}{line['records_per_s']:>14,.0f}{plain}"
        f"   {line['read']}"
    )


# -- In a process of its own ---------------------------------------------------------------------


def _queries(data_dir: str, cores: int, records: int, tries: int) -> dict[str, Any]:
    """Ask all questions of a data directory and return the figures."""
    shape = Shape(records, 200)
    settings = {"spark.driver.extraJavaOptions": JAVA}
    options = SparkOptions(f"local[{cores}]", driver_memory_bytes=2 << 30, settings=settings)
    work = Path(data_dir, "run", "bench")
    with spark_session("bench", options, work, os.environ) as session:
        import brokerd.spark

        brokerd.spark.register(session)
        lines = list(_asked(session, data_dir, shape, cores, tries))
    return {"lines": lines}


def _asked(
    session: SparkSession, data_dir: str, shape: Shape, cores: int, tries: int
) -> Iterator[dict[str, Any]]:
    for question in questions(shape):
        found = _plan_of(data_dir, question)
        seconds, result = _quickest(partial(_ask, session, data_dir, question), tries)
        _check(question, result, shape)
        plain = None
        if question.where == "true":
            plain = _plain(found.splits, cores, tries)
        yield {
            "name": question.name,
            "seconds": seconds,
            # The rate counts all records: a filter is fast because it leaves most of them out.
            "records_per_s": shape.records / seconds,
            "of_plain": plain / seconds if plain else None,
            "read": _read_text(found),
        }


def _ask(session: SparkSession, data_dir: str, question: Question) -> int:
    frame: DataFrame = session.read.format("brokerd").options(**question.options).load(data_dir)
    result: int = frame.where(question.where).selectExpr(question.ask).collect()[0][0]
    return result


def _quickest(ask: Callable[[], int], tries: int) -> tuple[float, int]:
    """Ask once to warm up, then ``tries`` times; return the least seconds and the answer."""
    result = ask()
    times = []
    for _ in range(tries):
        began = time.monotonic()
        if ask() != result:
            raise ChildFailed("a question has two answers")
        times.append(time.monotonic() - began)
    return min(times), result


def _check(question: Question, result: int, shape: Shape) -> None:
    """Raise ChildFailed if the answer differs from the known one."""
    due = shape.records
    if question.ask == "sum(octet_length(value))":
        due *= shape.value_bytes
    is_all = "topics" not in question.options and question.where == "true"
    is_wrong = result != due if is_all else not 0 < result < due
    if question.ask != "sum(offset)" and is_wrong:
        raise ChildFailed(f"{question.name}: {result:,}, of {shape.records:,} records")


def _plan_of(data_dir: str, question: Question) -> Plan:
    request = batch_request(parse_options({"path": data_dir, **question.options}))
    return plan_query(open_location(data_dir), request, time.time_ns() // 1000)


def _plain(splits: Sequence[Split], cores: int, tries: int) -> float:
    """Return the seconds that as many processes take to read the splits."""
    with get_context("spawn").Pool(cores) as pool:
        pool.map(_rows_of, splits[: 4 * cores], chunksize=1)  # starts the processes
        times = []
        for _ in range(tries):
            began = time.monotonic()
            pool.map(_rows_of, splits, chunksize=1)
            times.append(time.monotonic() - began)
    return min(times)


def _rows_of(split: Split) -> int:
    return sum(batch.num_rows for batch in read_split(split))


def _read_text(found: Plan) -> str:
    parts = []
    if found.files.total:
        parts.append(
            f"{found.files.read} of {found.files.total} archive files "
            f"({found.file_bytes.read / MIB:,.0f} of {found.file_bytes.total / MIB:,.0f} MiB)"
        )
    if found.segments.total:
        parts.append(
            f"{found.segments.read} of {found.segments.total} journal files "
            f"({found.segment_bytes.read / MIB:,.0f} of {found.segment_bytes.total / MIB:,.0f} MiB)"
        )
    return ", ".join(parts) or "nothing"


if __name__ == "__main__":
    sys.exit(main())
