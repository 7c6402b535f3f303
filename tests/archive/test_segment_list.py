"""Which segments are archived next, and what is said of those that are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brokerd.archive.contract.bounds import Bounds, DamagedPlace, PartitionBounds, TopicBounds
from brokerd.archive.journal import sealed
from brokerd.archive.journal.segment_list import Stop, end_of_log, sealed_segments
from brokerd.archive.journal.topics import new_topics
from brokerd.walformat import Entry, EntryKind
from tests.archive.making import KINDS, LOG_ID, LogMaker, damage, make_no_file, topic_entry


def bounds(lsn: int = 0, next_topic_id: int = 2, **changes: object) -> Bounds:
    topics = [
        TopicBounds(number, f"topic-{number}", 0, False, [PartitionBounds(0, 0, 100)])
        for number in range(1, next_topic_id)
    ]
    given = {"lsn": lsn, "next_topic_id": next_topic_id, "topics": topics, **changes}
    return Bounds(log_id=LOG_ID, time_us=0, time_settled=True, **given)


def log(tmp_path: Path, segments: int = 3) -> list[Path]:
    """Sealed segments, and one that is being written."""
    maker = LogMaker(tmp_path)
    paths = []
    for _ in range(segments):
        maker.append(1, 0, [b"value"] * 3)
        paths.append(maker.seal())
    maker.append(1, 0, [b"not sealed"])
    paths.append(maker.seal())
    paths[-1].with_suffix(".idx").unlink()
    return paths


def lsn_of(path: Path) -> int:
    return int(path.stem)


def found(tmp_path: Path, lsn: int = 0, said: Bounds | None = None) -> tuple[list[str], Stop]:
    """Names of the segments that are found, and why there are no more."""
    *segments, stop = sealed_segments(tmp_path, said or bounds(), lsn)
    assert isinstance(stop, Stop)
    assert not any(isinstance(one, Stop) for one in segments)
    return [Path(one.path).name for one in segments], stop


def test_sealed_segments_come_in_order_and_the_growing_one_does_not(tmp_path: Path) -> None:
    """Up to the one that has no index, which is no problem."""
    paths = log(tmp_path)
    names, stop = found(tmp_path)
    assert names == [path.name for path in paths[:3]]
    assert stop == (lsn_of(paths[3]), f"{paths[3].name} is not closed yet", False)


def test_only_what_follows_the_tables_is_taken(tmp_path: Path) -> None:
    """Segments below the transaction are not looked at, also when all are."""
    paths = log(tmp_path)
    paths[0].write_bytes(b"nobody reads it")
    assert found(tmp_path, lsn_of(paths[1]))[0] == [paths[1].name, paths[2].name]
    paths[3].unlink()
    names, stop = found(tmp_path, lsn_of(paths[3]))
    assert (names, stop.is_problem) == ([], False)


def test_deleted_segments_are_passed_over(tmp_path: Path) -> None:
    """A file that says so stands in their place; one that is still there is one of the log."""
    paths = log(tmp_path)
    (tmp_path / f"{0:020}-{lsn_of(paths[2]):020}.deleted").touch()
    paths[1].unlink()
    names, stop = found(tmp_path)
    assert names == [paths[0].name, paths[2].name]
    assert not stop.is_problem
    paths[0].with_suffix(".idx").unlink()
    assert found(tmp_path)[0] == [paths[2].name]
    paths[0].unlink()
    assert found(tmp_path)[0] == [paths[2].name]


def test_a_missing_segment_ends_it_unless_the_broker_knows(tmp_path: Path) -> None:
    """What comes before it is taken; what is known to be damaged is passed over."""
    paths = log(tmp_path)
    paths[1].unlink()
    names, stop = found(tmp_path)
    assert names == [paths[0].name]
    assert stop.is_problem
    assert f"from LSN {lsn_of(paths[1])} to {lsn_of(paths[2])} is missing" in stop.reason
    gone = DamagedPlace(paths[1].name, 0, lsn_of(paths[2]) - lsn_of(paths[1]))
    assert found(tmp_path, said=bounds(damage=[gone]))[0] == [paths[0].name, paths[2].name]


def test_what_is_known_to_be_missing_may_touch(tmp_path: Path) -> None:
    """Some of it deleted, some of it damaged, as often as it comes."""
    paths = log(tmp_path, 5)
    lsns = [lsn_of(path) for path in paths]
    for path in paths[1:4]:
        path.unlink()
    (tmp_path / f"{lsns[1]:020}-{lsns[2]:020}.deleted").touch()
    (tmp_path / f"{lsns[3]:020}-{lsns[4]:020}.deleted").touch()
    gone = DamagedPlace(paths[2].name, 0, lsns[3] - lsns[2])
    names = found(tmp_path, said=bounds(damage=[gone]))[0]
    assert names == [paths[0].name, paths[4].name]


def test_a_segment_without_an_index_is_waited_for(tmp_path: Path) -> None:
    """The broker has still to write it: no problem, but nothing after it is taken."""
    paths = log(tmp_path)
    paths[1].with_suffix(".idx").unlink()
    names, stop = found(tmp_path)
    assert names == [paths[0].name]
    assert not stop.is_problem
    assert "has no index yet" in stop.reason


@pytest.mark.parametrize("suffix", [".wal", ".idx"])
def test_a_damaged_header_or_index_ends_it(tmp_path: Path, suffix: str) -> None:
    """What to do is said, with the file's name; damage that is known of all of it is passed."""
    paths = log(tmp_path)
    damage(paths[1].with_suffix(suffix), 20)
    names, stop = found(tmp_path)
    assert names == [paths[0].name]
    assert stop.is_problem
    assert str(paths[1]) in stop.reason and "start the broker" in stop.reason
    header = DamagedPlace(paths[1].name, 0, 4096)
    assert found(tmp_path, said=bounds(damage=[header]))[1] == stop
    whole = DamagedPlace(paths[1].name, 0, lsn_of(paths[2]) - lsn_of(paths[1]))
    assert found(tmp_path, said=bounds(damage=[whole]))[0] == [paths[0].name, paths[2].name]


