"""Whatever happens to the log and its archive, every record that was kept can be read."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from brokerd.archive.contract.view import ArchiveUnavailable, DamagedArchive
from brokerd.broker import BrokerSettings, Congested
from brokerd.broker.model.topics import Partition
from brokerd.wal import Wal
from brokerd.wal.damage.verify import verify
from simulator.machine.bare import STATE_DIR, WAL_DIR
from simulator.machine.disk import CrashModel
from tests.broker.shrinking import CHECK_SECONDS, KIB, POLL_SECONDS, CountedArchive, firsts, make
from tests.broker.shrinking import settings as broker_settings
from tests.house import House

TOPICS = "abc"
AWAY = ArchiveUnavailable("not mounted")
KEEP_KIB = 100
"""Every other broker keeps so much of the log although the archive has it."""


class Shrinking(RuleBasedStateMachine):
    """A broker with an archive, and what each topic's records are."""

    def __init__(self) -> None:
        super().__init__()
        self.archive = CountedArchive()
        self.house = make(self.archive, settings=self.settings(0))
        self.kept: dict[str, list[bytes]] = {}
        self.count = 0
        self.compacted: set[bytes] = set()
        """Values that the archive has no more; the log may have them still."""
        self.is_down = False
        """Set in the middle of a crash, where an example may end for want of data."""

    def settings(self, keep_kib: int) -> BrokerSettings:
        return broker_settings(keep_kib * KIB, snapshot_interval_bytes=50 * KIB)

    def partition(self, topic: str) -> Partition:
        return self.house.broker.topics.existing(topic).partitions[0]

    # -- what clients do ------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        """As much as it takes for segments to go."""
        for _ in range(3):
            for topic in TOPICS:
                self.produce(topic, 4, 10)

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 12), kib=st.sampled_from([1, 10]))
    def produce(self, topic: str, count: int, kib: int) -> None:
        broker = self.house.broker
        for _ in range(count):
            self.count += 1
            value = b"%d " % self.count + bytes(kib * KIB)
            while True:
                try:
                    target = broker.topics.find(topic) or broker.topics.create(topic)
                    broker.appender.produce(target.partitions[0], value)
                    break
                except Congested:
                    self.house.run()
            self.kept.setdefault(topic, []).append(value)
            self.house.run()

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.kept)))
        offset = data.draw(st.integers(0, len(self.kept[topic])))
        self.house.broker.topics.trim(topic, 0, offset)
        self.house.run()

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def delete_topic(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.kept)))
        self.house.broker.topics.delete(topic)
        del self.kept[topic]
        self.house.run()

    # -- what the job does ----------------------------------------------------------------------

    @rule(seals=st.booleans())
    def roll_up(self, seals: bool) -> None:
        if seals:
            self.house.wal.seal()
            self.house.run()
        self.archive.roll_up(self.house)

    @precondition(lambda self: self.archive.versions and self.kept)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        topic = data.draw(st.sampled_from(sorted(self.kept)))
        key = self.partition(topic).topic.topic_id, 0
        held = self.archive.versions[-1]._held.get(key)
        some = held.offsets if held else ()
        offsets = data.draw(st.sets(st.sampled_from(some))) if some else set()
        self.archive.remove(key, offsets)
        self.compacted.update(self.kept[topic][offset] for offset in offsets)

    # -- what happens ---------------------------------------------------------------------------

    @rule(error=st.sampled_from([None, None, AWAY]))
    def mount(self, error: Exception | None) -> None:
        self.archive.failure = self.archive.read_failure = error

    @rule(error=st.sampled_from([None, AWAY, DamagedArchive("flipped", 0, 1)]))
    def let_it_not_say_what_it_has(self, error: Exception | None) -> None:
        self.archive.read_failure = error

    @rule(seconds=st.sampled_from([POLL_SECONDS + 1, CHECK_SECONDS + 1]))
    def pass_time(self, seconds: int) -> None:
        self.house.pass_time(seconds, step=1)

    @rule(threads=st.lists(st.integers(0, 4), max_size=30))
    def let_some_threads_work(self, threads: list[int]) -> None:
        house = self.house
        house.broker.archive_admin.refresh(lambda error: None)
        every = [
            house.writer,
            house.background,
            house.archive_threads,
            house.snapshot_writer,
            house.readers,
        ]
        for number in threads:
            every[number].step()
            house.clock.advance(0)

    @rule(
        model=st.sampled_from(CrashModel),
        dice=st.randoms(use_true_random=False),
        keep_kib=st.sampled_from([0, KEEP_KIB]),
    )
    def crash(self, model: CrashModel, dice: random.Random, keep_kib: int) -> None:
        self.is_down = True
        self.house.disk.crash(model, dice)
        self.begin_again(self.house.again(settings=self.settings(keep_kib)))

    @rule()
    def stop(self) -> None:
        self.house.run()
        self.house.stop()
        self.begin_again(self.house.again())

    def begin_again(self, house: House) -> None:
        self.house = house
        self.is_down = False
        assert house.report.damages == [] and house.report.holes == []
        assert house.report.stale_losses == []
        assert {topic.name for topic in house.broker.topics.all()} == self.kept.keys()
        for topic, values in self.kept.items():
            assert self.partition(topic).next_offset == len(values)
            assert self.partition(topic).gaps == []
            self.check_marks(self.partition(topic))

    def check_marks(self, partition: Partition) -> None:
        """What the log has not, and was not removed, is on record."""
        held = firsts(self.house).get((partition.topic.topic_id, 0), partition.next_offset)
        assert held <= max(partition.archived_end, partition.start_offset)

    # -- what must be so ------------------------------------------------------------------------

    @rule()
    def check(self) -> None:
        house = self.house
        assert house.failures == []
        assert verify(house.disk.fork(), WAL_DIR, STATE_DIR).sound
        self.archive.failure = self.archive.read_failure = None
        house.pass_time(POLL_SECONDS + 1, step=1)
        for topic, values in self.kept.items():
            partition = self.partition(topic)
            self.check_marks(partition)
            at = partition.start_offset
            while at < len(values):
                chunk, error = house.load(partition, at)
                assert chunk is not None, (topic, at, error)
                found = {one.offset: one.value for one in chunk.records(at, chunk.end)}
                for offset in range(at, chunk.end):
                    if offset in found or values[offset] not in self.compacted:
                        assert found[offset] == values[offset]
                at = chunk.end
        assert house.broker.damage.status()["places"] == 0

    def teardown(self) -> None:
        if self.is_down:
            return
        self.check()
        self.house.disk.crash()
        self.begin_again(self.house.again())
        self.check()
        self.roll_up(seals=True)
        self.house.pass_time(4 * CHECK_SECONDS, step=1)
        held = self.house.wal.appended_lsn - first_lsn(self.house.wal)
        most = KEEP_KIB if self.house.settings.archive.keep_wal_bytes else 0
        assert held <= (most + 3 * 64) * KIB, "the log shrinks to what is to be kept"


def first_lsn(wal: Wal) -> int:
    return min((segment.first_lsn for segment in wal.segments()), default=wal.appended_lsn)


TestShrinking = Shrinking.TestCase
TestShrinking.settings = settings(stateful_step_count=30)
