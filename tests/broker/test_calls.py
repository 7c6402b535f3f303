"""A single call to the broker is answered once it is durable, waits while it must, and can be
given up."""

from __future__ import annotations

import pytest
from twisted.internet.defer import CancelledError, Deferred

from brokerd.broker import BrokerSettings
from brokerd.broker.calls import call_when_admitted
from brokerd.errors import InvalidName, ShuttingDown, StorageFailed
from tests.broker.desk import produce
from tests.house import House

CROWDED = BrokerSettings(max_uncommitted_bytes=64 * 1024)


def outcome(answer: Deferred[object]) -> list[object]:
    """What the answer is by now: [] for none yet, else the result or the error."""
    seen: list[object] = []
    answer.addBoth(lambda result: seen.append(getattr(result, "value", result)))
    return seen


def crowd(house: House) -> None:
    """Leave no room for anything until the commit that this begins is done."""
    house.broker.topics.create("crowd")
    house.turn()
    produce(house, "crowd", b"x" * 60_000)
    house.turn()


def test_an_answer_comes_when_it_is_durable() -> None:
    """Not before: after a power cut the topic is there."""
    house = House()
    seen = outcome(
        call_when_admitted(house.broker, lambda: house.broker.topics.create("orders").name)
    )
    assert seen == []
    house.turn()
    assert seen == []
    house.run()
    assert seen == ["orders"]
    assert house.crash().broker.topics.find("orders") is not None


def test_a_call_that_changes_nothing_is_answered_at_once() -> None:
    """Nothing has to be written for it."""
    house = House()
    assert outcome(call_when_admitted(house.broker, lambda: 7)) == [7]


def test_what_somebody_else_just_changed_is_waited_for() -> None:
    """An answer about it must not be known before it is safe."""
    house = House()
    house.broker.topics.create("orders")
    seen = outcome(
        call_when_admitted(house.broker, lambda: house.broker.topics.find("orders") is not None)
    )
    assert seen == []
    house.run()
    assert seen == [True]


def test_a_refusal_waits_for_what_it_says() -> None:
    """It may tell of a change that is not durable yet; and it leaves as what it is."""
    house = House()
    house.broker.topics.create("orders")
    seen = outcome(call_when_admitted(house.broker, lambda: house.broker.topics.create("a\nb")))
    assert seen == []
    house.run()
    assert [type(error) for error in seen] == [InvalidName]


def test_a_congested_broker_is_waited_for() -> None:
    """The call is made once, when there is room, and answered."""
    house = House(settings=CROWDED)
    crowd(house)
    seen = outcome(call_when_admitted(house.broker, lambda: produce(house, "crowd", b"y" * 30_000)))
    assert seen == []
    house.run()
    assert seen == [[1]]
    assert house.broker.topics.existing("crowd").partitions[0].next_offset == 2


def test_who_gives_up_while_waiting_changes_nothing() -> None:
    """The call is not made later on, behind the back of one who has left."""
    house = House(settings=CROWDED)
    crowd(house)
    answer = call_when_admitted(house.broker, lambda: produce(house, "crowd", b"y" * 30_000))
    seen = outcome(answer)
    answer.cancel()
    house.run()
    assert [type(error) for error in seen] == [CancelledError]
    topic = house.broker.topics.find("crowd")
    assert topic is not None and topic.partitions[0].next_offset == 1


def test_who_gives_up_before_the_disk_answers_disturbs_nobody() -> None:
    """What was applied stays, and others get their answers."""
    house = House()
    first = call_when_admitted(house.broker, lambda: house.broker.topics.create("a").name)
    second = outcome(call_when_admitted(house.broker, lambda: house.broker.topics.create("b").name))
    seen = outcome(first)
    first.cancel()
    house.run()
    assert [type(error) for error in seen] == [CancelledError]
    assert second == ["b"]
    assert house.broker.topics.find("a") is not None


def test_a_broker_that_stops_refuses_those_that_wait() -> None:
    """Neither is anybody left without an answer."""
    house = House(settings=CROWDED)
    crowd(house)
    waiting = outcome(
        call_when_admitted(house.broker, lambda: produce(house, "crowd", b"y" * 30_000))
    )
    house.stop()
    late = outcome(call_when_admitted(house.broker, lambda: produce(house, "crowd", b"z")))
    assert [type(error) for error in waiting + late] == [ShuttingDown, ShuttingDown]


def test_a_failed_disk_refuses_at_once() -> None:
    """Nothing will ever be durable again, so nothing is waited for."""
    house = House()
    house.broker.topics.create("orders")
    house.wal.fail("the disk is gone", OSError("gone"))
    seen = outcome(
        call_when_admitted(house.broker, lambda: house.broker.group_commit.admit(1 << 30))
    )
    assert [type(error) for error in seen] == [StorageFailed]


def test_a_fault_in_the_call_is_told() -> None:
    """It does not look like a refusal."""
    with pytest.raises(ZeroDivisionError):
        raise outcome(call_when_admitted(House().broker, lambda: 1 // 0))[0]  # type: ignore[misc]
