"""Records that are in the archive alone are read, leased and looked up as all others are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from brokerd.archive.contract.view import ArchivedRows, ArchiveUnavailable
from brokerd.broker import BrokerSettings, RetentionSettings, TopicSettings
from brokerd.broker.archive.read_ahead import AHEAD_MAX
from brokerd.broker.records.cold_reader import Unreadable
from brokerd.broker.records.fetch import EXAMINED_MAX
from brokerd.errors import DamagedData, RecordRemoved
from brokerd.groups import GroupSettings
from brokerd.values import Encoding, Format, Record
from tests.broker.colddesk import (
    KIB,
    archive_all,
    cold_house,
    partition_of,
    roll_up,
    segments,
    take_snapshot,
)
from tests.broker.desk import SECOND_US, grants, lease, produce, read, settle
from tests.broker.fakearchive import FakeArchive, FakeView, batches, columns_of
from tests.broker.test_fetch import Fetch, fetch
from tests.house import House

KEY = (1, 0)
"""The topic ``t``, which is the first."""


def value(offset: int, size: int = 600) -> bytes:
    return b"%d" % offset + b"." * size


def produced(house: House, first: int, end: int, size: int = 600, batch: int = 10) -> None:
    for base in range(first, end, batch):
        produce(house, "t", *[value(o, size) for o in range(base, min(base + batch, end))])
        house.run()


def filled(
    archived: int = 300, more: int = 50, rows_max: int = 1 << 30, **settings: object
) -> tuple[House, FakeArchive]:
    """So many records in the archive alone, and more in the log, none of them in memory."""
    archive = FakeArchive(rows_max=rows_max)
    house = cold_house(archive, **settings)
    produced(house, 0, archived)
    archive_all(house, archive)
    assert partition_of(house).archived_end == archived
    assert len(segments(house)) == 1
    produced(house, archived, archived + more)
    return house, archive


def drained(house: House, group: str = "g", **more: object) -> list[int]:
    """Offsets that a worker gets and settles until there are no more."""
    found: list[int] = []
    while part := lease(house, group=group, limit=50, **more):  # type: ignore[arg-type]
        for offset, got in part:
            assert got == value(offset)
            settle(house, offset, group=group)
        found += [offset for offset, _ in part]
        house.run()
    return found


class TestReading:
    @pytest.mark.parametrize("rows_max", [7, 1 << 30])
    def test_all_records_come_in_order_over_archive_log_and_memory(self, rows_max: int) -> None:
        house, _ = filled(rows_max=rows_max)
        found = fetch(house, 0)
        assert [(one.offset, one.value) for one in found.records] == [
            (offset, value(offset)) for offset in range(350)
        ]
        assert found.next_offset == 350

    @given(
        rows_max=st.sampled_from([1, 3, 7, 11, 1 << 30]),
        offsets=st.lists(st.integers(0, 149), min_size=1, max_size=25),
        cache=st.sampled_from([20 * KIB, 1 << 20]),
    )
    def test_a_record_is_the_same_whether_log_or_archive_is_asked(
        self, rows_max: int, offsets: list[int], cache: int
    ) -> None:
        """Both have the middle, and neither cuts it where the other does."""
        archive = FakeArchive(rows_max=rows_max)
        house = cold_house(archive, read_cache_bytes=cache)
        produced(house, 0, 70)
        archive_all(house, archive)
        produced(house, 70, 100)
        roll_up(house, archive)
        produced(house, 100, 150)
        for offset in offsets:
            assert read(house, "t", offset).value == value(offset)
        found = fetch(house, offsets[0])
        assert [one.offset for one in found.records] == [*range(offsets[0], 150)]
        assert house.broker.status()["damage"]["records"] == 0

    def test_every_column_of_a_record_is_as_it_was(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive)
        expires_at_us = house.broker.time.time_us() + 10**12
        house.append("t", b"plain")
        house.append("t", b"text", encoding=Encoding.TEXT, producer_format=Format.MAMAMIA)
        house.append("t", b"", key=b"", metadata=b"\x80", producer_time=-5)
        house.append("t", b"\x01", encoding=Encoding.MSGPACK, expires_at_us=expires_at_us)
        before = fetch(house, 0).records
        archive_all(house, archive)
        assert fetch(house, 0).records == before
        house = house.crash()
        house.run()
        assert fetch(house, 0).records == before
        assert house.broker.archive_reader.reads == 1

    def test_a_broker_that_was_killed_reads_on_in_the_archive(self) -> None:
        house, _ = filled()
        house = house.crash()
        house.run()
        assert fetch(house, 290, count=20).offsets == list(range(290, 310))

    def test_one_read_brings_what_follows(self) -> None:
        house, archive = filled(read_cache_bytes=1 << 20)
        for offset in range(300):
            assert read(house, "t", offset).value == value(offset)
        assert archive.reads == 1

    def test_what_is_in_the_log_is_not_asked_of_the_archive(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive)
        produced(house, 0, 300)
        roll_up(house, archive)
        assert fetch(house, 0).offsets == list(range(300))
        assert archive.reads == 0

    def test_a_record_that_went_while_it_was_about_to_be_read_is_in_the_archive(self) -> None:
        """The plan was made while its segment was there."""
        archive = FakeArchive()
        house = cold_house(archive)
        produced(house, 0, 300)
        roll_up(house, archive)
        house = house.crash()  # no index is at hand
        found = Fetch(house, 0, count=10)
        work = house.readers._work.popleft()
        archive_all(house, archive)
        assert len(segments(house)) == 1 and found.answers == 0
        house.readers._work.appendleft(work)
        house.run()
        assert (found.offsets, found.error) == (list(range(10)), None)

    def test_a_trim_holds_in_the_archive_too(self) -> None:
        house, _ = filled()
        house.broker.topics.trim("t", 0, 250)
        house.run()
        assert fetch(house, 0).offsets == list(range(250, 350))
        with pytest.raises(RecordRemoved):
            read(house, "t", 249)

    def test_a_topic_deleted_while_its_records_are_read_has_none(self) -> None:
        house, _ = filled()
        found = Fetch(house, 5, count=10)
        house.broker.topics.delete("t")
        house.run()
        assert (found.answers, found.records) == (1, [])

    def test_the_read_cache_keeps_its_budget(self) -> None:
        budget = 50_000
        house, _ = filled(read_cache_bytes=budget)
        for offset in range(0, 300, 7):
            read(house, "t", offset)
            assert house.broker.status()["read_cache_bytes"] <= budget


class TestTheMiddle:
    """Of three files of the log the archive has the second, and the log has the others alone."""

    def house(self) -> tuple[House, int, int]:
        """Also where the middle begins and ends."""
        archive = FakeArchive()
        house = cold_house(archive)
        for offset in range(250):
            produce(house, "t", value(offset))
            house.run()
            house.wall_seconds += 1
            house.clock.advance(1)
        middle = house.wal.segments()[1]
        records = [one for _, batch in batches(house, middle.name) for one in batch]
        first, end = records[0].offset, records[-1].offset + 1
        archive.cover(KEY, first, end, records, middle.end_lsn)
        house.wal.seal()
        house.run()
        house.broker.archive_refresher.refresh()
        for _ in range(2):
            take_snapshot(house)
        house.broker.segment_cleaner.wake()
        house.run()
        assert middle.name not in segments(house) and len(segments(house)) > 2
        house = house.crash()  # no index is at hand
        house.run()
        return house, first, end

    def test_all_of_it_is_read_wherever_a_reader_begins(self) -> None:
        house, first, end = self.house()
        for offset in (first + 3, 0, first, end - 1, end, 249, first - 1):
            assert fetch(house, offset).offsets == list(range(offset, 250))

    def test_an_offset_is_found_by_time_in_each_part(self) -> None:
        house, first, end = self.house()
        times_us = [one.append_time_us for one in fetch(house, 0).records]
        for offset in (0, 5, first - 1, first, first + 7, end - 1, end, end + 1, 249):
            assert TestByTime().at(house, times_us[offset]) == offset
            assert TestByTime().at(house, times_us[offset] + 1) == offset + 1


class TestReadingOn:
    """Row groups of 40 records; 300 in the archive."""

    def house(self, **settings: object) -> tuple[House, FakeArchive]:
        return filled(rows_max=40, read_cache_bytes=1 << 20, **settings)

    def test_what_comes_next_is_under_way_before_anybody_asks(self) -> None:
        house, archive = self.house()
        fetch(house, 0, count=40)
        assert archive.reads == 1, "whoever read once may not go on"
        Fetch(house, 40, count=40)
        house.archive_threads.step()
        assert len(house.archive_threads) == 1, "the next one"
        house.run()
        assert archive.reads == 3
        assert fetch(house, 80, count=40).offsets == list(range(80, 120))
        assert archive.reads == 4

    def test_nothing_is_read_twice_and_nothing_beyond_the_archive(self) -> None:
        house, archive = self.house()
        offset, found = 0, []
        while (part := fetch(house, offset, count=25)).records:
            found += part.offsets
            offset = part.next_offset
        assert found == list(range(350))
        assert archive.reads == 8

    def test_who_asks_while_it_is_under_way_gets_it_when_it_is_there(self) -> None:
        house, archive = self.house()
        fetch(house, 0, count=40)
        found = [Fetch(house, 40, count=40)]
        house.archive_threads.step()
        house.turn()
        found.append(Fetch(house, 80, count=40))
        assert [one.answers for one in found] == [1, 0]
        house.run()
        assert found[1].offsets == list(range(80, 120))
        assert archive.reads == 4

    def test_a_reader_that_goes_elsewhere_is_not_given_what_was_read_for_it(self) -> None:
        house, _ = self.house()
        fetch(house, 0, count=80)
        for offset in (200, 10, 150, 80):
            assert fetch(house, offset, count=3).offsets == [offset, offset + 1, offset + 2]

    def test_what_fails_before_anybody_asks_is_tried_again_then(self) -> None:
        house, archive = self.house()
        fetch(house, 0, count=40)
        Fetch(house, 40, count=40)
        house.archive_threads.step()
        archive.read_failure = OSError(5, "gone")
        house.run()
        archive.read_failure = None
        assert fetch(house, 80, count=40).offsets == list(range(80, 120))

    def test_damage_ahead_is_told_when_somebody_comes_to_it(self) -> None:
        house, archive = self.house()
        archive.damage[KEY] = (80, 90)
        fetch(house, 0, count=40)
        assert fetch(house, 40, count=40).offsets == list(range(40, 80))
        assert house.broker.status()["damage"]["records"] == 0
        found = Fetch(house, 80)
        house.run()
        assert isinstance(found.error, Unreadable) and found.next_offset == 90

    def topics(self, count: int) -> tuple[House, FakeArchive]:
        """Each has 50 records in row groups of 10, and all of them are in the archive alone."""
        archive = FakeArchive(rows_max=10)
        house = cold_house(archive, read_cache_bytes=1 << 20)
        for number in range(count):
            produce(house, f"t{number}", *[value(offset) for offset in range(50)])
            house.run()
        archive_all(house, archive)
        house = house.crash()
        house.run()
        return house, archive

    def test_some_readers_side_by_side_have_nothing_read_twice(self) -> None:
        house, archive = self.topics(AHEAD_MAX)
        found: list[Record] = []
        before = archive.reads
        for offset in range(0, 50, 10):
            for number in range(AHEAD_MAX):
                house.broker.reader.fetch(
                    partition_of(house, f"t{number}"),
                    offset,
                    10,
                    1 << 20,
                    lambda records, *_: found.extend(records),
                )
                house.run()
        assert len(found) == AHEAD_MAX * 50
        assert archive.reads - before == AHEAD_MAX * 5

    def test_many_readers_hold_little_that_nobody_asked_for(self) -> None:
        house, _ = self.topics(20)
        for offset in (0, 10):
            for number in range(20):
                house.broker.reader.fetch(
                    partition_of(house, f"t{number}"), offset, 10, 1 << 20, lambda *found: None
                )
                house.run()
        assert len(house.broker.cold_reader._archive._aheads) <= AHEAD_MAX
        for number in range(20):
            values = [one.value for one in fetch_of(house, f"t{number}")]
            assert values == [value(offset) for offset in range(50)]


def fetch_of(house: House, topic: str) -> list[Record]:
    """All records of a topic."""
    found: list[Record] = []
    house.broker.reader.fetch(
        partition_of(house, topic), 0, 1_000, 1 << 30, lambda records, *_: found.extend(records)
    )
    house.run()
    return found


class TestHoles:
    def test_a_reader_gets_what_is_left_and_is_told_where_to_go_on(self) -> None:
        house, archive = filled()
        archive.remove(KEY, [*range(5), 7, *range(20, 290), 299])
        house.broker.archive_refresher.refresh()
        house.run()
        left = [5, 6, *range(8, 20), *range(290, 299), *range(300, 350)]
        assert fetch(house, 0).offsets == left
        offset, found = 0, []
        while (part := fetch(house, offset, count=1)).records:
            found += part.offsets
            offset = part.next_offset
        assert found == left

    @pytest.mark.parametrize("settings", [{}, {"read_cache_bytes": 1 << 20}])
    def test_a_long_hole_is_passed_at_once(self, settings: dict[str, int]) -> None:
        """No turn for each of a trillion removed records."""
        archive = FakeArchive()
        house = cold_house(archive, **settings)
        house.append("t", b"first")
        far = 1 << 40
        partition = partition_of(house)
        partition.restore(far)
        house.append("t", b"last")
        archive.cover(KEY, 0, far, [Record(0, b"first", append_time_us=1)])
        partition.archived_end = far
        house.broker.archive_refresher.refresh()
        house.run()
        found = Fetch(house, 1)
        turns = 0
        while not found.answers:
            house.turn()
            house._step()
            turns += 1
        assert (found.offsets, found.next_offset) == ([far], far + 1)
        assert turns < 10

    def test_many_short_holes_hold_up_nothing(self) -> None:
        """A turn looks at so many of them, and no more."""
        archive = FakeArchive()
        house = cold_house(archive, read_cache_bytes=1 << 30)
        count = 4 * EXAMINED_MAX
        records = [Record(offset, b"x", append_time_us=1) for offset in range(0, 2 * count, 2)]
        house.append("t", b"x")
        partition_of(house).restore(2 * count)
        partition_of(house).archived_end = 2 * count
        archive.cover(KEY, 0, 2 * count, records)
        house.broker.archive_refresher.refresh()
        house.run()
        fetch(house, 1)
        assert archive.reads == 1
        found = Fetch(house, 1)
        assert not found.answers, "not all in one turn"
        house.turn()
        assert found.offsets == [one.offset for one in records[1:]]
        assert archive.reads == 1

    def test_groups_settle_a_hole_in_one_go_and_go_on_behind_it(self) -> None:
        house, archive = filled()
        archive.remove(KEY, range(3, 290))
        house.broker.archive_refresher.refresh()
        house.run()
        assert drained(house) == [0, 1, 2, *range(290, 350)]
        info = house.broker.overview.group_info("t", "g")
        assert (info.floor, info.lag) == (350, 0)
        house = house.crash()
        house.run()
        assert house.broker.overview.group_info("t", "g").floor == 350

    def test_a_hole_of_any_length_is_one_event_of_a_group(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive)
        house.append("t", b"first")
        far = 1 << 40
        partition_of(house).restore(far)
        partition_of(house).archived_end = far
        house.append("t", b"last")
        archive.cover(KEY, 0, far, [Record(0, b"first", append_time_us=1)])
        house.broker.archive_refresher.refresh()
        house.run()
        assert [offset for offset, _ in lease(house, limit=1)] == [0]
        assert [offset for offset, _ in lease(house, limit=1)] == [far]
        assert house.broker.overview.group_info("t", "g").lag == 2

    def test_nobody_is_given_what_is_removed_whatever_the_clock_says(self) -> None:
        """Records that the archive removed stay removed while broker time is ahead."""
        house, archive = filled()
        archive.remove(KEY, range(290))
        house.broker.archive_refresher.refresh()
        house.run()
        house.wall_seconds += 10 * 86_400
        house.clock.advance(1)
        house.run()
        assert house.broker.time.ahead_us
        assert fetch(house, 0, count=3).offsets == [290, 291, 292]
        assert lease(house)[0][0] == 290

    def test_keys_are_in_order_around_holes(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive)
        house.broker.topics.create("t")
        keys = [b"a", b"a", b"b", b"a", None, b"b", b"a"]
        for offset, key in enumerate(keys):
            house.append("t", value(offset), key=key)
        archive_all(house, archive)
        archive.remove(KEY, [1, 2])
        house.broker.archive_refresher.refresh()
        house.run()
        house.broker.groups.configure("t", "g", GroupSettings(key_ordered=True))
        assert [o for o, _ in lease(house, limit=1)] == [0]
        assert [o for o, _ in lease(house, limit=1)] == [4]
        assert [o for o, _ in lease(house, limit=1)] == [5]
        assert lease(house, limit=1) == []
        settle(house, 0)
        assert [o for o, _ in lease(house, limit=1)] == [3]
        assert lease(house, limit=1) == []

    def test_a_group_that_goes_back_below_a_hole_passes_it(self) -> None:
        house, archive = filled()
        assert drained(house) == list(range(350))
        archive.remove(KEY, range(10, 290))
        house.broker.archive_refresher.refresh()
        house.run()
        house.broker.groups.seek("t", "g", 5)
        house.run()
        assert drained(house) == [*range(5, 10), *range(290, 350)]


class TestGroups:
    def test_leasing_goes_from_the_archive_into_memory_without_a_seam(self) -> None:
        house, _ = filled()
        assert drained(house) == list(range(350))

    def test_a_dead_letter_in_the_archive_is_replayed_and_leased(self) -> None:
        house, _ = filled()
        for offset in (2, 120):
            house.broker.leases.dead_letter(
                house.broker.leases.group_partition("t", "g", 0, offset), offset, "bad"
            )
        house.run()
        assert drained(house) == [o for o in range(350) if o not in (2, 120)]
        assert house.broker.groups.replay_dead_letters("t", "g") == 2
        assert drained(house) == [2, 120]

    def test_a_lease_lives_over_the_removal_of_its_segment(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive)
        produced(house, 0, 300)
        ((grant, _),) = grants(house, seconds=1000)
        archive_all(house, archive)
        house = house.crash()
        house.run()
        assert settle(house, grant.offset, token=grant.token)
        assert lease(house)[0][0] == 1

    def test_compaction_between_leases_takes_nothing_from_them(self) -> None:
        """A worker in the middle of what compaction replaces gets each record once, in order."""
        house, archive = filled(rows_max=20)
        found: list[int] = []
        removed: set[int] = set()
        while part := lease(house, limit=7):
            for offset, _ in part:
                settle(house, offset)
            found += [offset for offset, _ in part]
            floor = house.broker.overview.group_info("t", "g").floor
            removed.update(range(max(0, floor - 30), floor, 3))
            archive.remove(KEY, range(0, floor, 3))
            archive.vacuum()
            if len(removed) % 2:
                house.broker.archive_refresher.refresh()
            house.run()
        assert found == list(range(350))

    def test_the_age_of_the_oldest_record_is_known_soon(self) -> None:
        house, _ = filled()
        house.pass_time(100, step=10)
        lease(house, limit=1, group="none")  # any group
        house.broker.groups.seek("t", "g", 3)
        house.run()
        assert house.broker.overview.group_info("t", "g").oldest_age_us is None
        house.run()
        age_us = house.broker.overview.group_info("t", "g").oldest_age_us
        assert age_us is not None and 100 * SECOND_US <= age_us < 110 * SECOND_US

    @pytest.mark.parametrize("cache", [0, 1 << 20])
    @pytest.mark.parametrize("also_removed", [0, 30])
    def test_the_age_of_a_hole_is_that_of_what_follows(self, cache: int, also_removed: int) -> None:
        house, archive = filled(read_cache_bytes=cache)
        archive.remove(KEY, [*range(1, 20), also_removed])
        house.broker.archive_refresher.refresh()
        house.broker.groups.seek("t", "g", 3)
        house.run()
        fetch(house, 0, count=1)
        house.broker.overview.group_info("t", "g")
        house.run()
        wanted_us = (
            house.broker.time.time_us() - fetch(house, 20, count=1).records[0].append_time_us
        )
        assert house.broker.overview.group_info("t", "g").oldest_age_us == wanted_us

    def test_the_age_is_known_behind_a_hole_that_fills_what_one_read_gives(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a row group of which all is removed, or the rest of a file."""
        really = FakeView.read

        def read_hole(view: FakeView, *asked: int) -> ArchivedRows | None:
            rows = really(view, *asked)
            if rows is None or rows.offsets[:1] == [rows.first]:
                return rows
            end = min(rows.first + 4, rows.offsets[0] if rows.offsets else rows.end)
            return ArchivedRows(rows.first, end, [], columns_of([]))

        house, archive = filled()
        archive.remove(KEY, range(20))
        monkeypatch.setattr(FakeView, "read", read_hole)
        self.assert_age_is_known(house)

    def test_the_age_is_known_when_the_archive_that_did_not_know_it_does(self) -> None:
        house, archive = filled()
        whole = archive.newest._held[KEY]
        archive.forget(KEY)
        house.broker.archive_refresher.refresh()
        house.broker.groups.seek("t", "g", 3)
        for _ in range(2):
            house.run()
            assert house.broker.overview.group_info("t", "g").oldest_age_us is None
        archive.cover(KEY, 0, 300, whole.records)
        self.assert_age_is_known(house)

    def assert_age_is_known(self, house: House) -> None:
        house.broker.archive_refresher.refresh()
        house.broker.groups.seek("t", "g", 3)
        house.run()
        house.broker.overview.group_info("t", "g")
        house.run()
        assert house.broker.overview.group_info("t", "g").oldest_age_us is not None


