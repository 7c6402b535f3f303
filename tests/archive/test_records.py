"""What is read of a segment's batches is what was appended, or an error that names the batch."""

from __future__ import annotations

import os
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import RECORDS, arrow_schema
from brokerd.archive.journal import sealed
from brokerd.archive.journal.records import read_records
from brokerd.archive.journal.sealed import (
    PIECE_GAP_BYTES,
    Batches,
    DamagedBatch,
    DamagedSegment,
    SealedSegment,
    batches_of,
    open_sealed,
)
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    BATCH_RECORDS_MAX,
    FRAME_BYTES_MAX,
    Entry,
    EntryKind,
    RecordColumns,
    encode_records,
)
from brokerd.walformat.index import MemoryIndex
from tests.archive.making import (
    HEADERS,
    TIME_US,
    LogMaker,
    damage,
    events_entry,
    make_segment,
    records_entry,
    segment_id_of,
)
from tests.strategies.records import Row, batches, rows_of

NAMES = {1: "flights", 2: "flüge"}
COLUMNS = ["value", "key", "encoding", "metadata", "append_time", "producer_time", "expires_at"]
COLUMNS += ["producer_format"]


def decode(segment: SealedSegment, some: Batches | None = None, read_bytes: int = 0) -> pa.Table:
    some = batches_of(segment.index) if some is None else some
    lots = read_records(segment, some, NAMES, read_bytes or 8 << 20)
    return pa.Table.from_batches(lots, arrow_schema(RECORDS))


def rows(table: pa.Table) -> list[Row]:
    at = table.schema.get_field_index("append_time")
    table = table.set_column(at, "append_time", table.column(at).cast(pa.int64()))
    return list(zip(*(table[name].to_pylist() for name in COLUMNS), strict=True))


@pytest.fixture
def segment(tmp_path: Path) -> SealedSegment:
    log = LogMaker(tmp_path, first_lsn=1 << 40)
    log.append(1, 0, [b"one", b"two"])
    log.add(events_entry(1, 0, "g", [(3, 0, 0, 0, 0, "", "")]))
    log.append(2, 1, [b"three"])
    log.frame()
    log.append(1, 0, [b"four"], keys=[b"k"])
    return open_sealed(log.seal())


@given(
    found=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 2), batches()), min_size=1),
    read_bytes=st.integers(1, 5000),
    framed=st.integers(1, 4),
)
def test_every_record_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    found: list[tuple[int, int, RecordColumns]],
    read_bytes: int,
    framed: int,
) -> None:
    """Whatever was appended, in whatever order, however much is read at a time."""
    log = LogMaker(tmp_path_factory.mktemp("wal"))
    expected: dict[tuple[int, int], list[Row]] = {}
    for at, (topic_id, partition, columns) in enumerate(found):
        log.append(topic_id, partition, **columns._asdict())
        expected.setdefault((topic_id, partition), []).extend(rows_of(columns))
        if at % framed == 0:
            log.frame()
    segment = open_sealed(log.seal())
    every = batches_of(segment.index)
    for (topic_id, partition), records in expected.items():
        some = every.select((every.topic_id == topic_id) & (every.partition == partition))
        table = decode(segment, some, read_bytes)
        assert rows(table) == records
        assert table["offset"].to_pylist() == list(range(len(records)))
        assert table["topic"].to_pylist() == [NAMES[topic_id]] * len(records)
        assert set(table["partition"].to_pylist()) == {partition}
    table = decode(segment, read_bytes=read_bytes)
    table.validate(full=True)
    everything = zip(
        table["topic_id"].to_pylist(), table["partition"].to_pylist(), rows(table), strict=True
    )
    apart: dict[tuple[int, int], list[Row]] = {}
    for topic_id, partition, row in everything:
        apart.setdefault((topic_id, partition), []).append(row)
    assert apart == expected


def test_rows_that_come_together_are_sorted(segment: SealedSegment) -> None:
    """By topic id, partition and offset; the LSN is that of the batch's entry."""
    table = decode(segment)
    assert table.select(["topic_id", "partition", "offset", "value"]).to_pydict() == {
        "topic_id": [1, 1, 1, 2],
        "partition": [0, 0, 0, 1],
        "offset": [0, 1, 2, 0],
        "value": [b"one", b"two", b"four", b"three"],
    }
    one, four, three = batches_of(segment.index).position.tolist()
    assert table["lsn"].to_pylist() == [(1 << 40) + at for at in (one, one, four, three)]


