"""Records that left memory come back from the log, within budgets, and damage stays where it is."""

from __future__ import annotations

import errno
import gc

import pytest
from twisted.logger import capturedLogs

from brokerd.broker import BrokerSettings, Chunk
from brokerd.broker.model.chunks import CHUNK_BYTES, CHUNK_RECORDS, RECORD_OVERHEAD_BYTES
from brokerd.errors import DamagedData, RecordRemoved
from brokerd.wal import WalOptions
from tests.broker.desk import acknowledged, lease, produce, read
from tests.broker.test_state import entries, is_records, rot
from tests.house import House

KIB = 1024
SMALL = WalOptions(segment_bytes=64 * KIB, free_bytes_min=0)
FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)


def value(offset: int, size: int = 0) -> bytes:
    return b"%d" % offset + b"." * size


def filled(
    count: int, size: int = 0, settings: BrokerSettings = FORGETFUL, batch: int = 1
) -> House:
    """A house with ``count`` records in batches of ``batch``, over small segments."""
    house = House(settings=settings, options=SMALL)
    for first in range(0, count, batch):
        produce(house, "t", *[value(offset, size) for offset in range(first, first + batch)])
        house.run()
    return house


class Reader:
    """A read under way and what came of it."""

    def __init__(self, house: House, offset: int, topic: str = "t") -> None:
        self.offset = offset
        self.value: bytes | None = None
        self.error: Exception | None = None
        self.answers = 0
        partition = house.broker.topics.existing(topic).partition(0)
        house.broker.reader.load(partition, offset, self.loaded)

    def loaded(self, chunk: Chunk | None, error: Exception | None) -> None:
        self.answers += 1
        self.error = error
        if chunk is not None:
            self.value = chunk.values[self.offset - chunk.base]