def test_a_segment_that_was_cut_short_ends_it(tmp_path: Path) -> None:
    """Its index is not that of the file any more."""
    paths = log(tmp_path)
    paths[1].write_bytes(paths[1].read_bytes()[:-8])
    names, stop = found(tmp_path)
    assert names == [paths[0].name]
    assert stop.is_problem


def test_a_segment_of_another_place_ends_it(tmp_path: Path) -> None:
    """A copy under another segment's name is not taken for it."""
    paths = log(tmp_path)
    for suffix in (".wal", ".idx"):
        copied = paths[0].with_suffix(suffix).read_bytes()
        paths[1].with_suffix(suffix).write_bytes(copied)
    names, stop = found(tmp_path)
    assert names == [paths[0].name]
    assert stop.is_problem
    assert "says that it begins at LSN 0" in stop.reason


def test_a_newer_format_ends_it(tmp_path: Path) -> None:
    """It says to upgrade."""
    paths = log(tmp_path)
    from xxhash import xxh3_64_intdigest

    data = bytearray(paths[1].read_bytes())
    data[8] = 9
    data[56:64] = xxh3_64_intdigest(bytes(data[:56]), 0).to_bytes(8, "little")
    paths[1].write_bytes(data)
    stop = found(tmp_path)[1]
    assert stop.is_problem
    assert "upgrade brokerd" in stop.reason


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Names that are none of the log's mean nothing."""
    log(tmp_path)
    for name in ("spare-0.tmp", "1.wal", "notes.txt", "x.deleted", f"{7:020}.idx"):
        (tmp_path / name).write_bytes(b"?")
    assert len(found(tmp_path)[0]) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_no_segment(tmp_path: Path, kind: str) -> None:
    """It ends nothing by itself, and holds nobody up; one it took the place of is missing."""
    paths = log(tmp_path)
    make_no_file(tmp_path / f"{lsn_of(paths[1]) + 8:020}.wal", kind)
    make_no_file(tmp_path / f"{1 << 40:020}.wal", kind)
    assert found(tmp_path)[0] == [path.name for path in paths[:3]]
    assert end_of_log(tmp_path, bounds()) == lsn_of(paths[3])
    make_no_file(paths[1], kind)
    names, stop = found(tmp_path)
    assert names == [paths[0].name]
    assert stop.is_problem and "is missing, and nothing says that it was" in stop.reason
    paths[1].rename(tmp_path / "elsewhere")
    make_no_file(paths[0].with_suffix(".idx"), kind)
    with pytest.raises(OSError, match="not a regular file") as raised:
        found(tmp_path)
    assert raised.value.filename == str(paths[0].with_suffix(".idx"))


def test_the_log_is_known_to_reach_its_last_segment(tmp_path: Path) -> None:
    """Or what the broker said last, if that is more."""
    paths = log(tmp_path)
    assert end_of_log(tmp_path, bounds(5)) == lsn_of(paths[3])
    assert end_of_log(tmp_path, bounds(1 << 40)) == 1 << 40


def test_the_log_is_known_to_reach_the_end_of_its_deleted_segments(tmp_path: Path) -> None:
    paths = log(tmp_path)
    end = lsn_of(paths[3])
    (tmp_path / f"{lsn_of(paths[0]):020}-{end:020}.deleted").touch()
    for path in paths:
        path.unlink()
    assert end_of_log(tmp_path, bounds(5)) == end


def test_a_segment_may_be_sealed_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker cuts off the space that it allocated, and writes the index after that."""
    path = log(tmp_path, segments=1)[0]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(10_000))
    real = sealed.open_regular

    def sealing(opened: Path) -> int:
        if opened.suffix == ".idx":
            os.truncate(path, size)
        return real(opened)

    monkeypatch.setattr(sealed, "open_regular", sealing)
    assert sealed.open_sealed(path).end_lsn == size


def test_names_of_topics_made_after_the_bounds_are_read_from_the_log(tmp_path: Path) -> None:
    """Those made before are in the bounds; damage that is known ends no search."""
    maker = LogMaker(tmp_path)
    maker.add(topic_entry(1, "created", name="old", partitions=1))
    maker.append(1, 0, [b"x"])
    maker.seal()
    lsn = maker.first_lsn
    maker.append(1, 0, [b"y"])
    maker.frame()
    maker.add(Entry(EntryKind.PRODUCER, 1, 0, 0, 0, b"\x80"))  # as earlier versions ordered it
    maker.add(topic_entry(2, "created", name="new", partitions=1))
    maker.add(topic_entry(1, "configured", settings={}))
    maker.append(2, 0, [b"z"])
    path = maker.seal()
    maker.seal()
    assert new_topics(tmp_path, bounds(lsn)) == {2: "new"}
    assert new_topics(tmp_path, bounds(maker.first_lsn)) == {}
    assert new_topics(tmp_path, bounds(0)) == {1: "old", 2: "new"}
    frame = path.read_bytes().index(b"BKfr", 4097)
    damage(path, 4096)
    assert new_topics(tmp_path, bounds(lsn)) == {}
    known = DamagedPlace(path.name, 4096, frame)
    assert new_topics(tmp_path, bounds(lsn, damage=[known])) == {2: "new"}