def test_an_empty_key_is_a_key(tmp_path: Path) -> None:
    """A record without key is told from one with an empty key; so it is with metadata."""
    log = LogMaker(tmp_path)
    log.append(1, 0, [b"", b"", b""], keys=[b"", None, b"k"], metadata=[None, b"", b"m"])
    log.append(1, 0, [b""], keys=[b""])
    table = decode(open_sealed(log.seal()))
    assert table["key"].to_pylist() == [b"", None, b"k", b""]
    assert table["metadata"].to_pylist() == [None, b"", b"m", None]
    assert table["value"].to_pylist() == [b""] * 4


def test_large_batches_of_one_value_and_of_many(tmp_path: Path) -> None:
    """A batch larger than what is read at once is read at once all the same."""
    many = [b"%d" % n for n in range(10_000)]
    log = LogMaker(tmp_path)
    log.append(1, 0, [b"x" * 100_000])
    log.append(1, 0, many)
    log.append(1, 0, [b"y"])
    table = decode(open_sealed(log.seal()), read_bytes=4096)
    assert table["value"].to_pylist() == [b"x" * 100_000, *many, b"y"]
    assert [len(chunk) for chunk in table["value"].chunks] == [1, 10_000, 1]


def test_records_without_bytes_are_not_decoded_all_at_once(tmp_path: Path) -> None:
    """A segment of a kilobyte may hold millions of empty records: memory stays bounded."""
    log = LogMaker(tmp_path)
    for _ in range(20):
        log.append(1, 0, [b""] * 10_000)
    table = decode(open_sealed(log.seal()), read_bytes=1 << 20)
    assert len(table) == 200_000
    assert max(len(chunk) for chunk in table["value"].chunks) <= 30_000


def test_far_pieces_are_read_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of one partition between large ones of others, which are not read along."""
    log = LogMaker(tmp_path)
    for n in range(6):
        log.append(1, 0, [b"small %d" % n])
        log.append(2, 0, [b"x" * (PIECE_GAP_BYTES + 1 if n % 2 else 100)])
    segment = open_sealed(log.seal())
    every = batches_of(segment.index)
    reads: list[int] = []
    preadv = os.preadv

    def counted(fd: int, buffers: list[memoryview], position: int) -> int:
        reads.append(len(buffers[0]))
        return preadv(fd, buffers, position)

    monkeypatch.setattr(sealed.os, "preadv", counted)
    table = decode(segment, every.select(every.topic_id == 1))
    assert table["value"].to_pylist() == [b"small %d" % n for n in range(6)]
    assert table["value"].num_chunks == 1
    assert len(reads) == 3
    assert max(reads) < 1000


def test_nothing_asked_for_is_nothing_read(segment: SealedSegment) -> None:
    """No batches: no rows."""
    assert len(decode(segment, batches_of(segment.index).select(slice(0, 0)))) == 0


def test_an_empty_segment_has_no_batches(tmp_path: Path) -> None:
    """One that was sealed before anything was in it."""
    assert len(batches_of(open_sealed(make_segment(tmp_path, 0, [])).index).count) == 0


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_a_batch_is_found(segment: SealedSegment, bit: int) -> None:
    """Wherever it is in the batch: the error names the batch, and nothing is given back."""
    at = segment.index.rows(2, 1).position[0]
    size = segment.index.rows(2, 1).body_bytes[0]
    some = batches_of(segment.index)
    some = some.select(some.topic_id == 2)
    for position in range(at, at + 48 + size):
        damage(Path(segment.path), position, bit)
        with pytest.raises(DamagedBatch, match="topic id 2 partition 1 offsets 0 to 0") as caught:
            decode(segment, some)
        assert caught.value.batch.position == at
        assert segment.path in str(caught.value)
        damage(Path(segment.path), position, bit)
    assert len(decode(segment, some)) == 1


def test_the_first_damaged_batch_is_named(segment: SealedSegment) -> None:
    """Of several damaged ones."""
    for position in segment.index.rows(1, 0).position:
        damage(Path(segment.path), position + 48)
    with pytest.raises(DamagedBatch) as caught:
        decode(segment)
    assert caught.value.batch.base_offset == 0
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_segment_cut_short_is_damage(segment: SealedSegment) -> None:
    """The batch that is not all there is named, at every length."""
    data = Path(segment.path).read_bytes()
    every = batches_of(segment.index)
    end = int((every.position + 48 + every.body_bytes).max())
    for size in range(end - 1, 4096 + HEADERS, -7):
        Path(segment.path).write_bytes(data[:size])
        with pytest.raises(DamagedBatch, match=f"ends at {size}"):
            decode(segment)


def test_a_segment_that_is_cut_while_it_is_read_is_damage(
    segment: SealedSegment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that were never read are not taken for records."""
    every = batches_of(segment.index)
    end = int((every.position + 48 + every.body_bytes).max())
    preadv = os.preadv

    def cut(fd: int, buffers: list[memoryview], position: int) -> int:
        os.truncate(segment.path, end - 1)
        return preadv(fd, buffers, position)

    monkeypatch.setattr(sealed.os, "preadv", cut)
    with pytest.raises(DamagedBatch, match="cut short"):
        decode(segment)


