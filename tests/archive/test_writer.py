"""A file of the archive gives back what was written to it, and proves that it does."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import EVENTS, RECORDS, Range, arrow_schema
from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive, ForeignArchive
from brokerd.archive.journal.records import read_records
from brokerd.archive.journal.sealed import batches_of, open_sealed
from brokerd.archive.parquet import row_groups
from brokerd.archive.parquet import writer as files
from brokerd.archive.parquet.digest import RowsDigest
from brokerd.archive.parquet.footer import GROUP, METADATA_KEY, unpack_groups, unpack_ranges
from brokerd.archive.parquet.reader import ArchiveFile, RowGroupCache, open_file
from brokerd.archive.parquet.writer import FileInfo, FileWriter, verify_written
from brokerd.errors import DamagedData, NewerFormat
from brokerd.walformat import RecordColumns
from tests.archive.making import LOG_ID, LogMaker, damage
from tests.strategies.records import Row, batches, rows_of

NAMES = {3: "flights", 19: "flüge"}


def table_of(
    topic_id: int,
    partition: int,
    offsets: list[int],
    values: list[bytes] | None = None,
    **columns: list[object],
) -> pa.Table:
    """Rows of one partition; the value of each is its offset, unless it is given."""
    rows = len(offsets)
    filled: dict[str, list[object]] = {
        "topic": [NAMES[topic_id]] * rows,
        "topic_id": [topic_id] * rows,
        "partition": [partition] * rows,
        "offset": list(offsets),
        "append_time": [1_000_000 * offset for offset in offsets],
        "producer_time": [None] * rows,
        "lsn": [4096 + offset for offset in offsets],
        "key": [None] * rows,
        "value": list(values) if values is not None else [b"%d" % offset for offset in offsets],
        "encoding": [0] * rows,
        "metadata": [None] * rows,
        "expires_at": [0] * rows,
        "producer_format": [1] * rows,
        **columns,
    }
    schema = arrow_schema(RECORDS)
    arrays = [pa.array(filled[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def write(root: Path, ranges: list[Range], *tables: pa.Table) -> FileInfo:
    with FileWriter(root, RECORDS, LOG_ID, ranges) as writer:
        for table in tables:
            writer.write(table)
        return writer.close()


def read_all(
    file: ArchiveFile, whole: Range, max_bytes: int = 1 << 20
) -> Iterator[tuple[int, Row]]:
    """Offsets and records of a range, read as a broker reads them."""
    offset = whole.first
    while offset < whole.end:
        rows = file.read(whole.topic_id, whole.partition, offset, max_bytes)
        assert rows is not None
        assert rows.first == offset < rows.end <= whole.end
        if rows.offsets:
            assert rows.first <= rows.offsets[0] and rows.offsets[-1] < rows.end
            yield from zip(rows.offsets, rows_of(rows.columns), strict=True)
        offset = rows.end


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of four rows, or a hundred bytes."""
    monkeypatch.setattr(row_groups, "GROUP_ROWS", 4)
    monkeypatch.setattr(row_groups, "GROUP_BYTES", 100)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@given(
    found=st.lists(st.tuples(st.sampled_from([3, 19]), st.integers(0, 1), batches()), min_size=1),
    group_rows=st.integers(1, 20),
    max_bytes=st.integers(0, 400),
)
@pytest.mark.slow
def test_what_was_appended_is_read_from_the_archive(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[int, int, RecordColumns]],
    group_rows: int,
    max_bytes: int,
) -> None:
    """From the log through a file of the archive: every record, exactly as it was."""
    directory = tmp_path_factory.mktemp("wal")
    log = LogMaker(directory)
    expected: dict[tuple[int, int], list[Row]] = {}
    for topic_id, partition, columns in found:
        log.append(topic_id, partition, **columns._asdict())
        expected.setdefault((topic_id, partition), []).extend(rows_of(columns))
    segment = open_sealed(log.seal())
    ranges = [Range(*key, 0, len(rows)) for key, rows in sorted(expected.items())]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_groups, "GROUP_ROWS", group_rows)
        with FileWriter(directory, RECORDS, LOG_ID, ranges) as writer:
            for batch in read_records(segment, batches_of(segment.index), NAMES):
                writer.write(batch)
            info = writer.close()
    verify_written(directory, info)
    file = open_file(directory, info.path, info.size, RowGroupCache(99, 32 << 20))
    for whole in ranges:
        assert list(read_all(file, whole, max_bytes)) == list(
            enumerate(expected[whole.topic_id, whole.partition])
        )


