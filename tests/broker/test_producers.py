"""Idempotent producers: what is sent again is answered with the first ids, across restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.broker import BrokerSettings
from brokerd.broker.producers import (
    PRODUCER_BYTES,
    REMEMBERED,
    SEQUENCE_MAX,
    pack_ids,
    unpack_ids,
)
from brokerd.errors import InvalidRequest, OldSequence
from tests.broker.desk import acknowledged
from tests.house import House


def produce(
    house: House, producer: str, sequence: int, count: int = 2, name: str = "t"
) -> list[int]:
    """What a Protocol does with a batch: the ids it got now, or the first time."""
    broker = house.broker
    topic = broker.topics.find(name) or broker.topics.create(name)
    known = broker.producers.ids_of(topic, producer, sequence)
    if known is not None:
        return known
    broker.group_commit.admit(100 * count + broker.producers.entry_bytes(producer, count, 1))
    ids = [broker.appender.append(topic.choose(None), b"%d" % sequence) for _ in range(count)]
    broker.producers.remember(topic, producer, sequence, ids)
    return ids


def next_offset(house: House, name: str = "t") -> int:
    return house.broker.topics.existing(name).partition(0).next_offset


class TestResending:
    def test_a_batch_sent_again_gets_the_ids_of_the_first_time(self) -> None:
        house = House()
        first = produce(house, "p", 7)
        assert produce(house, "p", 7) == first  # in the same frame
        house.run()
        assert produce(house, "p", 7) == first
        assert next_offset(house) == 2

    def test_the_newest_sequences_are_remembered_and_older_ones_refused(self) -> None:
        house = House()
        ids = {sequence: produce(house, "p", sequence) for sequence in range(0, 80, 10)}
        for sequence in list(ids)[-REMEMBERED:]:
            assert produce(house, "p", sequence) == ids[sequence]
        for sequence in (0, 20, 65):
            with pytest.raises(OldSequence, match="sequences must grow"):
                produce(house, "p", sequence)
        assert next_offset(house) == 16

    def test_producers_and_topics_do_not_meet(self) -> None:
        house = House()
        assert produce(house, "p", 1) == produce(house, "p", 1, name="u") == [0, 1]
        assert produce(house, "q", 1) == [2, 3]

    def test_a_topic_made_again_forgets(self) -> None:
        house = House()
        produce(house, "p", 5)
        house.run()
        house.broker.topics.delete("t")
        assert produce(house, "p", 3) == [0, 1]
        house.run()
        house = house.crash()
        assert produce(house, "p", 3) == [0, 1]
        assert next_offset(house) == 2

    @pytest.mark.parametrize(
        ("producer", "sequence"), [("", 1), ("x" * 256, 1), ("p", -1), ("p", SEQUENCE_MAX + 1)]
    )
    def test_ids_and_sequences_have_limits(self, producer: str, sequence: int) -> None:
        with pytest.raises(InvalidRequest):
            produce(House(), producer, sequence)


class TestRestart:
    @pytest.mark.parametrize("clean", [True, False])
    def test_what_was_acknowledged_is_remembered(self, clean: bool) -> None:
        house = House()
        ids = {sequence: produce(house, "p", sequence) for sequence in range(10)}
        house.run()
        if clean:
            house.stop()
        house = house.again() if clean else house.crash()
        for sequence in range(5, 10):
            assert produce(house, "p", sequence) == ids[sequence]
        with pytest.raises(OldSequence):
            produce(house, "p", 4)
        assert next_offset(house) == 20

    def test_batches_after_a_snapshot_are_remembered_once(self) -> None:
        house = House()
        for sequence in range(3):
            produce(house, "p", sequence)
        house.stop()
        house = house.again()
        ids = [produce(house, "p", sequence) for sequence in range(3, 6)]
        house.run()
        house = house.crash()
        assert [produce(house, "p", sequence) for sequence in range(3, 6)] == ids
        assert [produce(house, "p", sequence) for sequence in (1, 2)] == [[2, 3], [4, 5]]

    def test_a_snapshot_taken_while_batches_come_is_exact(self) -> None:
        """Chunks may be younger than the beginning of a snapshot: nothing is applied twice."""
        house = House(settings=BrokerSettings(snapshot_interval_bytes=1))
        for number in range(700):  # so that producers are not captured where the snapshot begins
            house.broker.topics.create(f"other{number}")
        for sequence in range(40):
            produce(house, f"p{sequence % 3}", sequence)
            house.pass_time(0.01, step=0.01)
        assert house.broker.status()["snapshots_written"] > 2
        house = house.crash()
        for sequence in range(25, 40):
            assert produce(house, f"p{sequence % 3}", sequence) == [2 * sequence, 2 * sequence + 1]
        assert next_offset(house) == 80

    def test_a_snapshot_keeps_the_order_in_which_producers_are_forgotten(self) -> None:
        house = House()
        for sequence, producer in enumerate("abcab"):
            produce(house, producer, sequence)
        house.stop()
        house = house.again()
        house.broker.producers.producers_max = 3
        produce(house, "d", 1)
        topic = house.broker.topics.existing("t")
        producers = house.broker.producers
        assert producers.count == 3
        assert producers.ids_of(topic, "c", 2) is None
        assert producers.ids_of(topic, "a", 3) is not None

    def test_a_crash_leaves_messages_and_memory_or_neither(self) -> None:
        for steps in range(8):
            house = House()
            produce(house, "p", 1)
            done = acknowledged(house)
            for _ in range(steps):
                house.turn()
                house._step()
            house = house.crash()
            assert produce(house, "p", 1) == [0, 1]
            assert next_offset(house) == 2, f"after {steps} steps, acknowledged: {bool(done)}"


class TestBounds:
    def test_who_produced_longest_ago_is_forgotten_first(self) -> None:
        house = House(settings=BrokerSettings(max_producers=3))
        for producer in "abcad":
            produce(house, producer, house.broker.producers.count + 10)
        assert house.broker.producers.count == 3
        house.run()
        for now in (house, house.crash()):
            assert now.broker.producers.count == 3
            topic = now.broker.topics.existing("t")
            assert [
                now.broker.producers.ids_of(topic, name, 13) is not None for name in "abcd"
            ] == [
                True,
                False,
                False,
                True,
            ]

    def test_bytes_are_bounded_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("brokerd.broker.producers.BYTES_MAX", 10 * (PRODUCER_BYTES + 50))
        house = House()
        for number in range(50):
            produce(house, f"p{number}", 1)
        assert 9 <= house.broker.producers.count <= 11


class TestPacking:
    @given(st.lists(st.integers(0, 40), min_size=1, max_size=200), st.integers(0, 1 << 40))
    def test_ids_come_back(self, partitions: list[int], first: int) -> None:
        nexts = dict.fromkeys(partitions, first)
        ids = []
        for partition in partitions:
            ids.append(partition << 48 | nexts[partition])
            nexts[partition] += 1
        assert unpack_ids(pack_ids(ids)) == ids
