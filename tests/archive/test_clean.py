"""What is left of the table of records after cleaning: what has to be, and in few files."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from brokerd.archive.contract.layout import RECORDS, Range
from brokerd.archive.contract.ranges import merge_ranges
from brokerd.archive.delta.table import Table, TableConflict
from brokerd.archive.errors import JobFailed
from brokerd.archive.maintain.rewrite import ranges_of
from brokerd.archive.parquet.reader import open_file
from brokerd.archive.run import Settings
from tests.archive.test_data_change import data_changes
from tests.archive.world import LOG_ID, NOW_US, Record, World, record
from tests.strategies.archive import on_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

cleaning = pytest.importorskip("brokerd.archive.maintain.clean", reason="needs pyspark")

MIB = 1 << 20
SECOND_US = 1_000_000
EAGER = Settings(file_bytes=MIB, rewrite_percent=1, tombstone_seconds=100)
"""Whatever may go goes."""


class Stopped(Exception):
    """In place of a process that is killed."""


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession) -> World:
    world = World(tmp_path, spark)
    world.settings = EAGER
    return world


def clean(world: World) -> Any:
    return cleaning.clean(world.run())


def offsets(world: World, topic_id: int = 1, partition: int = 0) -> list[int]:
    return sorted(
        row["offset"]
        for row in world.rows("records")
        if (row["topic_id"], row["partition"]) == (topic_id, partition)
    )


def covered(world: World) -> list[Range]:
    """What the files cover; every one of them proves itself on the way."""
    found = []
    for path in world.files("records"):
        file = open_file(world.root / "records", path)
        file.read_table()
        found += ranges_of(file)
    return merge_ranges(found)


def roll(world: World, *files: list[Record]) -> None:
    """What a rollup adds: files of records of some time."""
    world.lsn += 100
    for rows in files:
        for row in rows:
            row["lsn"] = world.lsn - 50
    world.roll_records([rows for rows in files if rows], world.lsn)


# -- Against a naive model -----------------------------------------------------------------------


class Log:
    """A log that grows, and what the broker says of it."""

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world = world
        self.dice = dice
        self.records: dict[tuple[int, int, int], Record] = {}
        self.live = {1: 2, 17: 1, 2: 1}
        self.next = {(t, p): 0 for t, count in self.live.items() for p in range(count)}
        self.start = dict.fromkeys(self.next, 0)
        self.below = dict.fromkeys(self.next, 0)
        self.compact = {topic_id: dice.random() < 0.7 for topic_id in self.live}

    def append(self) -> None:
        """Records of some partitions, in files of their own or in shared ones."""
        files: list[list[Record]] = []
        shared: dict[int, list[Record]] = {}
        for (topic_id, partition), first in sorted(self.next.items()):
            if topic_id not in self.live or self.dice.random() < 0.2:
                continue
            end = first + self.dice.choice([1, 5, 40])
            self.next[topic_id, partition] = end
            rows = [self._record(topic_id, partition, offset) for offset in range(first, end)]
            if self.dice.random() < 0.5:
                files.append(rows)
            else:
                shared.setdefault(topic_id % 16, []).extend(rows)
        roll(self.world, *files, *shared.values())

    def _record(self, topic_id: int, partition: int, offset: int) -> Record:
        dice = self.dice
        row = record(
            offset,
            dice.choice([None, b"", b"a", b"b", b"c", b"k%d" % dice.randrange(50)]),
            dice.choice([b"", b"value"]),
            topic_id=topic_id,
            partition=partition,
            append_time=NOW_US - dice.randrange(300) * SECOND_US,
            expires_at=dice.choice([0, 0, 0, NOW_US + dice.randrange(-50, 50) * SECOND_US]),
        )
        self.records[topic_id, partition, offset] = row
        return row

    def move(self) -> None:
        """Bounds move, time goes on, a topic is deleted."""
        dice = self.dice
        if dice.random() < 0.2:
            self.live.pop(dice.choice([17, 2]), None)
        for place, end in self.next.items():
            self.below[place] = dice.randint(self.below[place], end)
            if dice.random() < 0.3:
                self.start[place] = dice.randint(self.start[place], self.below[place])
        self.world.time_us += dice.randrange(60) * SECOND_US
        self.say()

    def say(self) -> None:
        """Let the broker say it."""
        self.world.topics.clear()
        for topic_id, count in self.live.items():
            bounds = [(self.start[topic_id, p], self.below[topic_id, p]) for p in range(count)]
            self.world.topic(topic_id, *bounds, compact=self.compact[topic_id])
        self.world.next_topic_id = 20

    def known(self) -> list[Range]:
        """What has to stay covered."""
        ranges = [
            Range(*place, self.start[place], end)
            for place, end in self.next.items()
            if place[0] in self.live and end > self.start[place]
        ]
        return sorted(ranges)

    def must_stay(self) -> set[tuple[int, int, int]]:
        """Records at or above the bounds of their partition."""
        return {
            (t, p, o)
            for t, p, o in self.records
            if t in self.live and o >= max(self.start[t, p], self.below[t, p])
        }

    def left(self) -> set[tuple[int, int, int]]:
        """What is left when all has gone that may: key by key, record by record."""
        left = set()
        alive = [k for k in sorted(self.records) if k[0] in self.live and k[2] >= self.start[k[:2]]]
        now_us = self.world.time_us
        stays = []
        for t, p, o in alive:
            row = self.records[t, p, o]
            is_expired = 0 < row["expires_at"] <= now_us and o < self.below[t, p]
            if not is_expired:
                stays.append((t, p, o))
        newest: dict[tuple[int, int, bytes], int] = {}
        for t, p, o in alive:
            key = self.records[t, p, o]["key"]
            if key is not None:
                newest[t, p, key] = max(o, newest.get((t, p, key), -1))
        for t, p, o in stays:
            row = self.records[t, p, o]
            may_go = self.compact[t] and row["key"] is not None and o < self.below[t, p]
            if may_go and newest[t, p, row["key"]] > o:
                continue
            old_us = now_us - EAGER.tombstone_seconds * SECOND_US
            if may_go and row["value"] == b"" and row["append_time"] <= old_us:
                continue
            left.add((t, p, o))
        return left


def rows_of(world: World) -> dict[tuple[int, int, int], Record]:
    rows = world.rows("records")
    found = {(row["topic_id"], row["partition"], row["offset"]): row for row in rows}
    assert len(found) == len(rows)
    return found


@on_spark(1)
@given(st.integers(0, 1 << 32))
@example(2891)
def test_what_is_left_is_what_a_naive_model_keeps(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, seed: int
) -> None:
    """Over several rollups and cleanings, some of them stopped: all that must stay stays."""
    assume(seed)
    dice = random.Random(seed)
    world = World(tmp_path_factory.mktemp("world"), spark)
    world.settings = EAGER
    log = Log(world, dice)
    for _ in range(3):
        log.append()
        log.move()
        if dice.random() < 0.5:
            stop_once(
                world, dice.choice(["clean examined", "before clean commit", "after clean commit"])
            )
        clean(world)
        found = rows_of(world)
        assert log.must_stay() <= set(found)
        assert covered(world) == log.known()
        for place, row in found.items():
            assert {name: row[name] for name in log.records[place]} == log.records[place]
    clean(world)
    assert set(rows_of(world)) == log.left()


def stop_once(world: World, point: str) -> None:
    """Let a run begin, and stop it when it gets to a point."""

    def stop(at: str) -> None:
        if at == point:
            raise Stopped

    world.stop_at = stop
    try:
        clean(world)
    except Stopped:
        pass
    finally:
        world.stop_at = world.points.append


# -- One thing at a time -------------------------------------------------------------------------


def plain(*offsets: int, **fields: Any) -> list[Record]:
    """Records without keys."""
    return [record(offset, None, **fields) for offset in offsets]


def keyed(*keys: bytes, first: int = 0, **fields: Any) -> list[Record]:
    """Records with these keys, from an offset on."""
    return [record(offset, key, **fields) for offset, key in enumerate(keys, first)]


def test_what_is_below_the_start_offset_goes(world: World) -> None:
    """Half of a file; the other half is as it was, and only that is known of."""
    roll(world, plain(*range(100)))
    world.topic(1, (50, 0))
    report = clean(world)
    assert offsets(world) == list(range(50, 100))
    assert covered(world) == [Range(1, 0, 50, 100)]
    assert report.lines[0] == "removed 50 records: 50 below start offsets"
    assert (report.numbers["trimmed"], report.numbers["files_removed"]) == (50, 1)


def test_a_large_file_waits_until_enough_of_it_goes(world: World) -> None:
    """It is not written again for a few records; all is known of what waits."""
    world.settings = Settings(file_bytes=MIB)
    rows = [
        record(offset, None, bytes(random.Random(offset).randbytes(100))) for offset in range(5000)
    ]
    roll(world, rows)
    world.topic(1, (999, 0))
    assert clean(world).lines == []
    assert covered(world) == [Range(1, 0, 0, 5000)]
    world.topic(1, (1000, 0))
    clean(world)
    assert offsets(world) == list(range(1000, 5000))


def test_a_small_file_is_written_again_for_any_record(world: World) -> None:
    """A file of a 32nd of the usual size is small."""
    roll(world, plain(*range(100)))
    world.topic(1, (1, 0))
    (path,) = world.files("records")
    size = (world.root / "records" / path).stat().st_size
    world.settings = Settings(file_bytes=32 * size - 1, rewrite_percent=100)
    assert clean(world).lines == []
    world.settings = world.settings._replace(file_bytes=32 * size)
    clean(world)
    assert offsets(world) == list(range(1, 100))


def test_the_last_records_of_a_file_stay(world: World) -> None:
    """A commit alone removes a file only if all of its offsets are removed."""
    roll(world, plain(*range(100)), plain(*range(100), topic_id=2) + plain(7, topic_id=18))
    world.topic(1, (99, 0))
    world.topic(18, (0, 0))
    clean(world)
    assert offsets(world) == [99]
    assert (offsets(world, 2), offsets(world, 18)) == ([], [7])


def test_a_merge_leaves_out_what_is_removed(world: World) -> None:
    """Though a file of its size would not be rewritten for a record."""
    world.settings = Settings(file_bytes=MIB, rewrite_percent=100)
    dice = random.Random(5)
    for first in (0, 1000):
        roll(world, [record(first + at, None, dice.randbytes(100)) for at in range(1000)])
    world.topic(1, (10, 0))
    report = clean(world)
    assert report.numbers["trimmed"] == 10
    assert offsets(world) == list(range(10, 2000))
    assert covered(world) == [Range(1, 0, 10, 2000)]


def test_a_rewrite_leaves_out_what_is_below_the_start_offset(world: World) -> None:
    """Also if it is for another reason."""
    world.settings = Settings(file_bytes=MIB, rewrite_percent=20, merge=False)
    dice = random.Random(5)
    expiring = [record(at, None, b"", expires_at=NOW_US) for at in range(10, 1000)]
    rows = plain(*range(10)) + expiring
    rows += [record(1000 + at, None, dice.randbytes(100)) for at in range(1000)]
    roll(world, rows)
    world.topic(1, (10, 2000))
    report = clean(world)
    assert (report.numbers["trimmed"], report.numbers["expired"]) == (10, 990)
    assert covered(world) == [Range(1, 0, 10, 2000)]


def test_files_wholly_below_start_offsets_go_without_spark(world: World) -> None:
    """The commit alone removes them; so does it those of deleted topics."""
    roll(world, plain(0, 1), plain(2, 3), plain(0, 5, topic_id=2))
    world.topic(1, (2, 0))
    world.topic(3, (0, 0))
    world.spark = None
    report = clean(world)
    assert offsets(world) == [2, 3]
    assert offsets(world, 2) == []
    assert (report.numbers["trimmed"], report.numbers["deleted"]) == (2, 2)


def test_deleted_topics_leave_shared_files(world: World) -> None:
    """However few of the records theirs are."""
    world.settings = Settings(file_bytes=MIB, rewrite_percent=100)
    big = [record(at, None, random.Random(at).randbytes(100)) for at in range(3000)]
    roll(world, [*big, *plain(7, topic_id=17), *plain(9, topic_id=33)])
    world.topic(1, (0, 0))
    world.topic(33, (0, 0))
    report = clean(world)
    assert report.numbers["deleted"] == 1
    assert covered(world) == [Range(1, 0, 0, 3000), Range(33, 0, 9, 10)]
    assert (len(offsets(world)), offsets(world, 17), offsets(world, 33)) == (3000, [], [9])


def test_a_file_of_which_all_records_go_still_covers(world: World) -> None:
    """A reader learns that there is nothing, instead of waiting for what never comes."""
    roll(world, keyed(b"a", b"b"), keyed(b"a", b"b", first=2))
    world.settings = EAGER._replace(merge=False)
    world.topic(1, (0, 2), compact=True)
    clean(world)
    assert offsets(world) == [2, 3]
    assert covered(world) == [Range(1, 0, 0, 4)]


def test_nothing_at_or_above_the_bound_is_compacted(world: World) -> None:
    """Not even when a later record of the key is there."""
    roll(world, keyed(b"a", b"a", b"a", b"a", b"b"))
    world.topic(1, (0, 2), compact=True)
    clean(world)
    assert offsets(world) == [2, 3, 4]


def test_a_later_record_supersedes_wherever_it_is(world: World) -> None:
    """In another file, above the bound; and never in another partition or topic."""
    roll(world, keyed(b"a", b"b", b"c"), keyed(b"a", partition=1), keyed(b"c", topic_id=17))
    roll(world, keyed(b"a", first=3))
    world.topic(1, (0, 3), (0, 1), compact=True)
    world.topic(17, (0, 1), compact=True)
    clean(world)
    assert offsets(world) == [1, 2, 3]
    assert (offsets(world, 1, 1), offsets(world, 17)) == ([0], [0])


OLD_US = NOW_US - EAGER.tombstone_seconds * SECOND_US


def test_a_tombstone_goes_when_it_is_old_and_after_what_it_ends(world: World) -> None:
    """Its key's older records in one run, itself in the next."""
    roll(world, keyed(b"a", b"b"), keyed(b"a", first=2, value=b"", append_time=OLD_US))
    world.topic(1, (0, 3), compact=True)
    clean(world)
    assert offsets(world) == [1, 2]
    clean(world)
    assert offsets(world) == [1]


