"""Long polls wait by name, are served in order, and leave nothing behind."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from brokerd.broker.leases.waiters import TURN_ATTEMPTS, TURN_SECONDS, Waiters


class Poll:
    """A waiting acquire whose luck the test decides."""

    def __init__(self, waiters: Waiters, name: str, group: str, wait_us: int = 1_000_000) -> None:
        self.lucky = False
        self.seconds = 0.0
        """How long a try takes."""
        self.tries = 0
        self.timed_out = False
        assert isinstance(waiters.clock, Clock)
        self.clock = waiters.clock
        self.waiter = waiters.add(name, group, wait_us, self.attempt, self.give_up)

    def attempt(self) -> bool:
        self.tries += 1
        self.clock.advance(self.seconds)
        return self.lucky

    def give_up(self) -> None:
        self.timed_out = True


def test_a_lucky_poll_is_answered_once_and_its_timer_is_gone() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    poll = Poll(waiters, "t", "g")
    poll.lucky = True
    waiters.serve(["t"])
    waiters.serve(["t"])
    clock.advance(2)
    assert (poll.tries, poll.timed_out) == (1, False)
    assert not waiters
    assert clock.getDelayedCalls() == []


def test_polls_of_a_group_are_served_in_the_order_they_came() -> None:
    waiters = Waiters(Clock())
    first, second, other = (Poll(waiters, "t", group) for group in ("g", "g", "h"))
    second.lucky = other.lucky = True
    waiters.serve(["t"])
    assert (first.tries, second.tries, other.tries) == (1, 0, 1)
    assert "t" in waiters


def test_topics_that_got_something_at_once_are_served_by_name() -> None:
    """So that the same work is done in the same order in every process."""
    served: list[str] = []
    waiters = Waiters(Clock())
    for name in "cab":
        waiters.add(name, "g", 1_000_000, lambda name=name: served.append(name) is not None, list)
    waiters.serve({"b", "c", "a"})
    assert served == ["a", "b", "c"]


def test_a_poll_that_waits_in_vain_is_told_so() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    poll = Poll(waiters, "t", "g")
    clock.advance(0.9)
    assert not poll.timed_out
    clock.advance(0.2)
    assert poll.timed_out
    assert not waiters


def test_a_cancelled_poll_is_never_called_again() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    poll = Poll(waiters, "t", "g")
    poll.waiter.cancel()
    poll.waiter.cancel()
    waiters.serve(["t"])
    clock.advance(2)
    assert (poll.tries, poll.timed_out) == (0, False)
    assert not waiters


def test_many_polls_are_served_over_several_turns_and_in_order() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    groups = TURN_ATTEMPTS + 10
    polls = [Poll(waiters, "t", f"{number:06}") for number in range(groups)]
    late = Poll(waiters, "u", "g")
    waiters.serve(["t"])
    assert [poll.tries for poll in polls] == [1] * TURN_ATTEMPTS + [0] * 10
    waiters.serve_group("u", "g")
    assert late.tries == 0  # others were before it
    clock.advance(0)
    assert {poll.tries for poll in polls} == {late.tries} == {1}
    clock.advance(0)
    assert late.tries == 1


def test_polls_that_take_long_leave_the_reactor_its_turns() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    polls = [Poll(waiters, "t", f"{number}") for number in range(5)]
    for poll in polls:
        poll.seconds = TURN_SECONDS
    waiters.serve(["t"])
    assert sum(poll.tries for poll in polls) == 2
    waiters.serve(["t"])
    assert sum(poll.tries for poll in polls) == 2
    clock.pump([0] * 5)
    assert sum(poll.tries for poll in polls) >= 5


def test_a_group_with_many_lucky_polls_goes_on_where_it_stopped() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    polls = [Poll(waiters, "t", "g") for _ in range(TURN_ATTEMPTS + 3)]
    for poll in polls:
        poll.lucky = True
    waiters.serve_group("t", "g")
    assert [poll.tries for poll in polls[-4:]] == [1, 0, 0, 0]
    clock.advance(0)
    assert {poll.tries for poll in polls} == {1}
    assert not waiters
    assert clock.getDelayedCalls() == []


def test_a_topic_that_goes_while_its_polls_wait_for_their_turn_is_no_harm() -> None:
    clock = Clock()
    waiters = Waiters(clock)
    polls = [Poll(waiters, "t", f"{number:06}") for number in range(TURN_ATTEMPTS + 1)]
    waiters.serve(["t"])
    waiters.end("t")
    clock.advance(0)
    assert all(poll.timed_out for poll in polls)
    assert polls[-1].tries == 0


def test_many_polls_of_a_deleted_topic_end_over_several_turns() -> None:
    """5,000 in one turn took 27 ms. None of them tries for a new topic of the name."""
    clock = Clock()
    waiters = Waiters(clock)
    polls = [Poll(waiters, "t", f"{number % 7}") for number in range(3 * TURN_ATTEMPTS)]
    waiters.end("t")
    assert sum(poll.timed_out for poll in polls) == TURN_ATTEMPTS
    left = [poll for poll in polls if not poll.timed_out]
    left[0].waiter.cancel()
    new = Poll(waiters, "t", "0")
    waiters.serve(["t"])
    assert [poll.tries for poll in (left[1], new)] == [0, 1]
    clock.advance(0)
    assert [poll for poll in polls if not poll.timed_out] == left[:1]
    assert not new.timed_out
    assert waiters.count == 1
    new.waiter.cancel()
    assert clock.getDelayedCalls() == []


def test_polls_of_a_deleted_topic_that_take_long_leave_the_reactor_its_turns() -> None:
    """Their answers may be slow to write. One that is cancelled by another is not told."""
    clock = Clock()
    waiters, told = Waiters(clock), list[int]()

    def give_up(number: int) -> None:
        told.append(number)
        clock.rightNow += TURN_SECONDS / 2
        if number == 1:
            polls[2].cancel()

    polls = [
        waiters.add("t", "g", 1_000_000, lambda: False, lambda number=number: give_up(number))
        for number in range(6)
    ]
    waiters.end("t")
    assert told == [0, 1, 3]
    clock.advance(0)
    assert told == [0, 1, 3, 4, 5]
    assert waiters.count == 0


def test_a_fault_in_one_poll_ends_it_and_no_other() -> None:
    """The poll that fails gets the answer of one that waited in vain."""
    waiters, answered = Waiters(Clock()), []

    def faulty() -> bool:
        raise RuntimeError("as asked for")

    waiters.add("t", "g", 1_000_000, faulty, lambda: answered.append("first in vain"))
    waiters.add("t", "g", 1_000_000, lambda: bool(answered.append("second") or 1), lambda: None)
    with capturedLogs() as captured:
        waiters.serve(["t"])
    assert answered == ["first in vain", "second"]
    assert waiters.count == 0
    assert [one["event_id"] for one in captured if "log_failure" in one] == ["callback-fault"]
