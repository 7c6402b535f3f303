# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""One record in one group after docs/leases.rst, with times as ranges.

An answered request took effect between its arrival and its answer. So a state keeps the earliest
and the latest moment at which its lease or delay can end. A step returns every state that can
follow, or a `Refusal` that names the promise. Unknown values, such as the token of a lost answer,
match anything.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from simulator.history.operations import GroupRules, Letter
from simulator.oracle.timeline.spans import EVER_US, Crossing

SLACK_US = 5
"""Tolerance: seconds on the wire and in the broker's clock are floats, with rounding errors."""

LATE_US = 1_000_000
"""The longest time that an ended lease or delay may still be visible in an audit."""

SERVED_US = 200_000
"""The longest time until a waiting poll gets a ready record, on a disk without faults."""

MAX_WAIT_US = 100 * 365 * 86_400 * 1_000_000
"""Limit of leases and delays; longer ones are cut to it."""

MAX_ATTEMPTS_REASON = "max_attempts"
GIVEN_UP_REASON = "given_up"
"""Reasons of dead letters without a reason of the client."""

NOT_GRANTED = 0
"""The token of a record that was never leased; real ones are larger."""


class Status(IntEnum):
    OPEN = 0
    """Eligible, now or after a delay."""
    LEASED = 1
    SETTLED = 2
    DEAD = 3
    REMOVED = 4
    """Gone from the topic, by retention, or because it expired."""


class State(NamedTuple):
    """The known state of a record in a group."""

    status: Status
    clock_us: int
    """The earliest moment at which the last step can have happened."""
    first_us: int
    """LEASED: the earliest end of the lease. OPEN: the earliest moment it can be had."""
    last_us: int
    """LEASED: the latest end of the lease. OPEN: the latest moment from which it can be had."""
    span_us: int = 0
    """The least length of the lease or delay."""
    longest_us: int = 0
    """Its greatest length; above ``span_us`` only for leases without an answer."""
    owner: str = ""
    token: int | None = NOT_GRANTED
    """The token of the last grant; None if unknown."""
    grants: int = 0
    failures: int = 0
    counted: bool = False
    """OPEN: whether the last grant's failure is counted already."""
    rules: GroupRules = GroupRules()
    """The settings of the group."""
    reason: str = ""
    """DEAD: the reason."""


class Refusal(NamedTuple):
    """The reason why a step cannot follow a state."""

    promise: str
    text: str


class Verdict(NamedTuple):
    """The content of a settle."""

    success: bool
    delay_us: int | None
    reason: str
    dead: bool


Outcome = list[State] | Refusal


def stored(first_us: int, last_us: int, rules: GroupRules) -> State:
    """Return the state of a new record that the group has never leased."""
    return State(Status.OPEN, first_us, first_us, last_us, rules=rules)


