"""The share of a reactor turn: slices by owner, light owners first, costs from a given clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokerd.broker.slices import (
    NEW_SECONDS,
    PAUSE_AFTER_SECONDS,
    PAUSE_CHECK_SECONDS,
    PAUSE_FACTOR,
    PAUSE_SECONDS_MAX,
    SLICE_SECONDS,
    TURN_SECONDS,
    SliceOwner,
    SliceQueue,
)
from tests.protocols.flymq_desk import Steps


class Desk:
    """A queue, and works of known cost."""

    def __init__(self) -> None:
        self.clock = Steps()
        self.slices = SliceQueue(self.clock)
        self.done: list[str] = []
        self.delay_seconds = 0.0
        """Delay of the next turn, of a desk that is `resting`."""

    def work(
        self, name: str, owner: SliceOwner, slices: int = 1, cost: float = SLICE_SECONDS
    ) -> None:
        """Queue work that takes so many slices, each of this cost in seconds."""

        def run(left: int) -> None:
            self.done.append(name)
            self.clock.now += cost
            if left > 1:
                self.slices.add(lambda: run(left - 1), owner)

        self.slices.add(lambda: run(slices), owner)

    def run(self, name: str, owner: SliceOwner | None = None, cost: float = SLICE_SECONDS) -> None:
        """Ask for a further run of requests, of this cost in seconds."""

        def run() -> None:
            self.done.append(name)
            self.clock.now += cost

        self.slices.go_on(run, owner or SliceOwner())

    def turn(self) -> list[str]:
        """Run one reactor turn and return what it did."""
        self.done.clear()
        self.clock.step()
        return list(self.done)

    def finish(self) -> list[str]:
        self.done.clear()
        while self.clock.waiting:
            self.clock.step()
        return list(self.done)


def test_a_turn_takes_one_slice_however_many_wait() -> None:
    desk = Desk()
    for number in range(8):
        desk.work(str(number), SliceOwner())
    for number in range(8):
        assert len(desk.clock.waiting) == 1
        assert desk.turn() == [str(number)]
    assert not desk.clock.waiting


def test_light_requests_get_their_answers_before_the_slices_of_a_turn() -> None:
    """Their time is not that of the slices."""
    desk = Desk()

    def answer() -> bool:
        desk.done.append("answers")
        desk.clock.now += 2 * SLICE_SECONDS
        return False

    desk.slices.gives_way = answer
    desk.work("heavy", SliceOwner(), cost=SLICE_SECONDS / 1.5)
    desk.work("other", SliceOwner(), cost=SLICE_SECONDS / 1.5)
    assert desk.turn() == ["answers", "heavy", "other"]


def test_work_that_gives_way_waits_for_the_next_turn() -> None:
    desk = Desk()
    answers = iter([True, False])
    desk.slices.gives_way = lambda: next(answers)
    desk.work("heavy", SliceOwner())
    assert [desk.turn(), desk.turn()] == [[], ["heavy"]]


def test_a_pause_does_not_look_for_light_requests() -> None:
    """No slice would begin, and the look may take the place of a later one."""
    desk = resting(lambda: 1)
    looks: list[None] = []

    def look() -> bool:
        looks.append(None)
        return False

    desk.slices.gives_way = look
    desk.work("long", SliceOwner(), slices=2, cost=2 * PAUSE_AFTER_SECONDS)
    desk.turn()
    before = len(looks)
    desk.turn()
    assert len(looks) == before
    desk.clock.now += 10 * PAUSE_SECONDS_MAX
    desk.turn()
    assert len(looks) == before + 1


def test_a_turn_takes_short_works_until_the_time_of_a_slice_is_used() -> None:
    desk = Desk()
    for number in range(10):
        desk.work(str(number), SliceOwner(), cost=SLICE_SECONDS / 3.5)
    assert desk.turn() == ["0", "1", "2", "3"]


def test_an_owner_uses_its_time_of_a_round_at_once() -> None:
    desk = Desk()
    for name in "ab":
        desk.work(name, SliceOwner(), slices=4, cost=SLICE_SECONDS / 4)
    assert "".join(desk.finish()) == "aaaabbbb"


def test_owners_take_turns_by_cost_and_not_by_number_of_works() -> None:
    """One of two owners has eight works at once: the other still gets half of the time."""
    desk = Desk()
    many, one = SliceOwner(), SliceOwner()
    for number in range(8):
        desk.work(f"many {number}", many)
    desk.work("one", one, slices=4)
    order = desk.finish()
    assert order.index("one") <= 1
    assert [name[:4].strip() for name in order[:8]].count("one") == 4


def test_a_stream_of_new_owners_leaves_others_a_fifth() -> None:
    """As with a new connection for each request."""
    desk = Desk()
    old = SliceOwner()
    old.credit_seconds = 0.0
    desk.work("old", old, slices=100)

    def come() -> None:
        desk.done.append("new")
        desk.clock.now += SLICE_SECONDS
        desk.slices.add(come, SliceOwner())

    desk.slices.add(come, SliceOwner())
    desk.slices.add(come, SliceOwner())
    found = [desk.turn() for _ in range(20)]
    assert found == [["new"], ["new"], ["new"], ["new"], ["old"]] * 4


def test_an_owner_pays_for_a_long_step_with_later_rounds() -> None:
    """A step that could not be cut took ten slices' time: the other has ten slices for it."""
    desk = Desk()
    long, fair = SliceOwner(), SliceOwner()
    desk.work("long", long, slices=3, cost=10 * SLICE_SECONDS)
    desk.work("fair", fair, slices=20)
    order = desk.finish()
    second = order.index("long", 1)
    assert 8 <= order[:second].count("fair") <= 12


