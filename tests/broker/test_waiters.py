"""Long polls wait by name, are served in order, and leave nothing behind."""

from __future__ import annotations

from twisted.internet.task import Clock

from brokerd.broker.waiters import Waiters


class Poll:
    """A waiting acquire whose luck the test decides."""

    def __init__(self, waiters: Waiters, name: str, group: str, wait_us: int = 1_000_000) -> None:
        self.lucky = False
        self.tries = 0
        self.timed_out = False
        self.waiter = waiters.add(name, group, wait_us, self.attempt, self.give_up)

    def attempt(self) -> bool:
        self.tries += 1
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
