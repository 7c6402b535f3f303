# Tests: tests/test_demo.py
"""The last act of the demo: Spark rolls the journal up, the journal goes, and nobody notices.

Contract: `play` runs ``brokerd-rollup`` beside the broker, puts the questions of `demo.queries` to
the tables, draws the chart, waits until the broker has deleted the journal that the archive has,
and holds what the archive gives back against the books. It returns one line for each thing that is
off.
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

from .chart import draw
from .coldproof import prove_first, prove_tables, read_first, read_tables
from .course import Course
from .progress import Progress
from .queries import DELAY_BY_CARRIER, DELAY_BY_HOUR, QUERIES, as_text, open_views

SETTINGS = (
    # Small files, so that there are some to delete, and none that stays because it is new.
    "wal.segment_bytes=4MiB",
    "archive.keep_wal_bytes=0",
    # A file without records needs no archive to be deleted. Here it is to wait for it all the same:
    # nothing is looked for before brokerd-rollup says that it is done.
    "archive.poll_seconds=3600",
    "retention.check_seconds=3600",
)
"""What the broker of the demo is told so that its journal goes at once."""
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds: half the processor time."""
_ROLLUP_SECONDS = 600.0
_DELETION_SECONDS = 60.0
_POLL_SECONDS = 0.1
_RESTARTS = "restarts"
_FLIGHT = ("carrier", "flight", "origin", "dest")


class ColdFailed(Exception):
    """The archive could not be tried; the message says why."""


def play(course: Course, broker: BrokerProcess, directory: Path, progress: Progress) -> list[str]:
    """The act, told as it goes.

    :param directory: the demo's own; the chart is drawn there.
    :raises ColdFailed: when it cannot be tried; AdminFailed, BrokerdError and OSError as well.
    """
    os.environ.setdefault("JAVA_TOOL_OPTIONS", _QUICK_JAVA)
    chart = directory / "flights.png"
    files_before = len(list((broker.data_dir / "wal").glob("*.wal")))
    progress.say(
        "Now Spark copies the journal into the archive, while the broker goes on:\n"
        f"  brokerd-rollup --data-dir {broker.data_dir} --seal\n"
    )
    progress.say(_indented(roll_up(broker.data_dir)))
    files = live_files(broker.data_dir / "archive")
    progress.say("\n  Spark SQL is asked four questions ...")
    ask(files, directory / "spark", chart, progress)
    progress.say(f"\n  The same as a chart: {chart}")
    stored = read_tables(files)
    wrong = prove_tables(course, stored)
    restart_twice(broker)
    wait_for_deletion(broker, stored.lsn_of_last)
    progress.say(
        f"\n  The broker deleted the journal that the archive has: of {files_before} files none is"
        f"\n  left that holds a flight. The last flight was written at {stored.lsn_of_last:,}, the"
        f"\n  journal begins at {first_lsn(broker.data_dir):,}. It was started anew, so nothing is"
        "\n  in memory either. Offset 0 is read through each format all the same:\n"
    )
    read = read_first(course)
    wrong += prove_first(course, read)
    if not fetch_status(broker.admin)["archive"]["reads"]:
        wrong.append("the broker answered without a look into the archive")
    for form, value in read.items():
        progress.say(f"    {form:<10} {_flight(value)}")
    return wrong


def _flight(value: object) -> str:
    """What a format gave back, and the flight that it is."""
    if not isinstance(value, (dict, bytes)):
        return repr(value)
    kind, row = "a map", value
    if isinstance(value, bytes):
        kind, row = f"{len(value)} bytes", msgpack.unpackb(value)
    facts = [f"{name} {row[name]}" for name in ("row", *_FLIGHT) if name in row]
    return f"{kind:<10} {', '.join(facts)}"


def roll_up(data_dir: Path) -> str:
    """Close the journal's last file and have all of it archived; what the job says of it.

    :raises ColdFailed: when it does not end well.
    """
    program = Path(sys.executable).with_name("brokerd-rollup")
    try:
        done = subprocess.run(
            [program, "--data-dir", data_dir, "--seal"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # On a terminal its progress bar is seen, and what is wrong.
            stderr=None if sys.stderr.isatty() else subprocess.PIPE,
            text=True,
            timeout=_ROLLUP_SECONDS,
            preexec_fn=die_with_parent,
        )
    except subprocess.TimeoutExpired:
        raise ColdFailed(f"brokerd-rollup did not end in {_ROLLUP_SECONDS:.0f} s") from None
    if done.returncode:
        why = f": {done.stderr.strip()}" if done.stderr else ""
        raise ColdFailed(f"brokerd-rollup ended with {done.returncode}{why}")
    return done.stdout


def live_files(root: Path) -> dict[str, list[str]]:
    """Table -> the files that its newest version consists of."""
    from deltalake import DeltaTable

    tables = (RECORDS, EVENTS, DELIVERIES, HOURLY)
    return {table.name: DeltaTable(root / table.name).file_uris() for table in tables}


def ask(files: Mapping[str, list[str]], directory: Path, chart: Path, progress: Progress) -> None:
    """Put the questions, print the answers, and draw the chart.

    :param directory: where Spark may write meanwhile.
    :raises ColdFailed: when Spark cannot run.
    """
    # So few rows are sorted quickest in few parts.
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
        raise ColdFailed(str(error)) from error


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def first_lsn(data_dir: Path) -> int:
    """Where the journal begins by now; the names of its files say so."""
    return min(int(path.stem) for path in (data_dir / "wal").glob("*.wal"))


def restart_twice(broker: BrokerProcess) -> None:
    """Have the broker leave two snapshots, which it does not take of so small a log by itself."""
    for number in range(2):
        with MamamiaClient(broker.address) as client:
            client.produce(_RESTARTS, {"restart": number})  # or the two would be the same
        broker.stop()
        broker.start()


def wait_for_deletion(broker: BrokerProcess, below: int) -> None:
    """Wait until the journal begins at an LSN or after it.

    :raises ColdFailed: when that takes a minute.
    """
    deadline = time.monotonic() + _DELETION_SECONDS
    while first_lsn(broker.data_dir) < below:
        if time.monotonic() > deadline:
            why = fetch_status(broker.admin).get("archive")
            raise ColdFailed(f"the broker keeps its journal although the archive has it: {why}")
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
