"""Topics are made, configured, shortened and deleted, and stay so, however the state is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.broker.model import snapshotter
from brokerd.broker.model.topics import Partition, Topic, TopicSettings
from brokerd.codecs.mamamia import Acquire, Produce
from brokerd.errors import (
    InvalidName,
    InvalidRequest,
    NewerFormat,
    UnknownOffset,
    UnknownPartition,
    UnknownTopic,
)
from simulator.directory.state_text import describe
from simulator.machine.bare import STATE_DIR
from tests.broker.desk import SECOND_US, acknowledged, grants, lease, produce, read, settle
from tests.house import Client, House, ask

NEVER = BrokerSettings(snapshot_interval_bytes=1 << 40)
TOPICS = 12


def seen(house: House) -> list[Any]:
    """All there is to see of topics and groups, but times."""
    topics = house.broker.context.state.by_id.values()
    return [
        (
            topic.topic_id,
            topic.name,
            topic.settings,
            topic.internal_of,
            [(one.start_offset, one.next_offset) for one in topic.partitions],
        )
        for topic in sorted(topics, key=lambda topic: topic.topic_id)
    ] + list(describe(house.broker))


def alone(house: House) -> House:
    """A start on the same disk that has no snapshot."""
    disk = house.disk.copy()
    for name in disk.list(STATE_DIR):
        disk.unlink(f"{STATE_DIR}/{name}")
    return house.again(disk=disk)


def every_start(house: House) -> list[House]:
    """A start after a crash now, one from the log alone, and one from a last snapshot."""
    house.run()
    house.disk.crash()
    crashed = house.again(disk=house.disk.copy(), settings=NEVER)
    stopped = house.again(disk=house.disk.copy(), settings=NEVER)
    stopped.stop()
    return [crashed, alone(house), stopped.again()]


def internal_topic(house: House, name: str) -> Topic:
    """The topic that serves another one, with a record and a lease of its hidden group."""
    broker = house.broker
    topic = broker.topics.internal_topic(broker.topics.existing(name))
    broker.group_commit.admit(100)
    broker.appender.append(topic.partitions[0], b"hidden")
    return topic


class TestSettings:
    def test_a_topic_keeps_the_settings_it_was_made_with(self) -> None:
        house = House()
        made = TopicSettings(retention_us=5, ttl_us=0)
        house.broker.topics.create("t", 2, made)
        for again in every_start(house):
            assert again.broker.topics.existing("t").settings == made

    def test_new_settings_take_the_place_of_all_old_ones(self) -> None:
        house = House()
        house.broker.topics.create("t", settings=TopicSettings(retention_us=5))
        house.broker.topics.configure("t", TopicSettings(retention_bytes=7))
        for again in every_start(house):
            assert again.broker.topics.existing("t").settings == TopicSettings(None, 7, None)

    def test_what_a_topic_does_not_say_is_as_the_broker_is_configured(self) -> None:
        settings = TopicSettings(retention_us=0, ttl_us=3)
        assert settings.over(TopicSettings(1, 2, 9)) == TopicSettings(0, 2, 3)

    def test_a_negative_limit_is_refused_and_nothing_is_made(self) -> None:
        house = House()
        with pytest.raises(InvalidRequest, match=r"retention_bytes must be 0 .* not -1"):
            house.broker.topics.create("t", settings=TopicSettings(retention_bytes=-1))
        assert house.broker.topics.find("t") is None

    def test_an_unknown_topic_cannot_be_configured(self) -> None:
        with pytest.raises(UnknownTopic):
            House().broker.topics.configure("t", TopicSettings())

    def test_a_setting_of_a_newer_version_is_not_forgotten_silently(self) -> None:
        with pytest.raises(NewerFormat, match=r"'warmth' .* upgrade"):
            TopicSettings.read({"warmth": 3})

    def test_names_of_the_brokers_own_are_refused(self) -> None:
        with pytest.raises(InvalidName, match="__brokerd"):
            House().broker.topics.create("__brokerd.1")


class TestDeletion:
    def test_a_deleted_topic_is_gone_at_every_start(self) -> None:
        house = House()
        produce(house, "t", b"0", b"1")
        produce(house, "u", b"0")
        lease(house)
        house.run()
        house.broker.topics.delete("t")
        assert house.broker.topics.find("t") is None
        for again in every_start(house):
            assert [topic.name for topic in again.broker.topics.all()] == ["u"]

    def test_what_was_done_in_the_turn_of_the_deletion_is_gone_too(self) -> None:
        """Its records and events stand in the log before the deletion."""
        house = House()
        produce(house, "t", b"0", b"1")
        lease(house, limit=2)
        settle(house, 0)
        house.broker.topics.delete("t")
        for again in every_start(house):
            assert list(again.broker.topics.all()) == []

    def test_the_name_may_be_used_again_in_the_same_turn(self) -> None:
        house = House()
        produce(house, "t", b"old", b"older")
        lease(house)
        house.broker.topics.delete("t")
        assert produce(house, "t", b"new") == [0]
        house.run()
        before = seen(house)
        for again in every_start(house):
            assert seen(again) == before
            assert read(again, "t", 0).value == b"new"
            assert again.broker.topics.existing("t").topic_id == 2
            assert lease(again) == [(0, b"new")]

    def test_a_token_of_the_old_topic_is_no_token_of_the_new_one(self) -> None:
        house = House()
        produce(house, "t", b"0")
        [(old, _)] = grants(house)
        house.broker.topics.delete("t")
        house = house.crash() if acknowledged(house) else house
        produce(house, "t", b"0")
        [(new, _)] = grants(house)
        assert new.token > old.token
        house.run()
        for again in every_start(house):
            produce(again, "u", b"0")
            assert grants(again, "u")[0][0].token > old.token

    def test_a_topic_that_is_not_there_cannot_be_deleted(self) -> None:
        with pytest.raises(UnknownTopic):
            House().broker.topics.delete("t")

    def test_its_records_leave_memory(self) -> None:
        house = House()
        produce(house, "t", *[bytes(1000)] * 50)
        house.run()
        assert house.broker.status()["tail_cache_bytes"] > 50_000
        house.broker.topics.delete("t")
        assert house.broker.status()["tail_cache_bytes"] == 0

    def test_long_polls_are_answered_that_there_is_nothing(self) -> None:
        house = House()
        house.broker.topics.create("t")
        told: list[str] = []
        house.broker.leases.wait("t", "g", 10**9, lambda: False, lambda: told.append("nothing"))
        house.broker.leases.wait("u", "g", 10**9, lambda: False, lambda: told.append("u"))
        house.broker.topics.delete("t")
        assert told == ["nothing"]

    def test_no_timer_looks_at_a_deleted_topic(self) -> None:
        house = House()
        produce(house, "t", b"0")
        lease(house, seconds=1)
        house.run()
        house.broker.topics.delete("t")
        house.run()
        house.pass_time(2)
        assert not house.failures
        assert house.broker.status()["expired"] == 0

    def test_the_topic_that_serves_it_goes_with_it(self) -> None:
        house = House()
        house.broker.topics.create("t")
        internal_topic(house, "t")
        house.run()
        for again in every_start(house):
            assert len(again.broker.context.state.by_id) == 2
            again.broker.topics.delete("t")
            for last in every_start(again):
                assert last.broker.context.state.by_id == {}

    def test_a_topic_that_serves_another_has_no_name_to_ask_for(self) -> None:
        house = House()
        house.broker.topics.create("t")
        topic = internal_topic(house, "t")
        for again in every_start(house):
            assert [one.name for one in again.broker.topics.all()] == ["t"]
            assert again.broker.topics.find(topic.name) is None
            served = again.broker.topics.existing("t")
            assert again.broker.topics.internal_topic(served).topic_id == topic.topic_id


class TestClients:
    """What a client of the wire sees that was about to get a record."""

    FORGETFUL = BrokerSettings(tail_cache_bytes=0, read_cache_bytes=0)

    def leasing(self) -> tuple[House, Client]:
        """A client whose acquire waits for the disk."""
        house = House(settings=self.FORGETFUL)
        ask(house, Produce("t", b"0"), Produce("t", b"1"))
        client = house.connect()
        client.send(Acquire("t", "g", "ann", 30))
        assert client.answers() == []
        return house, client

    def test_a_topic_deleted_while_its_record_is_read_has_nothing(self) -> None:
        house, client = self.leasing()
        house.broker.topics.delete("t")
        house.run()
        assert client.answers() == ask(house, Acquire("other", "g", "ann", 30))

    def test_a_record_removed_while_it_is_read_gives_way_to_the_next(self) -> None:
        house, client = self.leasing()
        house.broker.topics.trim("t", 0, 1)
        house.run()
        [answer] = client.answers()
        assert (answer.message.id, answer.message.payload) == (1, b"1")

    def test_a_long_poll_on_a_deleted_topic_ends_with_nothing(self) -> None:
        house = House()
        house.broker.topics.create("t")
        client = house.connect()
        client.send(Acquire("t", "g", "ann", 30, wait=1000))
        house.run()
        assert client.answers() == []
        house.broker.topics.delete("t")
        house.run()
        assert client.answers() == ask(house, Acquire("other", "g", "ann", 30))


class TestStartOffsets:
    def trimmed(self) -> House:
        house = House()
        produce(house, "t", *[b"%d" % n for n in range(6)])
        lease(house, limit=2)
        settle(house, 0)
        house.broker.leases.dead_letter(
            house.broker.leases.group_partition("t", "g", 0, 1), 1, "bad"
        )
        lease(house, "t", "h", limit=3)
        house.run()
        assert house.broker.topics.trim("t", 0, 3) == 3
        return house

    def test_records_below_are_never_leased_again(self) -> None:
        house = self.trimmed()
        house.run()
        before = seen(house)
        for again in every_start(house):
            assert seen(again) == before
            assert lease(again, limit=9) == lease(again, group="h", limit=9)
            assert lease(again, group="new", limit=9)[0] == (3, b"3")
            assert again.broker.overview.group_info("t", "g").dead == 0

    def test_it_never_goes_back_nor_past_the_end(self) -> None:
        house = self.trimmed()
        assert house.broker.topics.trim("t", 0, 1) == 3
        for offset in (-1, 7):
            with pytest.raises(UnknownOffset, match="from 3 to 6"):
                house.broker.topics.trim("t", 0, offset)
        assert house.broker.topics.trim("t", 0, 6) == 6
        assert produce(house, "t", b"6") == [6]
        for again in every_start(house):
            assert lease(again, limit=9) == [(6, b"6")]

    def test_the_turn_in_which_it_moves_may_settle_what_goes(self) -> None:
        """The settle stands in the log before the removal."""
        house = House()
        produce(house, "t", b"0", b"1")
        lease(house, limit=2)
        settle(house, 0)
        house.broker.topics.trim("t", 0, 2)
        produce(house, "t", b"2")
        lease(house)
        house.run()
        before = seen(house)
        for again in every_start(house):
            assert seen(again) == before

    def test_what_went_is_counted(self) -> None:
        house = self.trimmed()
        counters = house.broker.counters
        assert counters.records_removed["trimmed"] == 3
        assert counters.dead_letters_removed == 1

    def test_an_unknown_place_is_refused(self) -> None:
        house = self.trimmed()
        with pytest.raises(UnknownTopic):
            house.broker.topics.trim("u", 0, 0)
        with pytest.raises(UnknownPartition):
            house.broker.topics.trim("t", 1, 0)


class TestArchivedMarks:
    """Which records may be missing from the log, since an archive has them."""

    def marks(self, house: House) -> list[list[int]]:
        return [
            [one.archived_end for one in topic.partitions] for topic in house.broker.topics.all()
        ]

    def test_they_outlive_every_start_and_change_nothing_else(self) -> None:
        house = House()
        for name in "tu":
            topic = house.broker.topics.create(name, 2)
            for partition in topic.partitions:
                produce(house, name, b"0", b"1", b"2", index=partition.index)
        house.run()
        before = list(describe(house.broker))
        partitions = house.broker.topics.existing("t").partitions
        archived(house, (partitions[1], 2), (partitions[0], 1))
        archived(house, (partitions[1], 1))
        expected = [[1, 2], [0, 0]]
        assert self.marks(house) == expected
        told = [line.partition(", archived")[0] for line in describe(house.broker)]
        assert told == before
        for again in every_start(house):
            assert self.marks(again) == expected
            assert produce(again, "t", b"3", index=1) == [3]
            assert lease(again, limit=9)[0] == (0, b"0")

    def test_they_go_with_their_topic(self) -> None:
        house = House()
        produce(house, "t", b"0", b"1")
        house.run()
        partition = house.broker.topics.existing("t").partitions[0]
        archived(house, (partition, 1))
        house.broker.topics.delete("t")
        archived(house, (partition, 2))
        assert house.broker.context.state.archived == {}
        produce(house, "t", b"new")
        for again in every_start(house):
            assert self.marks(again) == [[0]]
            assert again.broker.context.state.archived == {}


def archived(house: House, *ends: tuple[Partition, int]) -> None:
    """Have the broker say that an archive has the records below these offsets."""
    house.broker.topics.set_archived_ends(list(ends))


def delete_first(house: House) -> None:
    house.broker.topics.delete("t0")


def delete_last(house: House) -> None:
    house.broker.topics.delete(f"t{TOPICS - 1}")


def delete_and_make_again(house: House) -> None:
    for name in ("t0", f"t{TOPICS - 1}"):
        house.broker.topics.delete(name)
        produce(house, name, b"new", b"newer")
        lease(house, name)
        settle(house, 0, topic=name)


def trim_and_configure(house: House) -> None:
    for name in ("t0", f"t{TOPICS - 1}"):
        house.broker.topics.trim(name, 0, 1)
        house.broker.topics.configure(name, TopicSettings(retention_us=99))
        lease(house, name, "late")


def make_and_delete(house: House) -> None:
    produce(house, "brief", b"0")
    lease(house, "brief")
    house.turn()
    house.broker.topics.delete("brief")


def delete_with_internal(house: House) -> None:
    internal_topic(house, "t0")
    acknowledged(house)
    house.turn()
    house.broker.topics.delete("t0")


def use(house: House, topic: str) -> None:
    """Do what nobody can do who knows nothing of the lease."""
    house.broker.leases.extend(house.broker.leases.group_partition(topic, "g", 0, 0), 0, SECOND_US)
    house.broker.leases.release(house.broker.leases.group_partition(topic, "g", 0, 0), 0)


def delete_groups(house: House) -> None:
    """One of the first topic and one of the last, which is captured last; and make them again."""
    for name in ("t0", f"t{TOPICS - 1}"):
        use(house, name)
        house.broker.groups.delete(name, "g")
        lease(house, name)
        settle(house, 0, topic=name)


def delete_groups_for_good(house: House) -> None:
    for name in ("t0", "t5", f"t{TOPICS - 1}"):
        use(house, name)
        house.broker.groups.delete(name, "g")


def delete_groups_then_topics(house: House) -> None:
    delete_groups_for_good(house)
    for name in ("t0", f"t{TOPICS - 1}"):
        house.broker.topics.delete(name)


@pytest.mark.parametrize("steps", range(9))
@pytest.mark.parametrize(
    "change",
    [
        delete_first,
        delete_last,
        delete_and_make_again,
        trim_and_configure,
        make_and_delete,
        delete_with_internal,
        delete_groups,
        delete_groups_for_good,
        delete_groups_then_topics,
    ],
)
def test_changes_while_a_snapshot_is_taken_are_neither_lost_nor_undone(
    change: Callable[[House], None], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot holds each topic and group as it was at a moment of its own."""
    monkeypatch.setattr(snapshotter, "STEP_THINGS", 4)
    house = House(settings=NEVER)
    for index in range(TOPICS):
        produce(house, f"t{index}", b"0", b"1")
        lease(house, f"t{index}", limit=2)
        settle(house, 1, topic=f"t{index}")
    house.run()
    house.broker.snapshotter.begin()
    for _ in range(steps):
        produce(house, "t1", b"more")
        for name in ("t0", f"t{TOPICS - 1}"):
            use(house, name)
            lease(house, name)
        acknowledged(house)
        house.turn()
        house.writer.run()
    change(house)
    produce(house, "t1", b"last")
    house.run()
    house.pass_time(1)
    assert house.broker.status()["snapshots_written"] == 1
    before = seen(house)
    house.disk.crash()
    again = house.again(disk=house.disk.copy())
    assert again.broker.status()["snapshot_lsn"] > 0
    assert seen(again) == before
    assert seen(alone(house)) == before


@pytest.mark.parametrize("deletes_group", [False, True])
def test_tokens_of_a_topic_deleted_while_a_snapshot_is_taken_are_not_given_again(
    deletes_group: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its group is deleted before it: the snapshot has neither."""
    monkeypatch.setattr(snapshotter, "STEP_THINGS", 1)
    house = House(settings=NEVER)
    produce(house, "t", b"0")
    produce(house, "u", b"0")
    [(old, _)] = grants(house)
    house.run()
    house.broker.snapshotter.begin()
    if deletes_group:
        house.broker.groups.delete("t", "g")
    house.broker.topics.delete("t")
    house.run()
    house.pass_time(1)
    assert house.broker.status()["snapshots_written"] == 1
    house = house.crash()
    [(new, _)] = grants(house, "u")
    assert new.token > old.token
