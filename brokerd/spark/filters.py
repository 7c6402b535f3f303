# Tests: tests/spark/test_filters.py
"""What conditions of a query say of the rows that can match: which files need not be read.

A condition that says nothing here is passed over; Spark checks each row by all of them anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from brokerd.spark.options import microseconds
from brokerd.spark.planning import Narrow, Span

T = TypeVar("T", str, int)

_SETS: dict[str, tuple[str, type]] = {
    "topic": ("topics", str),
    "topic_id": ("topic_ids", int),
    "partition": ("partitions", int),
}
_SPANS = {"offset": "offsets", "append_time": "times_us", "lsn": "lsns"}
"""Columns, and what of `Narrow` they narrow."""


def narrowed(narrow: Narrow, conditions: Iterable[Filter]) -> Narrow:
    """What is left when all these conditions hold, too."""
    for condition in conditions:
        name, *rest = getattr(condition, "attribute", ("",))
        if rest:
            continue
        left: Any
        if name in _SETS:
            field, kind = _SETS[name]
            left = _both(getattr(narrow, field), _values(condition, kind))
        elif name in _SPANS:
            field = _SPANS[name]
            left = _overlap(getattr(narrow, field), _span(condition))
        else:
            continue
        narrow = narrow._replace(**{field: left})
    return narrow


def _both(one: frozenset[T] | None, other: frozenset[T] | None) -> frozenset[T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _values(condition: Filter, kind: type) -> frozenset[Any] | None:
    """The only values that match; None: it does not say. Null matches nothing here."""
    if isinstance(condition, EqualTo | EqualNullSafe):
        values = [condition.value]
    elif isinstance(condition, In):
        values = list(condition.value)
    else:
        return None
    if not all(value is None or type(value) is kind for value in values):
        return None
    return frozenset(value for value in values if value is not None)


def _span(condition: Filter) -> Span:
    """Between which numbers a column must be; times are microseconds."""
    if isinstance(condition, In):
        numbers = [_number(value) for value in condition.value if value is not None]
        known = [number for number in numbers if number is not None]
        if not known or len(known) < len(numbers):
            return None, None
        return min(known), max(known) + 1
    number = _number(getattr(condition, "value", None))
    if number is None:
        return None, None
    if isinstance(condition, EqualTo | EqualNullSafe):
        return number, number + 1
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        return number + isinstance(condition, GreaterThan), None
    if isinstance(condition, LessThan | LessThanOrEqual):
        return None, number + isinstance(condition, LessThanOrEqual)
    return None, None


def _number(value: object) -> int | None:
    if isinstance(value, datetime):
        return None if value.tzinfo is None else microseconds(value)
    return value if type(value) is int else None


def _overlap(one: Span, other: Span) -> Span:
    firsts = [first for first in (one[0], other[0]) if first is not None]
    ends = [end for end in (one[1], other[1]) if end is not None]
    return max(firsts, default=None), min(ends, default=None)
