"""Whatever happens to a log while a query looks at its files: no record is missing or double.

A broker and a job go on just before a call of the file system. The tests marked ``soak`` try every
call of every query, and many of every stream; the others take some of them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brokerd.errors import BrokerdError
from brokerd.spark.plan.log_end import batch_end, log_end
from tests.spark.logs import rows_of, scanned_rows
from tests.spark.meanwhile import (
    COPIES_LIVES,
    LIVES,
    Kept,
    Life,
    Meanwhile,
    Start,
    Step,
    append,
    make,
    watched,
)

STARTS = {
    "all": Start(archived=1, sealed=2, has_open_file=True),
    "no open file": Start(archived=1, sealed=2),
    "no archive": Start(archived=0, sealed=2, has_open_file=True),
    "archive": Start(archived=2, sealed=0),
}
COPIES = Start(archived=1, sealed=2, is_alone=True)
VACUUMED = "was merged, and deleted by vacuum since the query was planned: run the query again"
"""A query of more than ``archive.vacuum_hours`` gets this error."""
SOME = 8
"""How many calls the slow tests try."""

Act = Callable[[Life], Any]
Judge = Callable[[Life, Any, Any], None]
"""Checks the answer of a reader, given also its answer when nothing happened meanwhile."""


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda fd: None)  # no machine loses power here


# -- Readers -------------------------------------------------------------------------------------


def query(life: Life, **request: object) -> Any:
    plan = life.log.plan(**request)  # type: ignore[arg-type]
    return rows_of(plan), plan.end_lsn


def query_in_small_parts(life: Life) -> Any:
    return query(life, partition_bytes=1)


def query_without_open_file(life: Life) -> Any:
    return query(life, tail=False)


def scans(life: Life) -> Any:
    """Plan for Spark's own reader, which comes later."""
    plan = life.log.plan(has_scans=True)
    return scanned_rows(life.log.root, plan), plan.end_lsn


def ends(life: Life) -> Any:
    place = life.log.place
    return log_end(place).lsn, log_end(place, False).lsn, batch_end(place, 0, 1 << 40).lsn


def judge_rows(life: Life, answer: Any, quiet: Any) -> None:
    rows, end_lsn = answer
    life.judge(rows, end_lsn, quiet[1])


def judge_closed_rows(life: Life, answer: Any, quiet: Any) -> None:
    rows, end_lsn = answer
    life.judge(rows, end_lsn, quiet[1], quiet[0])


def judge_ends(life: Life, answer: Any, quiet: Any) -> None:
    for found, least in zip(answer, quiet, strict=True):
        assert least <= found <= life.log.end_lsn()


READERS: dict[str, tuple[Act, Judge]] = {
    "query": (query, judge_rows),
    "small parts": (query_in_small_parts, judge_rows),
    "no open file": (query_without_open_file, judge_closed_rows),
    "scans": (scans, judge_rows),
    "ends": (ends, judge_ends),
}


# -- Streams -------------------------------------------------------------------------------------


class Streaming:
    """A stream that goes on while the log does, and is started again after that."""

    def __init__(self, life: Life, has_read: bool) -> None:
        """
        :param has_read: whether the stream has read the log before.
        """
        from tests.spark.test_streaming import Stream  # needs Spark 4.2

        place = life.log.place
        self._stream_of = lambda: Stream(Path(place.data_dir or place.archive))
        before = self._stream_of()
        self._rows = before.run(failOnDataLoss="false") if has_read else []
        self._offset = before.offset
        self._has_read = has_read

    def act(self, life: Life) -> Any:
        stream = self._stream_of()
        stream.offset = self._offset
        rows = stream.run(failOnDataLoss="false")
        return stream, self._rows + rows

    def judge(self, life: Life, answer: Any, quiet: Any) -> None:
        stream, rows = answer
        rows = rows + stream.run(failOnDataLoss="false")
        assert len(set(rows)) == len(rows), "a record is there twice"
        log = life.log
        end = log.archived_lsn() if life.is_alone else log.end_lsn()
        added = {row: after for _, after, row in life.added}
        every = [row for row in log.rows if row.topic_id in log.names and added.get(row, 0) <= end]
        if life.is_alone:
            assert set(rows) >= {_value(row) for row in every if row in added}
            return
        missing = {_value(row) for row in every} - set(rows)
        assert not missing & {_value(row) for row in log.expected()}
        if self._has_read:
            # What goes after a micro-batch was chosen is counted with the next one of the query.
            assert stream.offset["lost"] <= len(missing)


def _value(row: Any) -> tuple[object, ...]:
    return row.topic, row.partition, row.offset, row.value


# -- The attack ----------------------------------------------------------------------------------


class Schedule(NamedTuple):
    """The calls before which the steps of a life are done."""

    tries: int | None = None
    """The number of calls, evenly spread; None for all."""
    first: int = 0
    """The first of them."""
    gap: int = 0
    """See `Meanwhile`."""


