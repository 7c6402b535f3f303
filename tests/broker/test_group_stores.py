# Tests: brokerd/broker/model/group_stores.py, brokerd/broker/model/topics.py
"""Groups cost what they use: nothing for partitions without events, some bytes for idle stores."""

from __future__ import annotations

from sys import getsizeof

import msgpack
import pytest
from twisted.internet.base import DelayedCall

from brokerd.broker import BrokerSettings, ConsumerGroup, GroupSettings
from brokerd.broker.leases.service import (
    CROWD,
    OPENS_MAX,
    PACK_SECONDS,
    PACKS_AT_ONCE,
    PACKS_MAX,
)
from brokerd.broker.model.group_stores import OPEN_MAX, GroupStores
from brokerd.broker.model.snapshot_capture import capture_topic
from brokerd.broker.model.state import SNAPSHOT_GROUP_PARTITIONS, State
from brokerd.codecs import mamamia as mm
from brokerd.errors import LimitExceeded
from brokerd.wal import Frame, SnapshotChunk
from brokerd.walformat import Entry, EntryKind, EventKind, encode_group_events
from tests.broker.desk import SECOND_US, lease, produce, settle
from tests.house import House

RESTARTS = ("not", "stop", "crash")


def restarted(house: House, how: str) -> House:
    house.run()
    if how == "not":
        return house
    if how == "crash":
        return house.crash()
    house.stop()
    return house.again()


def wide(partitions: int = 100, records: int = 1, house: House | None = None) -> House:
    """A house with a topic of many partitions, and a record in each."""
    house = house or House()
    house.broker.topics.create("t", partitions)
    for index in range(partitions):
        produce(house, "t", *[b"%d" % index] * records, index=index)
    house.run()
    return house


def group(house: House, name: str = "g") -> ConsumerGroup:
    return house.broker.topics.existing("t").groups[name]


def lease_all(house: House, name: str = "g") -> list[bytes]:
    """Lease all records, also those that must be read first."""
    found = []
    while more := lease(house, group=name, limit=200):
        found += [value for _, value in more]
    return found


def pack_all(house: House) -> None:
    """Pack every store that may be packed, as if many others had been opened since."""
    house.run()
    stores = house.broker.leases._state.stores
    stores._open_max = 0
    stores.trim()
    stores._open_max = OPEN_MAX


def let_pack(house: House) -> GroupStores:
    """Lease a record in each partition; from then on each open store may be packed."""
    lease_all(house)
    house.run()
    stores = house.broker.context.state.stores
    for group_partition in stores._open:
        group_partition.is_recent = False
    stores._open_max = 0
    return stores


@pytest.mark.parametrize("how", RESTARTS)
def test_a_group_keeps_only_the_partitions_that_it_leased_from(how: str) -> None:
    house = wide()
    assert lease(house, limit=3) == [(0, b"0"), (0, b"1"), (0, b"2")]
    house = restarted(house, how)
    assert sorted(group(house).kept) == [0, 1, 2]
    assert len(group(house).partitions) == 100
    info = house.broker.overview.group_info("t", "g")
    assert (info.lag, info.leased, info.ready) == (100, 3, 97)
    assert len(lease_all(house)) == 97


def test_an_acquire_that_leases_nothing_keeps_nothing() -> None:
    house = wide(10)
    lease(house, limit=1)
    house.broker.groups.pause("t", "other")
    lease(house, group="other", limit=10)
    assert sorted(group(house).kept) == [0]
    assert len(lease(house, group="third", limit=9)) == 9
    assert len(group(house, "third").kept) == 9


@pytest.mark.parametrize("how", RESTARTS)
def test_a_group_stays_when_its_only_partition_is_as_that_of_a_new_group(how: str) -> None:
    """A snapshot of a group without any group partition would lack the group."""
    house = wide(3)
    house.broker.groups.seek("t", "g", "start", 1)
    for _ in range(2):
        house = restarted(house, "stop")
    house = restarted(house, how)
    assert sorted(group(house).kept) == [1]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_packed_lease_is_the_lease_that_it_was(how: str) -> None:
    house = wide(3)
    lease(house, limit=3, seconds=10.0)
    assert settle(house, 0, index=1)
    pack_all(house)
    assert house.broker.leases._state.stores.open == 0
    house = restarted(house, how)
    assert house.broker.overview.group_info("t", "g").leased == 2
    assert lease(house, limit=9) == []
    house.pass_time(11)
    assert sorted(lease_all(house)) == [b"0", b"2"]


