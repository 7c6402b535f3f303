"""What is done to whole groups: pause, seek, settings, deletion, releases, dead letters."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import process_time

import pytest

from brokerd.broker import BrokerSettings, Congested, GroupPartition
from brokerd.broker.calls import call_when_admitted
from brokerd.broker.group_commit import GROUP_EVENTS_OVERHEAD_BYTES
from brokerd.broker.leases.group_admin import RELEASE_MAX
from brokerd.broker.subscriptions import GROUP_PREFIX
from brokerd.errors import (
    InvalidName,
    InvalidRequest,
    LeaseLost,
    LimitExceeded,
    NotLeaseOwner,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from brokerd.groups import DeadLetter, GroupSettings
from brokerd.wal import WalOptions
from brokerd.walformat import Entry, EntryKind
from tests.broker.desk import SECOND_US, grants, lease, produce, settle
from tests.broker.test_broker import Poll, group_names
from tests.house import House

RESTARTS = ("goes on", "crashes", "stops")

USES: dict[str, Callable[[House, GroupPartition], object]] = {
    "settle": lambda house, group_partition: house.broker.leases.settle(group_partition, 0, True),
    "extend": lambda house, group_partition: house.broker.leases.extend(
        group_partition, 0, SECOND_US
    ),
    "release": lambda house, group_partition: house.broker.leases.release(group_partition, 0),
    "dead_letter": lambda house, group_partition: house.broker.leases.dead_letter(
        group_partition, 0, "bad"
    ),
}
"""What may be done with a group_partition."""

SEEN_AFTER = {
    "settle": (2, 0, 0),
    "extend": (3, 1, 0),
    "release": (3, 0, 0),
    "dead_letter": (2, 0, 1),
}
"""Lag, leases and dead letters of three records then, the first of them leased before."""


def restarted(house: House, how: str) -> House:
    """The same house, or a new broker on its disk after all was durable."""
    house.run()
    if how == "crashes":
        return house.crash()
    if how == "stops":
        house.stop()
        return house.again()
    return house


def with_records(count: int = 3, partitions: int = 1, house: House | None = None) -> House:
    """A house with a topic "t" and so many records in each partition."""
    house = house or House()
    house.broker.topics.create("t", partitions)
    for index in range(partitions):
        produce(house, "t", *(b"%d" % number for number in range(count)), index=index)
    house.run()
    return house


def letters(house: House, group: str = "g") -> list[tuple[int, int, str]]:
    """Partition, offset and reason of each dead letter."""
    found = house.broker.leases.dead_letters("t", group)
    return [(index, letter.offset, letter.reason) for index, letter in found]


def bury(house: House, *offsets: int, reason: str = "bad", index: int = 0) -> None:
    """Make dead letters of records, whoever holds them."""
    for offset in offsets:
        group_partition = house.broker.leases.group_partition("t", "g", index, offset)
        assert house.broker.leases.dead_letter(group_partition, offset, reason)


def last_tokens(house: House) -> dict[tuple[str, int], int]:
    """The last token of each group_partition."""
    groups = house.broker.topics.existing("t").groups.values()
    return {
        (group.name, group_partition.partition.index): group_partition.store.last_token
        for group in groups
        for group_partition in group.partitions
    }


def lease_all(house: House, group: str = "g", owner: str = "ann") -> list[tuple[int, bytes]]:
    """Lease whatever there is, also what has to be read first."""
    found: list[tuple[int, bytes]] = []
    while more := lease(house, group=group, owner=owner, limit=9):
        found += more
    return found


class TestPause:
    @pytest.mark.parametrize("how", RESTARTS)
    def test_a_paused_group_gets_nothing_until_it_is_resumed(self, how: str) -> None:
        house = with_records()
        assert lease(house) == [(0, b"0")]
        house.broker.groups.pause("t", "g")
        house = restarted(house, how)
        assert lease(house) == []
        assert lease(house, group="other") == [(0, b"0")]
        house.broker.groups.resume("t", "g")
        house = restarted(house, how)
        assert lease(house) == [(1, b"1")]

    def test_leases_of_a_paused_group_go_on_and_may_be_settled(self) -> None:
        house = with_records()
        lease(house, limit=2)
        house.broker.groups.pause("t", "g")
        assert settle(house, 0)
        settle(house, 1, success=False, delay_seconds=0)
        assert lease(house) == []
        house.broker.groups.resume("t", "g")
        assert lease(house, limit=9) == [(1, b"1"), (2, b"2")]

    def test_a_resumed_group_serves_its_long_polls_in_the_same_turn(self) -> None:
        house = with_records(1)
        house.broker.groups.pause("t", "g")
        poll = Poll(house)
        house.run()
        assert not poll.found
        house.broker.groups.resume("t", "g")
        house.turn()
        assert poll.found == [(0, b"0")]

    def test_a_missing_group_is_told_in_no_time_whatever_names_there_are(self) -> None:
        """Names of two letters are slow to compare: seconds, for 500 of 198 letters."""
        house = with_records()
        chance = Random(1)
        names = ["".join(chance.choices("ab", k=length)) for length in (20, 60, 190) * 160]
        for name in names:
            house.broker.groups.pause("t", name)
            house.run()
        began = process_time()
        for name in [name[::-1] for name in names[:6]]:
            with pytest.raises(UnknownGroup):
                house.broker.groups.resume("t", name)
        assert process_time() - began < 0.3
        house.broker.groups.pause("t", "billing")
        with pytest.raises(UnknownGroup, match="is 'billing' meant"):
            house.broker.groups.resume("t", "biling")

    def test_a_pause_makes_a_group_and_a_resume_needs_one(self) -> None:
        house = with_records()
        with pytest.raises(UnknownGroup, match="has no group 'g'"):
            house.broker.groups.resume("t", "g")
        assert group_names(house) == set()
        house.broker.groups.pause("t", "g")
        assert group_names(house) == {"g"}
        with pytest.raises(UnknownTopic):
            house.broker.groups.pause("u", "g")
        with pytest.raises(InvalidName):
            house.broker.groups.pause("t", "\n")

    def test_a_pause_that_changes_nothing_writes_nothing(self) -> None:
        house = with_records()
        house.broker.groups.pause("t", "g")
        house.run()
        frames_before = house.broker.group_commit.frames
        house.broker.groups.pause("t", "g")
        house.run()
        assert house.broker.group_commit.frames == frames_before


class TestSettings:
    @pytest.mark.parametrize("how", RESTARTS)
    def test_a_group_is_given_its_own_settings(self, how: str) -> None:
        house = with_records(partitions=3)
        settings = GroupSettings(max_attempts=1, default_duration_us=5 * SECOND_US)
        house.broker.groups.configure("t", "g", settings)
        house = restarted(house, how)
        assert house.broker.groups.settings("t", "g") == settings
        assert lease(house)
        settle(house, 0, success=False)
        assert letters(house) == [(0, 0, "max_attempts")]

    def test_a_group_without_settings_of_its_own_has_those_of_the_configuration(self) -> None:
        defaults = GroupSettings(max_attempts=7)
        house = with_records(house=House(settings=BrokerSettings(groups=defaults)))
        with pytest.raises(UnknownGroup):
            house.broker.groups.settings("t", "g")
        lease(house)
        assert house.broker.groups.settings("t", "g") == defaults

    def test_an_acquire_that_names_no_duration_gets_the_groups(self) -> None:
        house = with_records()
        house.broker.groups.configure("t", "g", GroupSettings(default_duration_us=2 * SECOND_US))
        ((grant, _),) = grants(house, seconds=None)
        assert grant.duration_us == 2 * SECOND_US
        house.pass_time(1.9)
        assert lease(house, owner="bob") == [(1, b"1")]
        house.pass_time(0.2)
        assert lease(house, owner="bob") == [(0, b"0")]

    def test_a_change_of_key_order_gives_all_leases_back_without_a_failure(self) -> None:
        house = with_records()
        lease(house, limit=2)
        house.broker.groups.configure("t", "g", GroupSettings(key_ordered=True))
        found = grants(house, owner="bob", limit=9)
        assert [(grant.offset, grant.grants, grant.failures) for grant, _ in found] == [
            (0, 2, 0),
            (1, 2, 0),
            (2, 1, 0),
        ]


class TestSeek:
    @pytest.mark.parametrize("how", RESTARTS)
    def test_a_group_goes_on_where_it_is_told_to(self, how: str) -> None:
        house = with_records(5)
        lease(house, limit=4)
        settle(house, 0)
        assert house.broker.groups.seek("t", "g", 2) == {0: 2}
        house = restarted(house, how)
        assert lease(house, limit=9) == [(2, b"2"), (3, b"3"), (4, b"4")]
        assert house.broker.groups.seek("t", "g", "start") == {0: 0}
        house = restarted(house, how)
        assert lease(house, limit=9) == [(n, b"%d" % n) for n in range(5)]
        assert house.broker.groups.seek("t", "g", "end") == {0: 5}
        house = restarted(house, how)
        assert lease(house) == []
        assert house.broker.overview.group_info("t", "g").lag == 0

    @pytest.mark.parametrize(("to", "floor"), [(-1, 0), (4, 3), (1 << 70, 3), (3, 3)])
    def test_a_seek_stays_among_the_records_there_are(self, to: int, floor: int) -> None:
        assert with_records().broker.groups.seek("t", "g", to) == {0: floor}

    def test_a_seek_is_of_one_partition_or_of_all(self) -> None:
        house = with_records(3, partitions=2)
        house.broker.groups.seek("t", "g", 2)
        assert len(lease(house, limit=9)) == 2
        house.broker.groups.seek("t", "g", 0, partition=1)
        assert lease(house, limit=9) == [(0, b"0"), (1, b"1"), (2, b"2")]
        with pytest.raises(UnknownPartition):
            house.broker.groups.seek("t", "g", 0, partition=2)

    @pytest.mark.parametrize("how", RESTARTS)
    def test_a_seek_may_say_of_each_partition_where_to_go_on(self, how: str) -> None:
        house = with_records(3, partitions=3)
        assert house.broker.groups.seek("t", "g", {0: 2, 2: "end"}) == {0: 2, 2: 3}
        with pytest.raises(UnknownPartition):
            house.broker.groups.seek("t", "g", {0: 0, 3: 0})
        house = restarted(house, how)
        group_partitions = house.broker.topics.existing("t").groups["g"].partitions
        assert [group_partition.store.floor for group_partition in group_partitions] == [2, 0, 3]

    @pytest.mark.parametrize("how", RESTARTS)
    def test_a_seek_sets_the_committed_offsets_that_there_are(self, how: str) -> None:
        """In the partitions that it is about; where nothing was committed, nothing is then."""
        house = with_records(3, partitions=3)
        house.broker.groups.commit_offset("t", "g", 0, 3)
        house.broker.groups.commit_offset("t", "g", 2, 99)
        house.broker.groups.seek("t", "g", 1, partition=0)
        house = restarted(house, how)
        broker = house.broker
        assert [broker.groups.committed_offset("t", "g", index) for index in range(3)] == [
            1,
            None,
            99,
        ]
        assert broker.groups.seek("t", "g", "end") == {0: 3, 1: 3, 2: 3}
        assert [broker.groups.committed_offset("t", "g", index) for index in range(3)] == [
            3,
            None,
            3,
        ]

    def test_a_group_that_only_commits_is_still_told_of_by_its_commits_after_a_seek(self) -> None:
        house = with_records(5)
        house.broker.groups.commit_offset("t", "g", 0, 5)
        house.broker.groups.seek("t", "g", 2)
        assert house.broker.overview.group_info("t", "g").lag == 3
        house.broker.groups.commit_offset("t", "g", 0, 4)
        assert house.broker.overview.group_info("t", "g").lag == 1

    def test_a_seek_of_leases_and_commits_is_one_frame(self) -> None:
        house = with_records(3, partitions=4)
        for index in range(4):
            house.broker.groups.commit_offset("t", "g", index, 1)
        house.run()
        before = house.wal.durable_ticket
        house.broker.groups.seek("t", "g", "end")
        house.run()
        assert house.wal.durable_ticket == before + 1

    def test_a_seek_begins_at_the_start_offset(self) -> None:
        house = with_records(5)
        house.broker.topics.trim("t", 0, 3)
        assert house.broker.groups.seek("t", "g", "start") == {0: 3}
        assert house.broker.groups.seek("t", "g", 1) == {0: 3}
        house = restarted(house, "crashes")
        assert lease(house, limit=9) == [(3, b"3"), (4, b"4")]

    def test_a_seek_serves_long_polls_in_the_same_turn(self) -> None:
        house = with_records(1)
        lease(house)
        settle(house, 0)
        poll = Poll(house)
        house.broker.groups.seek("t", "g", "start")
        house.turn()
        assert poll.found == [(0, b"0")]

    def test_a_seek_waits_for_no_offset_at_which_there_is_nothing(self) -> None:
        house = House()
        house.broker.topics.create("t").partition(0).skip_offsets(5)
        house.broker.groups.seek("t", "g", "start")
        assert house.broker.overview.group_info("t", "g").lag == 0

    def test_leases_from_before_a_seek_are_over(self) -> None:
        house = with_records()
        ((grant, _),) = grants(house)
        house.broker.groups.seek("t", "g", "start")
        with pytest.raises(LeaseLost):
            house.broker.leases.extend(
                house.broker.leases.group_partition("t", "g", 0, 0), 0, SECOND_US
            )
        assert settle(house, 0, token=grant.token, owner=None)  # nobody else had it since

    def test_an_offset_is_found_by_time(self) -> None:
        house = House()
        produce(house, "t", b"0", b"1")
        house.pass_time(10)
        then_us = house.broker.time.time_us()
        found: list[object] = []
        partition = house.broker.topics.existing("t").partition(0)

        def ask(time_us: int) -> object:
            house.broker.reader.offset_at_time(
                partition, time_us, lambda *answer: found.append(answer)
            )
            house.readers.step()  # as early as can be
            house.run()
            return found.pop()

        assert ask(then_us) == (2, None)
        house.pass_time(1)
        produce(house, "t", b"2")  # not in the log yet
        assert ask(then_us) == (2, None)
        assert ask(then_us + 3600 * SECOND_US) == (3, None)
        assert ask(0) == (0, None)
        house.broker.topics.trim("t", 0, 1)
        assert ask(0) == (1, None)

    def test_an_offset_of_a_topic_that_is_deleted_meanwhile_is_not_found(self) -> None:
        house = with_records()
        partition = house.broker.topics.existing("t").partition(0)
        errors: list[Exception | None] = []
        house.broker.reader.offset_at_time(partition, 0, lambda _, error: errors.append(error))
        house.broker.topics.delete("t")
        house.run()
        assert [type(error) for error in errors] == [UnknownTopic]


class TestDeletion:
    @pytest.mark.parametrize("how", RESTARTS)
    def test_a_deleted_group_is_forgotten(self, how: str) -> None:
        house = with_records(3, partitions=2)
        lease(house, limit=9)
        bury(house, 0)
        settle(house, 1, index=1)
        house.broker.groups.configure("t", "g", GroupSettings(max_attempts=9))
        house.run()
        house.broker.groups.delete("t", "g")
        house = restarted(house, how)
        assert group_names(house) == set()
        assert letters(house) == []
        assert len(lease_all(house)) == 6
        assert house.broker.groups.settings("t", "g").max_attempts == 3

    @pytest.mark.parametrize("how", RESTARTS)
    def test_no_token_from_before_a_deletion_matches(self, how: str) -> None:
        house = with_records()
        ((old, _),) = grants(house)
        house.broker.groups.delete("t", "g")
        house = restarted(house, how)
        ((new, _),) = grants(house, owner="bob")
        assert new.token > old.token
        with pytest.raises(LeaseLost):
            settle(house, 0, owner=None, token=old.token)

    def test_a_group_may_be_deleted_and_made_again_in_one_turn(self) -> None:
        house = with_records(3, partitions=2)
        tokens = set()
        for _ in range(3):
            found = grants(house, limit=4)
            assert len(found) == 4
            tokens |= {grant.token for grant, _ in found}
            house.broker.leases.release(house.broker.leases.group_partition("t", "g", 0, 0), 0)
            house.broker.groups.delete("t", "g")
        lease(house, owner="bob")
        before = house.broker.overview.group_info("t", "g")
        house = restarted(house, "crashes")
        assert house.broker.overview.group_info("t", "g") == before
        assert before.leased == 1

    @pytest.mark.parametrize("step", range(8))
    @pytest.mark.parametrize("comes_again", [False, True])
    def test_a_group_deleted_while_a_snapshot_is_taken_stays_deleted(
        self, step: int, comes_again: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.model.snapshotter.STEP_THINGS", 1)
        house = with_records(3, partitions=2)
        for name in ("a", "b", "c"):
            lease(house, group=name, limit=6)
        house.run()
        house.broker.snapshotter.begin()
        for _ in range(step):
            house.pass_time(0.006, 0.006)
        house.broker.leases.release(house.broker.leases.group_partition("t", "b", 1, 2), 2)
        house.run()
        house.broker.leases.extend(
            house.broker.leases.group_partition("t", "b", 0, 2), 2, SECOND_US
        )
        house.broker.groups.delete("t", "b")
        if comes_again:
            lease(house, group="b", owner="bob")
        house.run()
        house.pass_time(1)
        assert house.broker.snapshotter.written == 1
        names = ["a", "b", "c"] if comes_again else ["a", "c"]
        tokens = last_tokens(house)
        before = [house.broker.overview.group_info("t", name)[:-3] for name in names]
        house = house.crash()
        assert sorted(group_names(house)) == names
        assert [house.broker.overview.group_info("t", name)[:-3] for name in names] == before
        assert last_tokens(house) == tokens

    @pytest.mark.parametrize("subscribes", [False, True])
    def test_a_deletion_leaves_the_tokens_of_groups_that_began_before_it(
        self, subscribes: bool
    ) -> None:
        """Also those that began in the same frame, in memory and after a replay."""
        house = with_records(3, partitions=2)
        group = "g"
        if subscribes:
            number = house.broker.subscriptions.subscribe(
                "t", 1, 3, SECOND_US, 60 * SECOND_US, {0: 0, 1: 0}
            )
            group = f"{GROUP_PREFIX}{number}"
        lease(house, group=group, limit=6)
        house.run()
        settle(house, 0, group=group)  # an event of this frame, before the others begin
        house.broker.groups.seek("t", "packed", 1)
        lease(house, group="open")
        house.broker.groups.delete("t", group)
        house.broker.groups.seek("t", "later", 1)
        house.run()
        tokens = last_tokens(house)
        assert tokens == {
            ("packed", 0): 0,
            ("packed", 1): 0,
            ("open", 0): 1,
            ("open", 1): 3,  # it has not begun
            ("later", 0): 3,
            ("later", 1): 3,
        }
        assert last_tokens(house.crash()) == tokens

    def test_what_happens_in_the_turn_of_a_deletion_is_forgotten_with_the_group(self) -> None:
        house = with_records(3, partitions=2)
        lease(house, limit=6)
        house.run()
        for index in range(2):
            house.broker.leases.release(house.broker.leases.group_partition("t", "g", index, 2), 2)
            house.broker.leases.extend(
                house.broker.leases.group_partition("t", "g", index, 1), 1, SECOND_US
            )
        house.broker.groups.delete("t", "g")
        house = restarted(house, "crashes")
        assert group_names(house) == set()

    def test_deleted_groups_take_no_memory(self) -> None:
        house = with_records(1)
        for number in range(50):
            lease(house, group=f"g{number}")
            house.broker.groups.delete("t", f"g{number}")
            house.run()
        assert group_names(house) == set()
        house = house.crash()
        assert group_names(house) == set()

    @pytest.mark.parametrize("use", USES)
    def test_a_group_partition_of_a_deleted_group_is_refused_and_does_not_bring_it_back(
        self, use: str
    ) -> None:
        house = with_records()
        lease(house)
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        house.broker.groups.delete("t", "g")
        with pytest.raises(UnknownGroup, match="was deleted"):
            USES[use](house, group_partition)
        house.run()
        assert group_names(house) == set()

    @pytest.mark.parametrize("use", USES)
    @pytest.mark.parametrize("began", [True, False])
    def test_a_group_partition_of_a_deleted_topic_is_refused_and_does_not_bring_it_back(
        self, use: str, began: bool
    ) -> None:
        """Whether its group had begun or not."""
        house = House(settings=BrokerSettings(snapshot_interval_bytes=1))
        produce(house, "t", b"x")
        if began:
            lease(house)
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        house.broker.topics.delete("t")
        house.pass_time(1)
        produce(house, "other", b"x")
        house.pass_time(1)  # two snapshots know nothing of the topic
        with pytest.raises(UnknownTopic, match="was deleted"):
            USES[use](house, group_partition)
        house.run()
        house = house.crash()
        assert [topic.name for topic in house.broker.topics.all()] == ["other"]

    @pytest.mark.parametrize("use", USES)
    def test_a_group_partition_kept_since_before_its_group_began_is_that_of_the_group(
        self, use: str
    ) -> None:
        """It stands for a name: whoever began the group since has leased what it would tell of."""
        house = with_records()
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        lease(house)
        USES[use](house, group_partition)
        info = house.broker.overview.group_info("t", "g")
        assert (info.lag, info.leased, info.dead) == SEEN_AFTER[use]
        house.run()
        after = house.crash().broker.overview.group_info("t", "g")
        assert (after.lag, after.leased, after.dead) == SEEN_AFTER[use]

    def test_a_group_partition_kept_since_before_its_group_began_knows_what_came_since(
        self,
    ) -> None:
        """Records that are removed are nobody's dead letters, and no token is given twice."""
        house = with_records()
        group_partition = house.broker.leases.group_partition("t", "g", 0, 0)
        house.broker.topics.trim("t", 0, 1)
        ((old, _),) = grants(house)
        house.broker.groups.delete("t", "g")
        assert not house.broker.leases.dead_letter(group_partition, 0, "bad")
        house.broker.leases.dead_letter(group_partition, 1, "bad")
        assert letters(house) == [(0, 1, "bad")]
        ((new, _),) = grants(house)
        assert new.token > old.token

    def test_only_a_group_that_exists_can_be_deleted(self) -> None:
        house = with_records()
        with pytest.raises(UnknownGroup):
            house.broker.groups.delete("t", "g")
        lease(house)
        house.broker.groups.delete("t", "g")
        with pytest.raises(UnknownGroup):
            house.broker.groups.delete("t", "g")


