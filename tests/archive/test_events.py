"""The events of a segment, as rows: every one of them, in the order of the log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import EVENTS, arrow_schema
from brokerd.archive.journal import entry_scan
from brokerd.archive.journal.events import read_events
from brokerd.archive.journal.sealed import DamagedSegment, SealedSegment, batches_of, open_sealed
from brokerd.errors import NewerFormat
from brokerd.walformat import (
    Entry,
    EntryKind,
    EventKind,
    GroupEvent,
    RecordColumns,
    encode_group_events,
)
from brokerd.walformat.index import MemoryIndex
from tests.archive.making import (
    HEADERS,
    TIME_US,
    LogMaker,
    damage,
    events_entry,
    make_segment,
    mark_entry,
    records_entry,
    segment_id_of,
    topic_entry,
)

NAMES = {1: "flights", 2: "flüge"}
SETTLED: GroupEvent = (EventKind.SETTLED, 5, 0, 0, 0, "", "")

i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u32 = st.integers(0, (1 << 32) - 1)
texts = st.sampled_from(["", "me", "flüge", "x" * 50]) | st.text(max_size=10)
surrogates = st.text(st.characters(), max_size=5)
group_events = st.tuples(
    st.sampled_from(EventKind),
    i64,
    i64,
    st.integers(0, (1 << 64) - 1),
    u32,
    texts | surrogates,
    texts,
)
entries = st.tuples(
    st.integers(1, 3), st.integers(0, 2), texts, st.lists(group_events, min_size=1, max_size=6)
)


def escaped(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "backslashreplace")


def read(segment: SealedSegment, known: list[tuple[int, int]] | None = None) -> pa.Table:
    lots = read_events(segment, NAMES, known or [])
    return pa.Table.from_batches(lots, arrow_schema(EVENTS))


def whole(found: pa.Table) -> list[tuple[object, ...]]:
    """Rows without LSN, times in microseconds."""
    at = found.schema.get_field_index("time")
    found = found.set_column(at, "time", found["time"].cast(pa.int64())).drop_columns("lsn")
    return list(zip(*(column.to_pylist() for column in found.columns), strict=True))


@given(
    frames=st.lists(st.lists(entries | st.none(), min_size=1, max_size=5), max_size=6),
    window=st.sampled_from([64, 512, 1 << 20]),
    lot=st.sampled_from([1, 4, 1 << 16]),
)
def test_every_event_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    frames: list[list[tuple[int, int, str, list[GroupEvent]] | None]],
    window: int,
    lot: int,
) -> None:
    """Among records and other entries, however much is read at a time; but not those of topics
    without a name, which were deleted."""
    expected: list[tuple[object, ...]] = []
    log = LogMaker(tmp_path_factory.mktemp("wal"))
    for frame in frames:
        for entry in frame:
            if entry is None:
                log.append(1, 0, [b"a record", b"another"])
                log.add(mark_entry(), topic_entry(9, "created", name="t", partitions=1))
                continue
            topic_id, partition, group, events = entry
            log.add(events_entry(topic_id, partition, group, events))
            if topic_id not in NAMES:
                continue
            for seq, (kind, offset, amount, token, count, owner, reason) in enumerate(events):
                signed = token - (1 << 64) if token >> 63 else token
                expected.append(
                    (
                        *(NAMES[topic_id], topic_id, partition, escaped(group), seq, log.time_us),
                        *(kind.name, offset, amount, signed, count),
                        *(escaped(owner) or None, escaped(reason) or None),
                    )
                )
        log.frame()
    segment = open_sealed(log.seal())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(entry_scan, "WINDOW_BYTES", window)
        patched.setattr(entry_scan, "CHUNK_ROWS", lot)
        table = read(segment)
    table.validate(full=True)
    assert whole(table) == expected
    keys = list(zip(table["lsn"].to_pylist(), table["seq"].to_pylist(), strict=True))
    assert keys == sorted(set(keys))


@pytest.fixture
def segment(tmp_path: Path) -> SealedSegment:
    """Frames of an event, a batch and an event; of a batch; of an event."""
    log = LogMaker(tmp_path, first_lsn=1 << 40)
    log.add(events_entry(1, 0, "first", [SETTLED]))
    log.append(1, 0, [b"a record"])
    log.add(events_entry(2, 0, "second", [SETTLED]))
    log.frame()
    log.append(1, 0, [b"a record"])
    log.frame()
    log.add(events_entry(1, 0, "third", [SETTLED, SETTLED]))
    return open_sealed(log.seal())


def test_the_lsn_is_that_of_the_entry(segment: SealedSegment) -> None:
    """By it an event is found in the log again."""
    table = read(segment)
    assert table["lsn"][0].as_py() == (1 << 40) + 4096 + 64
    assert table["seq"].to_pylist() == [0, 0, 0, 1]
    assert table["group_name"].to_pylist() == ["first", "second", "third", "third"]
    times = table["time"].cast(pa.int64()).to_pylist()
    assert times == [TIME_US, TIME_US, TIME_US + 2_000_000, TIME_US + 2_000_000]


def test_a_segment_without_events_has_no_rows(tmp_path: Path) -> None:
    """Nor has an empty one."""
    assert len(read(open_sealed(make_segment(tmp_path, 0, [])))) == 0
    frames = [(TIME_US, [mark_entry()]), (TIME_US, [records_entry(1, 0, 0, RecordColumns([b""]))])]
    assert len(read(open_sealed(make_segment(tmp_path, 8192, frames)))) == 0


def test_a_long_entry_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than what is read at once."""
    monkeypatch.setattr(entry_scan, "WINDOW_BYTES", 4096)
    events = [(EventKind.SETTLED, n, 0, 0, 0, f"owner {n}", "") for n in range(20_000)]
    frames = [(TIME_US, [mark_entry(), events_entry(1, 0, "g", events), mark_entry()])]
    table = read(open_sealed(make_segment(tmp_path, 0, frames)))
    assert table["offset"].to_pylist() == list(range(20_000))
    assert table["owner"][19_999].as_py() == "owner 19999"