def test_a_tombstone_stays_while_it_is_young(world: World) -> None:
    """And goes when its time has come, although nothing else has happened."""
    roll(world, keyed(b"b", b"a"), keyed(b"a", first=2, value=b"", append_time=OLD_US + 1))
    world.topic(1, (0, 3), compact=True)
    for _ in range(2):
        clean(world)
        assert offsets(world) == [0, 2]
    world.time_us += 1
    clean(world)
    assert offsets(world) == [0]


def test_what_a_tombstone_ended_never_comes_back(world: World) -> None:
    """While a file with an older record of the key is not worth writing anew, it has to stay."""
    world.settings = Settings(file_bytes=MIB, tombstone_seconds=0, merge=False)
    filler = [random.Random(at).randbytes(100) for at in range(3000)]
    roll(world, [record(at, b"k%d" % at, value) for at, value in enumerate(filler)])
    roll(world, keyed(b"k7", b"k8", first=3000, value=b"", append_time=OLD_US))
    world.topic(1, (0, 3002), compact=True)
    for _ in range(3):
        clean(world)
        assert set(offsets(world)) >= {7, 8, 3000, 3001}


def test_nothing_expires_by_a_time_that_is_in_doubt(world: World) -> None:
    """After a jump of the clock the bounds say so; no tombstone is old by it either."""
    roll(world, plain(0, expires_at=NOW_US), keyed(b"a", first=1, value=b"", append_time=OLD_US))
    world.topic(1, (0, 2), compact=True)
    world.time_settled = False
    clean(world)
    assert offsets(world) == [0, 1]
    world.time_settled = True
    clean(world)
    assert offsets(world) == []