class TestReading:
    def test_one_record_batches_over_many_segments_come_back_one_by_one(self) -> None:
        house = filled(300, size=600)
        assert len(house.wal.segments()) > 3
        for offset in range(300):
            assert read(house, "t", offset).value == value(offset, 600)

    def test_reading_on_takes_in_what_follows_over_segments(self) -> None:
        house = filled(300, 600, BrokerSettings(tail_cache_bytes=0))
        assert [read(house, "t", offset).value for offset in range(300)] == [
            value(offset, 600) for offset in range(300)
        ]
        assert house.broker.status()["reads_from_disk"] == 1

    def test_leasing_goes_from_the_log_into_memory_without_a_seam(self) -> None:
        house = filled(100, 50, BrokerSettings(tail_cache_bytes=2_000, read_cache_bytes=1_000))
        produce(house, "t", value(100, 50))
        found = []
        while more := lease(house, limit=7):
            found += more
        assert found == [(offset, value(offset, 50)) for offset in range(101)]

    def test_a_fault_in_one_reader_strands_no_other(self) -> None:
        house = filled(50)
        partition = house.broker.topics.existing("t").partition(0)

        def faulty(chunk: Chunk | None, error: Exception | None) -> None:
            raise RuntimeError("as asked for")

        house.broker.reader.load(partition, 10, faulty)
        readers = [Reader(house, offset) for offset in (10, 20)]
        with capturedLogs() as captured:
            house.run()
        assert [reader.value for reader in readers] == [value(10), value(20)]
        assert [one["event_id"] for one in captured if "log_failure" in one] == ["callback-fault"]

    def test_a_read_that_cannot_be_planned_fails_and_the_next_one_begins(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house = filled(50)
        with monkeypatch.context() as patch:
            patch.setattr(house.wal, "plan_read", lambda *_: 1 // 0)
            first = Reader(house, 10)
            house.run()
        assert isinstance(first.error, ZeroDivisionError)
        assert read(house, "t", 10).value == value(10)

    def test_those_who_ask_meanwhile_share_the_read(self) -> None:
        house = filled(50)
        readers = [Reader(house, offset) for offset in (10, 20, 10, 49)]
        assert all(reader.answers == 0 for reader in readers)
        assert len(house.readers) == 1
        house.run()
        assert [reader.value for reader in readers] == [value(o) for o in (10, 20, 10, 49)]
        assert house.broker.status()["reads_from_disk"] == 1

    def test_those_it_does_not_serve_are_read_after_it(self) -> None:
        house = filled(50)
        readers = [Reader(house, offset) for offset in (40, 3, 45, 2)]
        house.run()
        assert [reader.value for reader in readers] == [value(o) for o in (40, 3, 45, 2)]
        assert [reader.answers for reader in readers] == [1, 1, 1, 1]

    def test_partitions_are_read_at_the_same_time(self) -> None:
        house = filled(2)
        produce(house, "u", b"other")
        house.run()
        Reader(house, 0), Reader(house, 0, "u")
        assert len(house.readers) == 2

    def test_records_read_after_a_restart_are_what_was_produced(self) -> None:
        house = filled(200, 300, batch=20).crash()
        for offset in (0, 19, 20, 100, 199):
            assert read(house, "t", offset).value == value(offset, 300)


class TestBudgets:
    def test_the_tail_keeps_its_budget_once_all_is_durable(self) -> None:
        budget = 50_000
        house = House(settings=BrokerSettings(tail_cache_bytes=budget))
        for _ in range(50):
            produce(house, "t", *[bytes(900)] * 10)
            house.run()
        assert house.broker.status()["tail_cache_bytes"] <= budget

    def test_what_was_read_keeps_its_budget(self) -> None:
        budget = 20_000
        house = filled(300, 600, BrokerSettings(tail_cache_bytes=0, read_cache_bytes=budget))
        partition = house.broker.topics.existing("t").partition(0)
        for offset in range(0, 300, 7):
            read(house, "t", offset)
            held = [o for o in range(300) if partition.find(o) is not None]
            assert house.broker.status()["read_cache_bytes"] >= 600 * len(held)
            assert house.broker.status()["read_cache_bytes"] <= budget

    def test_a_trickle_of_records_does_not_keep_others_in_memory(self) -> None:
        """A chunk that always has a record on its way to the disk must stay, but it alone."""
        budget = 20_000
        house = House(settings=BrokerSettings(tail_cache_bytes=budget))
        produce(house, "trickle", b"x")
        for _ in range(200):
            produce(house, "t", bytes(9_000))
            house.turn()
            produce(house, "trickle", b"x")
            house.writer.step()
            house.background.run()
        assert house.broker.status()["tail_cache_bytes"] <= budget + 2 * CHUNK_BYTES

    def test_many_small_records_close_a_chunk_in_time(self) -> None:
        house = House()
        for _ in range(3):
            produce(house, "t", *[b"x"] * 700)
            house.run()
        partition = house.broker.topics.existing("t").partition(0)
        first = partition.find(0)
        assert first is not None
        assert CHUNK_RECORDS <= len(first.values) < 2 * CHUNK_RECORDS
        counted = house.broker.status()["tail_cache_bytes"]
        assert counted >= 2100 * RECORD_OVERHEAD_BYTES

    def test_the_garbage_collector_forgets_full_chunks_and_those_read_from_the_log(self) -> None:
        """Only the chunk that is being appended to is in lists."""
        house = filled(3, settings=BrokerSettings(tail_cache_bytes=0))
        assert read(house, "t", 0).value == value(0)
        full = House()
        for values in ([b"x"] * CHUNK_RECORDS, [b"y"]):
            produce(full, "t", *values)
            full.run()
        gc.collect()
        chunks = [
            one.broker.topics.existing("t").partition(0).find(offset)
            for one, offset in ((house, 0), (full, 0), (full, CHUNK_RECORDS))
        ]
        assert [chunk is not None and gc.is_tracked(chunk.values) for chunk in chunks] == [
            False,
            False,
            True,
        ]
        assert None not in chunks


class TestTrouble:
    def damaged(self) -> House:
        house = filled(5)
        house.pass_time(0.5)
        house.disk.crash()
        hit = is_records(1, 2)
        [(name, _, entry)] = [place for place in entries(house) if hit(place[2].entry)]
        rot(house, name, entry.position + 48)
        return house.again()

    def test_only_the_damaged_batch_cannot_be_read(self) -> None:
        house = self.damaged()
        for offset in (0, 1, 3, 4):
            assert read(house, "t", offset).value == value(offset)
        with pytest.raises(DamagedData, match=r"\.wal at [0-9]+ to [0-9]+: "):
            read(house, "t", 2)

    def test_those_who_wait_for_others_are_served_although_one_is_damaged(self) -> None:
        house = self.damaged()
        readers = [Reader(house, offset) for offset in (2, 0, 2, 4, 1)]
        house.run()
        assert [reader.value for reader in readers] == [None, b"0", None, b"4", b"1"]
        assert isinstance(readers[0].error, DamagedData)
        assert isinstance(readers[2].error, DamagedData)
        assert [reader.answers for reader in readers] == [1] * 5

    def test_damage_that_comes_while_the_broker_runs_is_found_by_the_read(self) -> None:
        house = filled(5)
        hit = is_records(1, 2)
        [(name, _, entry)] = [place for place in entries(house) if hit(place[2].entry)]
        rot(house, name, entry.position + 48)
        with pytest.raises(DamagedData, match=r"\.wal at [0-9]+ to [0-9]+: "):
            read(house, "t", 2)
        assert read(house, "t", 1).value == b"1"
        assert read(house, "t", 3).value == b"3"

    def test_a_file_that_cannot_be_opened_is_told_and_the_next_read_works(self) -> None:
        house = filled(300, 600)
        house.run()
        house.disk.fail("open", error=errno.EMFILE)
        reader = Reader(house, 0)
        house.run()
        assert isinstance(reader.error, OSError)
        assert read(house, "t", 0).value == value(0, 600)

    def test_the_age_of_an_old_record_needs_no_disk_of_the_reactor(self) -> None:
        """Until its index has been read elsewhere, it is as old as its segment."""
        house = filled(300, 600)
        lease(house, seconds=900)
        acknowledged(house)
        house.run()
        house = house.crash()
        house.disk.calls.clear()
        assert house.broker.overview.group_info("t", "g").oldest_age_us == pytest.approx(0, abs=10)
        assert not house.disk.calls
        house.run()
        assert house.disk.calls["open"]
        assert house.broker.overview.group_info("t", "g").oldest_age_us == pytest.approx(0, abs=10)

    def test_an_offset_that_the_log_does_not_hold_is_told(self) -> None:
        house = filled(5)
        with pytest.raises(DamagedData, match="neither journal nor archive holds it"):
            read(house, "t", 77)


class TestRemovedRecords:
    """What is removed is neither read nor taken for damage, whenever it goes."""

    def quiet(self, house: House) -> bool:
        damage = house.broker.status()["damage"]
        return not damage["reads"] and not damage["failed_reads"] and not damage["ranges"]

    def test_below_the_start_offset_nothing_is_read(self) -> None:
        house = filled(20)
        house.broker.topics.trim("t", 0, 10)
        readers = [Reader(house, offset) for offset in (3, 9, 10)]
        assert all(reader.answers == 0 for reader in readers), "never at once"
        house.run()
        assert [type(reader.error) for reader in readers[:2]] == [RecordRemoved] * 2
        assert "the records begin at 10" in str(readers[0].error)
        assert readers[2].value == value(10)
        assert self.quiet(house)

    def test_removed_while_it_is_read(self) -> None:
        house = filled(20)
        readers = [Reader(house, offset) for offset in (3, 12)]
        house.broker.topics.trim("t", 0, 10)
        house.run()
        assert isinstance(readers[0].error, RecordRemoved)
        assert readers[1].value == value(12)
        assert self.quiet(house)

    def test_deleted_with_its_topic_while_it_is_read(self) -> None:
        house = filled(20, settings=BrokerSettings(tail_cache_bytes=0))
        readers = [Reader(house, offset) for offset in (3, 12)]
        house.broker.topics.delete("t")
        house.run()
        assert [type(reader.error) for reader in readers] == [RecordRemoved] * 2
        assert house.broker.status()["read_cache_bytes"] == 0
        assert self.quiet(house)