class TestUnavailable:
    @pytest.mark.parametrize("back", ["the archive", "a restart"])
    def test_readers_are_told_to_try_again_and_then_go_on(self, back: str) -> None:
        house, archive = filled()
        archive.failure = archive.read_failure = ArchiveUnavailable("not mounted")
        if back == "a restart":
            house = house.crash()
            house.run()
        found = Fetch(house, 5)
        house.run()
        assert isinstance(found.error, ArchiveUnavailable) and found.next_offset == 5
        assert fetch(house, 300).offsets == list(range(300, 350)), "the log is served"
        with pytest.raises(ArchiveUnavailable):
            lease(house)
        damage = house.broker.status()["damage"]
        assert (damage["degraded"], damage["records"], damage["failed_reads"]) == ("", 0, 0)
        info = house.broker.overview.group_info("t", "g")
        assert (info.dead, info.leased, info.floor) == (0, 0, 0)
        archive.failure = archive.read_failure = None
        house.pass_time(6, step=0.5)
        assert fetch(house, 5).offsets == list(range(5, 350))
        assert drained(house) == list(range(350))

    def test_what_comes_before_is_given_first(self) -> None:
        archive = FakeArchive(rows_max=10)
        house = cold_house(archive, read_cache_bytes=1 << 20)
        produced(house, 0, 300)
        archive_all(house, archive)
        read(house, "t", 5)
        archive.failure = archive.read_failure = OSError(5, "gone")
        found = Fetch(house, 5)
        house.run()
        assert (found.error, found.offsets) == (None, list(range(5, 15)))

    def test_an_archive_that_lost_its_newest_part_is_not_damage(self) -> None:
        """Somebody restored an older one; it may come back."""
        house, archive = filled()
        archive.forget(KEY)
        house.broker.archive_refresher.refresh()
        house.run()
        found = Fetch(house, 5)
        house.run()
        assert isinstance(found.error, ArchiveUnavailable)
        assert house.broker.status()["damage"]["records"] == 0

    def test_one_of_another_log_serves_nothing_and_damages_nothing(self) -> None:
        house, archive = filled()
        archive.versions[-1].log_id = "f" * 32
        house = house.crash()
        house.run()
        found = Fetch(house, 5)
        house.run()
        assert isinstance(found.error, ArchiveUnavailable) and "f" * 32 in str(found.error)
        assert house.broker.status()["damage"]["records"] == 0