def test_a_file_is_not_looked_at_before_something_in_it_expires(world: World) -> None:
    """The note says when that is; without Spark there would be an error."""
    times = [NOW_US + at * SECOND_US for at in (-1, 10, 20)]
    roll(world, [record(at, expires_at=time) for at, time in enumerate(times)] + plain(3, 4, 5))
    world.topic(1, (0, 100))
    clean(world)
    assert offsets(world) == [1, 2, 3, 4, 5]
    clean(world)
    with world.without_spark():
        world.time_us += 10 * SECOND_US - 1
        clean(world)
    world.time_us += 1
    clean(world)
    assert offsets(world) == [2, 3, 4, 5]


def test_a_rewritten_file_is_not_examined_before_something_in_it_expires(world: World) -> None:
    times = [NOW_US + at * SECOND_US for at in (-1, 10, 20)]
    roll(world, [record(at, expires_at=time) for at, time in enumerate(times)])
    world.topic(1, (0, 100))
    clean(world)
    assert offsets(world) == [1, 2]
    with world.without_spark():
        world.time_us += 10 * SECOND_US - 1
        clean(world)
    world.time_us += 1
    clean(world)
    assert offsets(world) == [2]


def test_a_record_that_expires_above_the_bound_goes_when_the_bound_passes_it(world: World) -> None:
    """A run that must keep it does not forget that it has expired."""
    past_us = NOW_US - SECOND_US
    roll(world, [record(0), record(1, expires_at=past_us), record(2, expires_at=past_us)])
    for below, kept in ((1, [0, 1, 2]), (2, [0, 2]), (3, [0])):
        world.topics.clear()
        world.topic(1, (0, below))
        clean(world)
        assert offsets(world) == kept