def test_a_packed_lease_lapses_at_its_time() -> None:
    house = wide(1)
    lease(house, seconds=10.0)
    pack_all(house)
    house.pass_time(9.9)
    assert group(house).partitions[0].position.leased == 1
    house.pass_time(0.2)
    assert group(house).partitions[0].position.leased == 0
    assert lease(house) == [(0, b"0")]


def test_a_packed_delay_goes_on_after_a_start() -> None:
    house = wide(1)
    lease(house)
    settle(house, 0, success=False, delay_seconds=20)
    pack_all(house)
    house = restarted(house, "stop")
    house.pass_time(15)
    assert lease(house) == []
    house.pass_time(6)
    assert lease(house) == [(0, b"0")]


def test_new_records_reach_a_packed_group() -> None:
    house = wide(1)
    lease(house)
    settle(house, 0)
    pack_all(house)
    assert lease(house) == []
    assert house.broker.leases._state.stores.open == 0, "a poll without records opens nothing"
    produce(house, "t", b"new")
    assert lease(house) == [(1, b"new")]


@pytest.mark.parametrize("how", RESTARTS)
def test_a_trim_moves_packed_floors(how: str) -> None:
    house = wide(1, records=5)
    lease(house)
    settle(house, 0)
    lease(house, group="letters", limit=2)
    broker = house.broker
    broker.leases.dead_letter(group(house, "letters").partitions[0], 0, "bad")
    house.run()
    pack_all(house)
    broker.topics.trim("t", 0, 4)
    house = restarted(house, how)
    for name in ("g", "letters"):
        found = group(house, name).partitions[0].position
        assert (found.floor, found.dead, found.leased) == (4, 0, 0)
    assert lease(house, limit=9) == [(4, b"0")]


def test_a_group_made_again_while_a_snapshot_is_taken_is_not_mixed_with_the_first() -> None:
    """The events of the first one must not change partitions that the second one never used."""
    house = wide(3)
    lease(house, limit=3)
    house.run()
    snapshotter = house.broker.snapshotter
    snapshotter.begin()
    snapshotter._captured.topics[group(house).topic.topic_id].group_partitions.clear()
    house.broker.groups.delete("t", "g")
    assert len(lease(house, limit=1)) == 1
    house.run()
    house = house.crash()
    found = group(house)
    assert sorted(found.kept) == [0]
    assert found.partitions[0].position.leased == 1


def test_tokens_of_an_unused_partition_are_above_those_of_a_deleted_group() -> None:
    house = wide(2)
    for _ in range(3):
        lease(house, limit=2, seconds=0)
    house.broker.groups.delete("t", "g")
    lease(house, limit=1)
    pack_all(house)
    house = restarted(house, "stop")
    lease(house, limit=1)
    assert all(one.position.last_token > 3 for one in group(house).partitions)


def test_memory_is_counted_and_given_back() -> None:
    house = wide(50)
    stores = house.broker.leases._state.stores
    empty = stores.memory_bytes
    for number in range(20):
        lease(house, group=f"g{number}", limit=50)
    house.run()
    full = stores.memory_bytes
    assert full > 1000 * 2_900
    pack_all(house)
    packed = stores.memory_bytes
    assert 1000 * 300 < packed - empty < full // 4
    for number in range(20):
        assert len(lease(house, group=f"g{number}", limit=50)) == 0
        house.broker.groups.delete("t", f"g{number}")
    house.run()
    assert stores.memory_bytes == empty
    assert stores.open == 0