class TestDamage:
    def test_what_is_damaged_is_told_once_and_the_rest_is_served(self) -> None:
        house, archive = filled()
        archive.damage[KEY] = (100, 150)
        with capturedLogs() as events:
            assert fetch(house, 0).offsets == list(range(100))
            found = Fetch(house, 100)
            house.run()
        assert isinstance(found.error, Unreadable) and found.next_offset == 150
        assert [(one["event_id"], "backup" in one["advice"]) for one in events] == [
            ("read-damaged", True)
        ]
        assert (found.error.first, found.error.end) == (100, 150)
        assert fetch(house, 150).offsets == list(range(150, 350))
        damage = house.broker.status()["damage"]
        assert (damage["places"], damage["records"]) == (1, 50)
        assert "the archive is damaged" in damage["degraded"]
        assert "from a backup" in damage["degraded"] and "wal verify" not in damage["degraded"]

    def test_a_group_makes_dead_letters_of_it_as_of_damage_in_the_log(self) -> None:
        house, archive = filled()
        archive.damage[KEY] = (1, 3)
        assert lease(house)[0][0] == 0
        with pytest.raises(DamagedData, match="damaged"):
            lease(house)

    def test_what_neither_log_nor_archive_ever_had_is_damage(self) -> None:
        """As without an archive: the log let go of nothing there."""
        house, _ = filled()
        partition = partition_of(house)
        partition.restore(400)
        found = Fetch(house, 360)
        house.run()
        assert isinstance(found.error, Unreadable) and found.error.first == 360