def test_a_file_wholly_above_the_bound_is_not_examined(world: World) -> None:
    """Without Spark there would be an error."""
    roll(world, [record(at, expires_at=NOW_US - SECOND_US) for at in range(3)])
    world.topic(1, (0, 0))
    world.spark = None
    clean(world)
    assert offsets(world) == [0, 1, 2]


def test_a_file_whose_records_do_not_expire_is_not_examined(world: World) -> None:
    """Without Spark there would be an error."""
    roll(world, plain(0, 1))
    world.topic(1, (0, 2))
    world.spark = None
    clean(world)
    assert offsets(world) == [0, 1]


def test_a_run_for_one_topic_does_not_forget_what_expired_in_others(world: World) -> None:
    roll(world, [record(0), record(0, topic_id=17, expires_at=NOW_US - SECOND_US)])
    world.topic(1, (0, 9))
    world.topic(17, (0, 9))
    cleaning.clean(replace(world.run(), only=frozenset({1})))
    assert (offsets(world, 1), offsets(world, 17)) == ([0], [0])
    clean(world)
    assert (offsets(world, 1), offsets(world, 17)) == ([0], [])


def test_a_second_run_has_nothing_to_do(world: World) -> None:
    """It commits nothing and starts no Spark, whatever the first had to do."""
    roll(world, keyed(b"a", b"a"), plain(0, 1, topic_id=17) + plain(0, topic_id=33))
    roll(world, plain(2, topic_id=17) + plain(1, topic_id=33))
    world.topic(1, (0, 2), compact=True)
    world.topic(17, (0, 0))
    world.topic(33, (0, 0))
    clean(world)
    world.spark = None
    files = world.files("records")
    assert clean(world).lines == []
    assert world.files("records") == files


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"retention": False}, [0, 1, 3, 4]),
        ({"compaction": False}, [2, 3, 4]),
        ({"retention": False, "compaction": False}, [0, 1, 2, 3, 4]),
    ],
)
def test_each_kind_of_removal_can_be_switched_off(
    world: World, change: dict[str, bool], left: list[int]
) -> None:
    """What it would remove stays."""
    rows = [record(0), record(1, expires_at=NOW_US), *keyed(b"a", b"a", first=2), record(4)]
    roll(world, rows)
    world.topic(1, (1, 5), compact=True)
    world.settings = EAGER._replace(**change)
    clean(world)
    assert offsets(world) == left