@pytest.mark.usefixtures("small_groups")
def test_removed_offsets_are_known_to_be_removed(root: Path) -> None:
    """A reader gets over holes, and no row of another partition."""
    ranges = [Range(3, 0, 10, 100), Range(3, 1, 0, 7), Range(19, 0, 0, 50), Range(19, 0, 60, 70)]
    offsets = {
        ranges[0]: [20, 21, 22, 23, 40, 41, 90],
        ranges[1]: [],
        ranges[2]: [0, 3, 49],
        ranges[3]: [65],
    }
    tables = [table_of(r.topic_id, r.partition, found) for r, found in offsets.items() if found]
    info = write(root, ranges, *tables)
    file = open_file(root, info.path)
    for whole, found in offsets.items():
        rows = [(offset, row[0]) for offset, row in read_all(file, whole)]
        assert rows == [(offset, b"%d" % offset) for offset in found]
        for first in range(whole.first, whole.end):
            rest = [offset for offset, _ in read_all(file, whole._replace(first=first))]
            assert rest == [offset for offset in found if offset >= first]
            assert file.covers(whole.topic_id, whole.partition, first, whole.end)
        assert not file.covers(whole.topic_id, whole.partition, whole.first, whole.end + 1)
        assert file.read(whole.topic_id, whole.partition, whole.end, 1) is None
    assert file.read(3, 0, 9, 1) is None
    assert file.read(3, 2, 0, 1) is None
    assert file.read(4, 0, 0, 1) is None
    assert file.range_of(19, 0, 69) == ranges[3]
    assert info.ranges == tuple(ranges)
    assert info.rows == 11


def test_a_file_may_cover_offsets_of_which_none_is_left(root: Path) -> None:
    """All records were removed; that they were stays known."""
    info = write(root, [Range(3, 0, 5, 9)])
    verify_written(root, info)
    assert (info.rows, info.minimum, info.path.split("/")[0]) == (0, {}, "bucket=3")
    file = open_file(root, info.path, info.size)
    rows = file.read(3, 0, 6, 100)
    assert rows is not None
    assert (rows.first, rows.end, rows.offsets) == (6, 9, [])
    assert file.read_table().num_rows == 0
    assert file.read_table(columns=["lsn"]).schema.names == ["lsn"]
    assert file.offset_at_time(3, 0, 0) is None
    assert len(file.groups_of(3, 0)) == 0


def test_ranges_that_touch_are_one(root: Path) -> None:
    """A reader does not stop where two segments met."""
    info = write(root, [Range(3, 0, 0, 2), Range(3, 0, 2, 4)], table_of(3, 0, [0, 1, 2, 3]))
    assert info.ranges == (Range(3, 0, 0, 4),)
    assert info.path.startswith("bucket=3/p-3-0-0-4-")


def test_a_read_gives_what_fits_and_one_record_at_least(root: Path) -> None:
    """Bytes of keys and metadata count."""
    values = [b"x" * 100] * 6
    table = table_of(3, 0, list(range(6)), values, key=[b"k" * 20] * 6, metadata=[None] * 6)
    info = write(root, [Range(3, 0, 0, 8)], table)
    file = open_file(root, info.path)
    for max_bytes, expected in ((0, 1), (1, 1), (239, 1), (240, 2), (719, 5), (720, 6), (999, 6)):
        rows = file.read(3, 0, 0, max_bytes)
        assert rows is not None
        assert len(rows.offsets) == expected
        assert rows.end == (8 if expected == 6 else expected)
    assert info.content == 720


def test_row_groups_are_cut_by_rows_and_by_bytes(root: Path) -> None:
    """At most 8,192 rows and 8 MiB, however the rows came; a larger record is one by itself."""
    large = [b"x" * (3 << 20), b"y" * (9 << 20), b"z" * (5 << 20), b"a" * (3 << 20), b"b"]
    tables = [
        table_of(3, 0, list(range(5000)), [b""] * 5000),
        table_of(3, 0, list(range(5000, 20000)), [b""] * 15000),
        table_of(3, 0, list(range(20000, 20005)), large),
    ]
    info = write(root, [Range(3, 0, 0, 20005)], *tables)
    verify_written(root, info)
    file = open_file(root, info.path)
    assert file.groups["rows"].tolist() == [8192, 8192, 3617, 1, 2, 1]
    assert file.groups["content"].tolist() == [0, 0, 3 << 20, 9 << 20, 8 << 20, 1]
    assert [value for _, (value, *_) in read_all(file, Range(3, 0, 20000, 20005))] == large


