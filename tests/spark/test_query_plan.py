"""What a query would read, and in which parts."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.errors import UnknownTopic
from brokerd.spark.plan import query_plan
from brokerd.spark.plan.end_proofs import read_end_proofs
from brokerd.spark.plan.log_end import LogEnd, batch_end, log_end, lsn_after_bytes
from brokerd.spark.plan.log_snapshot import take_snapshot
from brokerd.spark.plan.query_plan import ShortLog, pack
from brokerd.spark.request import COLUMNS, Request
from tests.archive.making import LOG_ID
from tests.spark.logs import Log, Row, rows_of


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = Log(tmp_path / "data")
    topics = [log.create("one"), log.create("two"), log.create("__brokerd.audit")]
    log.create("__brokerd.1", internal_of=1)
    for number in range(4):
        for topic_id in (*topics, 4):
            log.append(topic_id, number % 2, b"%d" % number, b"x" * 50)
        if number < 3:
            log.seal()
            log.publish()
        if number < 2:
            log.roll_up()
    return log


def _own(row: Row) -> bool:
    return row.topic.startswith("__brokerd.")


def test_a_request_asks_for_all_columns_unless_it_names_some() -> None:
    assert Request().columns == COLUMNS
    assert "bucket" not in COLUMNS


def test_the_brokers_own_topics_are_read_when_they_are_named(log: Log) -> None:
    assert log.read() == [row for row in log.expected() if not _own(row)]
    named = log.read(topics=("__brokerd.audit", "one"))
    assert {row.topic for row in named} == {"__brokerd.audit", "one"}
    assert log.read(topics=("*",)) == log.expected(), "but none that serves another one"


def test_a_topic_that_is_not_there_is_an_error_unless_it_may_come(log: Log) -> None:
    with pytest.raises(UnknownTopic, match="there is no topic 'three'"):
        log.plan(topics=("one", "three"))
    found = log.read(topics=("one", "three"), unknown_topics=True)
    assert {row.topic for row in found} == {"one"}


@pytest.mark.parametrize(
    ("limits", "is_wanted"),
    [
        ({}, lambda row: True),
        ({"from_offset": 1, "to_offset": 3}, lambda row: 1 <= row.offset < 3),
        ({"to_time_us": 1_700_000_012_000_000}, lambda row: row.time_us < 1_700_000_012_000_000),
    ],
)
def test_options_leave_out_what_is_not_wanted(
    log: Log, limits: dict[str, int], is_wanted: Callable[[Row], bool]
) -> None:
    found = log.plan(topics=("two",), **limits)
    whole = log.plan()
    assert found.records < whole.records
    assert found.segment_bytes.read < whole.segment_bytes.read
    rows = [row for row in log.expected() if row.topic == "two" and is_wanted(row)]
    assert rows_of(found) == rows


def test_a_plan_tells_what_is_read_and_what_is_left_out(log: Log) -> None:
    found = log.plan()
    assert found.log_id == LOG_ID
    assert found.files == (4, 8)
    assert 0 < found.file_bytes.read < found.file_bytes.total
    assert found.segments == (2, 2), "those that the archive lacks"
    assert found.records >= len(log.read())
    last = log.plan(from_time_us=log.rows[-8].time_us, topics=("two",))
    assert last.files.read == 0 and last.files.total == found.files.total
    assert last.segments == (1, 2)
    assert log.plan(first_lsn=found.end_lsn).splits == ()


def test_lsns_cut_a_log_into_pieces_that_are_all_of_it(log: Log) -> None:
    end = log_end(log.place)
    assert end == LogEnd(LOG_ID, log.plan().end_lsn)
    cuts = [0, 4096, 5000, int(log.sealed[1].stem), int(log.sealed[2].stem) + 4500, end.lsn]
    pieces = [log.read(first_lsn=first, end_lsn=after) for first, after in itertools.pairwise(cuts)]
    assert sorted(functools.reduce(operator.iadd, pieces, [])) == log.read()
    assert sum(map(bool, pieces)) == 5 - 1, "the first holds no record"


def test_a_log_that_is_shorter_than_it_was_is_refused(log: Log) -> None:
    end = log_end(log.place).lsn
    with pytest.raises(ShortLog, match=f"the log ends at LSN {end}, before LSN {end + 1}"):
        log.plan(end_lsn=end + 1)


def test_neighbours_are_grouped_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    class Part:
        def __init__(self, bytes: int) -> None:
            self.bytes = bytes

    def sizes(*parts: int) -> list[list[int]]:
        return [[part.bytes for part in some] for some in pack(map(Part, parts), 10)]

    assert sizes(1, 2, 3, 4, 5, 20, 1) == [[1, 2, 3, 4], [5], [20], [1]]
    assert sizes() == []
    monkeypatch.setattr(query_plan, "PARTS_MAX", 2)
    assert sizes(1, 1, 1) == [[1, 1], [1]]


# -- How far a log has got -----------------------------------------------------------------------


def test_the_end_moves_with_each_record(log: Log) -> None:
    before = log_end(log.place).lsn
    log.append(1, 0, b"more")
    assert log_end(log.place).lsn > before
    assert [row.value for row in log.read(first_lsn=before)] == [b"more"]


@pytest.mark.parametrize("is_archived", [True, False])
def test_the_end_stays_when_every_file_is_deleted(
    log: Log, monkeypatch: pytest.MonkeyPatch, is_archived: bool
) -> None:
    """The deletion comes after the archive was read. Without an archive, the records are gone."""
    log.append(1, 0, b"more")
    log.seal()
    log.publish()
    end = log_end(log.place).lsn
    real = read_end_proofs

    def meanwhile(*args: object) -> object:
        if is_archived:
            log.roll_up()
        for path in list(log.sealed):
            log.remove(path)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("brokerd.spark.plan.log_end.read_end_proofs", meanwhile)
    assert log_end(log.place).lsn == end
    assert take_snapshot(log.place).end_lsn == end


@pytest.mark.parametrize("max_bytes", [1, 100, 300, 1000, 5000, 1 << 30])
def test_a_log_is_taken_bit_by_bit(log: Log, max_bytes: int) -> None:
    end = log_end(log.place).lsn
    lsn, rows, steps = 0, list[Row](), 0
    while lsn < end and steps < 1000:
        after = batch_end(log.place, lsn, max_bytes).lsn
        assert lsn < after <= end
        some = log.read(first_lsn=lsn, end_lsn=after)
        rows += some
        lsn, steps = after, steps + (1 if some else 0)
        if max_bytes == 1:
            break
    if max_bytes > 1:
        assert lsn == end
        assert sorted(rows) == log.read()
    assert batch_end(log.place, end, max_bytes).lsn == end


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50), st.integers(0, 1000)), max_size=6),
    st.integers(0, 100),
    st.integers(1, 2000),
)
def test_a_cut_is_above_where_it_began_and_holds_about_as_much(
    found: list[tuple[int, int, int]], first: int, max_bytes: int
) -> None:
    pieces = [(low, low + more, size) for low, more, size in found]
    end = max([first + 1, *(high + 1 for _, high, _ in pieces)])
    cut = lsn_after_bytes(pieces, first, end, max_bytes)
    assert first < cut <= end

    def below(lsn: int) -> float:
        return sum(
            max(1, size) * max(0, min(high + 1, lsn) - max(low, first)) / (high + 1 - low)
            for low, high, size in pieces
        )

    if cut < end:
        assert below(cut + 1) >= max_bytes - 1e-6
    if cut > first + 1:
        assert below(cut - 1) <= max_bytes + 1e-6
