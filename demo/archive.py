# Tests: tests/test_demo.py
"""Second part of the demo: archive the journal with Spark, delete it, read the records back.

`run` runs ``brokerd-rollup`` beside the broker, runs `demo.queries` on the tables and draws the
chart. It waits until the broker deletes the archived segments, then compares the archive with the
ledger. It returns one line for each difference.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import msgpack

from benchmarks.admin import AdminFailed, fetch_status
from benchmarks.process import BrokerProcess, die_with_parent
from brokerd.archive.cluster.session import NoSpark, SparkOptions, spark_session
from brokerd.archive.contract.layout import DELIVERIES, EVENTS, HOURLY, RECORDS
from brokerd.client.mamamia import MamamiaClient

from .archive_check import check_first_records, check_tables, read_first_records, read_tables
from .chart import draw
from .progress import Progress
from .queries import DELAY_BY_CARRIER, DELAY_BY_HOUR, QUERIES, as_text, open_views
from .workers import SharedState

SETTINGS = (
    # Small segments, so that there are several to delete.
    "wal.segment_bytes=4MiB",
    "archive.keep_wal_bytes=0",
    # The broker deletes a segment without records even if no archive has it. Long intervals keep
    # every segment until brokerd-rollup is done.
    "archive.poll_seconds=3600",
    "retention.check_seconds=3600",
)
"""Settings with which the broker deletes archived segments at once."""
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for short-lived JVMs: they halve the processor time."""
_ROLLUP_SECONDS = 600.0
_DELETION_SECONDS = 60.0
_POLL_SECONDS = 0.1
_RESTARTS = "restarts"
_FLIGHT = ("carrier", "flight", "origin", "dest")


class ArchiveFailed(Exception):
    """The archive part could not run; the message says why."""


def run(
    state: SharedState, broker: BrokerProcess, directory: Path, progress: Progress
) -> list[str]:
    """Run the archive part, print each step, and return one line for each difference.

    :param directory: the demo's directory; receives the chart.
    :raises ArchiveFailed: when it cannot run; AdminFailed, BrokerdError and OSError as well.
    """
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _QUICK_JAVA)
    chart = directory / "flights.png"
    files_before = len(list((broker.data_dir / "wal").glob("*.wal")))
    progress.say(
        "Now Spark copies the journal into the archive. The broker keeps serving.\n"
        f"  brokerd-rollup --data-dir {broker.data_dir} --seal\n"
    )
    progress.say(_indented(run_rollup(broker.data_dir)))
    files = live_files(broker.data_dir / "archive")
    progress.say("\n  Four questions for Spark SQL ...")
    run_queries(files, directory / "spark", chart, progress)
    progress.say(f"\n  Chart: {chart}")
    stored = read_tables(files)
    wrong = check_tables(state, stored)
    restart_twice(broker)
    wait_for_deletion(broker, stored.lsn_of_last)
    progress.say(
        f"\n  The broker deleted the archived segments of its journal. There were {files_before}"
        f"\n  before. The last flight has LSN {stored.lsn_of_last:,}, the journal now begins at LSN"
        f"\n  {first_lsn(broker.data_dir):,}. The broker was restarted, so no flight is in memory."
        "\n  Each format reads offset 0 from the archive:\n"
    )
    read = read_first_records(state)
    wrong += check_first_records(state, read)
    if not fetch_status(broker.admin)["archive"]["reads"]:
        wrong.append("the broker answered without reading the archive")
    for form, value in read.items():
        progress.say(f"    {form:<10} {_flight(value)}")
    return wrong


def _flight(value: object) -> str:
    """Describe a value that a format returned: its type, and the flight in it."""
    if not isinstance(value, (dict, bytes)):
        return repr(value)
    kind, row = "a map", value
    if isinstance(value, bytes):
        kind, row = f"{len(value)} bytes", msgpack.unpackb(value)
    facts = [f"{name} {row[name]}" for name in ("row", *_FLIGHT) if name in row]
    return f"{kind:<10} {', '.join(facts)}"


def run_rollup(data_dir: Path) -> str:
    """Seal the last segment and archive the whole journal; return the job's output.

    :raises ArchiveFailed: when the job fails or takes too long.
    """
    program = Path(sys.executable).with_name("brokerd-rollup")
    try:
        done = subprocess.run(
            [program, "--data-dir", data_dir, "--seal"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # On a terminal, let the job show its progress bar and its errors.
            stderr=None if sys.stderr.isatty() else subprocess.PIPE,
            text=True,
            timeout=_ROLLUP_SECONDS,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise ArchiveFailed(f"brokerd-rollup did not end in {_ROLLUP_SECONDS:.0f} s") from None
    if done.returncode:
        why = f": {done.stderr.strip()}" if done.stderr else ""
        raise ArchiveFailed(f"brokerd-rollup ended with {done.returncode}{why}")
    return done.stdout


def live_files(root: Path) -> dict[str, list[str]]:
    """Return table -> files of its newest version."""
    from deltalake import DeltaTable

    tables = (RECORDS, EVENTS, DELIVERIES, HOURLY)
    return {table.name: DeltaTable(root / table.name).file_uris() for table in tables}


def run_queries(
    files: Mapping[str, list[str]], directory: Path, chart: Path, progress: Progress
) -> None:
    """Run the queries, print the answers, and draw the chart.

    :param directory: for Spark's temporary files.
    :raises ArchiveFailed: when Spark cannot run.
    """
    # The tables are small: two shuffle partitions are fastest.
    options = SparkOptions(settings={"spark.sql.shuffle.partitions": "2"})
    try:
        with spark_session("brokerd demo", options, directory, os.environ) as spark:
            open_views(spark, files)
            for query in QUERIES:
                progress.say(f"\n  {query.question}\n")
                progress.say(_indented(query.sql))
                progress.say(_indented(as_text(spark.sql(query.sql))))
            by_carrier = spark.sql(DELAY_BY_CARRIER).collect()
            draw(chart, by_carrier, spark.sql(DELAY_BY_HOUR).collect())
    except NoSpark as error:
        raise ArchiveFailed(str(error)) from error


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def first_lsn(data_dir: Path) -> int:
    """Return the first LSN of the journal, from the names of its files."""
    return min(int(path.stem) for path in (data_dir / "wal").glob("*.wal"))


def restart_twice(broker: BrokerProcess) -> None:
    """Restart twice, so that the broker writes two snapshots; the log is too small for others."""
    for number in range(2):
        with MamamiaClient(broker.address) as client:
            client.produce(_RESTARTS, {"restart": number})  # else both snapshots have the same LSN
        broker.stop()
        broker.start()


def wait_for_deletion(broker: BrokerProcess, below: int) -> None:
    """Wait until the journal begins at LSN ``below`` or later.

    :raises ArchiveFailed: after a minute.
    """
    deadline = time.monotonic() + _DELETION_SECONDS
    while first_lsn(broker.data_dir) < below:
        if time.monotonic() > deadline:
            why = fetch_status(broker.admin).get("archive")
            raise ArchiveFailed(f"the broker keeps its journal although the archive has it: {why}")
        _post(broker.admin, "archive/refresh")
        time.sleep(_POLL_SECONDS)


def _post(admin: str, path: str) -> None:
    request = urllib.request.Request(
        f"http://{admin}/api/v1/{path}", b"{}", {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_DELETION_SECONDS):
            pass
    except (urllib.error.URLError, OSError) as error:
        raise AdminFailed(f"{request.full_url}: {error}") from error