def test_time_finds_the_first_record_at_or_after_it(root: Path) -> None:
    """Also where files are shared and row groups begin."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_groups, "GROUP_ROWS", 4)
        info = write(
            root,
            [Range(3, 0, 0, 100), Range(19, 0, 0, 100)],
            table_of(3, 0, [50, 60]),
            table_of(19, 0, [10, 20, 30, 40, 90]),
        )
    file = open_file(root, info.path)
    for offsets, key in (([50, 60], (3, 0)), ([10, 20, 30, 40, 90], (19, 0)), ([], (19, 1))):
        for seconds in range(100):
            for late in (0, 1):
                later = [o for o in offsets if o * 1_000_000 >= seconds * 1_000_000 + late]
                found = file.offset_at_time(*key, seconds * 1_000_000 + late)
                assert found == (later[0] if later else None)


def test_a_files_facts_are_told(root: Path) -> None:
    """What a map, a commit, or somebody who looks for expired records has to know."""
    table = table_of(
        *(3, 1, [4, 5, 6], [b"", b"", b"v"]),
        key=[b"k", None, b""],
        expires_at=[0, 7, 0],
        metadata=[b"mm", None, None],
    )
    info = write(root, [Range(3, 1, 4, 7)], table)
    assert (info.rows, info.content, info.keyed, info.tombstones, info.expiring) == (3, 4, 2, 1, 1)
    assert info.minimum == {
        "topic_id": 3,
        "partition": 1,
        "offset": 4,
        "append_time": 4_000_000,
        "lsn": 4100,
        "expires_at": 0,
    }
    assert info.maximum["offset"] == 6
    assert info.maximum["expires_at"] == 7
    assert info.bucket == 3
    assert info.size == (root / info.path).stat().st_size
    assert pickle.loads(pickle.dumps(info)) == info
    footer = open_file(root, info.path).footer
    assert (footer.log_id, footer.digest, footer.keyed) == (LOG_ID, info.digest, 2)
    assert (footer.minimum, footer.maximum) == (info.minimum, info.maximum)


def test_other_programs_read_the_file(root: Path) -> None:
    """It is plain Parquet, with the types of the page."""
    table = table_of(3, 0, [1, 2], [b"a", b"b"], key=[None, b"k"], producer_time=[-1, None])
    info = write(root, [Range(3, 0, 0, 3)], table)
    found = pq.ParquetFile(root / info.path)
    assert found.schema_arrow.remove_metadata().equals(arrow_schema(RECORDS))
    assert found.read().equals(table)
    metadata = found.metadata
    assert METADATA_KEY in metadata.metadata
    told = {
        metadata.row_group(0).column(at).path_in_schema
        for at in range(metadata.num_columns)
        if metadata.row_group(0).column(at).is_stats_set
    }
    assert told == set(RECORDS.skipping)


def test_events_are_written_and_verified_too(tmp_path: Path) -> None:
    """Sorted by LSN and place in the entry."""
    rows = {
        "topic": ["t", "t", "t"],
        "topic_id": [1, 1, 2],
        "partition": [0, 0, 1],
        "group_name": ["g", "g", "h"],
        "lsn": [4096, 4096, 5000],
        "seq": [0, 1, 0],
        "time": [1, 1, 2],
        "kind": ["LEASED", "SETTLED", "DEAD"],
        "offset": [0, 0, 7],
        "amount": [30, 0, 0],
        "token": [9, 9, -1],
        "count": [1, 0, 3],
        "owner": ["me", None, None],
        "reason": [None, None, "bad"],
    }
    schema = arrow_schema(EVENTS)
    table = pa.table({f.name: pa.array(rows[f.name], f.type) for f in schema}, schema=schema)
    with FileWriter(tmp_path, EVENTS, LOG_ID, [Range(0, 0, 0, 9000)]) as writer:
        writer.write(table.to_batches()[0])
        info = writer.close()
    verify_written(tmp_path, info)
    assert info.path.startswith("e-0-9000-")
    assert info.minimum == {"topic_id": 1, "lsn": 4096, "time": 1}
    file = open_file(tmp_path, info.path, info.size)
    assert file.read_table().equals(table)
    assert file.groups["first"][0].item() == (0, 0, 4096)
    with (
        pytest.raises(ValueError, match="not in order"),
        FileWriter(tmp_path, EVENTS, LOG_ID, [Range(0, 0, 0, 9000)]) as writer,
    ):
        writer.write(table.take([1, 0]))
        writer.close()


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [Range(3, 0, 5, 5)],
        [Range(3, 0, -1, 5)],
        [Range(3, 0, 0, 5), Range(3, 0, 4, 6)],
        [Range(3, 1, 0, 5), Range(3, 0, 0, 5)],
        [Range(3, 0, 0, 5), Range(4, 0, 0, 5)],
    ],
)
def test_a_file_covers_sorted_ranges_of_one_bucket(tmp_path: Path, ranges: list[Range]) -> None:
    """Anything else is the caller's error, and leaves nothing behind."""
    with pytest.raises(ValueError):
        FileWriter(tmp_path, RECORDS, LOG_ID, ranges)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small_groups")
