"""Light requests that arrived go before a step of heavy work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.broker.archive import bounds_writer
from brokerd.broker.light_first import OWED_STEP_SECONDS, OWED_STEPS_MAX, LightFirst
from brokerd.codecs.mamamia import Produce
from tests.broker.test_bounds import new_house
from tests.broker.test_group_stores import lease_all, let_pack, wide
from tests.house import House


def next_turn(house: House) -> None:
    """Call the timers that are due now, and none that they begin."""
    now = house.clock.seconds()
    for call in [call for call in house.clock.getDelayedCalls() if call.getTime() <= now]:
        function, arguments = call.func, call.args
        call.cancel()
        function(*arguments)


def test_heavy_work_gives_way_every_other_time() -> None:
    """Else light requests without end would stop it."""
    house = House()
    light_first = LightFirst(house.broker.group_commit, house.clock)
    assert [light_first.gives_way() for _ in range(2)] == [False, False]
    house.broker.group_commit.light_arrives = lambda: True
    assert [light_first.gives_way() for _ in range(5)] == [True, False, True, False, True]


def test_heavy_work_that_waited_long_has_that_time_before_it_gives_way_again() -> None:
    """A turn of many light connections takes long, and heavy work has one step in each."""
    house = House()
    light_first = LightFirst(house.broker.group_commit, house.clock)
    house.broker.group_commit.light_arrives = lambda: True
    assert light_first.gives_way()
    house.clock.rightNow += 3.5 * OWED_STEP_SECONDS
    assert [light_first.gives_way() for _ in range(5)] == [False, False, False, False, True]
    house.clock.rightNow += 3600
    steps = [light_first.gives_way() for _ in range(OWED_STEPS_MAX + 2)]
    assert steps == [False] * (OWED_STEPS_MAX + 1) + [True]


def test_answers_come_before_work_that_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that gives way does not wait for them: the reactor has a request to read."""
    house = House()
    monkeypatch.setattr(house.wal, "_wait", lambda seconds: house.writer.step())
    clients = [house.connect() for _ in range(2)]
    for client in clients:
        client.send(Produce("t", b"x"))
    house.turn()
    light_first = LightFirst(house.broker.group_commit, house.clock)
    house.broker.group_commit.light_arrives = lambda: True
    assert light_first.gives_way()
    assert [len(client.answers()) for client in clients] == [0, 0]
    assert not light_first.gives_way()
    assert [len(client.answers()) for client in clients] == [1, 1]


def slices(house: House, _: pytest.MonkeyPatch) -> Callable[[], bool]:
    done: list[None] = []
    house.broker.slices.add(lambda: done.append(None))
    return lambda: bool(done)


def packing(house: House, _: pytest.MonkeyPatch) -> Callable[[], bool]:
    stores = let_pack(wide(130, house=house))
    before = stores.open
    stores.crowded()
    return lambda: stores.open < before


def bounds(house: House, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    house.broker.topics.create("t")
    house.run()
    encoded: list[None] = []
    encode = bounds_writer.encode_topic
    monkeypatch.setattr(
        bounds_writer, "encode_topic", lambda topic: encoded.append(None) or encode(topic)
    )
    house.broker.archive_admin.write_bounds(lambda error: None)
    return lambda: bool(encoded)


def freeing(house: House, _: pytest.MonkeyPatch) -> Callable[[], bool]:
    table = list(range(5_000))
    house.broker.reaper.free([table])
    return lambda: len(table) < 5_000


def test_nobody_is_answered_within_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first groups of a deleted topic are freed at once, in the middle of the change."""
    house = wide(130)
    lease_all(house)
    house.run()
    monkeypatch.setattr(house.wal, "_wait", lambda seconds: house.writer.step())
    clients = [house.connect() for _ in range(2)]
    for client in clients:
        client.send(Produce("other", b"x"))
    house.turn()
    house.broker.topics.delete("t")
    assert [len(client.answers()) for client in clients] == [0, 0]


@pytest.mark.parametrize("begin", [slices, packing, bounds, freeing])
def test_heavy_work_waits_a_turn_for_a_light_request(
    begin: Callable[[House, pytest.MonkeyPatch], Callable[[], bool]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = new_house()
    house.run()
    is_done = begin(house, monkeypatch)
    house.broker.group_commit.light_arrives = lambda: True
    next_turn(house)
    assert not is_done()
    next_turn(house)
    assert is_done()