def test_groups_with_few_events_each_take_no_more_memory_than_the_limit() -> None:
    """Settles of far records are the events that take most."""
    memory_max = 1_000_000
    house = House(settings=BrokerSettings(max_group_state_bytes=memory_max))
    client = house.connect()
    messages = tuple(mm.BatchMessage(b"") for _ in range(10_000))
    for _ in range(3):
        client.send(mm.ProduceBatch("orders", messages))
        house.run()
        house.pass_time(0.1)
    client.answers()
    answers: list[object] = []
    for number in range(200):
        for offset in range(7, 30_000, 2_048):
            client.send(mm.Settle("orders", f"g{number}", offset, "c", False, 1_000.0))
        house.run()
        answers = client.answers()
        if any(isinstance(answer, mm.Failed) for answer in answers):
            break
    assert "settle records" in str(answers)
    groups = house.broker.topics.existing("orders").groups.values()
    taken = sum(one.store.memory_bytes for group in groups for one in group.used())
    assert 0.8 * memory_max < taken <= memory_max


def test_stores_are_packed_beyond_the_limit_of_open_ones() -> None:
    house = wide(20)
    stores = house.broker.leases._state.stores
    stores._open_max = 5
    for number in range(4):
        lease(house, group=f"g{number}", limit=20, seconds=100.0)
        house.run()
    house.pass_time(1)
    lease(house, group="last")
    house.run()
    house.pass_time(1)
    assert stores.open <= 6
    house.pass_time(200, step=5)
    assert len(lease(house, group="g2", limit=99)) == 20


@pytest.mark.parametrize("how", RESTARTS)
def test_changes_of_whole_groups_open_no_store(how: str) -> None:
    """The events in the log and the bytes in memory say the same."""
    house = wide(20, records=3)
    broker = house.broker
    broker.groups.configure("t", "g", GroupSettings(max_attempts=7))
    broker.groups.pause("t", "g")
    broker.groups.seek("t", "g", 2)
    broker.groups.commit_offset("t", "g", 3, 1)
    broker.groups.seek("t", "g", 1)
    broker.groups.resume("t", "g")
    broker.groups.pause("t", "gone")
    broker.groups.delete("t", "gone")
    assert broker.leases._state.stores.open == 1
    house = restarted(house, how)
    assert sorted(house.broker.topics.existing("t").groups) == ["g"]
    found = group(house)
    assert {one.position.floor for one in found.partitions} == {1}
    assert {one.settings.max_attempts for one in found.partitions} == {7}
    assert [one.position.committed for one in found.partitions][2:5] == [-1, 1, -1]
    assert len(lease_all(house)) == 40
    house.broker.groups.pause("t", "g")
    assert lease_all(house) == []


def test_an_acquire_opens_a_bounded_number_of_stores() -> None:
    """The next ones go on, until nothing is left."""
    house = wide(OPENS_MAX + 10)
    first = lease(house, limit=1000)
    assert len(first) == OPENS_MAX
    assert len(first) + len(lease_all(house)) == OPENS_MAX + 10


def test_an_acquire_ends_where_all_partitions_have_only_lost_records() -> None:
    """Their stores have no state to keep, so each search would open the same ones again."""
    house = House()
    topic = house.broker.topics.create("t", 2 * OPENS_MAX)
    for partition in topic.partitions:
        partition.skip_offsets(5)
    assert lease(house) == []
    produce(house, "t", b"a", index=OPENS_MAX + 1)
    assert lease(house) == [(5, b"a")]
    assert lease(house) == []