@pytest.mark.parametrize(
    "tables",
    [
        [table_of(3, 0, [0, 1, 1])],
        [table_of(3, 0, [4, 5, 6, 7]), table_of(3, 0, [7])],
        [table_of(3, 1, [0]), table_of(3, 0, [0])],
        [table_of(3, 0, [10])],
        [table_of(3, 0, [9, 10])],
        [table_of(3, 2, [0])],
        [table_of(3, 1, [4, 5, 20])],
        [table_of(19, 0, [0])],
    ],
)
def test_rows_out_of_order_or_coverage_are_not_written(
    tmp_path: Path, tables: list[pa.Table]
) -> None:
    """An archive that contradicts itself is not made: no file stays."""
    ranges = [Range(3, 0, 0, 10), Range(3, 1, 0, 5), Range(3, 1, 6, 21)]
    with pytest.raises(ValueError, match=r"not in order|in no covered range"):
        write(tmp_path, ranges, *tables)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_rows_may_cross_from_one_range_to_the_next(root: Path) -> None:
    """Of the same partition, within one row group."""
    ranges = [Range(3, 1, 0, 5), Range(3, 1, 6, 21)]
    info = write(root, ranges, table_of(3, 1, [4, 6, 20]))
    file = open_file(root, info.path)
    assert [offset for offset, _ in read_all(file, ranges[0])] == [4]
    assert [offset for offset, _ in read_all(file, ranges[1])] == [6, 20]


