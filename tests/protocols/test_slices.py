"""SliceQueue of the reactor: one slice of work each, in order."""

from __future__ import annotations

from brokerd.protocols.base.slices import SliceQueue
from tests.protocols.flymq_desk import Steps


def test_each_piece_of_work_has_a_turn_for_itself_in_the_order_asked_for() -> None:
    clock = Steps()
    slices = SliceQueue(clock)
    done: list[int] = []
    for number in range(3):
        slices.add(lambda number=number: done.append(number))
    for number in range(3):
        assert done == list(range(number))
        assert len(clock.waiting) == 1
        clock.step()
    assert done == [0, 1, 2]
    assert not clock.waiting


def test_work_that_asks_for_another_turn_goes_behind_the_others() -> None:
    clock = Steps()
    slices = SliceQueue(clock)
    done: list[str] = []

    def first() -> None:
        done.append("first")
        slices.add(lambda: done.append("first again"))

    slices.add(first)
    slices.add(lambda: done.append("second"))
    while clock.waiting:
        clock.step()
    assert done == ["first", "second", "first again"]


def test_a_fault_in_one_turn_takes_no_turn_from_the_others() -> None:
    clock = Steps()
    slices = SliceQueue(clock)
    done: list[str] = []

    def fail() -> None:
        raise ValueError("a fault")

    slices.add(fail)
    slices.add(lambda: done.append("other"))
    try:
        clock.step()
    except ValueError:
        clock.step()
    assert done == ["other"]
