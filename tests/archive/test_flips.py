"""Damage anywhere in a file of the archive is found; it never gives a wrong record or an abort.

Everything runs in this process, as it does in the broker's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokerd.archive.contract.layout import RECORDS, Range
from brokerd.archive.contract.view import DamagedArchive
from brokerd.archive.journal.records import read_records
from brokerd.archive.journal.sealed import batches_of, open_sealed
from brokerd.archive.parquet import row_groups
from brokerd.archive.parquet.reader import ArchiveFile, open_file
from brokerd.archive.parquet.writer import FileInfo, FileWriter, verify_written
from brokerd.errors import DamagedData
from brokerd.walformat import RecordColumns
from tests.archive.making import LOG_ID, LogMaker
from tests.strategies.records import Row, rows_of

RANGES = [Range(3, 0, 0, 8), Range(3, 1, 0, 3)]
GROUP_ROWS = 6
Read = list[tuple[int, Row]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def info(root: Path) -> FileInfo:
    """Two partitions, keys, metadata, times and expiry, in row groups of `GROUP_ROWS` rows."""
    log = LogMaker(root)
    for batch in range(2):
        values = [b"value %d of %d" % (n, batch) for n in range(4)]
        log.append(
            *(3, 0, values),
            keys=[b"key", None, b"", b"k"],
            metadata=[None, b"m", b"", None] if batch % 2 else None,
            producer_time=[None, -1, batch, 1 << 62],
            expires_at_us=[0, batch, 1 << 50, 7],
            encodings=[0, 1, 2, 0],
        )
    log.append(3, 1, [b"other"] * 3, producer_format=5)
    segment = open_sealed(log.seal())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(row_groups, "GROUP_ROWS", GROUP_ROWS)
        with FileWriter(root, RECORDS, LOG_ID, RANGES) as writer:
            for rows in read_records(segment, batches_of(segment.index), {3: "flights"}):
                writer.write(rows)
            return writer.close()


@pytest.fixture(scope="module")
def expected(root: Path, info: FileInfo) -> dict[Range, Read]:
    file = open_file(root, info.path, info.size)
    found = {whole: list(records(file, whole)) for whole in RANGES}
    assert [len(read) for read in found.values()] == [8, 3]
    return found


def records(file: ArchiveFile, whole: Range) -> Iterator[tuple[int, Row]]:
    """What can be read of a partition; what is damaged is left out, and no more than that."""
    offset = whole.first
    while offset < whole.end:
        try:
            rows = file.read(whole.topic_id, whole.partition, offset, 60)
        except DamagedArchive as error:
            assert error.first <= offset < error.end <= whole.end
            offset = error.end
            continue
        assert rows is not None
        assert rows.end > offset
        columns = rows.columns if rows.offsets else RecordColumns([])
        yield from zip(rows.offsets, rows_of(columns), strict=True)
        offset = rows.end


@contextmanager
def flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR)
    before = os.pread(fd, 1, position)
    os.pwrite(fd, bytes([before[0] ^ 1 << bit]), position)
    yield
    os.pwrite(fd, before, position)
    os.close(fd)


def look(root: Path, info: FileInfo, expected: dict[Range, Read], position: int, bit: int) -> None:
    """Flip a bit, and read all there is."""
    with flipped(root / info.path, position, bit):
        try:
            file = open_file(root, info.path, info.size)
        except DamagedArchive:
            return
        lost = 0
        for whole, read in expected.items():
            found = list(records(file, whole))
            assert set(map(repr, found)) <= set(map(repr, read))
            assert [offset for offset, _ in found] == sorted({offset for offset, _ in found})
            lost += len(read) - len(found)
        if position >= 4:
            assert 0 < lost <= GROUP_ROWS, "one row group is lost, and it is lost"
        if position % 16 == 0:
            with pytest.raises(DamagedData):
                verify_written(root, info)


@pytest.mark.slow
def test_a_bit_of_a_byte(root: Path, info: FileInfo, expected: dict[Range, Read]) -> None:
    """Whatever byte is damaged, the records that come are right; at most one row group is lost.

    The first four bytes are the magic, which nobody has to read. Every third byte is damaged.
    """
    for position in range(4, info.size, 3):
        look(root, info, expected, position, position * 5 % 8)


def test_every_length(root: Path, info: FileInfo) -> None:
    """A file that is cut anywhere is damaged, whether or not its size was known."""
    data = (root / info.path).read_bytes()
    for size in reversed(range(len(data))):
        os.truncate(root / info.path, size)
        with pytest.raises(DamagedArchive):
            open_file(root, info.path, None if size % 2 else info.size)
    (root / info.path).write_bytes(data)
    verify_written(root, info)


def test_every_length_of_an_open_file(
    root: Path, info: FileInfo, expected: dict[Range, Read]
) -> None:
    """Somebody cuts a file while a reader has it open: what is gone is damaged, the rest right."""
    data = (root / info.path).read_bytes()
    for size in range(0, len(data), 37):
        file = open_file(root, info.path, info.size)
        os.truncate(root / info.path, size)
        for whole, read in expected.items():
            found = list(records(file, whole))
            assert found == read[: len(found)]
        (root / info.path).write_bytes(data)


def test_bytes_that_are_no_file_at_all(root: Path, info: FileInfo) -> None:
    """Zeros, junk, another Parquet file, lengths that promise gigabytes."""
    data = (root / info.path).read_bytes()
    foreign = root / "foreign.parquet"
    pq.write_table(pa.table({"a": [1]}), foreign)
    for junk in (
        b"",
        bytes(len(data)),
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1" + b"\xff\xff\xff\x7fPAR1",
        b"PAR1" + b"\xff\xff\xff\xffPAR1",
        b"PAR1" + bytes(100) + b"\x64\0\0\0PAR1",
        foreign.read_bytes(),
        data[::-1],
    ):
        (root / info.path).write_bytes(junk)
        with pytest.raises(DamagedArchive):
            open_file(root, info.path)
    (root / info.path).write_bytes(data)