def test_further_runs_and_slices_take_turns() -> None:
    """Neither stops the other, however many there are."""
    desk = Desk()
    for number in range(3):
        desk.work(f"slice {number}", SliceOwner())
        desk.run(f"run {number}")
    expected = ["run 0", "slice 0", "run 1", "slice 1", "run 2", "slice 2"]
    assert [desk.turn() for _ in range(6)] == [[one] for one in expected]
    assert not desk.clock.waiting


def test_further_runs_of_owners_take_turns() -> None:
    """An account with many connections leaves another's run the second place."""
    desk = Desk()
    crowd, other = SliceOwner(), SliceOwner()
    for number in range(3):
        desk.run(f"crowd {number}", crowd)
    desk.run("other 0", other)
    assert desk.finish() == ["crowd 0", "other 0", "crowd 1", "crowd 2"]


def test_a_turn_begins_further_runs_until_the_time_of_a_slice_is_used() -> None:
    desk = Desk()
    for number in range(5):
        desk.run(str(number), cost=SLICE_SECONDS / 2.5)
    assert desk.turn() == ["0", "1", "2"]
    assert desk.turn() == ["3", "4"]
    assert not desk.clock.waiting


def test_a_run_that_asks_for_another_has_it_in_a_later_turn() -> None:
    desk = Desk()
    desk.slices.go_on(lambda: desk.run("second"), SliceOwner())
    assert desk.turn() == []
    assert desk.turn() == ["second"]


def resting(commit: Callable[[], int]) -> Desk:
    """Return a desk whose light requests wait for this commit."""
    desk = Desk()
    clock = desk.clock

    def call_later(delay: float, call: Callable[[], object]) -> None:
        desk.delay_seconds = delay
        clock.waiting.append(call)

    clock.callLater = call_later  # type: ignore[assignment]
    desk.slices.light_waits = commit
    return desk


def test_heavy_work_rests_after_a_long_step_while_light_requests_wait_for_a_commit() -> None:
    """It rests for a time that counts from the step, and so do further runs of requests.

    Work that comes with credit goes on.
    """
    commit = 1
    desk = resting(lambda: commit)
    desk.work("long", SliceOwner(), cost=3 * PAUSE_AFTER_SECONDS)
    heavy = SliceOwner()
    heavy.credit_seconds = -SLICE_SECONDS
    desk.work("heavy", heavy, slices=2)
    assert desk.turn() == ["long"]
    assert desk.turn() == []
    desk.run("run")
    desk.work("light", SliceOwner(), cost=0.0)
    assert desk.turn() == ["light"]
    desk.clock.now += PAUSE_FACTOR * 3**2 * PAUSE_AFTER_SECONDS - 2 * SLICE_SECONDS
    assert desk.turn() == []
    desk.clock.now += 3 * SLICE_SECONDS
    assert desk.turn() == ["run"]
    assert desk.turn() == ["heavy"]
    desk.work("long", SliceOwner(), cost=3 * PAUSE_AFTER_SECONDS)
    assert desk.turn() == ["long"]
    commit = 0
    assert desk.turn() == ["heavy"]


