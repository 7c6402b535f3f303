"""Damage is told once, by names that people know, and stays to be seen while the broker runs."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from brokerd.broker.model.topics import Topic
from brokerd.broker.status.damage import (
    RANGES_MAX,
    SHOWN_MAX,
    DamagedBytes,
    DamageRegistry,
    OffsetRange,
)
from brokerd.errors import DamagedData
from simulator.machine.bare import STATE_DIR, WAL_DIR
from tests.broker.desk import lease, produce, read
from tests.broker.test_cold_reader import FORGETFUL, SMALL, Reader, filled
from tests.broker.test_state import after_damage, entries, is_records, produce_each, rot
from tests.house import House

PLACE = DamagedBytes("00000000000000000000.wal", 4096, 4200, "a checksum does not match")


def events(captured: list[Any], event_id: str) -> list[Any]:
    return [event for event in captured if event.get("event_id") == event_id]


def damage(house: House) -> dict[str, Any]:
    status: dict[str, Any] = house.broker.status()["damage"]
    return status


class TestCounting:
    @pytest.mark.parametrize(
        ("added", "ranges", "records"),
        [
            ([(0, 1)], 1, 1),
            ([(0, 1), (0, 1)], 1, 1),
            ([(0, 1), (1, 2)], 1, 2),
            ([(0, 1), (2, 3)], 2, 2),
            ([(0, 1), (2, 3), (1, 2)], 1, 3),
            ([(5, 9), (0, 20)], 1, 20),
            ([(0, 20), (5, 9)], 1, 20),
            ([(0, 4), (8, 12), (2, 10)], 1, 12),
        ],
    )
    def test_ranges_that_touch_are_one(
        self, added: list[tuple[int, int]], ranges: int, records: int
    ) -> None:
        quarantine = DamageRegistry()
        for first, end in added:
            quarantine.found(PLACE, [OffsetRange("t", 0, first, end)])
        assert (quarantine.ranges, quarantine.records) == (ranges, records)

    def test_partitions_and_topics_are_told_apart(self) -> None:
        quarantine = DamageRegistry()
        for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
            quarantine.found(PLACE, [OffsetRange(topic, partition, 0, 2)])
        assert (quarantine.ranges, quarantine.records) == (3, 6)

    def test_what_lies_in_one_place_is_one_place_whoever_finds_it(self) -> None:
        """Its ranges are gathered, by topic and partition; those that touch are one."""
        quarantine = DamageRegistry()
        quarantine.found(PLACE, [OffsetRange("t", 0, 0, 2), OffsetRange("u", 0, 7, 8)])
        partition = Topic(1, "t", 1).partition(0)
        for first in (4, 2, 9):
            quarantine.read_damaged(partition, first, first + 1, PLACE._replace(problem="read"))
        assert quarantine.places == 1
        assert quarantine.status()["shown"] == [
            {
                **PLACE._asdict(),
                "lost": [
                    {"topic": "t", "partition": 0, "first": 0, "last": 2},
                    {"topic": "t", "partition": 0, "first": 4, "last": 4},
                    {"topic": "t", "partition": 0, "first": 9, "last": 9},
                    {"topic": "u", "partition": 0, "first": 7, "last": 7},
                ],
            }
        ]

    def test_where_nobody_can_tell_the_place_there_is_one_for_each_partition(self) -> None:
        quarantine = DamageRegistry()
        topic = Topic(1, "t", 2)
        for first in (3, 1, 2):
            for index in (0, 1):
                nowhere = DamagedBytes("", -1, -1, f"offset {first} is not in the log")
                quarantine.read_damaged(topic.partition(index), first, first + 1, nowhere)
        assert quarantine.places == 2
        assert [place["lost"] for place in quarantine.status()["shown"]] == [
            [{"topic": "t", "partition": index, "first": 1, "last": 3}] for index in (0, 1)
        ]

    def test_many_reads_in_one_place_hide_no_other(self) -> None:
        quarantine = DamageRegistry()
        partition = Topic(1, "t", 1).partition(0)
        for first in range(0, 6 * SHOWN_MAX, 2):
            quarantine.read_damaged(partition, first, first + 1, PLACE)
        quarantine.found(PLACE._replace(position=8192), [])
        one, other = quarantine.status()["shown"]
        assert (one["position"], len(one["lost"])) == (4096, SHOWN_MAX)
        assert (other["position"], other["lost"]) == (8192, [])
        assert quarantine.places == 2

    def test_a_status_stays_small_however_much_is_damaged(self) -> None:
        quarantine = DamageRegistry()
        partition = Topic(1, "t", 1).partition(0)
        for first in range(0, 3 * RANGES_MAX, 2):
            place = PLACE._replace(position=first)
            quarantine.read_damaged(partition, first, first + 1, place)
        assert quarantine.ranges == quarantine.places == RANGES_MAX
        assert len(quarantine.status()["shown"]) == SHOWN_MAX
        assert quarantine.reads == 3 * RANGES_MAX // 2

    def test_places_are_counted_however_many_there_are(self) -> None:
        quarantine = DamageRegistry()
        for position in range(RANGES_MAX + 2):
            quarantine.found(PLACE._replace(position=position), [])
        assert quarantine.places == RANGES_MAX + 2
        assert len(quarantine.status()["shown"]) == SHOWN_MAX


class TestAdvice:
    def test_every_line_has_a_command_that_can_be_run_as_it_stands(self) -> None:
        """It names the data directory, quoted for a shell."""
        command = "run brokerctl --data-dir '/srv/my broker' wal verify"
        quarantine = DamageRegistry("/srv/my broker")
        with capturedLogs() as captured:
            quarantine.found(PLACE, [])
            quarantine.read_damaged(Topic(1, "t", 1).partition(0), 0, 1, PLACE)
        for event_id in ("damage", "read-damaged"):
            [event] = events(captured, event_id)
            assert (formatEvent(event) or "").endswith(command)
        assert quarantine.reason.endswith(command)


class TestFoundByTheStart:
    def test_it_is_told_by_topic_partition_offsets_file_and_position(self) -> None:
        house = House()
        produce_each(house, "orders", b"0", b"1", b"2")
        with capturedLogs() as captured:
            house = after_damage(house, is_records(1, 1))
        [event] = events(captured, "damage")
        assert event["lost"] == "; lost topic 'orders' partition 0 offsets 1 to 1"
        assert event["file"] == "00000000000000000000.wal"
        [found] = house.report.damages
        assert (event["position"], event["end"]) == (found.position, found.end)
        [shown] = damage(house)["shown"]
        assert shown["lost"] == [{"topic": "orders", "partition": 0, "first": 1, "last": 1}]
        assert (damage(house)["ranges"], damage(house)["records"]) == (1, 1)
        assert "(places: 1, records known to be lost: 1)" in damage(house)["degraded"]

    def test_a_read_of_what_is_known_is_counted_and_not_told_again(self) -> None:
        house = House(settings=FORGETFUL)
        produce_each(house, "t", b"0", b"1", b"2")
        house = after_damage(house, is_records(1, 1))
        with capturedLogs() as captured, pytest.raises(DamagedData):
            read(house, "t", 1)
        assert not events(captured, "read-damaged")
        assert (damage(house)["places"], damage(house)["reads"]) == (1, 1)

    def test_offsets_that_are_left_out_are_told(self) -> None:
        house = House()
        produce_each(house, "t", b"0", b"1")
        produce_each(house, "u", b"x")
        with capturedLogs() as captured:
            house = after_damage(house, is_records(1, 1), header=True)
        [event] = events(captured, "offsets-left-out")
        assert (event["topic"], event["partition"], event["first"]) == ("t", 0, 1)
        [offset] = produce(house, "t", b"new")
        assert event["last"] == offset - 1
        assert damage(house)["left_out"] == [
            {"topic": "t", "partition": 0, "first": 1, "last": offset - 1}
        ]

    def test_a_sound_log_is_not_degraded(self) -> None:
        house = filled(5).crash()
        found = damage(house)
        assert found.pop("degraded") == ""
        assert not any(found.values())


class TestFoundByAread:
    def test_it_is_told_once_by_topic_partition_offsets_file_and_position(self) -> None:
        house = filled(5)
        [(name, _, entry)] = [p for p in entries(house) if is_records(1, 2)(p[2].entry)]
        rot(house, name, entry.position + 48)
        with capturedLogs() as captured:
            for _ in range(2):
                with pytest.raises(DamagedData):
                    read(house, "t", 2)
        [event] = events(captured, "read-damaged")
        assert (event["topic"], event["partition"], event["first"], event["last"]) == ("t", 0, 2, 2)
        assert (event["file"], event["position"]) == (name, entry.position)
        assert event["end"] > entry.position + 48
        found = damage(house)
        assert (found["places"], found["ranges"], found["records"], found["reads"]) == (1, 1, 1, 2)
        assert house.broker.damage.reason

    def test_a_read_that_may_pass_is_counted_apart(self) -> None:
        house = filled(300, 600)
        house.run()
        house.disk.fail("open", error=errno.EMFILE)
        with capturedLogs() as captured:
            Reader(house, 0)
            house.run()
        [event] = events(captured, "read-failed")
        assert (event["topic"], event["partition"], event["offset"]) == ("t", 0, 0)
        assert (damage(house)["failed_reads"], damage(house)["degraded"]) == (1, "")


class TestFoundInWhatCanBeMadeAgain:
    def sealed(self) -> House:
        house = House(settings=FORGETFUL, options=SMALL)
        for offset in range(300):
            produce(house, "t", b"%d" % offset + bytes(600))
            house.run()
        house.stop()
        return house.again()

    def test_an_index_found_damaged_by_the_start_is_told_and_nothing_is_lost(self) -> None:
        house = self.sealed()
        content = house.disk.content(f"{WAL_DIR}/00000000000000000000.idx")
        content[100] ^= 1
        with capturedLogs() as captured:
            house = house.again()
        [event] = events(captured, "index-rebuilt")
        assert "00000000000000000000.idx" in event["problem"]
        assert (damage(house)["indexes"], damage(house)["degraded"]) == (1, "")
        assert len(lease(house, limit=400)) > 0

    def test_an_index_found_damaged_by_a_read_is_told_and_nothing_is_lost(self) -> None:
        house = self.sealed()
        content = house.disk.content(f"{WAL_DIR}/00000000000000000000.idx")
        content[-1] ^= 1
        assert read(house, "t", 0).value == b"0" + bytes(600)
        assert (damage(house)["indexes"], damage(house)["reads"]) == (1, 0)

    def test_reads_of_what_an_index_that_was_made_again_does_not_know_are_one_place(self) -> None:
        """Headers are gone, and with them what tells where in the file the records were."""
        house = self.sealed()
        house.disk.content(f"{WAL_DIR}/00000000000000000000.idx")[-1] ^= 1
        for name, _, entry in entries(house):
            if entry.entry is not None and entry.entry.base_offset in (4, 5, 6):
                rot(house, name, entry.position)
        with capturedLogs() as captured:
            for offset in (4, 6, 5):
                with pytest.raises(DamagedData, match="neither journal nor archive holds it"):
                    read(house, "t", offset)
        assert len(events(captured, "read-damaged")) == 3
        [shown] = damage(house)["shown"]
        assert (shown["file"], shown["position"], shown["end"]) == ("", -1, -1)
        assert shown["lost"] == [{"topic": "t", "partition": 0, "first": 4, "last": 6}]
        assert (damage(house)["places"], damage(house)["records"]) == (1, 3)

    def test_a_snapshot_that_is_passed_over_is_counted(self) -> None:
        house = self.sealed()
        house.stop()
        newest = max(house.disk.list(STATE_DIR))
        house.disk.content(f"{STATE_DIR}/{newest}")[60] ^= 1
        house = house.again()
        assert (damage(house)["snapshots"], damage(house)["degraded"]) == (1, "")
        assert read(house, "t", 299).value == b"299" + bytes(600)