class TestByTime:
    def times(self, house: House, offsets: list[int]) -> list[int]:
        return [fetch(house, offset, count=1).records[0].append_time_us for offset in offsets]

    def at(self, house: House, time_us: int) -> int | Exception | None:
        found: list[int | Exception | None] = []
        house.broker.reader.offset_at_time(
            partition_of(house), time_us, lambda offset, error: found.append(error or offset)
        )
        assert found == []
        house.run()
        (answer,) = found
        return answer

    def spread(self) -> tuple[House, FakeArchive]:
        """A record a second: 300 in the archive alone, then 20 in the log."""
        archive = FakeArchive()
        house = cold_house(archive)
        for offset in range(320):
            if offset == 300:
                archive_all(house, archive)
            produce(house, "t", value(offset))
            house.run()
            house.wall_seconds += 1
            house.clock.advance(1)
        house.run()
        return house, archive

    def test_an_offset_is_found_by_time_wherever_its_record_is(self) -> None:
        house, _ = self.spread()
        assert partition_of(house).archived_end == 300
        offsets = [0, 1, 150, 299, 300, 310, 319]
        for offset, time_us in zip(offsets, self.times(house, offsets), strict=True):
            assert self.at(house, time_us) == offset
            assert self.at(house, time_us + 1) == offset + 1
        assert self.at(house, 0) == 0

    def test_the_log_alone_tells_what_it_can(self) -> None:
        house, archive = self.spread()
        (time_us,) = self.times(house, [310])
        archive.failure = archive.read_failure = OSError("gone")
        assert self.at(house, time_us) == 310
        (time_us,) = self.times(house, [300])
        assert isinstance(self.at(house, time_us), ArchiveUnavailable)

    def test_a_time_in_a_hole_is_that_of_the_next_record(self) -> None:
        house, archive = self.spread()
        (time_us,) = self.times(house, [100])
        archive.remove(KEY, range(50, 150))
        house.broker.archive_refresher.refresh()
        house.run()
        assert self.at(house, time_us) == 150
        archive.remove(KEY, range(50, 300))
        house.broker.archive_refresher.refresh()
        house.run()
        assert self.at(house, time_us) == 300

    def test_gaps_of_the_log_do_not_hide_the_archive(self) -> None:
        """Damage took what came next: the archive knows of the time before that."""
        house, _ = self.spread()
        (time_us,) = self.times(house, [299])
        partition = partition_of(house)
        partition.gaps.append((300, 310))
        partition.archived_end = 300
        house.broker.topics.trim("t", 0, 10)
        house.run()
        house.wal.plan_offset_at_time = lambda *key: Told(310)  # type: ignore[method-assign]
        assert self.at(house, time_us) == 299

    def test_records_in_the_archive_go_by_age_when_it_is_time_and_not_before(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive, **retention(retention_us=100 * SECOND_US))
        for offset in range(200):
            if offset == 60:
                archive_all(house, archive)
            produce(house, "t", value(offset))
            house.run()
            house.pass_time(1, step=1)
            now_us = house.broker.time.time_us()
            start = partition_of(house).start_offset
            oldest_us = self.times(house, [start])[0]
            assert oldest_us >= now_us - 116 * SECOND_US, "checked every ten seconds"
            if start:
                assert offset - start >= 98, "none went too early"
        assert partition_of(house).start_offset > 80

    def test_nothing_goes_by_age_that_nobody_can_tell_the_age_of(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive, **retention(retention_us=100 * SECOND_US))
        produced(house, 0, 300)
        archive_all(house, archive)
        archive.failure = archive.read_failure = OSError("gone")
        house.pass_time(80, step=5)
        produced(house, 300, 310)
        house.pass_time(60, step=5)
        assert partition_of(house).start_offset == 0
        assert house.broker.status()["retention"]["errors"] == 0
        archive.failure = archive.read_failure = None
        house.pass_time(20, step=5)
        assert partition_of(house).start_offset == 300

    def test_the_size_of_a_partition_is_that_of_log_and_archive(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive, **retention(retention_bytes=200 * KIB))
        produced(house, 0, 200)
        archive_all(house, archive)
        produced(house, 200, 300)
        house.pass_time(11, step=0.5)
        assert partition_of(house).start_offset == 0
        produced(house, 300, 400)
        house.pass_time(11, step=0.5)
        start = partition_of(house).start_offset
        assert 40 <= start <= 70, "200 KiB are about 335 records"
        assert fetch(house, 0).offsets == list(range(start, 400))

    def test_a_partition_that_is_in_the_archive_alone_goes_by_size_too(self) -> None:
        archive = FakeArchive()
        house = cold_house(archive, **retention(retention_bytes=60 * KIB))
        house.broker.topics.create("t", settings=TopicSettings(retention_bytes=0))
        produced(house, 0, 300)
        archive_all(house, archive)
        house.broker.topics.configure("t", TopicSettings())
        house.pass_time(11, step=0.5)
        assert 190 <= partition_of(house).start_offset <= 210


