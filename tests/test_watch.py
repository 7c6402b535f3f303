"""The lag of the event loop, and what a supervisor's watchdog hears."""

from __future__ import annotations

import os
from typing import Any

import pytest
from twisted.internet.task import Clock
from twisted.logger import Logger

from brokerd.admin.conditions import Condition, Conditions
from brokerd.server.notify import Notifier
from brokerd.server.watch import LoopLag, Watch


class Supervisor(Notifier):
    """Keeps what the broker sends."""

    def __init__(self, watchdog_seconds: float = 0.0) -> None:
        super().__init__({}, Logger())
        self.watchdog_seconds = watchdog_seconds
        self.heard: list[str] = []

    def send(self, *lines: str) -> None:
        self.heard += lines


class Desk:
    def __init__(self, watchdog_seconds: float = 0.0) -> None:
        self.clock = Clock()
        self.clock.advance(1_000)
        self.conditions = Conditions()
        self.supervisor = Supervisor(watchdog_seconds)
        self.commit_seconds = 0.0
        self.measured = 0
        self.watch = Watch(
            self.clock,
            self.conditions,
            self._measure,
            lambda: self.commit_seconds,
            self.supervisor,
        )
        self.watch.start()

    def _measure(self) -> None:
        self.measured += 1

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds * 4)):
            self.clock.advance(0.25)


def test_conditions_are_checked_every_second() -> None:
    """The measurements that they need begin first."""
    desk = Desk()
    desk.pass_time(10)
    assert desk.measured == 11


def test_a_probe_with_a_bug_does_not_end_the_checks() -> None:
    """It is logged as a fault, and the next second comes."""
    desk = Desk()
    desk.conditions.add([Condition("odd", lambda: str(1 // 0))])
    desk.pass_time(3)
    assert desk.measured == 4


def test_after_a_stop_nothing_is_scheduled() -> None:
    desk = Desk()
    desk.watch.stop()
    assert desk.clock.getDelayedCalls() == []


def test_the_longest_stall_is_shown_for_a_minute() -> None:
    """A shorter one after it does not hide it, and a longer one takes its place."""
    now = 1_000.0
    lag = LoopLag(lambda: now)
    lag.add(0.5)
    assert lag.problem == ""
    lag.add(5.0)
    assert "for 5.0 s" in lag.problem
    now += 30
    lag.add(2.0)
    assert "for 5.0 s" in lag.problem
    now += 31
    assert lag.problem == ""
    lag.add(1.5)
    assert "for 1.5 s" in lag.problem


def test_the_watchdog_hears_four_words_in_its_time() -> None:
    """Late by half of it, the broker is still in time."""
    desk = Desk(watchdog_seconds=120)
    desk.pass_time(120)
    assert desk.supervisor.heard == ["WATCHDOG=1"] * 5


def test_without_a_watchdog_nothing_is_sent() -> None:
    desk = Desk()
    desk.pass_time(120)
    assert desk.supervisor.heard == []


def test_a_hung_commit_silences_the_watchdog_s_keeper() -> None:
    """The loop goes on, nothing becomes durable, and the supervisor ends the process."""
    desk = Desk(watchdog_seconds=120)
    desk.commit_seconds = 119
    desk.pass_time(60)
    assert len(desk.supervisor.heard) == 3
    desk.commit_seconds = 120
    desk.pass_time(600)
    assert len(desk.supervisor.heard) == 3
    desk.commit_seconds = 0
    desk.pass_time(1)
    assert len(desk.supervisor.heard) == 4


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({"WATCHDOG_USEC": "90000000"}, 90.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": str(os.getpid())}, 90.0),
        ({"WATCHDOG_USEC": "90000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
        ({}, 0.0),
    ],
)
def test_systemd_gives_the_time_of_its_watchdog(environment: Any, seconds: float) -> None:
    """In microseconds, for one process."""
    address = {"NOTIFY_SOCKET": "@x"}
    assert Notifier({**address, **environment}, Logger()).watchdog_seconds == seconds
    assert Notifier(environment, Logger()).watchdog_seconds == 0.0
