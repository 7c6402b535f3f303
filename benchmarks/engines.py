# Tests: tests/test_bench_spark.py
"""Ask the same questions of one archive through several programs.

`benchmarks.spark` runs this part. *Plain* is Spark on plain Parquet files that Spark wrote from the
same rows. The others read the archive: `brokerd.spark.log`, the format ``brokerd`` with the options
that help it most, DuckDB and Polars. All must give the same answers. inotify counts the files that
a query opens; the files that ``log`` opens for their footers are not counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from brokerd.archive.cluster.session import SparkOptions, spark_session

from .children import ChildFailed, answer
from .long_log import BEGAN_US, FRAME_US, Shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA = "-XX:TieredStopAtLevel=4 -XX:-UseSerialGC -XX:+UseG1GC"
"""Spark's own defaults for Java; a rollup starts a smaller Java."""
PLAIN = "plain"
TOPIC = "bench3"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_IN_OPEN = 0x20
_EVENT_BYTES = 16

Query = Callable[[], object]


class Asked(NamedTuple):
    """A question in the words of each program."""

    name: str
    sql: str
    """For Spark; ``{value}`` is the value as text."""
    duckdb: str
    polars: Callable[[Any, Any], Any]
    """Takes the module polars and the archive, and returns a result with one column or more."""
    options: dict[str, str]
    """Options of the format."""
    is_json: bool = False


def asked(shape: Shape) -> list[Asked]:
    """Return the questions."""
    since_us = BEGAN_US + shape.frames * 19 // 20 * FRAME_US
    since = (_EPOCH + timedelta(microseconds=since_us)).isoformat()
    size = "sum(octet_length(value))"
    grouped = f"SELECT topic, count(*), {size} FROM log GROUP BY topic ORDER BY topic"
    in_spark = "sum(CAST(get_json_object({value}, '$.n') AS bigint))"
    in_duckdb = "sum(CAST(json_extract(decode(value), '$.n') AS bigint))"
    return [
        Asked(
            "count",
            "SELECT count(*) FROM log",
            "SELECT count(*) FROM log",
            lambda pl, log: log.select(pl.len()),
            {"columns": "offset"},
        ),
        Asked(
            "one topic",
            f"SELECT {size} FROM log WHERE topic = '{TOPIC}'",
            f"SELECT {size} FROM log WHERE topic = '{TOPIC}'",
            lambda pl, log: log.filter(pl.col("topic") == TOPIC).select(_size(pl)),
            {"topics": TOPIC, "columns": "topic,value"},
        ),
        Asked(
            "5 % of time",
            f"SELECT {size} FROM log WHERE append_time >= timestamp '{since}'",
            f"SELECT {size} FROM log WHERE append_time >= to_timestamp({since_us / 1e6})",
            lambda pl, log: log.filter(
                pl.col("append_time") >= datetime.fromisoformat(since)
            ).select(_size(pl)),
            {"from": since, "columns": "append_time,value"},
        ),
        Asked(
            "by topic",
            grouped,
            grouped,
            lambda pl, log: log.group_by("topic").agg(pl.len(), _size(pl)).sort("topic"),
            {"columns": "topic,value"},
        ),
        Asked(
            "JSON sum",
            f"SELECT {in_spark} FROM log",
            f"SELECT {in_duckdb} FROM log",
            lambda pl, log: log.select(
                pl.col("value").cast(pl.String).str.json_path_match("$.n").cast(pl.Int64).sum()
            ),
            {"columns": "value"},
            is_json=True,
        ),
    ]


def _size(pl: Any) -> Any:
    return pl.col("value").bin.size().cast(pl.Int64).sum()


def table(report: dict[str, Any]) -> Iterator[str]:
    """Yield the figures as lines."""
    programs = report["programs"]
    yield f"{'of the archive, seconds':<26}" + "".join(f"{name:>20}" for name in programs)
    for line in report["lines"]:
        yield f"  {line['name']:<24}" + "".join(f"{_cell(line, name):>20}" for name in programs)
        yield f"  {'  files opened':<24}" + "".join(
            f"{'{} of {}'.format(*line['files'][name]):>20}" for name in programs
        )


def _cell(line: dict[str, Any], name: str) -> str:
    seconds = line["seconds"][name]
    if name == PLAIN:
        return f"{seconds:.2f}"
    return f"{seconds:.2f} ({seconds / line['seconds'][PLAIN]:.2f})"


# -- In a process of its own ---------------------------------------------------------------------


