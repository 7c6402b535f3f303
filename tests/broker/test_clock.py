"""Broker time never goes back; the time for removal goes only as the clocks agree."""

from __future__ import annotations

from twisted.internet.task import Clock

from brokerd.broker.clock import START_GAP_US, BrokerTime, ClockSettings, StepTimer

SECOND_US = 1_000_000
DAY_SECONDS = 86_400
TOLERANCE_SECONDS = ClockSettings().tolerance_us // SECOND_US
GRACE_SECONDS = ClockSettings().grace_us // SECOND_US


class Hands:
    """Two clocks set by hand, in seconds; ``true`` is the right time."""

    def __init__(self) -> None:
        self.true = 1_700_000_000.0
        self.wrong = 0.0
        self.monotonic = 50.0
        self.jumps: list[tuple[int, int]] = []
        self.ahead: list[bool] = []
        self.begin()
        self.time.time_us()

    def begin(self) -> None:
        """Begin a process, with a monotonic clock of its own."""
        self.time = BrokerTime(
            lambda: self.true + self.wrong,
            lambda: self.monotonic,
            lambda *jump: self.jumps.append(jump),
            lambda: self.ahead.append(self.time.ahead_us > 0),
        )

    def tick(self, seconds: float) -> None:
        """Let both clocks go, and read them every minute and at the end."""
        while seconds > 0:
            part = min(60, seconds)
            self.true += part
            self.monotonic += part
            seconds -= part
            self.time.time_us()

    def restart(self, down_seconds: float = 0, wrong: float | None = None) -> None:
        """Restart from what the log has by now."""
        time_us, ahead_us = self.time.time_us(), self.time.ahead_us
        self.true += down_seconds
        self.wrong = self.wrong if wrong is None else wrong
        self.monotonic = 7.0
        self.begin()
        self.time.time_us()  # the replay asks before it knows the log
        self.time.resume_from(time_us, ahead_us)

    @property
    def early_seconds(self) -> float:
        """How far the time for removal is past the right time; negative: it is behind."""
        return self.time.removal_us() / SECOND_US - self.true


def test_broker_time_is_the_wall_clock_while_nothing_is_odd() -> None:
    hands = Hands()
    assert hands.time.time_us() == 1_700_000_000_000_000
    hands.tick(1.5)
    assert hands.time.time_us() == hands.time.removal_us() == 1_700_000_001_500_000
    assert not hands.jumps
    assert not hands.ahead


def test_a_step_back_goes_unnoticed_and_time_still_passes() -> None:
    hands = Hands()
    before = hands.time.time_us()
    hands.wrong -= 7200
    hands.tick(2)
    assert hands.time.time_us() == before + 2_000_000


def test_time_goes_on_from_the_log_when_the_wall_is_behind_it() -> None:
    hands = Hands()
    last = 1_800_000_000_000_000
    hands.time.resume_from(last)
    hands.tick(3)
    assert hands.time.time_us() == last + 3_000_000
    assert hands.early_seconds == 0


class TestTimeForRemoval:
    def test_a_clock_that_is_wrong_for_a_moment_moves_broker_time_alone(self) -> None:
        hands = Hands()
        before = hands.time.time_us()
        hands.wrong = 3 * DAY_SECONDS
        assert hands.early_seconds == 0
        assert hands.jumps == [(before, before + 3 * DAY_SECONDS * SECOND_US)]
        hands.tick(8)
        hands.wrong = 0
        for _ in range(3):
            hands.tick(GRACE_SECONDS)
            assert hands.early_seconds == 0
        assert hands.time.skew_us == hands.time.ahead_us == 3 * DAY_SECONDS * SECOND_US
        assert hands.ahead == [True]
        assert "259200 s ahead of the wall clock" in hands.time.problem

    def test_a_clock_that_jumped_is_trusted_after_the_grace(self) -> None:
        hands = Hands()
        hands.tick(5)
        hands.wrong = DAY_SECONDS
        hands.tick(GRACE_SECONDS - 1)
        assert hands.early_seconds == 0
        hands.tick(120)
        assert hands.early_seconds == DAY_SECONDS
        assert hands.ahead == [True, False]
        assert not hands.time.problem

    def test_a_clock_that_changes_again_and_again_is_never_trusted(self) -> None:
        hands = Hands()
        for _ in range(5):
            hands.wrong += DAY_SECONDS
            hands.tick(GRACE_SECONDS - 60)
            assert hands.early_seconds == 0

    def test_a_clock_that_was_trusted_wrongly_is_followed_back(self) -> None:
        hands = Hands()
        hands.wrong = DAY_SECONDS
        hands.tick(2 * GRACE_SECONDS)
        hands.wrong = 0
        assert hands.early_seconds == 0
        hands.wrong = DAY_SECONDS
        hands.tick(GRACE_SECONDS - 60)
        hands.wrong = 0
        assert hands.early_seconds == 0

    def test_a_clock_that_was_behind_is_right_again_after_the_grace(self) -> None:
        hands = Hands()
        hands.wrong = -DAY_SECONDS
        hands.tick(2 * GRACE_SECONDS)
        assert hands.early_seconds == -DAY_SECONDS
        hands.wrong = 0
        assert hands.early_seconds == -DAY_SECONDS
        hands.tick(GRACE_SECONDS + 60)
        assert hands.early_seconds == 0

    def test_a_clock_that_was_behind_for_a_moment_is_right_at_once(self) -> None:
        hands = Hands()
        hands.tick(2 * GRACE_SECONDS - 4)
        hands.wrong = -DAY_SECONDS
        hands.tick(8)
        hands.wrong = 0
        assert hands.early_seconds == 0
        assert not hands.time.problem

    def test_steps_within_the_tolerance_count_together(self) -> None:
        hands = Hands()
        for _ in range(10):
            hands.wrong += TOLERANCE_SECONDS / 2
            hands.tick(60)
            assert hands.early_seconds <= TOLERANCE_SECONDS
        assert not hands.jumps

    def test_a_clock_that_steps_back_within_the_tolerance_delays_nothing(self) -> None:
        hands = Hands()
        hands.wrong = -TOLERANCE_SECONDS
        hands.tick(10)
        assert hands.early_seconds == 0


