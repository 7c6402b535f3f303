"""Broker time never goes back, follows the wall forward, and reports jumps."""

from __future__ import annotations

from brokerd.broker.clock import JUMP_QUARANTINE_US, JUMP_US, BrokerTime


class Hands:
    """Two clocks set by hand, in seconds."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.monotonic = 50.0
        self.jumps: list[tuple[int, int]] = []
        self.time = BrokerTime(
            lambda: self.wall,
            lambda: self.monotonic,
            lambda *jump: self.jumps.append(jump),
        )

    def tick(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


def test_broker_time_is_the_wall_clock_while_nothing_is_odd() -> None:
    hands = Hands()
    assert hands.time.time_us() == 1_700_000_000_000_000
    hands.tick(1.5)
    assert hands.time.time_us() == 1_700_000_001_500_000
    assert hands.jumps == []


def test_a_step_back_goes_unnoticed_and_time_still_passes() -> None:
    hands = Hands()
    before = hands.time.time_us()
    hands.wall -= 7200
    hands.tick(2)
    assert hands.time.time_us() == before + 2_000_000


def test_time_goes_on_from_the_log_when_the_wall_is_behind_it() -> None:
    hands = Hands()
    last = 1_800_000_000_000_000
    hands.time.resume_from(last)
    hands.tick(3)
    assert hands.time.time_us() == last + 3_000_000


def test_a_jump_forward_is_followed_reported_and_quarantined() -> None:
    hands = Hands()
    before = hands.time.time_us()
    hands.wall += JUMP_US / 1e6 + 1
    after = hands.time.time_us()
    assert hands.jumps == [(before, after)]
    assert not hands.time.settled
    hands.tick(JUMP_QUARANTINE_US / 1e6)
    assert hands.time.settled


def test_an_hour_of_sleep_is_no_jump() -> None:
    hands = Hands()
    hands.time.time_us()
    hands.wall += 3600
    hands.time.time_us()
    assert hands.jumps == []
    assert hands.time.settled