def test_a_segment_that_is_gone_says_so(segment: SealedSegment) -> None:
    """The broker may have deleted it: the job plans again."""
    Path(segment.path).unlink()
    with pytest.raises(FileNotFoundError):
        decode(segment)
    with pytest.raises(FileNotFoundError):
        open_sealed(segment.path)


def test_a_topic_without_a_name_is_an_error(segment: SealedSegment) -> None:
    """No record is archived under a made-up name."""
    with pytest.raises(KeyError):
        list(read_records(segment, batches_of(segment.index), {1: "flights"}))


def segment_of(body: bytes, tmp_path: Path) -> SealedSegment:
    """A segment whose only batch has this body, with sound checksums."""
    entry = Entry(EntryKind.RECORDS, 1, 0, 0, 1, body)
    return open_sealed(make_segment(tmp_path, 0, [(TIME_US, [entry])]))


@pytest.mark.parametrize(
    ("position", "change"),
    [
        (0, b"\x33"),  # no such kind of a column
        (0, b"\x00"),  # value lengths must not be absent
        (4, b"\x01"),  # one byte of metadata that is not there
        (8, b"\x01"),
        (12, b"\x07"),
        (12, b"\xff\xff\xff\xff"),
        (16 + 8 + 8, b"\xff\xff\xff\xff"),  # the length of every value
    ],
)
def test_a_sound_body_that_makes_no_sense_is_damage(
    tmp_path: Path, position: int, change: bytes
) -> None:
    """Checksums hold, but counts and lengths contradict each other: no wrong record comes out."""
    body = bytearray(encode_records(RecordColumns([b"value"])))
    body[position : position + len(change)] = change
    with pytest.raises(DamagedBatch):
        decode(segment_of(bytes(body), tmp_path))


def test_a_column_that_must_be_there_is_missed(tmp_path: Path) -> None:
    """Also where its default would be right."""
    body = bytearray(encode_records(RecordColumns([b""])))
    body[0] &= 0x0F
    with pytest.raises(DamagedBatch, match="must not be absent"):
        decode(segment_of(bytes(body), tmp_path))