class LeaseModel:
    """The steps of a record. Each happens at one moment in [now_us, last_us]."""

    # -- changes by the broker itself --------------------------------------------------------------

    def lapsed(self, state: State) -> State:
        """End the lease, whether the broker noticed or not."""
        rules = state.rules
        if rules.counts_grants and state.grants >= rules.max_attempts:
            return state._replace(status=Status.DEAD, reason=MAX_ATTEMPTS_REASON)
        wait_us = _backoff_us(state)
        return state._replace(
            status=Status.OPEN,
            first_us=state.first_us + wait_us,
            last_us=min(state.last_us + wait_us, EVER_US),
            span_us=wait_us,
            longest_us=wait_us,
            counted=False,
        )

    def cross(self, state: State, now_us: int, last_us: int, crossing: Crossing) -> Outcome:
        """End the broker and start it again.

        A lease gets its whole duration again, unless its end was durable. A delay goes on by the
        wall clock, which may have been set.
        """
        ready_us = crossing.ready_us
        state = state._replace(clock_us=ready_us)
        if state.status == Status.OPEN:
            return [_delayed_across(state, crossing)]
        if state.status != Status.LEASED:
            return [state]
        first_us = _lease_end(ready_us, ready_us, state.span_us)[0]
        last_us = _lease_end(ready_us, ready_us, state.longest_us)[1]
        states = [state._replace(first_us=first_us, last_us=last_us)]
        if state.first_us < crossing.ended_us + SLACK_US:
            over = self.lapsed(state)
            states.append(_delayed_across(over, crossing) if over.status == Status.OPEN else over)
        return states

    # -- requests that were carried out ---------------------------------------------------------

    def grant(
        self,
        state: State,
        now_us: int,
        last_us: int,
        owner: str,
        duration_us: int | None,
        grants: int | None = None,
        token: int | None = None,
        longest_us: int = 0,
    ) -> Outcome:
        """Lease the record. ``grants`` and ``token`` are those of the answer.

        ``duration_us`` None is the default of the group, ``longest_us`` its upper bound where it is
        not known.
        """
        if state.status == Status.LEASED:
            if last_us < state.first_us:
                return Refusal(
                    "P3-one-lease",
                    f"the lease of {state.owner!r} lives until {state.first_us} at least",
                )
            state = self.lapsed(state)
        if state.status == Status.SETTLED:
            return Refusal("P1-settled", "it was settled")
        if state.status == Status.DEAD:
            return Refusal("P4-dead", "it was dead")
        if state.status == Status.REMOVED:
            return Refusal("P2-start", "it was removed")
        if last_us < state.first_us - SLACK_US:
            return Refusal("P5-delay", f"it is not to be had before {state.first_us}")
        if grants is not None and grants != state.grants + 1:
            return Refusal("P3-grants", f"this is its grant {state.grants + 1}, told was {grants}")
        if token is not None and state.token is not None and token <= state.token:
            return Refusal("P3-token", f"token {token} does not exceed {state.token}")
        now_us = max(now_us, state.first_us - SLACK_US)
        if duration_us is None:
            duration_us = state.rules.default_duration_us
        duration_us = min(max(duration_us, 0), MAX_WAIT_US)
        longest_us = max(duration_us, min(longest_us, MAX_WAIT_US))
        return [
            State(
                Status.LEASED,
                now_us,
                _lease_end(now_us, last_us, duration_us)[0],
                _lease_end(now_us, last_us, longest_us)[1],
                duration_us,
                longest_us,
                owner,
                token,
                state.grants + 1,
                state.failures,
                rules=state.rules,
            )
        ]

    def settle(
        self,
        state: State,
        now_us: int,
        last_us: int,
        owner: str,
        token: int | None,
        success: bool,
        delay_us: int | None,
        reason: str = "",
        dead: bool = False,
    ) -> Outcome:
        """Accept a settle."""
        verdict = Verdict(success, delay_us, reason, dead)
        if state.status >= Status.SETTLED:
            return [state._replace(clock_us=now_us)]
        after: list[State] = []
        if state.status == Status.LEASED:
            if now_us <= state.last_us and _is_holder(state, owner, token):
                after.append(self._settled(state, now_us, min(last_us, state.last_us), verdict))
            if last_us < state.first_us:
                return after or Refusal(
                    "P3-owner",
                    f"the lease of {state.owner!r} lives until {state.first_us} at least",
                )
            now_us = max(now_us, state.first_us)
            state = self.lapsed(state)
            if state.status == Status.DEAD:
                return [*after, state._replace(clock_us=now_us)]
        if token is not None:
            if state.token not in (None, token):
                return after or Refusal("P3-token", f"the record's last token is {state.token}")
            state = state._replace(token=token)
        after.append(self._settled(state, now_us, last_us, verdict))
        return after

    def extend(
        self,
        state: State,
        now_us: int,
        last_us: int,
        owner: str,
        token: int | None,
        duration_us: int,
    ) -> Outcome:
        """Accept an extension."""
        if state.status != Status.LEASED or now_us > state.last_us:
            return Refusal("P3-extend", "it has no lease")
        if not _is_holder(state, owner, token):
            return Refusal("P3-extend", f"its lease is that of {state.owner!r}")
        duration_us = min(max(duration_us, 0), MAX_WAIT_US)
        first_us, last_us = _lease_end(now_us, min(last_us, state.last_us), duration_us)
        return [
            state._replace(
                clock_us=now_us,
                first_us=first_us,
                last_us=last_us,
                span_us=duration_us,
                longest_us=duration_us,
                token=state.token if token is None else token,
            )
        ]

    # -- requests that were refused -------------------------------------------------------------

    def not_owner(
        self, state: State, now_us: int, last_us: int, owner: str, token: int | None
    ) -> Outcome:
        """Refuse a settle or an extension because of another client's live lease."""
        if state.status != Status.LEASED or now_us > state.last_us:
            return Refusal("P3-refusal", "refused as another one's, but it has no lease")
        if token is not None or state.owner == owner:
            return Refusal("P3-refusal", f"refused as another one's, but it is {state.owner!r}'s")
        return [state._replace(clock_us=now_us)]

    def lease_lost(
        self, state: State, now_us: int, last_us: int, token: int | None, settles: bool
    ) -> Outcome:
        """Refuse because the lease is over or has another token."""
        after: list[State] = []
        may_mismatch = token is not None and (state.token is None or state.token != token)
        if state.status == Status.LEASED:
            if may_mismatch and now_us <= state.last_us:
                after.append(state._replace(clock_us=now_us))
            if last_us < state.first_us:
                return after or Refusal(
                    "P3-refusal", f"refused, but it lives until {state.first_us}"
                )
            now_us = max(now_us, state.first_us)
            state = self.lapsed(state)
        if not settles or (state.status == Status.OPEN and may_mismatch):
            after.append(state._replace(clock_us=now_us))
        return after or Refusal("P3-refusal", "refused as lost, but it was not")

    # -- visible state -----------------------------------------------------------------------------

    def is_letter(self, state: State, now_us: int, last_us: int, letter: Letter) -> Outcome:
        """Check a listing: the record is a dead letter of the group."""
        if state.status == Status.LEASED and state.first_us <= last_us:
            state = self.lapsed(state)
        if state.status != Status.DEAD:
            return Refusal(
                "P4-dead",
                f"it is a dead letter after {state.failures} failures and {state.grants} grants, "
                f"of {state.rules.max_attempts} attempts",
            )
        if (letter.grants, letter.failures) != (state.grants, state.failures):
            return Refusal(
                "P4-letter",
                f"the letter tells {letter.failures} failures and {letter.grants} grants; "
                f"there were {state.failures} and {state.grants}",
            )
        if letter.reason != state.reason:
            return Refusal(
                "P4-letter", f"the letter says {letter.reason!r}; it died of {state.reason!r}"
            )
        return [state._replace(clock_us=now_us)]

    def is_no_letter(
        self, state: State, now_us: int, last_us: int, in_time: bool = False
    ) -> Outcome:
        """Check a listing: the record is no dead letter of the group.

        ``in_time``: the broker had time to notice that its lease was over.
        """
        if state.status == Status.DEAD:
            return Refusal("P4-kept", "it was dead and is no dead letter")
        is_over = state.status == Status.LEASED and state.last_us + LATE_US < now_us
        if in_time and is_over and self.lapsed(state).status == Status.DEAD:
            return Refusal(
                "P5-buried", f"its last lease was over at {state.last_us}, and it is no dead letter"
            )
        return [state._replace(clock_us=now_us)]

    def is_not_served(self, state: State, now_us: int, last_us: int, since_us: int) -> Outcome:
        """Check a poll since ``since_us``: neither it nor another client got the record."""
        over = state
        if state.status == Status.LEASED and state.last_us + SERVED_US < now_us:
            over = self.lapsed(state)
        if over.status == Status.OPEN and max(over.last_us, since_us) + SERVED_US < now_us:
            return Refusal(
                "P5-served",
                f"it is to be had from {over.last_us} at the latest; somebody waits since "
                f"{since_us}, and is not given it until {now_us}",
            )
        return [state._replace(clock_us=now_us)]

    def is_not_eligible(self, state: State, now_us: int, last_us: int) -> Outcome:
        """Check an acquire that found nothing and would have taken the record."""
        over = state
        if state.status == Status.LEASED and state.last_us + LATE_US < now_us:
            over = self.lapsed(state)
        if over.status == Status.OPEN and over.last_us + LATE_US < now_us:
            return Refusal(
                "P5-eventually",
                f"it is neither settled nor dead, its leases and delays were over at "
                f"{over.last_us}, and the group is not given it",
            )
        return [over._replace(clock_us=now_us)]

    def is_over(self, state: State, now_us: int, last_us: int) -> Outcome:
        """Check a group without lag: the record is settled or dead."""
        if state.status == Status.LEASED and state.first_us <= last_us:
            state = self.lapsed(state)
        if state.status < Status.SETTLED:
            return Refusal("P1-lag", "the group tells no lag, but it is neither settled nor dead")
        return [state._replace(clock_us=now_us)]

    # -- parts ----------------------------------------------------------------------------------

    def _settled(self, state: State, now_us: int, last_us: int, verdict: Verdict) -> State:
        success, delay_us, reason, dead = verdict
        if success:
            return state._replace(status=Status.SETTLED, clock_us=now_us)
        is_counted = state.status == Status.OPEN and state.counted
        failures = state.failures if is_counted else state.failures + 1
        if dead:
            reason = reason or GIVEN_UP_REASON
            return state._replace(
                status=Status.DEAD, clock_us=now_us, failures=failures, reason=reason
            )
        if is_counted:
            return state._replace(clock_us=now_us)
        rules = state.rules
        attempts = state.grants if rules.counts_grants else failures
        if attempts >= rules.max_attempts:
            reason = reason or MAX_ATTEMPTS_REASON
            return state._replace(
                status=Status.DEAD, clock_us=now_us, failures=failures, reason=reason
            )
        state = state._replace(failures=failures)
        wait_us = _backoff_us(state) if delay_us is None else min(delay_us, MAX_WAIT_US)
        return state._replace(
            status=Status.OPEN,
            clock_us=now_us,
            first_us=now_us + wait_us,
            last_us=min(last_us + wait_us, EVER_US),
            span_us=wait_us,
            longest_us=wait_us,
            counted=True,
        )