def covered(segment: SealedSegment) -> list[int]:
    """Every position whose byte says something about events."""
    every = batches_of(segment.index)
    size = segment.end_lsn - segment.first_lsn
    spans = zip(every.position, every.position + 48 + every.body_bytes, strict=True)
    batches = {position for first, end in spans for position in range(first, end)}
    return [position for position in range(4096, size) if position not in batches]


def test_flipped_bits_are_found(segment: SealedSegment) -> None:
    """Wherever they are: the events that come are those that were written, or it is an error.

    Only padding, and the frame header of a frame without events, may be anything.
    """
    expected = read(segment)
    harmless = 0
    for position in covered(segment):
        bit = position * 5 % 8
        damage(Path(segment.path), position, bit)
        try:
            assert read(segment).equals(expected)
            harmless += 1
        except DamagedSegment as error:
            assert error.path == segment.path
            assert error.position <= position
            assert str(error.position) in str(error)
        damage(Path(segment.path), position, bit)
    padding = 8 * 8
    assert harmless <= 64 + padding


def test_damage_that_is_known_is_passed_over(segment: SealedSegment) -> None:
    """Whatever is damaged in a frame that was given up: all other events come, and nothing else."""
    expected = whole(read(segment))
    end = int(batches_of(segment.index).position[0])
    for position in range(4096, end):
        bit = position * 5 % 8
        damage(Path(segment.path), position, bit)
        found = whole(read(segment, [(4096, end)]))
        times = [row[5] for row in found]
        assert found[-2:] == expected[-2:]
        assert [row[3] for row in found] in (
            ["first", "second", "third", "third"],
            ["second", "third", "third"],
        )
        assert times == sorted(times)
        damage(Path(segment.path), position, bit)


def test_zeros_in_a_damaged_place_are_passed_over(segment: SealedSegment) -> None:
    """A whole frame that is gone."""
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    start = int(batches_of(segment.index).position[1]) - 64
    data[4096:start] = bytes(start - 4096)
    path.write_bytes(data)
    with pytest.raises(DamagedSegment, match="at 4096"):
        read(segment)
    table = read(segment, [(4096, start)])
    assert table["group_name"].to_pylist() == ["third", "third"]
    assert table["time"].cast(pa.int64()).to_pylist() == [TIME_US + 2_000_000] * 2


