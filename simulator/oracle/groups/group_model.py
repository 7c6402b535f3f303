# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_changes.py
"""Changes of a group or topic as steps of one of its records, after docs/leases.rst.

Like the steps of `lease_model`, each returns the states that can follow. A lease that may have been
over at the time gives two states, because the broker may or may not have noticed.
"""

from __future__ import annotations

from simulator.history.operations import GroupRules
from simulator.oracle.groups.lease_model import (
    NOT_GRANTED,
    SLACK_US,
    LeaseModel,
    Outcome,
    Refusal,
    State,
    Status,
)
from simulator.oracle.timeline.spans import EVER_US

MODEL = LeaseModel()


def release(state: State, now_us: int, last_us: int, owner: str) -> Outcome:
    """End the leases of ``owner``; this is no failure."""
    if state.status != Status.LEASED or state.owner != owner:
        return [state._replace(clock_us=now_us)]
    after = []
    if now_us <= state.last_us:
        after.append(_ready(state, now_us, min(last_us, state.last_us)))
    if state.first_us <= last_us:
        lapsed = MODEL.lapsed(state)
        after.append(lapsed._replace(clock_us=max(now_us, state.first_us)))
    return after


def configure(state: State, now_us: int, last_us: int, rules: GroupRules) -> Outcome:
    """Apply new settings; leases and delays end if the order by key changes."""
    flips = rules.key_ordered != state.rules.key_ordered
    after = []
    for each in _maybe_lapsed(state, last_us):
        ends = flips and each.status in (Status.LEASED, Status.OPEN)
        ended = _ready(each, now_us, last_us) if ends else each._replace(clock_us=now_us)
        after.append(ended._replace(rules=rules))
    return after


def seek(state: State, now_us: int, last_us: int, is_below: bool) -> Outcome:
    """Move the group to an offset; ``is_below``: the record lies below it."""
    after = []
    for each in _maybe_lapsed(state, last_us):
        if each.status == Status.REMOVED or (is_below and each.status == Status.DEAD):
            after.append(each._replace(clock_us=now_us))
        elif is_below:
            after.append(each._replace(status=Status.SETTLED, clock_us=now_us))
        elif each.status >= Status.SETTLED:
            after.append(_afresh(each, now_us, last_us))
        else:
            after.append(_ready(each, now_us, last_us))
    return after


def replay(state: State, now_us: int, last_us: int, reason: str = "") -> Outcome:
    """Deliver a dead letter with this reason again, with counters at zero."""
    return [
        _afresh(each, now_us, last_us)
        if _is_meant(each, reason)
        else each._replace(clock_us=now_us)
        for each in _maybe_dead(state, last_us)
    ]


def purge(state: State, now_us: int, last_us: int, reason: str = "") -> Outcome:
    """Forget a dead letter with this reason; the record stays settled."""
    return [
        each._replace(
            status=Status.SETTLED if _is_meant(each, reason) else each.status, clock_us=now_us
        )
        for each in _maybe_dead(state, last_us)
    ]


def delete(state: State, now_us: int, last_us: int, rules: GroupRules) -> Outcome:
    """Forget the group; a new group of its name begins with ``rules``."""
    if state.status == Status.REMOVED:
        return [state._replace(clock_us=now_us)]
    return [_afresh(state, now_us, last_us)._replace(rules=rules)]


def remove(state: State, now_us: int, last_us: int) -> Outcome:
    """Remove the record from its topic, together with its dead letter."""
    return [state._replace(status=Status.REMOVED, clock_us=now_us)]


def pass_over(state: State, now_us: int, last_us: int, compacted_us: int) -> Outcome:
    """Settle an expired record that an acquire meets; a seek then opens it with counters at zero.

    An acquire meets no record with a live lease or a delay. But it passes over a hole in the
    archive in one step, so these keep no record from its compaction on.
    """
    if state.status >= Status.SETTLED:
        return Refusal("P1-settled", "it was settled, dead or removed")
    open_state = MODEL.lapsed(state) if state.status == Status.LEASED else state
    after = []
    if open_state.status == Status.OPEN:
        met_us = max(now_us, open_state.first_us - SLACK_US)
        after.append(open_state._replace(status=Status.SETTLED, clock_us=met_us))
    if compacted_us < EVER_US:
        after.append(state._replace(status=Status.SETTLED, clock_us=max(now_us, compacted_us)))
    return [each for each in after if each.clock_us <= last_us] or Refusal(
        "P5-delay", f"no acquire meets it before {open_state.first_us}"
    )


def expire(state: State, now_us: int, last_us: int, compacted_us: int) -> Outcome:
    """Remove an expired record that an acquire meets, by the rules of `pass_over`."""
    outcome = pass_over(state, now_us, last_us, compacted_us)
    if isinstance(outcome, Refusal):
        return outcome
    return [each._replace(status=Status.REMOVED) for each in outcome]


def _is_meant(state: State, reason: str) -> bool:
    """Return whether the record is a dead letter with the reason; "" matches any."""
    return state.status == Status.DEAD and reason in ("", state.reason)


def _ready(state: State, now_us: int, last_us: int) -> State:
    """Return the state of an eligible record, without counting a failure."""
    return state._replace(
        status=Status.OPEN,
        clock_us=now_us,
        first_us=now_us,
        last_us=last_us,
        span_us=0,
        longest_us=0,
        counted=state.status == Status.OPEN and state.counted,
    )


def _afresh(state: State, now_us: int, last_us: int) -> State:
    """Return the state of a record that the group has never leased."""
    return State(Status.OPEN, now_us, now_us, last_us, token=NOT_GRANTED, rules=state.rules)


def _maybe_lapsed(state: State, last_us: int) -> list[State]:
    """Return the state, and the state after its lease lapsed."""
    if state.status == Status.LEASED and state.first_us <= last_us:
        return [state, MODEL.lapsed(state)]
    return [state]


def _maybe_dead(state: State, last_us: int) -> list[State]:
    """Return the state, and the dead state if a lapse of its lease may have caused it."""
    return [
        each
        for each in _maybe_lapsed(state, last_us)
        if each is state or each.status == Status.DEAD
    ]
