"""Where groups stand: by their leases, or by their commits if they never leased."""

from __future__ import annotations

import pytest

from brokerd.broker import GroupPartition
from tests.broker.desk import lease, produce, settle
from tests.broker.test_group_admin import RESTARTS, restarted, with_records
from tests.house import House

MINUTE = 60.0


def stands(house: House, group: str = "g") -> tuple[int, int | None]:
    """A group's lag and age in minutes, which metrics and answers tell alike."""
    (row,) = [row for row in house.broker.status()["groups"] if row["group"] == group]
    info = house.broker.overview.group_info("t", group)
    age_us = info.oldest_age_us
    assert row["lag"] == info.lag
    assert row["oldest_age_seconds"] == (None if age_us is None else age_us / 1e6)
    return info.lag, None if age_us is None else round(age_us / 1e6 / MINUTE)


def a_record_a_minute(count: int = 5) -> House:
    """Records 0, 1, 2 ... of topic t, appended a minute apart; the last one is a minute old."""
    house = House()
    for number in range(count):
        produce(house, "t", b"%d" % number)
        house.run()
        house.pass_time(MINUTE, 1)
    return house


@pytest.mark.parametrize("how", RESTARTS)
def test_a_group_that_only_commits_is_told_of_by_its_commit(how: str) -> None:
    house = a_record_a_minute()
    house.broker.groups.commit_offset("t", "g", 0, 3)
    house = restarted(house, how)
    assert stands(house)[0] == 2
    house.run()  # after a restart an index is read before the age is exact
    assert stands(house) == (2, 2)
    assert house.broker.overview.group_info("t", "g").ready == 2
    assert house.broker.status()["groups"][0]["committed"] == 3


@pytest.mark.parametrize("committed", [5, 9])
def test_a_group_that_has_committed_all_is_up_to_date(committed: int) -> None:
    """Also one that committed more than there is."""
    house = a_record_a_minute()
    house.broker.groups.commit_offset("t", "g", 0, committed)
    assert stands(house) == (0, None)
    assert stands(restarted(house, "crashes")) == (0, None)


def test_a_commit_below_the_start_offset_counts_from_there() -> None:
    house = a_record_a_minute()
    house.broker.groups.commit_offset("t", "g", 0, 1)
    house.broker.topics.trim("t", 0, 4)
    house.run()
    assert stands(house) == (1, 1)


def test_a_group_that_leases_is_told_of_by_its_leases() -> None:
    """Its commit is shown beside them; now, and when all leases are over."""
    house = a_record_a_minute()
    house.broker.groups.commit_offset("t", "g", 0, 5)
    assert lease(house) == [(0, b"0")]
    assert stands(house) == (5, 5)
    assert settle(house, 0)
    assert stands(house) == (4, 4)
    assert house.broker.overview.group_info("t", "g").committed == 5


@pytest.mark.parametrize("fate", ["comes back", "is dead"])
def test_records_that_were_tried_are_told_of_whatever_groups_were_deleted(fate: str) -> None:
    """A deleted group that gave more tokens makes the tokens of others say nothing."""
    house = a_record_a_minute()
    lease(house, group="other", limit=4)
    house.broker.groups.commit_offset("t", "g", 0, 5)
    lease(house)
    house.broker.groups.delete("t", "other")
    assert stands(house)[0] == 5
    if fate == "comes back":
        assert settle(house, 0, success=False)
        assert stands(house)[0] == 5
    else:
        group_partition: GroupPartition = house.broker.leases.group_partition("t", "g", 0, 0)
        assert house.broker.leases.dead_letter(group_partition, 0, "bad")
        assert stands(house)[0] == 4


def test_a_group_that_began_after_a_deletion_is_told_of_by_its_commit() -> None:
    """Its first token would be above those of the deleted group: it gave none of them."""
    house = a_record_a_minute()
    lease(house)
    house.broker.groups.delete("t", "g")
    house.broker.groups.commit_offset("t", "g", 0, 4)
    assert stands(house) == (1, 1)
    assert stands(restarted(house, "crashes"))[0] == 1


def test_each_partition_is_told_of_by_what_happens_there() -> None:
    """Committed in the first, leased in the second, nothing at all in the third."""
    house = with_records(3, partitions=3)
    house.broker.groups.commit_offset("t", "g", 0, 3)
    group_partition = house.broker.leases.group_partition("t", "g", 1, 0)
    assert house.broker.leases.settle(group_partition, 0, True)
    house.run()
    rows = house.broker.status()["groups"]
    assert {row["partition"]: row["lag"] for row in rows} == {0: 0, 1: 2, 2: 3}
    assert house.broker.overview.group_info("t", "g").lag == 5


def test_groups_with_the_largest_lag_come_first_by_their_commits() -> None:
    house = a_record_a_minute()
    house.broker.groups.commit_offset("t", "done", 0, 5)
    house.broker.groups.commit_offset("t", "behind", 0, 1)
    assert [row["group"] for row in house.broker.status()["groups"]] == ["behind", "done"]
