# Tests: brokerd/broker/leases/removed_records.py, brokerd/broker/model/topics.py
"""A start offset moves in one short step; groups settle the removed records in slices.

Until then every view shows them as settled, and every later event and every start agrees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.task import Clock

from brokerd.broker import BrokerSettings
from brokerd.groups import GroupSettings, LeaseStore
from simulator.directory.state_text import describe
from tests.broker.desk import lease, produce, settle
from tests.broker.test_topic_admin import alone
from tests.house import House

NEVER = BrokerSettings(snapshot_interval_bytes=1 << 40)
GROUPS = 40
RECORDS = 8
START = 4


class SlowClock:
    """A clock of which each reading takes a third of a slice. It may run no later call."""

    def __init__(self, clock: Clock, *, stands: bool = False) -> None:
        self._clock = clock
        self._stands = stands
        self._readings = 0

    def seconds(self) -> float:
        self._readings += 1
        return float(self._clock.seconds()) + self._readings * 0.000_3

    def callLater(self, delay: float, call: Callable[..., Any], *args: Any) -> Any:
        later = max(delay, 0.001)  # a reactor turn of its own
        return None if self._stands else self._clock.callLater(later, call, *args)


def crowd(*, packed: bool = False) -> House:
    """A house whose topic has groups with dead letters, leases and settled records."""
    house = House(settings=NEVER)
    produce(house, "t", *[b"%d" % number for number in range(RECORDS)])
    house.run()
    for number in range(GROUPS):
        name = f"g{number:02}"
        if number == 1:
            house.broker.groups.pause("t", name)  # its store is plain
            continue
        assert len(lease(house, group=name, seconds=3600.0, limit=7)) == 7
        for offset in (1, 6):
            house.broker.leases.dead_letter(
                house.broker.leases.group_partition("t", name, 0, offset), offset, "bad"
            )
        for offset in (0, 2, 3, 5) if number == 2 else (5,):  # its floor is the start offset
            settle(house, offset, group=name)
    house.run()
    if packed:
        house.stop()
        house = house.again()
        partitions = [group.partitions[0] for group in groups(house)]
        assert not any(one.is_open for one in partitions)
    return house


def groups(house: House) -> list[Any]:
    return list(house.broker.topics.existing("t").groups.values())


def trim(house: House, *, stands: bool = False) -> None:
    """Move the start offset with a clock that costs time, in which slices may stand still."""
    slow: Any = SlowClock(house.clock, stands=stands)
    house.broker.slices.clock = slow
    assert house.broker.topics.trim("t", 0, START) == START


def at_once(*, packed: bool = False) -> House:
    """A house that settled all removed records in the step that removed them."""
    house = crowd(packed=packed)
    house.broker.topics.trim("t", 0, START)
    assert house.broker.counters.dead_letters_removed == GROUPS - 1
    return house


def state(house: House) -> list[str]:
    return list(describe(house.broker))


def letters(house: House) -> int:
    return house.broker.counters.dead_letters_removed


@pytest.mark.parametrize("packed", [False, True])
def test_groups_settle_removed_records_a_few_in_a_step(packed: bool) -> None:
    """All groups in one step held the reactor for half a second with 6,000 groups."""
    house = crowd(packed=packed)
    trim(house)
    counts = [letters(house)]
    while house.clock.getDelayedCalls() and counts[-1] < GROUPS - 1:
        house.clock.advance(0.001)
        counts.append(letters(house))
    steps = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert max(steps) <= 5
    assert counts[-1] == GROUPS - 1
    house.run()
    assert state(house) == state(at_once(packed=packed))


def test_a_step_does_not_pack_the_stores_of_all_groups() -> None:
    """A turn packs a few: with 100,000 open stores one step took seconds."""
    house = crowd()
    stores = house.broker.context.state.stores
    open_stores = stores.open
    stores._open_max = 0
    trim(house)
    assert stores.open == open_stores


@pytest.mark.parametrize("packed", [False, True])
def test_a_group_is_seen_without_removed_records_before_its_slice(packed: bool) -> None:
    """Positions and leases are those after the change, for the first group and the last."""
    house, expected = crowd(packed=packed), at_once(packed=packed)
    trim(house, stands=True)
    assert letters(house) < GROUPS // 2
    for group, other in zip(groups(house), groups(expected), strict=True):
        found = group.partitions[0].position
        assert found == other.partitions[0].position
        assert found.floor >= START and found.dead <= 1
    assert letters(house) == GROUPS - 1
    house, expected = crowd(packed=packed), at_once(packed=packed)
    trim(house, stands=True)
    assert lease(house, group="g39", limit=9) == lease(expected, group="g39", limit=9)
    assert state(house) == state(expected)
    trim(house, stands=True)
    assert letters(house) == GROUPS - 1


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("has_snapshot", [False, True], ids=["crash", "stop"])
def test_a_start_in_the_middle_has_settled_all(packed: bool, has_snapshot: bool) -> None:
    """From the log, and from a snapshot of groups of which most did not have their slice."""
    house = crowd(packed=packed)
    trim(house, stands=True)
    house.run()
    assert letters(house) < GROUPS // 2
    expected = at_once(packed=packed)
    expected.run()
    if has_snapshot:
        house.stop()
        expected.stop()
        assert state(house.again()) == state(expected.again())
    else:
        assert state(house.crash()) == state(expected.crash())
    assert state(alone(house)) == state(alone(expected))


def fail(house: House, group: str) -> None:
    assert settle(house, 4, success=False, group=group, delay_seconds=0.0)


def seek_back(house: House, group: str) -> None:
    house.broker.groups.seek("t", group, START + 1, 0)


def configure(house: House, group: str) -> None:
    house.broker.groups.configure("t", group, GroupSettings(key_ordered=True))


def commit(house: House, group: str) -> None:
    house.broker.groups.commit_offset("t", group, 0, 2)


def pause(house: House, group: str) -> None:
    house.broker.groups.pause("t", group)


def release(house: House, group: str) -> None:
    house.broker.groups.release_owner("t", group, "ann")


def take(house: House, group: str) -> None:
    lease(house, group=group, limit=9)


def delete(house: House, group: str) -> None:
    house.broker.groups.delete("t", group)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "change", [fail, seek_back, configure, commit, pause, release, take, delete]
)
def test_a_change_before_the_slice_of_a_group_is_replayed(
    change: Callable[[House, str], None], packed: bool
) -> None:
    """A start replays it after the start offset: the state is that of a settled group."""
    house, expected = crowd(packed=packed), at_once(packed=packed)
    trim(house, stands=True)
    for one in (house, expected):
        change(one, "g38")
        one.run()
    before = state(expected)
    assert state(house.crash()) == state(expected.crash())
    assert state(house) == before


def test_a_start_offset_that_moves_on_in_the_middle_is_settled_too() -> None:
    """Each group ends at the last one, with one pass more."""
    house = crowd()
    trim(house)
    assert house.broker.topics.trim("t", 0, START + 3) == START + 3
    house.clock.pump([0.001] * GROUPS)
    assert letters(house) == 2 * (GROUPS - 1)
    expected = at_once()
    expected.broker.topics.trim("t", 0, START + 3)
    assert state(house) == state(expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("part", ["load", "settle_gap", "apply"])
def test_a_group_whose_slice_fails_is_settled_at_its_next_use(
    part: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other groups have their slices; a start from the snapshot agrees."""
    house, expected = crowd(packed=packed), at_once(packed=packed)
    failures = 0

    def fail_some(self: LeaseStore, *arguments: Any) -> None:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise MemoryError
        really(self, *arguments)

    really = getattr(LeaseStore, part)
    with monkeypatch.context() as patch:
        patch.setattr(LeaseStore, part, fail_some)
        assert house.broker.topics.trim("t", 0, START) == START
        house.run()
    assert failures == (3 if packed or part != "load" else 0)
    assert letters(house) == GROUPS - 1 - failures
    assert state(house) == state(expected)
    assert letters(house) == GROUPS - 1
    house.stop()
    expected.stop()
    assert state(house.again()) == state(expected.again())


def test_a_topic_deleted_in_the_middle_ends_the_work() -> None:
    """The groups are gone; a topic of its name begins anew."""
    house = crowd()
    trim(house)
    removed = letters(house)
    house.broker.topics.delete("t")
    produce(house, "t", b"new")
    house.run()
    assert letters(house) == removed
    assert lease(house, group="g39") == [(0, b"new")]


def test_a_stop_ends_the_work() -> None:
    """The slice that was due does nothing."""
    house = crowd()
    trim(house)
    removed = letters(house)
    house.broker.stop()
    house.clock.pump([0.001] * GROUPS)
    assert letters(house) == removed < GROUPS // 2