def test_a_frame_header_behind_junk_is_found(tmp_path: Path) -> None:
    """In a damaged place, frames that are sound again count, also behind bytes like theirs."""
    frames = [
        (TIME_US, [events_entry(1, 0, "lost", [SETTLED])]),
        (TIME_US + 5, [events_entry(1, 0, "kept", [SETTLED])]),
    ]
    segment = open_sealed(make_segment(tmp_path, 0, frames))
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    second = data.index(b"BKfr", 4097)
    data[4096:second] = b"B" * (second - 4096)
    path.write_bytes(data)
    table = read(segment, [(4096, second + 8)])
    assert table["group_name"].to_pylist() == ["kept"]
    assert table["time"].cast(pa.int64()).to_pylist() == [TIME_US + 5]


@pytest.fixture
def busy(tmp_path: Path) -> SealedSegment:
    """A hundred frames of one batch, the last with an event, and that twice."""
    log = LogMaker(tmp_path)
    for group in ("first", "second"):
        for _ in range(99):
            log.append(1, 0, [b"a record"])
            log.frame()
        log.append(1, 0, [b"a record"])
        log.add(events_entry(1, 0, group, [SETTLED]))
        log.frame()
    return open_sealed(log.seal())


def test_events_are_few_among_records(busy: SealedSegment, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come with the times of their own frames, however much is read at a time."""
    for window in (64, 1000, 4096, 1 << 20):
        monkeypatch.setattr(entry_scan, "WINDOW_BYTES", window)
        table = read(busy)
        assert table["group_name"].to_pylist() == ["first", "second"]
        times = table["time"].cast(pa.int64()).to_pylist()
        assert times == [TIME_US + 99_000_000, TIME_US + 199_000_000]


def test_a_frame_that_lost_its_magic_among_many_is_damage(busy: SealedSegment) -> None:
    """It is found where it is; if the broker knows of it, what follows comes."""
    path = Path(busy.path)
    position = int(batches_of(busy.index).position[50]) - 64
    damage(path, position)
    with pytest.raises(DamagedSegment, match=f"at {position}"):
        read(busy)
    found = read(busy, [(position, position + 64)])
    assert found["group_name"].to_pylist() == ["first", "second"]


def test_a_segment_cut_short_is_damage(segment: SealedSegment) -> None:
    """What was cut off is missed."""
    data = Path(segment.path).read_bytes()
    for size in range(len(data) - 1, 4096, -5):
        Path(segment.path).write_bytes(data[:size])
        with pytest.raises(DamagedSegment, match="truncated"):
            read(segment)


def test_a_batch_that_the_index_lacks_is_an_error(tmp_path: Path) -> None:
    """The index was made while the batch was damaged: its records must not be left out."""
    frames = [(TIME_US, [records_entry(1, 0, 0, RecordColumns([b"v"]))])]
    path = make_segment(tmp_path, 0, frames)
    empty = MemoryIndex().encode(segment_id_of(0), 0, path.stat().st_size)
    path.with_suffix(".idx").write_bytes(empty)
    with pytest.raises(DamagedSegment, match="start the broker"):
        read(open_sealed(path))
    assert len(read(open_sealed(path), [(4096, 4097 + 64)])) == 0


def test_an_index_that_lies_is_found(tmp_path: Path) -> None:
    """Batches that overlap other entries, or each other."""
    frames = [
        (TIME_US, [mark_entry(), records_entry(1, 0, 0, RecordColumns([b"v"])), mark_entry()])
    ]
    path = make_segment(tmp_path, 0, frames)
    at = 4096 + 64 + 48
    size = len(frames[0][1][1].body)
    batch = "a batch at an impossible place"
    for problem, *rows in (
        (batch, (0, at, size + 800)),
        (batch, (0, at + 4, size)),
        (batch, (0, at, size), (1, at + 8, size)),
        ("runs into a batch", (0, at - 8, size)),
        ("a frame header runs into a batch", (0, at - 72, size)),
        ("cut short", (0, at, size + 8)),
    ):
        index = MemoryIndex()
        for base, position, body_bytes in rows:
            index.add(1, 0, base, TIME_US, 1, position, body_bytes)
        encoded = index.encode(segment_id_of(0), 0, path.stat().st_size)
        path.with_suffix(".idx").write_bytes(encoded)
        with pytest.raises(DamagedSegment, match=problem):
            read(open_sealed(path))


def test_a_frame_header_of_another_place_is_damage(tmp_path: Path) -> None:
    """It is sound, but would give events another time."""
    frame = [events_entry(1, 0, "g", [SETTLED])]
    path = make_segment(tmp_path, 0, [(TIME_US, frame), (TIME_US + 9, frame)])
    data = path.read_bytes()
    half = (len(data) - 4096) // 2
    path.write_bytes(data[: 4096 + half] + data[4096 : 4096 + 64] + data[4096 + half + 64 :])
    with pytest.raises(DamagedSegment, match="another place"):
        read(open_sealed(path))


def test_rows_come_in_lots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment may hold millions of events: memory stays bounded."""
    monkeypatch.setattr(entry_scan, "CHUNK_ROWS", 10)
    entries = [events_entry(1, 0, "g", [SETTLED] * rows) for rows in (4, 4, 4, 30, 1, 1)]
    segment = open_sealed(make_segment(tmp_path, 0, [(TIME_US, entries)]))
    assert [len(lot) for lot in read_events(segment, NAMES)] == [8, 4, 30, 2]


def sealed(tmp_path: Path, body: bytes, count: int = 1) -> SealedSegment:
    entry = Entry(EntryKind.GROUP_EVENTS, 1, 0, 0, count, body)
    return open_sealed(make_segment(tmp_path, 0, [(TIME_US, [entry])]))


@pytest.mark.parametrize(
    ("position", "change"),
    [
        (0, b"\x10"),  # an absent column
        (0, b"\x33"),  # array with validity
        (0, b"\x12"),  # an array that is not there
        (4, b"\x00"),  # no strings
        (4, b"\xff\xff\xff\xff"),
        (8, b"\x09"),
        (56, b"\x07"),  # the seventh string as owner
        (64, b"\x07"),
        (72, b"\x02"),  # the group's length
    ],
)
def test_a_sound_body_that_makes_no_sense_is_damage(
    tmp_path: Path, position: int, change: bytes
) -> None:
    """Checksums hold, but counts and lengths contradict each other."""
    body = bytearray(encode_group_events("g", [SETTLED]))
    body[position : position + len(change)] = change
    with pytest.raises(DamagedSegment):
        read(sealed(tmp_path, bytes(body)))


@pytest.mark.parametrize(("body", "count"), [(b"", 1), (b"x" * 71, 1), (None, 0), (None, 1 << 21)])
def test_impossible_sizes_are_damage(tmp_path: Path, body: bytes | None, count: int) -> None:
    """Nothing is allocated for a count that cannot be."""
    sound = encode_group_events("g", [SETTLED])
    with pytest.raises(DamagedSegment):
        read(sealed(tmp_path, sound if body is None else body, count))


def test_an_event_of_a_newer_kind_is_refused(tmp_path: Path) -> None:
    """A later brokerd wrote it: upgrade."""
    body = encode_group_events("g", [(17, 0, 0, 0, 0, "", "")])
    with pytest.raises(NewerFormat, match=r"kind 17; upgrade"):
        read(sealed(tmp_path, body))


def test_an_entry_of_a_newer_kind_is_refused(tmp_path: Path) -> None:
    """What it says is not known: nothing after it can be trusted to be complete."""
    frames = [(TIME_US, [Entry(99, 0, 0, 0, 0, b"")])]
    with pytest.raises(NewerFormat, match="upgrade"):
        read(open_sealed(make_segment(tmp_path, 0, frames)))


def test_an_entry_header_that_tells_a_huge_size_is_damage(segment: SealedSegment) -> None:
    """It is not believed, and nothing is allocated for it."""
    path = Path(segment.path)
    data = bytearray(path.read_bytes())
    data[4096 + 64 + 4 : 4096 + 64 + 8] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    with pytest.raises(DamagedSegment, match=f"at {4096 + HEADERS - 48}"):
        read(segment)
