"""``brokerd.spark.explain``: what a query would read, and what it would leave out."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

import brokerd.spark
from brokerd.spark.location import BadLocation
from brokerd.spark.options import BadOption
from tests.spark.logs import Log


def table(log: Log, **options: object) -> dict[str, list[str]]:
    """The lines of the table by their names."""
    lines = str(brokerd.spark.explain(str(log.path), **options)).splitlines()
    assert lines[0].split() == ["read", "left", "out"]
    found = {}
    for line in lines[1:]:
        name, *counts = (part.strip() for part in line.strip().split("  ") if part.strip())
        found.setdefault(name, counts)
    return found


def test_it_tells_what_is_read_and_what_is_left_out(log: Log) -> None:
    log.roll_up()
    log.append(1, 0, b"x" * 5_000)
    everything = table(log)
    assert everything["archive files"] == ["2", "0"]
    assert everything["journal files"] == ["1", "0"]
    assert everything["records at most"] == [f"{len(log.rows)}"]
    one = table(log, topics="two")
    assert one["archive files"] == ["1", "1"]
    assert one["records at most"] == ["3"]
    time = datetime.fromtimestamp(log.rows[-1].time_us / 1e6, UTC)
    late = table(log, **{"from": time.isoformat()})
    assert late["archive files"] == ["0", "2"]
    assert late["journal files"] == ["1", "0"]


def test_options_are_taken_as_spark_takes_them(log: Log) -> None:
    """Truth and numbers too; what is wrong is an error of the same words."""
    assert table(log, tail=False)["records at most"] == ["6"]
    assert table(log, partitionBytes=1, payload="json")["tasks"] == ["6"]
    with pytest.raises(BadOption, match="unknown option 'topic'"):
        table(log, topic="x")
    with pytest.raises(BadLocation, match="does not exist"):
        brokerd.spark.explain("/nowhere")