def retention(retention_us: int = 0, retention_bytes: int = 0) -> dict[str, RetentionSettings]:
    topics = TopicSettings(retention_us, retention_bytes, 0)
    return {"retention": RetentionSettings(topics, 0, 10 * SECOND_US)}


class Told:
    """A plan of the log that finds an offset."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def run(self) -> int:
        return self._offset


class TestSchedule:
    @pytest.mark.parametrize("is_prompt", [True, False])
    def test_delayed_messages_in_the_archive_are_fired_when_they_are_due(
        self, is_prompt: bool
    ) -> None:
        """In order, whether they were read ahead or the archive came back too late for that."""
        archive = FakeArchive()
        house = cold_house(archive)
        topic = house.broker.topics.create("t")
        for number in range(300):
            house.broker.delayed.produce(
                topic, value(number), delay_us=(60 + number // 50) * SECOND_US
            )
            house.run()
        archive_all(house, archive)
        assert len(segments(house)) == 1
        if not is_prompt:
            archive.read_failure = OSError("gone")
        house.pass_time(59, step=0.5)
        assert partition_of(house).next_offset == 0
        house.pass_time(20, step=0.5)
        if not is_prompt:
            assert partition_of(house).next_offset == 0
            archive.read_failure = None
            house.pass_time(20, step=0.5)
        assert (house.broker.status()["reads_from_disk"] == 0) == is_prompt
        assert [one.value for one in fetch(house, 0).records] == [value(n) for n in range(300)]
        assert house.broker.delayed.counters.lost == 0

    def test_one_that_expired_and_was_removed_is_listed_until_it_is_due(self) -> None:
        """Its own time to live ended first: then it is dropped."""
        archive = FakeArchive()
        house = cold_house(archive, read_cache_bytes=1 << 20)
        topic = house.broker.topics.create("t")
        soon_us = house.broker.time.time_us() + SECOND_US
        for number in range(3):
            house.broker.delayed.produce(
                topic,
                b"%d" % number,
                delay_us=60 * SECOND_US,
                expires_at_us=soon_us * (number != 1),
            )
        house.run()
        archive_all(house, archive)
        internal = house.broker.topics.find("t").internal  # type: ignore[union-attr]
        archive.remove((internal.topic_id, 0), [0, 2])
        house.pass_time(45, step=0.5)
        house.broker.reader.load(internal.partitions[0], 0, lambda chunk, error: None)
        house.run()
        assert [(one.id, one.preview) for one in house.broker.delayed.scheduled("t")] == [
            (0, None),
            (1, b"1"),
            (2, None),
        ]
        house.pass_time(20, step=0.5)
        assert [one.value for one in fetch(house, 0).records] == [b"1"]
        assert house.broker.delayed.counters.expired == 2


def test_a_broker_without_an_archive_asks_nobody() -> None:
    """What the log lacks is damage, as it always was."""
    house = House(settings=BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0))
    produced(house, 0, 10)
    partition_of(house).restore(20)
    found = Fetch(house, 15)
    house.run()
    assert isinstance(found.error, Unreadable)
    assert house.broker.archive_refresher.status()["version"] is None