class TestOlderSnapshot:
    """Older versions wrote a store for each partition of the topic."""

    def loaded(self, house: House, lsn: int) -> State:
        """The state of a snapshot at ``lsn`` with all group partitions of a group."""
        topic = house.broker.topics.existing("t")
        state = State(GroupSettings())
        state.token_base = 2
        lanes = [
            (one.partition.index, "g", 5, b"".join(one.store.freeze(0).encode()))
            for one in group(house).partitions
        ]
        body = msgpack.packb({"topic_id": topic.topic_id, "lanes": lanes})
        chunk = SnapshotChunk(SNAPSHOT_GROUP_PARTITIONS, b"1", lsn, body)
        state.load_all([capture_topic(topic, lsn)(), chunk])
        return state

    def test_partitions_without_events_are_not_kept(self) -> None:
        house = wide(4)
        lease(house, limit=2)
        house.broker.groups.commit_offset("t", "g", 3, 7)
        house.run()
        state = self.loaded(house, 80)
        found = state.by_name["t"].groups["g"]
        assert sorted(found.kept) == [0, 1, 3]
        positions = [one.position._replace(last_token=0) for one in group(house).partitions]
        assert [one.position._replace(last_token=0) for one in found.partitions] == positions

    def test_a_group_without_any_event_left_stays(self) -> None:
        house = wide(3)
        house.broker.groups.commit_offset("t", "g", 1, -1)
        house.run()
        assert sorted(self.loaded(house, 80).by_name["t"].groups["g"].kept) == [0]

    def test_events_below_the_snapshot_change_no_unused_partition(self) -> None:
        """They belong to a group that was deleted before the group of the snapshot began."""
        house = wide(2)
        lease(house, limit=1)
        house.run()
        state = self.loaded(house, 80)
        topic_id = house.broker.topics.existing("t").topic_id
        for lsn, kept in ((79, [0]), (80, [0, 1])):
            body = encode_group_events("g", [(EventKind.COMMITTED, 5, 0, 0, 0, "", "")])
            entry = Entry(EntryKind.GROUP_EVENTS, topic_id, 1, 0, 1, body)
            state.apply(Frame(lsn, lsn + 1, 1, [entry]))
            assert sorted(state.by_name["t"].groups["g"].kept) == kept


def test_a_release_opens_only_stores_of_the_owner_and_some_in_a_turn() -> None:
    """To open 1,000 takes 20 to 160 ms."""
    house = wide(2 * OPENS_MAX + 9, records=2)
    lease_all(house)
    house.run()
    for index in (3, 2 * OPENS_MAX):
        settle(house, 1, success=False, index=index)
        assert lease(house, owner='b"ob', limit=1)
    pack_all(house)
    groups, stores = house.broker.groups, house.broker.leases._state.stores
    assert groups.release_owner("t", "g", "cid") == (0, False)
    assert groups.release_owner("t", "g", "an") == (0, False)
    assert stores.open == 0
    assert groups.release_owner("t", "g", 'b"ob') == (2, False)
    assert stores.open == 2
    pack_all(house)
    counts, more = [], True
    while more:
        count, more = groups.release_owner("t", "g", "ann")
        counts.append(count)
        house.run()
        assert stores.open <= OPENS_MAX * len(counts)
    assert sum(counts) == 2 * (2 * OPENS_MAX + 9) - 2
    assert len(counts) == 3
    assert house.broker.overview.group_info("t", "g").leased == 0


