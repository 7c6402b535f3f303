"""Conditions leave out only rows that Spark would drop by the same conditions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from brokerd.spark.filters import narrowed
from brokerd.spark.options import microseconds
from brokerd.spark.planning import Narrow, Span

NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
COLUMNS: dict[str, Any] = {
    "topic": st.sampled_from(["a", "b", "c"]),
    "topic_id": st.integers(0, 4),
    "partition": st.integers(0, 4),
    "offset": st.integers(0, 9),
    "append_time": st.integers(-3, 3).map(lambda us: NOON + timedelta(microseconds=us)),
    "lsn": st.integers(0, 9),
    "key": st.sampled_from([b"k", None]),
}
COMPARED: dict[type[Filter], Any] = {
    EqualTo: lambda value, other: value == other,
    EqualNullSafe: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
}


@st.composite
def conditions(draw: st.DrawFn) -> Filter:
    name = draw(st.sampled_from([name for name in COLUMNS if name != "key"]))
    values = COLUMNS[name]
    kind = draw(st.sampled_from([*COMPARED, In, Not]))
    if kind is In:
        return In((name,), tuple(draw(st.lists(values | st.none(), max_size=3))))
    if kind is Not:
        return Not(EqualTo((name,), draw(values)))
    found: Filter = kind((name,), draw(values))
    return found


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    if isinstance(condition, Not):
        return not holds(condition.child, row)
    value = row[condition.attribute[0]]  # type: ignore[attr-defined]
    if isinstance(condition, In):
        return value in condition.value
    return bool(COMPARED[type(condition)](value, condition.value))  # type: ignore[attr-defined]


def is_left(narrow: Narrow, row: dict[str, Any]) -> bool:
    def within(span: Span, value: int) -> bool:
        return (span[0] is None or span[0] <= value) and (span[1] is None or value < span[1])

    def among(values: frozenset[Any] | None, value: object) -> bool:
        return values is None or value in values

    return (
        among(narrow.topics, row["topic"])
        and among(narrow.topic_ids, row["topic_id"])
        and among(narrow.partitions, row["partition"])
        and within(narrow.offsets, row["offset"])
        and within(narrow.times_us, microseconds(row["append_time"]))
        and within(narrow.lsns, row["lsn"])
    )


@given(st.lists(conditions(), max_size=4), st.fixed_dictionaries(COLUMNS))
def test_a_row_that_all_conditions_take_is_left(asked: list[Filter], row: dict[str, Any]) -> None:
    narrow = narrowed(Narrow(), asked)
    if all(holds(condition, row) for condition in asked):
        assert is_left(narrow, row)


def test_each_kind_of_condition_narrows() -> None:
    """So that files are left out at all; times in any time zone."""
    east = timezone(timedelta(hours=5, minutes=30))
    narrow = narrowed(
        Narrow(),
        [
            EqualTo(("topic",), "a"),
            In(("topic_id",), (1, 2, None)),
            In(("topic_id",), (2, 3)),
            EqualNullSafe(("partition",), 0),
            GreaterThan(("offset",), 4),
            LessThanOrEqual(("offset",), 9),
            GreaterThanOrEqual(("append_time",), NOON.astimezone(east)),
            LessThan(("append_time",), NOON + timedelta(microseconds=7)),
            In(("lsn",), (5, None, 3)),
        ],
    )
    assert narrow == Narrow(
        frozenset({"a"}),
        frozenset({2}),
        frozenset({0}),
        (5, 10),
        (microseconds(NOON), microseconds(NOON) + 7),
        (3, 6),
    )


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("key",), b"k"),
        EqualTo(("lsn", "inner"), 5),
        EqualTo(("lsn",), 5.5),
        EqualTo(("lsn",), None),
        EqualTo(("append_time",), NOON.replace(tzinfo=None)),
        In(("lsn",), ()),
        In(("lsn",), (1, 2.5)),
        EqualTo(("partition",), True),
        IsNotNull(("topic",)),
        StringStartsWith(("topic",), "a"),
        Not(GreaterThan(("offset",), 5)),
    ],
)
def test_what_says_nothing_here_leaves_everything(condition: Filter) -> None:
    assert narrowed(Narrow(), [condition]) == Narrow()
