# Tests: tests/simulator/test_oracle_connections.py
"""Check the connections at the broker's end: their number, and when the broker ends them.

The broker ends a connection only for a reason: an option of ``[limits]``, a quota, its own end, or
invalid input, which only vandals send. It ends each connection that is over one of these times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.history.operations import NEVER, Connected, History
from simulator.oracle.permissions import Epoch, Permissions
from simulator.oracle.timeline.spans import EVER_US, Lives, Span
from simulator.oracle.violation import Violation

LISTENER_QUOTA = "listener", "mamamia"
NO_QUOTA = 0, 0, 0, 0
SWEEP_US = 5_000_000
"""Time between two looks of the broker at its connections."""
SLACK_US = 1_000_000
EARLY_US = 1_000


def check_connections(
    history: History, lives: Lives, epochs: Sequence[Epoch], permissions: Permissions
) -> Iterator[Violation]:
    """Return the violations of the limits of connections."""
    ends = {boot.number: _end_us(boot.stopping_us, boot.ended_us) for boot in history.boots}
    for one in history.connections:
        yield from _check_count(history, one)
        if one.is_refused:
            continue
        yield from _check_quota(history, epochs, one)
        yield from _check_cause(history, epochs, permissions, one, ends.get(one.boot, EVER_US))
        yield from _check_overdue(history, one, ends.get(one.boot, EVER_US))
        yield from _check_login(history, permissions, one, ends.get(one.boot, EVER_US))


def _end_us(*times_us: int) -> int:
    return min((at_us for at_us in times_us if at_us != NEVER), default=EVER_US)


def _found(promise: str, text: str, one: Connected) -> Violation:
    return Violation(promise, f"a connection of {one.client}: {text}", (), one.opened_us)


def _check_count(history: History, one: Connected) -> Iterator[Violation]:
    """P8: check that connections are refused above the limit, and not below."""
    limit = history.connection_rules.connections
    if one.is_refused and one.others < limit:
        yield _found("P8-limit", f"refused beside {one.others}, and the limit is {limit}", one)
    if not one.is_refused and one.others >= limit:
        yield _found("P8-limit", f"accepted beside {one.others}, and the limit is {limit}", one)


def _is_of_listener(history: History, one: Connected) -> bool:
    return history.formats.get(one.client, "mamamia") == "mamamia"


def _limits(epochs: Sequence[Epoch], span: Span) -> set[int]:
    """Return the quotas of connections that the listener may have had; 0: none."""
    return {
        state.quotas.get(LISTENER_QUOTA, NO_QUOTA)[2]
        for epoch in epochs
        if epoch.first_us <= span.last_us and span.first_us <= epoch.last_us
        for state in epoch.states
    }


def _check_quota(history: History, epochs: Sequence[Epoch], one: Connected) -> Iterator[Violation]:
    """Check that no connection stays beside as many as the quota allows.

    Connections that are older than the quota count only from their next request on. A connection
    that ends at its begin does not stay: the network may have cut it before.
    """
    if not _is_of_listener(history, one) or one.opened_us in (one.closing_us, one.lost_us):
        return
    limits = _limits(epochs, Span(one.opened_us, one.opened_us))
    if len(limits) != 1 or 0 in limits:
        return
    (limit,) = limits
    since_us = max(
        epoch.first_us
        for number, epoch in enumerate(epochs)
        if epoch.first_us <= one.opened_us
        and (number == 0 or limit not in _limits(epochs[number - 1 : number], Span(0, EVER_US)))
    )
    settled_us = min(
        epoch.last_us for epoch in epochs if epoch.first_us <= since_us <= epoch.last_us
    )
    counted = [
        each
        for each in history.connections
        if each is not one
        and _is_of_listener(history, each)
        and each.boot == one.boot
        and not each.is_refused
        and settled_us < each.opened_us < one.opened_us
        and each.closing_us == NEVER
        and (each.lost_us == NEVER or each.lost_us > one.opened_us)
    ]
    if len(counted) >= limit:
        yield _found("quota", f"it stays beside {len(counted)}, and the quota is {limit}", one)


def _check_cause(
    history: History,
    epochs: Sequence[Epoch],
    permissions: Permissions,
    one: Connected,
    end_us: int,
) -> Iterator[Violation]:
    """Check that the broker ended a connection for a reason."""
    at_us, rules = one.closing_us, history.connection_rules
    if at_us == NEVER or at_us >= end_us or one.client in history.vandals:
        return
    is_at_once = at_us == one.opened_us
    limits = _limits(epochs, Span(at_us, at_us)) if _is_of_listener(history, one) else {0}
    if is_at_once and any(0 < limit <= one.others for limit in limits):
        return
    quiet_us = at_us - one.last_us + EARLY_US
    silent_us = at_us - one.opened_us + EARLY_US if one.first_us == NEVER else 0
    unfinished_us = at_us - one.arrived_us + EARLY_US if one.arrived_us != NEVER else 0
    is_stranger = permissions.may_be_stranger(one, Span(at_us, at_us))
    causes = (
        0 < rules.idle_us <= quiet_us and not _waits_certainly(history, one),
        0 < rules.first_byte_us <= silent_us,
        0 < rules.unfinished_us <= unfinished_us,
        is_stranger and 0 < rules.login_us <= at_us - one.opened_us + EARLY_US,
        is_stranger and at_us == one.arrived_us,  # with a large unfinished frame
    )
    if any(causes):
        return
    if is_at_once:
        text = f"closed at once beside {one.others}, and the quota is {sorted(limits)}"
        yield _found("quota", text, one)
    else:
        text = f"closed after {at_us - one.opened_us} us, {quiet_us} us after its last byte"
        yield _found("P8-closed", text, one)


def _check_login(
    history: History, permissions: Permissions, one: Connected, end_us: int
) -> Iterator[Violation]:
    """Check that the broker ends a connection without a login that is over its time."""
    limit_us = history.connection_rules.login_us
    until_us = _until_us(history, one, end_us)
    for span in permissions.strange_spans(one) if limit_us else ():
        since_us = max(span.first_us, one.opened_us + limit_us)
        if min(span.last_us, until_us) > since_us + SWEEP_US + SLACK_US:
            yield _found("P8-closed", f"it had no login after {limit_us} us and stays", one)
            return


def _check_overdue(history: History, one: Connected, end_us: int) -> Iterator[Violation]:
    """Check that the broker ends a connection that is over one of its times."""
    rules = history.connection_rules
    until_us = _until_us(history, one, end_us)
    if one.held_us != NEVER:
        until_us = min(until_us, one.held_us)
    late_us = SWEEP_US + SLACK_US
    is_half = one.is_unfinished and one.arrived_us != NEVER and _is_of_listener(history, one)
    is_idle = rules.idle_us and until_us > one.last_us + rules.idle_us + late_us
    is_known = is_idle and one.client not in history.vandals and not _waits(history, one, until_us)
    times = (
        (rules.first_byte_us, one.opened_us, one.first_us == NEVER, "sent no byte"),
        (rules.unfinished_us, one.arrived_us, is_half, "did not finish a frame"),
        (rules.idle_us, one.last_us, is_known, "was idle"),
    )
    for limit_us, since_us, is_judged, text in times:
        if limit_us and is_judged and until_us > since_us + limit_us + late_us:
            yield _found("P8-closed", f"it {text} for longer than {limit_us} us and stays", one)


def _until_us(history: History, one: Connected, end_us: int) -> int:
    """Return the end of a connection."""
    return min(end_us, _end_us(one.lost_us, one.closing_us), history.ended_us)


def _waits(history: History, one: Connected, until_us: int) -> bool:
    """Return whether a request of the connection may have waited for its answer at the end."""
    return any(
        op.connection == one.number and op.sent_us <= until_us and op.written_us == NEVER
        for op in history.operations
    )


def _waits_certainly(history: History, one: Connected) -> bool:
    """Return whether a request waited for its answer since the last byte of the connection.

    BlipMQ answers some requests with nothing, so its connections are not judged.
    """
    return history.formats.get(one.client) != "blipmq" and any(
        op.connection == one.number
        and op.arrived_us != NEVER
        and op.written_us == NEVER
        and op.arrived_us >= one.last_us
        for op in history.operations
    )