def test_other_topics_are_left_when_only_one_is_meant(world: World) -> None:
    """Neither trimmed nor merged; nor are deleted topics looked for."""
    for at in range(2):
        roll(world, plain(at), plain(at, topic_id=17), plain(at, topic_id=33))
    world.topic(1, (1, 0))
    world.topic(17, (1, 0))
    world.next_topic_id = 40
    cleaning.clean(replace(world.run(), only=frozenset({17})))
    assert (offsets(world), offsets(world, 17), offsets(world, 33)) == ([0, 1], [1], [0, 1])


def test_many_small_files_become_few(world: World) -> None:
    """Of one partition and shared ones; every record is there as before."""
    world.settings = Settings(file_bytes=MIB)
    for at in range(12):
        own = [record(at * 50 + i, b"k", b"v" * i) for i in range(50)]
        shared = plain(at, topic_id=17) + plain(at, topic_id=33)
        roll(world, own, shared)
    for topic_id in (1, 17, 33):
        world.topic(topic_id, (0, 0))
    before = sorted(map(str, world.rows("records")))
    report = clean(world)
    assert len(world.files("records")) == 2
    assert sorted(map(str, world.rows("records"))) == before
    assert report.numbers["files_removed"] == 24
    assert "replaced 24 by 2 files of records" in report.lines[0]
    assert covered(world) == [Range(1, 0, 0, 600), Range(17, 0, 0, 12), Range(33, 0, 0, 12)]