class TestSetByAnOperator:
    def test_broker_time_is_the_wall_clock_again_and_trusted(self) -> None:
        hands = Hands()
        hands.wrong = 3 * DAY_SECONDS
        hands.tick(8)
        hands.wrong = 0
        hands.time.set_to_wall()
        wall_us = int(hands.true * SECOND_US)
        assert (hands.time.time_us(), hands.time.removal_us()) == (wall_us, wall_us)


class TestAcrossARestart:
    def test_an_hour_past_the_log_is_trusted(self) -> None:
        hands = Hands()
        hands.restart(START_GAP_US // SECOND_US)
        assert hands.early_seconds == 0
        assert not hands.ahead

    def test_more_than_that_is_not_before_the_grace(self) -> None:
        """How much of it the broker was down and how much the clock jumped, nobody can tell."""
        hands = Hands()
        hands.restart(START_GAP_US // SECOND_US + 1)
        assert hands.early_seconds == -3601
        assert hands.ahead == [True]
        hands.tick(GRACE_SECONDS - 1)
        assert hands.early_seconds == -3601
        hands.tick(60)
        assert hands.early_seconds == 0
        assert hands.ahead == [True, False]
        assert not hands.jumps

    def test_a_new_log_has_no_time_to_be_ahead_of(self) -> None:
        hands = Hands()
        hands.time.resume_from(0)
        assert hands.early_seconds == 0

    def test_a_clock_that_is_wrong_at_each_start_is_never_trusted(self) -> None:
        """Until something corrects it, some seconds later."""
        hands = Hands()
        for _ in range(5):
            hands.restart(10, wrong=3 * DAY_SECONDS)
            hands.tick(8)
            assert hands.early_seconds <= 0
            hands.wrong = 0
            hands.tick(DAY_SECONDS)
            assert hands.early_seconds == 0
        assert hands.time.skew_us > 0

    def test_a_wrong_clock_is_not_trusted_because_of_a_restart(self) -> None:
        hands = Hands()
        hands.wrong = 3 * DAY_SECONDS
        for _ in range(5):
            hands.restart(10)
            hands.tick(GRACE_SECONDS - 60)
            assert hands.early_seconds <= 0

    def test_a_clock_that_begins_in_the_past_stops_removal(self) -> None:
        hands = Hands()
        hands.restart(10, wrong=-1_000_000_000)
        assert hands.early_seconds == -1_000_000_000
        hands.wrong = 0
        assert -10 <= hands.early_seconds <= 0

    def test_a_jump_after_the_restart_is_told_as_ever(self) -> None:
        hands = Hands()
        hands.restart()
        hands.wrong = 7200
        hands.time.time_us()
        assert len(hands.jumps) == 1


class TestUnlogged:
    def test_the_log_is_told_once_of_each_change(self) -> None:
        hands = Hands()
        assert hands.time.unlogged() == {}
        hands.wrong = DAY_SECONDS
        hands.time.time_us()
        assert hands.time.unlogged() == {"ahead_us": DAY_SECONDS * SECOND_US}
        assert hands.time.unlogged() == {}
        hands.tick(GRACE_SECONDS + 60)
        assert hands.time.unlogged() == {"ahead_us": 0}

    def test_a_start_knows_what_the_log_has(self) -> None:
        hands = Hands()
        hands.wrong = DAY_SECONDS
        hands.restart()
        assert hands.time.unlogged() == {}


def test_a_stopped_timer_makes_no_call() -> None:
    """Neither the one that waits, nor a later one."""
    clock, calls = Clock(), list[str]()
    timer = StepTimer(clock)
    timer.call_later(1, lambda: calls.append("first"))
    clock.advance(1)
    timer.call_later(1, lambda: calls.append("waits"))
    timer.stop()
    timer.stop()
    timer.call_later(1, lambda: calls.append("late"))
    clock.advance(10)
    assert calls == ["first"]