def test_a_writer_that_is_not_closed_leaves_nothing(tmp_path: Path) -> None:
    """A task that fails cleans up behind itself."""
    with (
        pytest.raises(RuntimeError),
        FileWriter(tmp_path, RECORDS, LOG_ID, [Range(3, 0, 0, 9)]) as w,
    ):
        w.write(table_of(3, 0, [0]))
        assert [path.name[:11] for path in tmp_path.rglob("*.parquet")] == ["unfinished-"]
        raise RuntimeError
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_a_full_disk_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever fails first; the error is the system's own, and names the file."""
    left = 3

    def fail(*args: object) -> int:
        nonlocal left
        left -= 1
        if left < 0 or call != "pwrite":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(*args)

    really = getattr(os, call)
    monkeypatch.setattr(files.os, call, fail)
    with pytest.raises(OSError, match="No space") as caught:
        write(tmp_path, [Range(3, 0, 0, 9)], table_of(3, 0, [0]))
    assert caught.value.errno == errno.ENOSPC
    if call in ("pwrite", "fsync"):
        assert str(caught.value.filename).startswith(str(tmp_path))
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("exists", [False, True])
def test_a_written_file_is_durable_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    """fsync, rename, fsync of the directories: in this order.

    The writer that made the directory may have died before it synced the parent.
    """
    if exists:
        (tmp_path / "bucket=3").mkdir()
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        calls.append("sync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name.split("-")[0])
        fsync(fd)

    def renamed(old: Path, new: Path) -> None:
        calls.append("rename " + Path(new).name.split("-")[0])
        rename(old, new)

    monkeypatch.setattr(files.os, "fsync", synced)
    monkeypatch.setattr(files.os, "rename", renamed)
    write(tmp_path, [Range(3, 0, 0, 9)], table_of(3, 0, [0]))
    assert calls == [
        "sync unfinished",
        "rename p",
        "sync bucket=3",
        f"sync {tmp_path.name.split('-')[0]}",
    ]


def test_rows_that_do_not_come_back_as_they_were_are_found(root: Path) -> None:
    """A file whose rows differ from those handed in is not used, though its checksums hold."""
    ranges = [Range(3, 0, 0, 2)]
    table = table_of(3, 0, [0, 1], [b"one", b"two"])
    info = write(root, ranges, table)
    for other in (
        table_of(3, 0, [0, 1], [b"one", b"twp"]),
        table_of(3, 0, [0, 1], [b"onet", b"wo"]),
        table_of(3, 0, [0, 1], [b"one", b"two"], key=[b"", None]),
        table_of(3, 0, [0, 1], [b"one", b"two"], producer_time=[0, None]),
        table_of(3, 0, [0, 1], [b"one", b"two"], lsn=[4096, 4098]),
        table_of(3, 0, [0, 1], [b"one", b"two"], encoding=[0, 1]),
        table_of(3, 0, [0], [b"one"]),
    ):
        wrong = write(root, ranges, other)
        verify_written(root, wrong)
        with pytest.raises(DamagedData, match="does not return the rows"):
            verify_written(root, wrong._replace(digest=info.digest))


def test_the_digest_does_not_depend_on_how_rows_are_held(root: Path) -> None:
    """Slices, nulls with bytes below them, and chunks: the same rows, the same number."""
    table = table_of(3, 0, [0, 1, 2], [b"aa", b"b", b"cc"], key=[b"k", None, b""])
    expected = RowsDigest()
    expected.update(table.slice(1, 2))
    copied = RowsDigest()
    copied.update(table.take([1, 2]).combine_chunks())
    assert copied.hexdigest() == expected.hexdigest()
    key = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 1, 4, 4], np.int32)),
            pa.py_buffer(b"kxyz"),
        ],
    )
    at = table.schema.get_field_index("key")
    hidden = table.set_column(at, table.schema.field("key"), key)
    assert hidden.equals(table)
    first, second = RowsDigest(), RowsDigest()
    first.update(table)
    second.update(hidden)
    assert first.hexdigest() == second.hexdigest()
    info = write(root, [Range(3, 0, 0, 3)], hidden)
    verify_written(root, info)
    assert info.content == 6


def test_tables_in_another_guise_are_cast(root: Path) -> None:
    """What Spark or another reader gives: other order of columns, large or nullable types."""
    table = table_of(3, 0, [0, 1])
    large = pa.schema(
        [
            pa.field(f.name, pa.large_binary() if f.name == "value" else f.type)
            for f in arrow_schema(RECORDS)
        ]
    )
    guise = table.cast(large).select(list(reversed(large.names)))
    info = write(root, [Range(3, 0, 0, 2)], guise)
    assert open_file(root, info.path).read_table().equals(table)


# -- Files that are not as they were written -----------------------------------------------------


def test_a_missing_file_is_unavailable(root: Path) -> None:
    """It may come back: a disk that is not mounted, say."""
    info = write(root, [Range(3, 0, 0, 1)], table_of(3, 0, [0]))
    (root / info.path).unlink()
    with pytest.raises(ArchiveUnavailable, match="cannot be read: No such file"):
        open_file(root, info.path)


def test_a_reader_goes_on_when_the_file_is_deleted(root: Path) -> None:
    """Compaction replaced it and vacuum deleted it: who has it open reads it to its end."""
    info = write(root, [Range(3, 0, 0, 3)], table_of(3, 0, [0, 1, 2]))
    file = open_file(root, info.path)
    (root / info.path).unlink()
    assert [offset for offset, _ in read_all(file, Range(3, 0, 0, 3))] == [0, 1, 2]


