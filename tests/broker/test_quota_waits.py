"""The order and the time of requests that wait for a quota."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from brokerd.broker.security.quota_waits import LOOK_SECONDS, TURN_SECONDS, QuotaWaits
from brokerd.security.quotas import Meter, Quota, Use


class Turns:
    """A clock that runs the calls of one reactor turn at a time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[float, Callable[[], object]]] = []

    def seconds(self) -> float:
        return self.now

    def callLater(self, delay: float, call: Callable[..., object], *arguments: object) -> Any:
        self.calls.append((self.now + delay, lambda: call(*arguments)))

    def turn(self) -> None:
        due = [one for one in self.calls if one[0] <= self.now]
        self.calls = [one for one in self.calls if one[0] > self.now]
        for _, call in due:
            call()


class Desk:
    """A meter, and requests of known cost that wait for it."""

    def __init__(self, requests: int = 10) -> None:
        self.clock = Turns()
        self.version = 0
        self.waits = QuotaWaits(self.clock, self.clock.seconds, lambda: self.version)
        self.meter = Meter(Quota("account", "ann", requests), "ann")
        self.order: list[str] = []

    def wait(self, *names: str, cost: float = 0.0, use: int = Use.PRODUCE) -> None:
        for name in names:
            self.waits.wait(self.meter, use, partial(self._resume, name, cost), False)

    def _resume(self, name: str, cost: float, is_due: bool) -> None:
        self.clock.now += cost
        if is_due:
            self.meter.take(Use.PRODUCE, 1, self.clock.now)
        self.order.append(name if is_due else f"{name} looks")

    def spend(self) -> None:
        """Use all that the meter has now."""
        while self.meter.wait_seconds(Use.PRODUCE, self.clock.now) <= 0:
            self.meter.take(Use.PRODUCE, 1, self.clock.now)

    def pass_time(self, seconds: float) -> list[str]:
        self.order.clear()
        self.clock.now += seconds
        self.clock.turn()
        return list(self.order)


def test_requests_go_on_in_their_order_at_the_rate_of_the_quota() -> None:
    desk = Desk()
    desk.spend()
    desk.wait("a", "b", "c")
    assert desk.pass_time(0.05) == []
    assert desk.pass_time(0.1) == ["a"]
    assert desk.pass_time(0.2) == ["b", "c"]
    assert not desk.clock.calls


def test_a_turn_resumes_requests_for_a_millisecond() -> None:
    desk = Desk(requests=10_000)
    desk.wait(*"abcdef", cost=TURN_SECONDS / 2.5)
    assert desk.pass_time(1) == ["a", "b", "c"]
    assert desk.pass_time(0) == ["d", "e", "f"]


def test_reads_and_produces_go_on_alternately() -> None:
    desk = Desk()
    desk.spend()
    desk.wait("read 1", "read 2", use=Use.READ)
    desk.wait("produce 1", "produce 2")
    assert desk.pass_time(1) == ["read 1", "produce 1", "read 2", "produce 2"]


def test_a_changed_quota_counts_within_a_second_and_a_turn_has_some_looks() -> None:
    """2,000 looks in one turn would hold up others."""
    desk = Desk(requests=1)
    desk.spend()
    desk.meter.take(Use.PRODUCE, 1, 0.0)
    desk.wait(*"abcdef", cost=TURN_SECONDS / 2.5)
    desk.version = 1
    assert desk.pass_time(LOOK_SECONDS) == []
    assert desk.meter.waiting == 0
    assert desk.pass_time(0) == ["a looks", "b looks", "c looks"]
    assert desk.pass_time(0) == ["d looks", "e looks", "f looks"]
    assert not desk.clock.calls


@pytest.mark.parametrize("is_due", [False, True])
def test_a_request_that_was_due_comes_first(is_due: bool) -> None:
    desk = Desk()
    desk.spend()
    desk.wait("a")
    desk.waits.wait(desk.meter, Use.PRODUCE, partial(desk._resume, "b", 0.0), is_due)
    assert desk.pass_time(1) == (["b", "a"] if is_due else ["a", "b"])
    assert desk.meter.waits == (1 if is_due else 2)


def test_a_request_that_is_forgotten_does_not_go_on() -> None:
    desk = Desk()
    desk.spend()
    gone = partial(desk._resume, "gone", 0.0)
    desk.waits.wait(desk.meter, Use.READ, gone, False)
    desk.wait("a")
    desk.waits.forget(desk.meter, Use.READ, gone)
    desk.waits.forget(desk.meter, Use.READ, gone)
    assert desk.meter.waiting == 1
    assert desk.pass_time(1) == ["a"]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_fault_of_one_request_stops_no_other(is_changed: bool) -> None:
    desk = Desk()
    desk.spend()

    def fail(is_due: bool) -> None:
        raise ArithmeticError

    desk.waits.wait(desk.meter, Use.PRODUCE, fail, False)
    desk.wait("a")
    desk.version += is_changed
    if is_changed:
        desk.pass_time(LOOK_SECONDS)
    with pytest.raises(ArithmeticError):
        desk.pass_time(LOOK_SECONDS)
    assert desk.pass_time(LOOK_SECONDS) == ["a looks" if is_changed else "a"]