Step = Callable[[State, int, int], Outcome]
"""A step of a model with all arguments but state and time."""


def _backoff_us(state: State) -> int:
    rules, failures = state.rules, state.failures
    if failures <= 0 or not rules.backoff_base_us:
        return 0
    return min(rules.backoff_base_us << min(failures - 1, 63), rules.backoff_max_us)


def _lease_end(first_us: int, last_us: int, duration_us: int) -> tuple[int, int]:
    """Return the earliest and latest end of a lease that begins between two moments."""
    if duration_us <= 0:
        return first_us - 1, last_us
    return first_us + duration_us - SLACK_US, min(last_us + duration_us + SLACK_US, EVER_US)


def _is_holder(state: State, owner: str, token: int | None) -> bool:
    if token is None:
        return owner == state.owner
    return state.token is None or state.token == token


def _delayed_across(state: State, crossing: Crossing) -> State:
    """Return the end of a delay after a restart: early by forward steps of the wall clock, late by
    any delay begun anew."""
    ready_us = crossing.ready_us
    if not state.span_us:
        return state._replace(clock_us=ready_us)
    return state._replace(
        clock_us=ready_us,
        first_us=max(state.first_us - crossing.forward_us, ready_us),
        last_us=min(max(state.last_us, ready_us + state.span_us), EVER_US),
    )
