"""Names of tables, columns and files, as docs/archive-format.rst has them."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import (
    BUCKETS,
    EVENTS,
    LAYOUTS,
    RECORDS,
    EventsName,
    Range,
    RecordsName,
    arrow_schema,
    bucket_of,
    events_name,
    parse_events_name,
    parse_records_name,
    records_name,
)
from brokerd.archive.contract.view import ForeignArchive

TAIL = "0123abcd-00000000000000ff"
numbers = st.integers(0, 10**18 - 1)
partitions = st.integers(0, (1 << 31) - 1)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    first, end = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    return Range(draw(numbers), draw(partitions), first, end)


@given(ranges())
def test_the_name_of_a_partitions_file_tells_what_it_covers(only: Range) -> None:
    """Nobody has to open a file to know which offsets it covers."""
    bucket = bucket_of(only.topic_id)
    path = records_name(bucket, only, only, TAIL)
    key = (only.topic_id, only.partition)
    assert parse_records_name(path) == RecordsName(bucket, *key, *key, only, 0xFF)


@given(st.lists(ranges(), min_size=2, max_size=2, unique=True))
def test_the_name_of_a_shared_file_tells_its_first_and_last_partition(found: list[Range]) -> None:
    """A shared file is looked into only for partitions between the two."""
    first, last = sorted(r._replace(topic_id=r.topic_id // BUCKETS * BUCKETS) for r in found)
    if first == last:
        return
    assert parse_records_name(records_name(0, first, last, TAIL)) == RecordsName(
        0, *first[:2], *last[:2], None, 0xFF
    )


def test_the_name_of_an_events_file_tells_its_lsns() -> None:
    """So does that of a file of events."""
    assert parse_events_name(events_name(0, 4096, TAIL)) == EventsName(0, 4096, 0xFF)


@pytest.mark.parametrize(
    "path",
    [
        "part-00000-7b1c-c000.snappy.parquet",
        "bucket=3/part-00000-7b1c-c000.zstd.parquet",
        f"bucket=4/p-3-0-0-9-{TAIL}.parquet",
        f"bucket=3/p-3-0-9-9-{TAIL}.parquet",
        f"bucket=3/p-3-0-10-9-{TAIL}.parquet",
        f"bucket=3/p-03-0-0-9-{TAIL}.parquet",
        f"bucket=3/p-3-0-0-9-{TAIL}.parquet\n",
        f"bucket=3/p-3-0-0-{TAIL}.parquet",
        f"bucket=3/p-3-0-0-{10**18}-{TAIL}.parquet",
        f"bucket=3/p-3-0-0-9-{TAIL.upper()}.parquet",
        f"bucket=3/p-3-0-0-\uff19-{TAIL}.parquet",
        f"bucket=3/s-3.1-3.0-{TAIL}.parquet",
        f"bucket=3/s-3.0-4.0-{TAIL}.parquet",
        f"bucket=3/../bucket=3/p-3-0-0-9-{TAIL}.parquet",
        f"/bucket=3/p-3-0-0-9-{TAIL}.parquet",
        f"e-1-2-{TAIL}.parquet",
        "",
    ],
)
def test_other_names_are_somebody_elses(path: str) -> None:
    """A file that another program put in the table is named, and the archive refused."""
    with pytest.raises(ForeignArchive, match="did not write"):
        parse_records_name(path)


@pytest.mark.parametrize("path", [f"e-2-2-{TAIL}.parquet", f"x/e-1-2-{TAIL}.parquet", "e-1-2"])
def test_other_names_of_events_are_somebody_elses(path: str) -> None:
    """So it is with events."""
    with pytest.raises(ForeignArchive, match="table events"):
        parse_events_name(path)


def test_schemas_have_the_columns_of_the_page() -> None:
    """What tools see of a file; the partition column stands in the directory's name."""
    schema = arrow_schema(RECORDS)
    assert schema.names == [c.name for c in RECORDS.columns if c.name != "bucket"]
    assert schema.field("append_time").type == pa.timestamp("us", tz="UTC")
    assert [f.name for f in schema if f.nullable] == ["producer_time", "key", "metadata"]
    assert arrow_schema(EVENTS).names == [c.name for c in EVENTS.columns]
    for layout in LAYOUTS.values():
        names = set(arrow_schema(layout).names)
        assert {*layout.statistics, *layout.dictionary} <= names


def test_names_need_no_library() -> None:
    """A program that only looks at names does not load Arrow."""
    code = "import sys, brokerd.archive.contract.layout; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