class TestLimit:
    """`limits.group_state_bytes` refuses what needs new state; all else goes on."""

    def full(self) -> House:
        """A house with one group, whose state takes nearly all memory that it may take."""
        house = House(settings=BrokerSettings(max_group_state_bytes=50_000))
        house.broker.topics.create("t", 3)
        for index in range(2):
            produce(house, "t", *[b"x"] * 500, index=index)
        house.run()
        while True:
            try:
                assert lease(house, limit=10)
            except LimitExceeded:
                return house
            house.run()

    def test_the_limit_is_not_reached(self) -> None:
        house = self.full()
        stores = house.broker.leases._state.stores
        house.run()
        assert 47_000 < stores.memory_bytes < 50_000
        assert house.broker.overview.group_info("t", "g").leased > 90

    def test_all_that_begins_state_is_refused_and_changes_nothing(self) -> None:
        house = self.full()
        broker = house.broker
        for begin in (
            lambda: lease(house),
            lambda: lease(house, group="other"),
            lambda: broker.groups.commit_offset("t", "other", 0, 1),
            lambda: broker.groups.commit_offset("t", "g", 2, 1),
            lambda: broker.groups.pause("t", "other"),
            lambda: broker.subscriptions.subscribe("t", 1, 3, SECOND_US, SECOND_US),
            lambda: settle(house, 400, owner=None, success=False),
            lambda: broker.delayed.produce(broker.topics.existing("t"), b"x", delay_us=SECOND_US),
        ):
            with pytest.raises(LimitExceeded, match=r"limits\.group_state_bytes"):
                begin()
        assert list(broker.topics.existing("t").groups) == ["g"]

    def test_settles_commits_seeks_and_deletions_go_on_and_make_room(self) -> None:
        house = self.full()
        broker = house.broker
        assert settle(house, 0)
        assert settle(house, 1, success=False)
        broker.groups.commit_offset("t", "g", 0, 7)
        broker.groups.seek("t", "g", "end", partition=0)
        house.run()
        assert len(lease(house, limit=10)) > 0
        broker.groups.delete("t", "g")
        house.run()
        broker.groups.commit_offset("t", "other", 0, 1)

    def test_reasons_of_dead_letters_count(self) -> None:
        """Each may have 255 bytes, which takes up to 1,100 in memory."""
        limit = 200_000
        house = House(settings=BrokerSettings(max_group_state_bytes=limit))
        produce(house, "t", *[b"x"] * 2_000)
        house.run()
        client = house.connect()
        count, refused = 0, False
        for _ in range(200):
            client.send(mm.AcquireBatch("t", "g", "c", 10))
            house.run()
            (answer,) = client.answers()
            refused = isinstance(answer, mm.Failed)
            if refused:
                break
            for message in answer.messages:
                reason = f"{count:04d}\N{GRINNING FACE}{'r' * 240}"
                count += 1
                client.send(mm.Settle("t", "g", message.id, "c", False, reason=reason, dead=True))
            house.run()
            client.answers()
        assert refused and "limits.group_state_bytes" in answer.text
        (letters,) = group(house).used()
        texts = letters.store._dead.reasons.texts.values()
        assert 50_000 < sum(map(getsizeof, texts)) < limit
        house.broker.groups.purge_dead_letters("t", "g")
        house.run()
        client.send(mm.AcquireBatch("t", "g", "c", 10))
        house.run()
        assert isinstance(client.answers()[0], mm.AcquiredBatch), "a purge makes room"

    def test_a_start_takes_what_there_is(self) -> None:
        house = self.full()
        before = group(house).partitions[0].position
        house = restarted(house, "crash")
        assert group(house).partitions[0].position == before
        with pytest.raises(LimitExceeded):
            lease(house, group="other")

    def test_the_limit_may_change_while_the_broker_runs(self) -> None:
        house = self.full()
        assert house.broker.status()["group_state_bytes"] > 47_000
        house.broker.change_limits(BrokerSettings(max_group_state_bytes=100_000))
        assert len(lease(house, limit=10)) == 10


@pytest.mark.parametrize(("crowd", "packed"), [(CROWD, PACKS_AT_ONCE), (0, PACKS_MAX)])
def test_a_turn_packs_few_stores_if_they_take_long(
    crowd: int, packed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of them take longer than its time here; with too many open stores it packs more."""
    monkeypatch.setattr("brokerd.broker.leases.service.CROWD", crowd)
    house = wide(130)
    stores = let_pack(house)
    trim = stores.trim

    def slow(most: int) -> bool:
        house.clock.rightNow += 2 * PACK_SECONDS
        return trim(most)

    monkeypatch.setattr(stores, "trim", slow)
    before = stores.open
    stores.crowded()
    first = min(house.clock.getDelayedCalls(), key=DelayedCall.getTime)
    pack = first.func
    first.cancel()
    pack()
    assert before - stores.open == packed
    house.run()
    assert stores.open == 0


def test_light_requests_get_their_answers_before_stores_are_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = wide(130)
    stores = let_pack(house)
    clients = [house.connect() for _ in range(2)]
    open_at_answer: list[int] = []

    def wait(seconds: float) -> None:
        house.writer.step()
        assert all(client.answers() for client in clients)
        open_at_answer.append(stores.open)

    monkeypatch.setattr(house.wal, "_wait", wait)
    for client in clients:
        client.send(mm.Produce("t", b"x"))
    before = stores.open
    stores.crowded()
    house.run()
    assert open_at_answer == [before]
    assert stores.open == 0
