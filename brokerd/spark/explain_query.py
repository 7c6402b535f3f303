# Tests: tests/spark/test_explain_query.py
"""Explains a query: shows the files and bytes that it reads as a table. No pyspark."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.archive.contract.layout import RECORDS
from brokerd.spark.clock import now_us
from brokerd.spark.location import open_location
from brokerd.spark.options import BadOption, batch_request, option_texts, parse_options
from brokerd.spark.plan.query_plan import Count, Plan, plan_query
from brokerd.spark.read.payload import columns_to_read

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Explanation(NamedTuple):
    """The plan of a query. Its ``str()`` is a table."""

    plan: Plan

    def __str__(self) -> str:
        plan = self.plan
        rows = [
            ("", "read", "left out"),
            ("archive files", *_number_cells(plan.files)),
            ("  bytes", *_size_cells(plan.file_bytes)),
            ("journal files", *_number_cells(plan.segments)),
            ("  bytes", *_size_cells(plan.segment_bytes)),
            ("records at most", f"{plan.records:,}", ""),
            ("tasks", f"{len(plan.splits):,}", ""),
        ]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        lines = [
            f"{name:{widths[0]}}  {read:>{widths[1]}}  {left:>{widths[2]}}".rstrip()
            for name, read, left in rows
        ]
        return "\n".join(lines)


def explain(place: str, **options: object) -> Explanation:
    """Plan a query, and return the amounts: `brokerd.spark.explain`."""
    parsed = parse_options({**option_texts(options), "path": place})
    if parsed.table != RECORDS.name:
        raise BadOption(
            f"the table {parsed.table} is always read whole, so there is no plan to explain"
        )
    request = batch_request(parsed)
    request = request._replace(columns=columns_to_read(request.columns, parsed.payload))
    location = open_location(parsed.path, parsed.archive)
    return Explanation(plan_query(location, request, now_us()))


def _number_cells(count: Count) -> tuple[str, str]:
    return f"{count.read:,}", f"{count.total - count.read:,}"


def _size_cells(count: Count) -> tuple[str, str]:
    return _size(count.read), _size(count.total - count.read)


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