def paused() -> Desk:
    """Return a desk in a pause, in which heavy work waits."""
    desk = resting(lambda: 1)
    desk.work("long", SliceOwner(), cost=2 * PAUSE_AFTER_SECONDS)
    heavy = SliceOwner()
    heavy.credit_seconds = -SLICE_SECONDS
    desk.work("heavy", heavy)
    assert desk.turn() == ["long"]
    return desk


def test_an_owner_that_is_charged_while_it_waits_pauses_like_the_others() -> None:
    """For a run of another connection of its account, say."""
    desk = paused()
    account = SliceOwner()
    desk.work("light", account)
    desk.slices.charge(account, 2 * SLICE_SECONDS)
    assert desk.turn() == []
    desk.clock.now += PAUSE_SECONDS_MAX
    assert sorted(desk.finish()) == ["heavy", "light"]


def test_new_owners_alone_have_slices_in_a_pause_however_many_come() -> None:
    desk = paused()
    for _ in range(round(2 * NEW_SECONDS / SLICE_SECONDS)):
        desk.work("light", SliceOwner())
        assert desk.turn() == ["light"]


def test_a_pause_does_not_keep_the_reactor_busy() -> None:
    desk = resting(lambda: 1)
    desk.work("long", SliceOwner(), slices=2, cost=2 * PAUSE_AFTER_SECONDS)
    assert desk.turn() == ["long"]
    assert desk.turn() == []
    assert desk.delay_seconds == PAUSE_CHECK_SECONDS
    desk.work("light", SliceOwner(), cost=0.0)
    desk.work("light", SliceOwner(), cost=2 * SLICE_SECONDS)
    desk.work("light", SliceOwner(), cost=0.0)
    assert desk.turn() == ["light", "light"]
    assert not desk.delay_seconds
    assert desk.turn() == ["light"]
    assert desk.delay_seconds == PAUSE_CHECK_SECONDS


def test_no_pause_is_longer_than_a_quarter_of_a_second() -> None:
    """Heavy work goes on beside a commit that takes seconds."""
    desk = resting(lambda: 1)
    desk.work("long", SliceOwner(), cost=1.0)
    heavy = SliceOwner()
    heavy.credit_seconds = -SLICE_SECONDS
    desk.work("heavy", heavy)
    assert desk.turn() == ["long"]
    desk.clock.now += PAUSE_SECONDS_MAX - SLICE_SECONDS
    assert desk.turn() == []
    desk.clock.now += 2 * SLICE_SECONDS
    assert desk.turn() == ["heavy"]


def test_short_slices_rest_too_while_one_commit_lasts() -> None:
    """They take a fifth of the time, and less the longer it lasts; all of it if it is quick."""
    commits = [1]
    desk = resting(lambda: commits[-1])
    desk.work("heavy", SliceOwner(), slices=200)

    def worked(seconds: float) -> float:
        """Return the time of the slices within so many seconds."""
        began, slices = desk.clock.now, 0
        while desk.clock.now < began + seconds:
            slices += len(desk.turn())
            desk.clock.now += SLICE_SECONDS / 10
        return slices * SLICE_SECONDS

    within = pytest.approx(PAUSE_AFTER_SECONDS, abs=1.1 * SLICE_SECONDS)
    for portion in (1, 2, 3):
        assert worked((1.2 + PAUSE_FACTOR * portion**2) * PAUSE_AFTER_SECONDS) == within
    for commit in (2, 3):
        commits.append(commit)
        desk.turn()
        desk.clock.now += PAUSE_FACTOR * PAUSE_AFTER_SECONDS
        if commit == 2:
            assert worked((1.2 + PAUSE_FACTOR) * PAUSE_AFTER_SECONDS) == within
    for commit in range(4, 14):
        commits.append(commit)
        assert desk.turn() == ["heavy"]
        assert desk.turn() == ["heavy"]


def test_work_before_a_light_request_makes_only_a_short_pause_beside_its_commit() -> None:
    commit = 0
    desk = resting(lambda: commit)
    desk.work("heavy", SliceOwner(), slices=200)
    for _ in range(100):
        assert desk.turn() == ["heavy"]
    commit = 1
    desk.turn()
    desk.clock.now += PAUSE_FACTOR * PAUSE_AFTER_SECONDS
    assert desk.turn() == ["heavy"]