def attack(
    kept: Kept, steps: Sequence[Step], reader: tuple[Act, Judge], schedule: Schedule
) -> None:
    """Let steps happen before calls of a reader, and judge its answers."""
    act, judge = reader
    life = kept.begin()
    quiet = Meanwhile(life)
    with watched(quiet):
        expected = act(life)
    quiet.finish()
    judge(life, expected, expected)
    findings = []
    count = len(quiet.calls)
    step = 1 if schedule.tries is None else max(1, count // schedule.tries)
    for number in range(schedule.first % step, count, step):
        life = kept.begin()
        meanwhile = Meanwhile(life, steps, number, schedule.gap)
        try:
            with watched(meanwhile):
                answer = act(life)
            meanwhile.finish()
            judge(life, answer, expected)
        except (AssertionError, BrokerdError) as error:
            if VACUUMED not in str(error):
                findings.append(f"before call {number} ({quiet.calls[number]}): {error!r}")
    assert not findings, "\n".join(findings)


def some(names: Sequence[str], starts: Sequence[str]) -> Iterator[tuple[str, str, Schedule]]:
    """Yield each life once, with alternating starts and schedules."""
    for number, name in enumerate(names):
        schedule = Schedule(SOME, number, (0, 1, 3)[number % 3])
        yield name, starts[number % len(starts)], schedule


def every(names: Sequence[str], starts: Sequence[str]) -> Iterator[tuple[str, str, Schedule]]:
    for name, start, gap in product(names, starts, (0, 1)):
        yield name, start, Schedule(gap=gap)


def _attack_log(path: Path, reader: str, name: str, start: str, schedule: Schedule) -> None:
    kept = Kept(make(path, STARTS[start]))
    attack(kept, LIVES[name], READERS[reader], schedule)


def test_calls_of_other_threads_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "data"
    meanwhile = Meanwhile(make(path, STARTS["no open file"]))

    def read() -> None:
        file = os.open(path / "file", os.O_RDWR | os.O_CREAT)
        os.pread(file, 1, 0)
        os.close(file)

    with watched(meanwhile):
        read()
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert meanwhile.calls == ["open /file", "pread "]


@pytest.mark.parametrize(
    ("name", "start"),
    [("archived and deleted", "no open file"), ("step by step", "all"), ("trimmed", "all")],
)
def test_a_query_has_each_record_once(tmp_path: Path, name: str, start: str) -> None:
    _attack_log(tmp_path / "data", "query", name, start, Schedule(8))


def test_a_query_of_an_archive_alone_has_each_record_once(tmp_path: Path) -> None:
    kept = Kept(make(tmp_path / "data", COPIES))
    steps = COPIES_LIVES["sent, archived and deleted"]
    attack(kept, steps, READERS["query"], Schedule(8))


def test_the_end_of_a_log_never_goes_back(tmp_path: Path) -> None:
    _attack_log(tmp_path / "data", "ends", "archived and deleted", "no open file", Schedule(8))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start", "schedule"), [*some([*LIVES] * 2, [*STARTS])])
@pytest.mark.parametrize("reader", ["query"])
def test_queries(tmp_path: Path, reader: str, name: str, start: str, schedule: Schedule) -> None:
    _attack_log(tmp_path / "data", reader, name, start, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("reader", [*READERS][1:])
@pytest.mark.parametrize(("name", "start", "schedule"), [*some([*LIVES], [*STARTS])])
def test_other_readers(
    tmp_path: Path, reader: str, name: str, start: str, schedule: Schedule
) -> None:
    _attack_log(tmp_path / "data", reader, name, start, schedule)


@pytest.mark.soak
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("name", "start", "schedule"), [*every([*LIVES], [*STARTS])])
def test_all_readers_at_every_call(
    tmp_path: Path, reader: str, name: str, start: str, schedule: Schedule
) -> None:
    _attack_log(tmp_path / "data", reader, name, start, schedule)


@pytest.mark.soak
@pytest.mark.parametrize("reader", ["query", "small parts", "scans"])
@pytest.mark.parametrize(("name", "start", "schedule"), [*every([*COPIES_LIVES], ["copies"])])
def test_all_readers_of_copies_at_every_call(
    tmp_path: Path, reader: str, name: str, start: str, schedule: Schedule
) -> None:
    attack(Kept(make(tmp_path / "data", COPIES)), COPIES_LIVES[name], READERS[reader], schedule)


# -- Streams -------------------------------------------------------------------------------------


def _attack_stream(path: Path, name: str, start: str, schedule: Schedule, has_read: bool) -> None:
    pytest.importorskip("pyspark.sql.streaming.datasource")
    life = make(path, STARTS.get(start, COPIES))
    stream = Streaming(life, has_read)
    append(life)
    steps = LIVES[name] if start in STARTS else COPIES_LIVES[name]
    attack(Kept(life), steps, (stream.act, stream.judge), schedule)


_SOME = [*some([*LIVES], [*STARTS]), *some([*COPIES_LIVES], ["copies"])]
_EVERY = [*every([*LIVES], [*STARTS]), *every([*COPIES_LIVES], ["copies"])]


@pytest.mark.slow
@pytest.mark.parametrize("has_read", [True, False])
@pytest.mark.parametrize(("name", "start", "schedule"), _SOME)
def test_streams(tmp_path: Path, name: str, start: str, schedule: Schedule, has_read: bool) -> None:
    _attack_stream(tmp_path / "data", name, start, schedule, has_read)


@pytest.mark.soak
@pytest.mark.parametrize("has_read", [True, False])
@pytest.mark.parametrize(("name", "start", "schedule"), _EVERY)
def test_streams_at_many_calls(
    tmp_path: Path, name: str, start: str, schedule: Schedule, has_read: bool
) -> None:
    _attack_stream(tmp_path / "data", name, start, schedule._replace(tries=50), has_read)
