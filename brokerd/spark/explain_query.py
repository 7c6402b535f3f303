# Tests: tests/spark/test_explain_query.py
"""What a query would read, and what it would leave out, as a table. No pyspark."""

from __future__ import annotations

from typing import NamedTuple

from brokerd.archive.contract.layout import RECORDS
from brokerd.spark.clock import now_us
from brokerd.spark.location import open_place
from brokerd.spark.options import BadOption, batch_request, parse_options
from brokerd.spark.plan.plan import Count, Plan, plan
from brokerd.spark.read.payload import needed

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Explained(NamedTuple):
    """A plan; ``str()`` of it is a table for people."""

    plan: Plan

    def __str__(self) -> str:
        planned = self.plan
        rows = [
            ("", "read", "left out"),
            ("archive files", *_counted(planned.files)),
            ("  bytes", *_sized(planned.file_bytes)),
            ("journal files", *_counted(planned.segments)),
            ("  bytes", *_sized(planned.segment_bytes)),
            ("records at most", f"{planned.records:,}", ""),
            ("tasks", f"{len(planned.splits):,}", ""),
        ]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        lines = [
            f"{name:{widths[0]}}  {read:>{widths[1]}}  {left:>{widths[2]}}".rstrip()
            for name, read, left in rows
        ]
        return "\n".join(lines)


def explain(place: str, **options: object) -> Explained:
    """See `brokerd.spark.explain`."""
    given = {name: _text(value) for name, value in options.items()}
    parsed = parse_options({**given, "path": place})
    if parsed.table != RECORDS.name:
        raise BadOption(f"the table {parsed.table} is read whole: there is nothing to explain")
    request = batch_request(parsed)
    request = request._replace(columns=needed(request.columns, parsed.payload))
    return Explained(plan(open_place(parsed.path, parsed.archive), request, now_us()))


def _text(value: object) -> str:
    """As Spark's ``option`` makes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _counted(count: Count) -> tuple[str, str]:
    return f"{count.read:,}", f"{count.all - count.read:,}"


def _sized(count: Count) -> tuple[str, str]:
    return _size(count.read), _size(count.all - count.read)


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"