def test_a_disk_that_fails_is_unavailable(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed read says nothing about what the file holds."""
    info = write(root, [Range(3, 0, 0, 3)], table_of(3, 0, [0, 1, 2]))
    file = open_file(root, info.path)

    def fail(*args: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(ArchiveUnavailable, match="Input/output error"):
        file.read(3, 0, 0, 1)
    with pytest.raises(ArchiveUnavailable, match="Input/output error"):
        open_file(root, info.path)


def test_a_file_of_another_size_is_damaged(root: Path) -> None:
    """The Delta log says how large it was."""
    info = write(root, [Range(3, 0, 4, 7)], table_of(3, 0, [4, 5, 6]))
    with pytest.raises(DamagedArchive, match="bytes, not") as caught:
        open_file(root, info.path, info.size + 1)
    assert (caught.value.first, caught.value.end) == (4, 7)


def test_a_renamed_file_is_damaged(root: Path) -> None:
    """Its footer tells of other offsets than its name: neither is believed."""
    info = write(root, [Range(3, 0, 4, 7)], table_of(3, 0, [4, 5, 6]))
    for name in ("p-3-0-4-8-", "p-3-1-4-7-", "p-19-0-4-7-", "s-3.0-19.0-"):
        other = info.path.replace("p-3-0-4-7-", name)
        (root / other).write_bytes((root / info.path).read_bytes())
        with pytest.raises(DamagedArchive, match="contradicts its covered ranges"):
            open_file(root, other)
    with pytest.raises(ForeignArchive):
        open_file(root, "bucket=3/part-0.parquet")


def test_damage_names_the_offsets_it_takes(root: Path) -> None:
    """Those of the row group, with the holes before the next one; the rest is read on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_groups, "GROUP_ROWS", 2)
        ranges = [Range(3, 0, 5, 20), Range(3, 1, 0, 9)]
        info = write(root, ranges, table_of(3, 0, [5, 6, 8, 9, 12]), table_of(3, 1, [3, 4]))
    file = open_file(root, info.path)
    for group, key, span in (
        (1, (3, 0, 8), (8, 12)),
        (2, (3, 0, 12), (12, 20)),
        (2, (3, 1, 3), (0, 4)),
    ):
        position = int(file.groups["position"][group]) + 20
        damage(root / info.path, position)
        with pytest.raises(DamagedArchive, match=f"row group {group} at") as caught:
            file.read(*key, 1 << 20)
        assert (caught.value.first, caught.value.end) == span
        with pytest.raises(DamagedArchive):
            file.read_table()
        assert file.read(3, 0, 5, 1 << 20) is not None
        hole = file.read(3, 0, 10, 1 << 20)
        assert hole is not None
        assert (hole.first, hole.end, hole.offsets) == (10, 12, [])
        damage(root / info.path, position)
    assert file.read_table().num_rows == 7


def footer_of(path: Path) -> bytes:
    data = path.read_bytes()
    return data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") :]


def with_footer(root: Path, info: FileInfo, old: bytes, new: bytes) -> str:
    """The path of a copy whose footer says something else, under a name that agrees."""
    from xxhash import xxh3_64_hexdigest

    path = root / info.path
    footer = footer_of(path)
    changed = footer.replace(old, new, 1)
    assert len(changed) == len(footer)
    assert changed != footer
    stem = info.path.rsplit("-", 1)[0]
    name = f"{stem}-{xxh3_64_hexdigest(changed)}.parquet"
    data = path.read_bytes()
    (root / name).write_bytes(data[: len(data) - len(footer)] + changed)
    return name


def test_a_newer_file_is_refused(root: Path) -> None:
    """Its checksums hold; a later brokerd wrote it."""
    info = write(root, [Range(3, 0, 0, 3)], table_of(3, 0, [0, 1, 2]))
    name = with_footer(root, info, b'"version":1', b'"version":2')
    with pytest.raises(NewerFormat, match="upgrade"):
        open_file(root, name)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":1', b'"versiom":1'),
        (b'"table":"records"', b'"table":"recordz"'),
        (b'"rows":3', b'"rows":x'),
        (b'"rows":3', b'"rows":4'),
        (b"\x07brokerd", b"\x07brokere"),
        (b'"ranges":"A', b'"ranges":"!'),
        (b'"row_groups":"B', b'"row_groups":"C'),
    ],
)
def test_a_footer_that_makes_no_sense_is_damage(root: Path, old: bytes, new: bytes) -> None:
    """Its checksum holds, but it contradicts itself."""
    info = write(root, [Range(3, 0, 0, 3)], table_of(3, 0, [0, 1, 2]))
    with pytest.raises(DamagedArchive):
        open_file(root, with_footer(root, info, old, new))