def test_a_large_partition_of_a_shared_file_gets_its_own(world: World) -> None:
    """From an eighth of the usual size on."""
    world.settings = Settings(file_bytes=MIB)
    dice = random.Random(5)
    for first in (0, 1000):
        large = [record(first + at, None, dice.randbytes(100)) for at in range(1000)]
        roll(world, large + plain(first, topic_id=17))
    world.topic(1, (0, 0))
    world.topic(17, (0, 0))
    clean(world)
    assert sorted(path.rpartition("/")[2][:2] for path in world.files("records")) == ["p-", "s-"]
    assert (len(offsets(world)), offsets(world, 17)) == (2000, [0, 1000])


def test_only_merges_with_removed_rows_change_data(world: World) -> None:
    """They are in one lot, but not in one commit."""
    world.topic(1, (0, 0))
    world.topic(2, (1, 1))
    for at in range(4):
        roll(world, [record(at)], [record(at, topic_id=2)])
    clean(world)
    assert offsets(world) == [0, 1, 2, 3]
    assert offsets(world, 2) == [1, 2, 3]
    # The file wholly below the start offset went first.
    assert data_changes(world, "records")[4:] == [
        ("CLEAN", {True}),
        ("OPTIMIZE", {False}),
    ]
    world.topic(2, (3, 3))
    for at in range(4, 8):
        roll(world, [record(at)], [record(at, topic_id=2)])
    clean(world)
    assert offsets(world, 2) == [3, 4, 5, 6, 7]
    assert data_changes(world, "records")[10:] == [("OPTIMIZE", {False}), ("CLEAN", {True})]


def test_merging_can_be_switched_off(world: World) -> None:
    """Small files stay."""
    for at in range(3):
        roll(world, plain(at))
    world.topic(1, (0, 0))
    world.settings = EAGER._replace(merge=False)
    clean(world)
    assert len(world.files("records")) == 3


def test_a_damaged_file_is_named_and_the_rest_is_done(world: World) -> None:
    """Nothing is taken out of it, nor out of its partition by what it might hold."""
    roll(world, keyed(b"a", b"b"), keyed(b"a", partition=1))
    roll(world, keyed(b"a", first=2), keyed(b"a", first=1, partition=1))
    world.topic(1, (0, 3), (0, 2), compact=True)
    world.settings = EAGER._replace(merge=False)
    (path,) = [path for path in world.files("records") if "p-1-0-0-2" in path]
    file = world.root / "records" / path
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes(data)
    with pytest.raises(JobFailed, match=f"{path}.*restore it from a backup"):
        clean(world)
    assert len(world.files("records")) == 4 - 2 + 2
    assert path in world.files("records")
    assert offsets_of_sound(world, path) == [(0, 2), (1, 1)]


def offsets_of_sound(world: World, damaged: str) -> list[tuple[int, int]]:
    """(partition, offset) of the records of all files but one."""
    found = []
    for path in world.files("records"):
        if path != damaged:
            rows = open_file(world.root / "records", path).read_table()
            found += zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    return sorted(found)


def test_a_tombstone_stays_while_a_file_of_its_partition_is_damaged(world: World) -> None:
    """Nobody can say whether that holds an older record of the key, and may be cured."""
    roll(world, keyed(b"a"), keyed(b"a", first=1, value=b"", append_time=OLD_US))
    roll(world, keyed(b"b", partition=1, value=b"", append_time=OLD_US))
    world.topic(1, (0, 2), (0, 1), compact=True)
    (path,) = [path for path in world.files("records") if "p-1-0-0-1" in path]
    file = world.root / "records" / path
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes(data)
    with pytest.raises(JobFailed, match=path):
        clean(world)
    assert offsets_of_sound(world, path) == [(0, 1)]