def ask_all(data_dir: str, cores: int, records: int, tries: int) -> dict[str, Any]:
    """Ask all questions of all programs, and return the figures."""
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    shape = Shape(records, 200, is_json=True)
    plain = Path(data_dir, "plain")
    archive = Path(data_dir, "archive", "records")
    settings = {"spark.driver.extraJavaOptions": JAVA}
    options = SparkOptions(f"local[{cores}]", driver_memory_bytes=2 << 30, settings=settings)
    with spark_session("bench", options, Path(data_dir, "run", "bench"), os.environ) as session:
        import brokerd.spark

        brokerd.spark.register(session)
        brokerd.spark.log(session, data_dir).write.parquet(str(plain))
        programs: dict[str, Callable[[Asked], Query]] = {
            PLAIN: partial(_plain, session, plain),
            "log": partial(_log, session, data_dir),
            "format": partial(_format, session, data_dir),
            **_others(data_dir, cores),
        }
        lines = []
        for question in asked(shape):
            seconds, files, answers = {}, {}, {}
            for name, prepare in programs.items():
                place = plain if name == PLAIN else archive
                seconds[name], answers[name] = _quickest(partial(prepare, question), tries)
                files[name] = opened_files(place, prepare(question))
            if len({repr(one) for one in answers.values()}) != 1:
                raise ChildFailed(f"{question.name}: the answers differ: {answers}")
            lines.append({"name": question.name, "seconds": seconds, "files": files})
    return {"programs": list(programs), "lines": lines}


def _plain(session: SparkSession, place: Path, question: Asked) -> Query:
    session.read.parquet(str(place)).createOrReplaceTempView("log")
    return _sql(session, question.sql.format(value="CAST(value AS string)"))


def _log(session: SparkSession, data_dir: str, question: Asked) -> Query:
    import brokerd.spark

    options = {"payload": "json"} if question.is_json else {}
    brokerd.spark.log(session, data_dir, **options).createOrReplaceTempView("log")
    return _sql(session, question.sql.format(value="value"))


def _format(session: SparkSession, data_dir: str, question: Asked) -> Query:
    options = {**question.options, **({"payload": "json"} if question.is_json else {})}
    frame = session.read.format("brokerd").options(**options).load(data_dir)
    frame.createOrReplaceTempView("log")
    return _sql(session, question.sql.format(value="value"))


def _sql(session: SparkSession, text: str) -> Query:
    frame = session.sql(text)
    return lambda: _rows(frame.collect())


def _rows(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return rows in one form. DuckDB returns sums as integers of 128 bits, Spark as longs."""
    return [tuple(row) for row in rows]


def _others(data_dir: str, cores: int) -> dict[str, Callable[[Asked], Query]]:
    """Return the programs that are installed."""
    records = os.path.join(data_dir, "archive", "records")
    found: dict[str, Callable[[Asked], Query]] = {}
    try:
        import duckdb
        from deltalake import DeltaTable

        def by_duckdb(question: Asked) -> Query:
            connection = duckdb.connect(config={"threads": cores})
            log = connection.read_parquet(DeltaTable(records).file_uris())
            connection.register("log", log)
            return lambda: _rows(connection.execute(question.duckdb).fetchall())

        found["DuckDB"] = by_duckdb
    except ImportError as error:
        print(f"{error.name} is not installed", file=sys.stderr)
    try:
        import polars

        def by_polars(question: Asked) -> Query:
            query = question.polars(polars, polars.scan_delta(records))
            return lambda: _rows(query.collect().rows())

        found["Polars"] = by_polars
    except ImportError as error:
        print(f"{error.name} is not installed", file=sys.stderr)
    return found


def _quickest(prepare: Callable[[], Query], tries: int) -> tuple[float, object]:
    """Ask once to warm up, then ``tries`` times; return the least seconds and the answer."""
    result = prepare()()
    times = []
    for _ in range(tries):
        began = time.monotonic()
        if prepare()() != result:
            raise ChildFailed("a question has two answers")
        times.append(time.monotonic() - began)
    return min(times), result


# -- Files that are opened -----------------------------------------------------------------------


def opened_files(place: Path, query: Query) -> tuple[int, int]:
    """Run a query, and return how many Parquet files below a directory it opened, of how many."""
    files = sorted(place.rglob("*.parquet"))
    with _watch(files) as count:
        query()
        return count(), len(files)


@contextmanager
def _watch(files: Sequence[Path]) -> Iterator[Callable[[], int]]:
    """Watch files, and yield a function that returns how many of them were opened: inotify(7)."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    if fd < 0:
        raise ChildFailed(f"inotify_init1: {os.strerror(ctypes.get_errno())}")
    try:
        for path in files:
            if libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) < 0:
                raise ChildFailed(f"inotify_add_watch: {os.strerror(ctypes.get_errno())}")
        yield lambda: len(set(_events(fd)))
    finally:
        os.close(fd)


def _events(fd: int) -> Iterator[int]:
    """Yield the watches of all events. An event of a file has no name."""
    while True:
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        for at in range(0, len(data), _EVENT_BYTES):
            yield int.from_bytes(data[at : at + 4], "little")


if __name__ == "__main__":
    sys.exit(answer(partial(ask_all, **json.loads(sys.argv[sys.argv.index("--step") + 1]))))