@pytest.mark.parametrize(
    ("position", "size", "end"), [(5, 10, 15), (4, 10, 15), (4, 11, 14), (4, -4, 0)]
)
def test_row_groups_fill_a_file(position: int, size: int, end: int) -> None:
    """What lies between the magic and the footer is row groups, all of it, or it is damage."""
    groups = np.zeros(1, GROUP)
    groups["position"], groups["bytes"] = position, size
    with pytest.raises(DamagedData, match="do not fill"):
        unpack_groups(groups.tobytes(), end)


@pytest.mark.parametrize("unpack", [unpack_ranges, lambda data: unpack_groups(data, 4)])
def test_lists_that_are_cut_short_are_damage(unpack: Callable[[bytes], object]) -> None:
    """A list of ranges or row groups has whole ones."""
    with pytest.raises(DamagedData, match="truncated"):
        unpack(bytes(31))


# -- Cache and threads ---------------------------------------------------------------------------


def test_a_row_group_that_was_read_is_not_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many small reads of one row group decode it once; the cache keeps to its bytes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_groups, "GROUP_ROWS", 10)
        offsets = list(range(100))
        info = write(root, [Range(3, 0, 0, 100)], table_of(3, 0, offsets, [b"x" * 1000] * 100))
    reads = 0
    pread = os.pread

    def counted(*args: int) -> bytes:
        nonlocal reads
        reads += 1
        return pread(*args)

    cache = RowGroupCache(99, 25_000)
    file = open_file(root, info.path, info.size, cache)
    monkeypatch.setattr(os, "pread", counted)
    assert len(list(read_all(file, Range(3, 0, 0, 100), max_bytes=1))) == 100
    assert reads == 10
    assert 0 < cache.used_bytes <= 25_000
    file.read(3, 0, 95, 1)
    assert reads == 10
    file.read(3, 0, 0, 1)
    assert reads == 11


@pytest.mark.usefixtures("small_groups")
def test_threads_read_one_file_together(root: Path) -> None:
    """Each gets its records."""
    info = write(root, [Range(3, 0, 0, 60)], table_of(3, 0, list(range(60))))
    file = open_file(root, info.path, info.size, RowGroupCache(99, 2000))
    wrong: list[object] = []

    def read(first: int) -> None:
        for _ in range(30):
            rows = [(o, row[0]) for o, row in read_all(file, Range(3, 0, first, 60), 20)]
            if rows != [(o, b"%d" % o) for o in range(first, 60)]:
                wrong.append(rows)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_reading_and_writing_start_no_threads(tmp_path: Path) -> None:
    """A thread of Arrow's that ends after the interpreter ends the process with an abort."""
    write(tmp_path, [Range(3, 0, 0, 3)], table_of(3, 0, [0, 1, 2]))
    code = """
import os, sys
from brokerd.archive.parquet.writer import FileWriter, verify_written
from brokerd.archive.contract.layout import RECORDS, Range
from brokerd.archive.parquet.reader import open_file

root, path = sys.argv[1:]
before = len(os.listdir("/proc/self/task"))
file = open_file(root, path)
rows = file.read(3, 0, 0, 100)
assert list(rows.offsets) == [0, 1, 2]
rows.columns.values.packed_after(rows.offsets)
with FileWriter(root, RECORDS, "0" * 32, [Range(3, 0, 0, 3)]) as writer:
    writer.write(file.read_table())
    verify_written(root, writer.close())
assert len(os.listdir("/proc/self/task")) == before
"""
    found = next(tmp_path.rglob("*.parquet")).relative_to(tmp_path)
    command = [sys.executable, "-c", code, str(tmp_path), str(found)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_layout_of_a_row_group_is_that_of_the_page() -> None:
    """104 bytes, at the positions that docs/archive-format.rst gives."""
    assert GROUP.itemsize == 104
    fields = GROUP.fields or {}
    assert [fields[name][1] for name in GROUP.names or ()] == [0, 8, 16, 24, 32, 56, 80, 88, 96]