def test_light_work_that_comes_goes_before_all_heavy_work() -> None:
    desk = Desk()
    for number in range(8):
        desk.work(f"heavy {number}", SliceOwner(), slices=50)
    for _ in range(20):
        desk.turn()
    light = SliceOwner()
    for _ in range(5):
        desk.work("light", light, cost=0.0001)
        assert desk.turn()[0] == "light"
        desk.turn()


def test_all_connections_of_an_account_are_one_owner() -> None:
    slices = SliceQueue(Steps())
    owner = slices.account("ann")
    assert slices.account("ann") is owner
    assert slices.account("bob") is not owner


def test_requests_of_a_turn_are_held_when_their_time_is_used() -> None:
    desk = Desk()
    desk.slices.charge(SliceOwner(), TURN_SECONDS / 2)
    assert not desk.slices.is_full
    desk.slices.charge(SliceOwner(), TURN_SECONDS / 2)
    assert desk.slices.is_full
    desk.turn()
    assert not desk.slices.is_full
    desk.slices.charge(SliceOwner(), TURN_SECONDS / 2)
    assert not desk.slices.is_full


def test_a_slice_is_not_charged_twice() -> None:
    desk = Desk()
    desk.slices.add(lambda: desk.slices.charge(SliceOwner(), 2 * TURN_SECONDS))
    desk.turn()
    assert not desk.slices.is_full


def without_credit(desk: Desk, name: str, slices: int = 1) -> None:
    """Queue work of an owner that has used up its credit."""
    owner = SliceOwner()
    owner.credit_seconds = 0.0
    desk.work(name, owner, slices=slices)


def test_an_owner_that_used_up_its_time_as_it_came_waits_behind_others() -> None:
    """Although it was idle for long before."""
    desk = Desk()
    without_credit(desk, "modest", slices=3)
    desk.clock.now += 1.0
    greedy = SliceOwner()
    desk.slices.charge(greedy, 10 * SLICE_SECONDS)
    desk.work("greedy", greedy)
    assert desk.finish()[0] == "modest"


def test_an_owner_that_used_up_its_time_in_a_slice_waits_behind_others() -> None:
    """The time of the slice is no idle time."""
    desk = Desk()
    without_credit(desk, "modest", slices=3)
    greedy = SliceOwner()
    desk.work("greedy", greedy, cost=1.5 * SLICE_SECONDS)
    assert desk.turn() == ["greedy"]
    desk.work("greedy", greedy)
    assert desk.finish()[0] == "modest"


@pytest.mark.parametrize("idle_slices, first", [(8.5, "greedy"), (7.5, "0")])
def test_an_idle_owner_earns_its_share_of_the_time(idle_slices: float, first: str) -> None:
    """A fourth, beside three others. It owes the time of two slices."""
    desk = Desk()
    for number in range(3):
        without_credit(desk, str(number))
    greedy = SliceOwner()
    desk.slices.charge(greedy, 3 * SLICE_SECONDS)
    desk.clock.now += idle_slices * SLICE_SECONDS
    desk.work("greedy", greedy)
    assert desk.finish()[0] == first


def test_work_that_asks_for_another_turn_goes_behind_the_others_of_its_owner() -> None:
    desk = Desk()

    def first() -> None:
        desk.done.append("first")
        desk.slices.add(lambda: desk.done.append("first again"))

    desk.slices.add(first)
    desk.slices.add(lambda: desk.done.append("second"))
    assert desk.finish() == ["first", "second", "first again"]


def test_a_fault_in_one_turn_takes_no_turn_from_the_others() -> None:
    desk = Desk()

    def fail() -> None:
        raise ValueError("a fault")

    desk.slices.add(fail)
    desk.slices.add(lambda: desk.done.append("other"))
    with pytest.raises(ValueError, match="a fault"):
        desk.clock.step()
    assert desk.finish() == ["other"]


@pytest.mark.parametrize("steps", [1, 10])
def test_on_a_clock_that_stands_still_a_turn_has_as_many_slices_as_works(steps: int) -> None:
    """As in the simulator."""
    desk = Desk()
    for name in "ab":
        desk.work(name, SliceOwner(), slices=steps, cost=0.0)
    assert len(desk.turn()) == 2