def test_a_newer_body_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags that mean encryption, say: the message tells what to do."""
    from brokerd.walformat import frames

    fields = frames.ENTRY_FIELDS

    class Newer:
        def pack(self, kind: int, version: int, *others: int) -> bytes:
            return fields.pack(kind, 2, *others)

    with monkeypatch.context() as patched:
        patched.setattr(frames, "ENTRY_FIELDS", Newer())
        path = make_segment(
            tmp_path, 0, [(TIME_US, [records_entry(1, 0, 0, RecordColumns([b"v"]))])]
        )
    with pytest.raises(NewerFormat, match="upgrade"):
        decode(open_sealed(path))


def test_an_index_that_lies_is_found(segment: SealedSegment) -> None:
    """Another batch, or none, where the index has one."""
    every = batches_of(segment.index)
    for change in (
        every._replace(base_offset=every.base_offset + 1),
        every._replace(topic_id=every.topic_id * 0 + 2),
        every._replace(partition=every.partition + 1),
        every._replace(count=every.count + 1),
        every._replace(body_bytes=every.body_bytes - 8),
        every._replace(position=every.position + 8),
    ):
        with pytest.raises(DamagedBatch):
            decode(segment, change)


def test_an_index_that_tells_what_cannot_be_is_found(segment: SealedSegment) -> None:
    """Nothing is read or allocated for it."""
    every = batches_of(segment.index)
    for change in (
        every._replace(position=every.position + 4),
        every._replace(position=every.position * 0),
        every._replace(position=np.sort(every.position)[[0, 0, 0]]),
        every._replace(count=every.count * 0),
        every._replace(count=every.count + BATCH_RECORDS_MAX),
        every._replace(body_bytes=every.body_bytes * 0),
        every._replace(body_bytes=every.body_bytes + FRAME_BYTES_MAX),
    ):
        with pytest.raises(DamagedBatch, match="impossible place"):
            decode(segment, change)


def test_an_index_that_tells_of_more_records_is_found(tmp_path: Path) -> None:
    """Also where a batch has no bytes that could be too few."""
    columns = RecordColumns([b""] * 3)
    segment = open_sealed(make_segment(tmp_path, 0, [(TIME_US, [records_entry(1, 0, 0, columns)])]))
    every = batches_of(segment.index)
    with pytest.raises(DamagedBatch):
        decode(segment, every._replace(count=every.count + 1))


def test_an_entry_of_another_kind_is_no_batch(tmp_path: Path) -> None:
    """Though its body could be one."""
    entry = records_entry(1, 0, 0, RecordColumns([b"v"]))
    path = make_segment(tmp_path, 0, [(TIME_US, [entry._replace(kind=EntryKind.SCHEMA)])])
    index = MemoryIndex()
    index.add(1, 0, 0, TIME_US, 1, 4096 + HEADERS - 48, len(entry.body))
    path.with_suffix(".idx").write_bytes(index.encode(segment_id_of(0), 0, path.stat().st_size))
    with pytest.raises(DamagedBatch, match="another entry"):
        decode(open_sealed(path))


def test_bytes_of_another_segment_are_damage(tmp_path: Path) -> None:
    """The same batch at the same place, sound by itself, but written for a file used before."""
    frames = [(TIME_US, [records_entry(1, 0, 0, RecordColumns([b"v"]))])]
    stale = make_segment(tmp_path, 1 << 30, frames).read_bytes()
    path = make_segment(tmp_path, 0, frames)
    segment = open_sealed(path)
    path.write_bytes(path.read_bytes()[:4096] + stale[4096:])
    with pytest.raises(DamagedBatch, match="header checksum"):
        decode(segment)


def test_an_index_of_another_segment_seals_nothing(tmp_path: Path, segment: SealedSegment) -> None:
    """A damaged index, or that of another segment, is named with what to do."""
    index = Path(segment.path).with_suffix(".idx")
    sound = index.read_bytes()
    index.write_bytes(sound[:-1] + b"x")
    with pytest.raises(DamagedSegment, match="index"):
        open_sealed(segment.path)
    other = tmp_path / "other"
    other.mkdir()
    index.write_bytes(make_segment(other, 0, []).with_suffix(".idx").read_bytes())
    with pytest.raises(DamagedSegment, match="another segment"):
        open_sealed(segment.path)
    index.unlink()
    with pytest.raises(FileNotFoundError):
        open_sealed(segment.path)


def test_a_damaged_header_block_seals_nothing(segment: SealedSegment) -> None:
    """The segment's id is not known: nothing in it can be verified."""
    damage(Path(segment.path), 20)
    with pytest.raises(DamagedSegment, match="checksum") as caught:
        open_sealed(segment.path)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_newer_segment_is_refused(segment: SealedSegment) -> None:
    """A later version of brokerd wrote it."""
    from xxhash import xxh3_64_intdigest

    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[56:64] = xxh3_64_intdigest(bytes(data[:56])).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(NewerFormat, match="upgrade"):
        open_sealed(path)


def test_batches_are_told_in_the_order_of_offsets(segment: SealedSegment) -> None:
    """By topic id, partition and base offset, each with its place."""
    every = batches_of(segment.index)
    assert every.topic_id.tolist() == [1, 1, 2]
    assert every.base_offset.tolist() == [0, 2, 0]
    assert every.records == 4
    assert segment.segment_id == segment_id_of(1 << 40)
    assert segment.first_lsn == 1 << 40
    assert segment.end_lsn == (1 << 40) + Path(segment.path).stat().st_size
    assert all(a < b for a, b in pairwise(every.position[:2].tolist()))
