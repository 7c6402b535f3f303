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


def test_a_jump_that_nobody_has_read_yet_guards_too() -> None:
    """Who asks first whether things may expire, and then for the time, must not let them."""
    hands = Hands()
    hands.time.time_us()
    hands.wall += JUMP_US / 1e6 + 1
    assert not hands.time.settled
    assert len(hands.jumps) == 1


def test_an_hour_of_sleep_is_no_jump() -> None:
    hands = Hands()
    hands.time.time_us()
    hands.wall += 3600
    hands.time.time_us()
    assert hands.jumps == []
    assert hands.time.settled


class TestAcrossARestart:
    def test_more_than_an_hour_since_the_log_is_told_and_nothing_expires_for_ten_minutes(
        self,
    ) -> None:
        """How much of it the broker was down and how much the clock jumped, nobody can tell."""
        hands = Hands()
        hands.time.time_us()  # the replay asks before it knows the log
        last = hands.time.time_us() - JUMP_US - 5_000_000
        assert hands.time.resume_from(last) == JUMP_US + 5_000_000
        assert not hands.time.settled
        hands.tick(JUMP_QUARANTINE_US / 1e6 - 1)
        assert not hands.time.settled
        hands.tick(1)
        assert hands.time.settled
        assert hands.jumps == []

    def test_an_hour_is_not_told(self) -> None:
        hands = Hands()
        assert hands.time.resume_from(hands.time.time_us() - JUMP_US) == 0
        assert hands.time.settled

    def test_a_new_log_has_no_time_to_be_ahead_of(self) -> None:
        hands = Hands()
        assert hands.time.resume_from(0) == 0
        assert hands.time.settled

    def test_a_jump_after_the_restart_is_told_as_ever(self) -> None:
        hands = Hands()
        hands.time.resume_from(hands.time.time_us())
        hands.wall += 7200
        hands.time.time_us()
        assert len(hands.jumps) == 1