class TestRelease:
    def test_a_released_record_is_ready_again_and_no_failure_is_counted(self) -> None:
        house = with_records()
        lease(house, limit=3)
        poll = Poll(house)
        house.broker.leases.release(
            house.broker.leases.group_partition("t", "g", 0, 1), 1, owner="ann"
        )
        house.turn()
        assert poll.found == [(1, b"1")]
        house.broker.leases.release(house.broker.leases.group_partition("t", "g", 0, 1), 1)
        ((grant, _),) = grants(house)
        assert (grant.grants, grant.failures) == (3, 0)

    def test_a_release_may_name_a_delay(self) -> None:
        house = with_records(1)
        lease(house)
        house.broker.leases.release(
            house.broker.leases.group_partition("t", "g", 0, 0), 0, delay_us=5 * SECOND_US
        )
        assert lease(house) == []
        poll = Poll(house)
        house.pass_time(4.9)
        assert not poll.found
        house.pass_time(0.2)
        assert poll.found == [(0, b"0")]

    def test_only_a_lease_that_lives_can_be_released_and_by_its_owner(self) -> None:
        house = with_records()
        lease(house)
        with pytest.raises(NotLeaseOwner):
            house.broker.leases.release(
                house.broker.leases.group_partition("t", "g", 0, 0), 0, owner="bob"
            )
        with pytest.raises(LeaseLost):
            house.broker.leases.release(house.broker.leases.group_partition("t", "g", 0, 1), 1)
        house.pass_time(31)
        with pytest.raises(LeaseLost):
            house.broker.leases.release(
                house.broker.leases.group_partition("t", "g", 0, 0), 0, owner="ann"
            )

    @pytest.mark.parametrize("how", RESTARTS)
    def test_all_leases_of_a_client_end_and_nobody_elses(self, how: str) -> None:
        house = with_records(3, partitions=2)
        lease(house, limit=4)
        lease(house, owner="bob", limit=2)
        assert house.broker.groups.release_owner("t", "g", "ann") == (4, False)
        house = restarted(house, how)
        assert house.broker.overview.group_info("t", "g").leased == 2
        assert len(lease_all(house, owner="cid")) == 4
        assert house.broker.groups.release_owner("t", "g", "ann") == (0, False)

    def test_more_leases_than_a_frame_takes_are_released_in_pieces(self) -> None:
        house = House(options=WalOptions(segment_bytes=65_536, free_bytes_min=0))
        produce(house, "t", *[b"x"] * 500)
        while lease(house, limit=50):
            house.run()
        released, more, calls = 0, True, 0
        while more:
            count, more = house.broker.groups.release_owner("t", "g", "ann")
            released += count
            calls += 1
            house.run()
        assert released == 500
        assert calls == -(-500 // house.broker.leases.events_max)
        assert calls > 1
        assert house.broker.overview.group_info("t", "g").ready == 500
        assert not house.failures

    def test_a_release_of_many_leases_leaves_the_reactor_its_turns(self) -> None:
        house = House(options=WalOptions(segment_bytes=64 << 20, free_bytes_min=0))
        house = with_records(RELEASE_MAX // 2 + 9, partitions=2, house=house)
        while lease_all(house):
            house.run()
        broker = house.broker
        assert broker.groups.release_owner("t", "g", "ann") == (RELEASE_MAX, True)
        assert broker.groups.release_owner("t", "g", "ann") == (18, False)
        house.run()
        assert not house.failures

    def test_leases_that_lapsed_unnoticed_are_not_released(self) -> None:
        house = with_records(3, partitions=2)
        lease(house, limit=3, seconds=1)
        lease(house, limit=3, seconds=9)
        house.clock.rightNow += 2  # no timer is called
        assert house.broker.groups.release_owner("t", "g", "ann") == (3, False)
        assert len(lease(house, owner="bob", limit=9)) == 6

    def test_leases_are_listed_by_partition_and_offset(self) -> None:
        house = with_records(3, partitions=2)
        lease(house, limit=6)
        settle(house, 1)
        found = [(index, one.offset) for index, one in house.broker.groups.leases("t", "g")]
        assert found == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
        found = [(index, one.offset) for index, one in house.broker.groups.leases("t", "g", 1, 2)]
        assert found == [(1, 2)]
        with pytest.raises(UnknownGroup):
            next(house.broker.groups.leases("t", "h"))


Bury = Callable[..., int]


class TestDeadLetters:
    @pytest.mark.parametrize("how", RESTARTS)
    def test_replayed_dead_letters_are_delivered_as_if_never_tried(self, how: str) -> None:
        house = with_records(4)
        lease(house, limit=4)
        bury(house, 0, 2)
        settle(house, 1)
        assert house.broker.groups.replay_dead_letters("t", "g") == 2
        house = restarted(house, how)
        assert letters(house) == []
        found = [
            (grant.offset, grant.grants, grant.failures) for grant, _ in grants(house, limit=9)
        ]
        assert found == [(0, 1, 0), (2, 1, 0)]

    @pytest.mark.parametrize("how", RESTARTS)
    def test_purged_dead_letters_are_never_delivered(self, how: str) -> None:
        house = with_records()
        bury(house, 0, 1)
        assert house.broker.groups.purge_dead_letters("t", "g") == 2
        house = restarted(house, how)
        assert letters(house) == []
        assert lease(house, limit=9) == [(2, b"2")]

    def test_dead_letters_are_chosen_by_partition_offset_and_reason(self) -> None:
        house = with_records(9, partitions=2)
        for index in range(2):
            bury(house, 0, 1, 2, 6, index=index)
            bury(house, 3, 4, index=index, reason="damaged")
        purge = house.broker.groups.purge_dead_letters
        assert purge("t", "g", partition=1, first=5) == 1
        assert purge("t", "g", first=1, end=2) == 2
        assert purge("t", "g", reason="none") == 0
        assert purge("t", "g", partition=0, reason="damaged") == 2
        assert letters(house) == [
            (0, 0, "bad"), (0, 2, "bad"), (0, 6, "bad"),
            (1, 0, "bad"), (1, 2, "bad"), (1, 3, "damaged"), (1, 4, "damaged"),
        ]  # fmt: skip
        with pytest.raises(UnknownPartition):
            purge("t", "g", partition=2)
        with pytest.raises(UnknownGroup):
            purge("t", "h")

    def test_dead_letters_are_chosen_by_the_time_of_their_last_attempt(self) -> None:
        house = with_records(9)
        bury(house, 0, 4)
        house.pass_time(10)
        then_us = house.broker.time.time_us()
        house.pass_time(10)
        bury(house, 1, 5)
        assert house.broker.groups.replay_dead_letters("t", "g", before_us=then_us) == 2
        assert letters(house) == [(0, 1, "bad"), (0, 5, "bad")]
        assert house.broker.groups.replay_dead_letters("t", "g", before_us=then_us) == 0

    def test_the_times_of_attempts_survive_a_restart(self) -> None:
        house = with_records(2)
        lease(house)
        house.pass_time(10)
        bury(house, 0)
        house.run()
        house = house.crash(wall_seconds=house.wall_seconds + 5)
        ((_, letter),) = house.broker.leases.dead_letters("t", "g")
        assert isinstance(letter, DeadLetter)
        ago = [
            round((house.broker.time.monotonic_us() - time_us) / SECOND_US)
            for time_us in (letter.first_attempt_us, letter.last_attempt_us)
        ]
        assert ago == [15, 5]

    def test_replayed_records_go_to_long_polls_in_the_same_turn(self) -> None:
        house = with_records(1)
        bury(house, 0)
        poll = Poll(house)
        house.broker.groups.replay_dead_letters("t", "g")
        house.turn()
        assert poll.found == [(0, b"0")]

    @pytest.mark.parametrize("verb", ["replay_dead_letters", "purge_dead_letters"])
    def test_a_replay_or_purge_over_many_partitions_is_one_frame(self, verb: str) -> None:
        house = with_records(4, partitions=20)
        for index in range(20):
            bury(house, 0, 2, index=index)
        house.run()
        frames_before = house.broker.group_commit.frames
        assert getattr(house.broker.groups, verb)("t", "g", before_us=1 << 60) == 40
        house.run()
        assert house.broker.group_commit.frames == frames_before + 1

    def test_what_takes_too_long_for_a_turn_is_refused_before_anything_changes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("brokerd.broker.leases.group_admin.DEAD_LETTER_COST_MAX", 1_500)
        house = with_records(50)
        bury(house, *range(0, 40, 2), reason="even")
        house.pass_time(5)
        then_us = house.broker.time.time_us()
        house.pass_time(5)
        bury(house, *range(1, 40, 2), reason="odd")
        with pytest.raises(LimitExceeded, match="choose one partition and a range of offsets"):
            house.broker.groups.replay_dead_letters("t", "g", before_us=then_us)
        assert house.broker.overview.group_info("t", "g").dead == 40
        assert house.broker.groups.replay_dead_letters("t", "g", reason="even") == 20


CHANGES: dict[str, Callable[[House], object]] = {
    "pause": lambda house: house.broker.groups.pause("t", "g"),
    "configure": lambda house: house.broker.groups.configure("t", "g", GroupSettings()),
    "seek": lambda house: house.broker.groups.seek("t", "g", "start"),
    "delete": lambda house: house.broker.groups.delete("t", "g"),
    "release_owner": lambda house: house.broker.groups.release_owner("t", "g", "ann"),
    "replay": lambda house: house.broker.groups.replay_dead_letters("t", "g"),
    "purge": lambda house: house.broker.groups.purge_dead_letters("t", "g"),
}


class TestAdmission:
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_without_room_changes_nothing_and_may_be_tried_again(
        self, change: str
    ) -> None:
        options = WalOptions(segment_bytes=65_536, free_bytes_min=0)
        house = with_records(3, partitions=4, house=House(options=options))
        lease(house, limit=8)
        bury(house, 2)
        house.run()
        before = house.broker.overview.group_info("t", "g")
        fill_the_log(house)
        with pytest.raises(Congested):
            CHANGES[change](house)
        assert house.broker.overview.group_info("t", "g") == before
        done: list[object] = []
        call_when_admitted(house.broker, lambda: CHANGES[change](house)).addCallback(done.append)
        house.run()
        assert len(done) == 1
        assert not house.failures
        after = house.broker.overview.group_info("t", "g")
        assert after != before or change in ("pause", "configure")
        house = house.crash()
        assert house.broker.overview.group_info("t", "g") == after


def fill_the_log(house: House) -> None:
    """Leave less room than any change needs; nothing is allocated before the turn ends."""
    group_commit = house.broker.group_commit
    while True:
        try:
            group_commit.admit_events(GROUP_EVENTS_OVERHEAD_BYTES)
        except Congested:
            return
        group_commit.add_entry(Entry(EntryKind.MARK, 0, 0, 0, 0, b""))
        group_commit.append_frame()


def test_a_committed_offset_is_kept_as_given_and_moves_nothing() -> None:
    """Forwards, backwards, beyond the end; for each partition; over a crash and a snapshot."""
    house = House()
    house.broker.topics.create("t", 2)
    for _ in range(3):
        house.broker.appender.produce(house.broker.topics.find("t").partitions[0], b"x")
    house.broker.groups.commit_offset("t", "g", 0, 5)
    house.broker.groups.commit_offset("t", "g", 1, 7)
    house.broker.groups.commit_offset("t", "g", 0, 1)
    house.broker.groups.commit_offset("t", "begun", 0, -1)
    house.run()
    for restarted in (house.crash(), house.crash().crash()):
        broker = restarted.broker
        assert broker.groups.committed_offset("t", "g", 0) == 1
        assert broker.groups.committed_offset("t", "g", 1) == 7
        assert broker.groups.committed_offset("t", "begun", 0) is None
        assert broker.overview.group_info("t", "g").floor == 0
        with pytest.raises(UnknownGroup):
            broker.groups.committed_offset("t", "nobody", 0)
        with pytest.raises(UnknownPartition):
            broker.groups.commit_offset("t", "g", 2, 0)
        with pytest.raises(InvalidRequest, match="cannot be committed"):
            broker.groups.commit_offset("t", "g", 0, 1 << 63)


def test_groups_are_no_more_than_the_limit() -> None:
    """Whoever begins one; deleted ones make room, and those that there are go on."""
    house = House(settings=BrokerSettings(max_groups=3))
    produce(house, "t", b"a", b"b")
    for name in ("a", "b", "c"):
        house.broker.groups.commit_offset("t", name, 0, 1)
    for begin in (
        lambda: house.broker.groups.commit_offset("t", "d", 0, 1),
        lambda: house.broker.groups.pause("t", "d"),
        lambda: lease(house, group="d"),
    ):
        with pytest.raises(LimitExceeded, match="3 groups already; delete some"):
            begin()
    house.broker.groups.commit_offset("t", "a", 0, 2)
    house.broker.groups.delete("t", "b")
    house.pass_time(1.1)
    house.broker.groups.commit_offset("t", "d", 0, 1)
    assert group_names(house, "t") == {"a", "c", "d"}


def test_who_only_asks_takes_no_place_of_a_group() -> None:
    house = House(settings=BrokerSettings(max_groups=1))
    produce(house, "t", b"a")
    house.broker.groups.seek("t", "g", "end")
    for number in range(10):
        assert lease(house, "none", f"asks {number}") == []
        house.broker.overview.group_info("t", f"asks {number}")
    assert lease(house, group="g") == []