@pytest.mark.parametrize("damage", ["footer", "gone"])
def test_a_file_that_cannot_be_opened_is_named(world: World, damage: str) -> None:
    """The others are cleaned; the table still has it, for somebody may bring it back."""
    roll(world, plain(0, 1), plain(5, 6, topic_id=17))
    world.topic(1, (1, 0))
    world.topic(17, (6, 0))
    path = world.files("records")[0]
    file = world.root / "records" / path
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(JobFailed, match=path):
        clean(world)
    assert path in world.files("records")
    assert offsets_of_sound(world, path) == [(0, 6)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("damage", ["footer", "gone"])
def test_a_deleted_key_does_not_return_with_a_file(world: World, damage: str, shared: bool) -> None:
    """A tombstone stays while a file cannot be opened that may hold its key."""
    beside = plain(0, topic_id=33) if shared else []
    roll(world, keyed(b"a") + beside)
    roll(world, keyed(b"a", first=1, value=b"", append_time=OLD_US))
    world.topic(1, (0, 2), compact=True)
    world.topic(33, (0, 0))
    (path,) = [path for path in world.files("records") if ("s-" if shared else "p-1-0-0-1") in path]
    file = world.root / "records" / path
    whole = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(whole[:-9])
    for _ in range(2):
        with pytest.raises(JobFailed, match=rf"{path}.*compaction waits .* in 1 partition"):
            clean(world)
    file.write_bytes(whole)
    assert offsets(world) == [0, 1]
    clean(world)
    clean(world)
    assert offsets(world) == []


def test_what_a_rollup_adds_meanwhile_is_kept(world: World) -> None:
    """A commit that comes between the look and the commit is not lost."""
    roll(world, keyed(b"a", b"a"))
    world.topic(1, (0, 2), compact=True)

    def add(point: str) -> None:
        if point == "before clean commit":
            world.stop_at = world.points.append
            roll(world, keyed(b"a", first=2))

    world.stop_at = add
    clean(world)
    assert offsets(world) == [1, 2]


def test_clean_stops_when_another_job_removed_a_file(world: World) -> None:
    """Nothing that is gone comes back; the next run does the rest."""
    infos = [*world.roll_records([keyed(b"a", b"a"), keyed(b"x", partition=1)], 100)]
    world.lsn = 100
    world.topic(1, (0, 2), (0, 1), compact=True)

    def remove(point: str) -> None:
        if point == "before clean commit":
            world.stop_at = world.points.append
            other = Table(world.root, RECORDS, LOG_ID)
            other.commit([], [infos[0].path], now_ms=0)

    world.stop_at = remove
    with pytest.raises(TableConflict, match="another process removed"):
        clean(world)
    clean(world)
    assert (offsets(world), offsets(world, 1, 1)) == ([], [0])


def test_a_run_commits_in_parts(world: World) -> None:
    """Stopped after the first commit, it has done that part; the next run does the rest."""
    world.settings = EAGER._replace(lot_bytes=1)
    roll(world, *(keyed(b"a", b"a", partition=at) for at in range(3)))
    world.topic(1, *[(0, 2)] * 3, compact=True)
    stop_once(world, "after clean commit")
    assert sum(len(offsets(world, 1, at)) for at in range(3)) == 5
    clean(world)
    assert [offsets(world, 1, at) for at in range(3)] == [[1]] * 3


def test_each_lot_is_a_commit(world: World) -> None:
    """Two files fill a lot to the byte. The report counts all commits."""
    roll(world, *(keyed(b"a", b"a", partition=at) for at in range(4)))
    world.topic(1, *[(0, 2)] * 4, compact=True)
    sizes = [(world.root / "records" / path).stat().st_size for path in world.files("records")]
    assert len({*sizes}) == 1
    world.settings = EAGER._replace(lot_bytes=2 * sizes[0])
    report = clean(world)
    assert data_changes(world, "records")[1:] == [("CLEAN", {True})] * 2
    assert report.numbers["files_removed"] == report.numbers["files_added"] == 4
    assert report.numbers["bytes_removed"] == sum(sizes)
    added = [(world.root / "records" / path).stat().st_size for path in world.files("records")]
    assert report.numbers["bytes_added"] == sum(added)


def test_any_directory_will_do(tmp_path: Path, spark: SparkSession) -> None:
    """Names with spaces and characters that mean something in patterns and addresses."""
    odd = tmp_path / "a b[1]{x},y%20z;*?\\:q"
    odd.mkdir()
    world = World(odd, spark)
    world.settings = EAGER
    roll(world, keyed(b"a", b"a"))
    world.topic(1, (0, 2), compact=True)
    clean(world)
    assert offsets(world) == [1]
