# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Judge the records of each group by the lease model: promises 1, 3, 4, 5 and 8.

Every request that concerns a record becomes an event of `lease_search`. Most records are leased
once and settled once; they pass without a search.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from simulator.history.operations import (
    NEVER,
    Acquire,
    Extend,
    GroupChange,
    GroupView,
    History,
    Letters,
    Look,
    Operation,
    Pause,
    Place,
    Resume,
    Settle,
    Settlement,
)
from simulator.history.subscriptions import is_subscription
from simulator.oracle.groups.group_changes import Changes
from simulator.oracle.groups.lease_model import LeaseModel, Step, stored
from simulator.oracle.groups.lease_search import Event, NoOrder, TooManyOrders, explain
from simulator.oracle.groups.long_polls import Waiting, idle_polls
from simulator.oracle.records.records import Record, Records, Sight
from simulator.oracle.records.removal import Removal
from simulator.oracle.timeline.spans import EVER_US, Lives, Span
from simulator.oracle.violation import Violation, violation

AUDIT = "audit"
"""Names of groups that read for the audit begin so; they settle nothing."""

NOT_OWNER = "does not own the lease"
LEASE_LOST = "is over, or another one took its place"
UNKNOWN_OFFSET = ("never produced", "has not been assigned")
"""Parts of the broker's refusals, in all wire formats."""

Attempt = tuple[Settle, Settlement, str | None]
"""A settlement as requested, and its error: empty when accepted, None without an answer."""


class GroupPartition:
    """The requests of one group to one topic."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self.sights: dict[Place, list[Sight[Acquire]]] = {}
        self.attempts: dict[Place, list[Attempt]] = {}
        self.extends: dict[Place, list[Extend]] = {}
        self.acquires: list[Acquire] = []
        self.looks: list[Look] = []
        self.letters: list[Letters] = []
        self.changes: list[GroupChange] = []
        """Changes of the whole group, without refused ones."""

    @property
    def alters(self) -> bool:
        """Return whether anything but leases and settles changed records of the group."""
        return any(not isinstance(op, Pause | Resume) for op in self.changes)

    @property
    def unanswered(self) -> list[Acquire]:
        return [acquire for acquire in self.acquires if acquire.answered_us == NEVER]

    def last_acquire(self, audit_us: int) -> Acquire | None:
        """Return the last acquire of the audit's drain, or None."""
        drain = [op for op in self.acquires if op.sent_us >= audit_us and op.succeeded]
        return drain[-1] if drain and audit_us != NEVER else None


def group_partitions_of(history: History) -> dict[tuple[str, str], GroupPartition]:
    """Return every (topic, group) of a history, in the order of first requests."""
    group_partitions: dict[tuple[str, str], GroupPartition] = {}
    for op in history.operations:
        if not isinstance(op, Acquire | Settle | Extend | Look | Letters | GroupChange):
            continue
        if is_subscription(op.group):
            continue
        group_partition = group_partitions.setdefault(
            (op.topic, op.group), GroupPartition(op.topic, op.group)
        )
        if isinstance(op, Acquire):
            group_partition.acquires.append(op)
            if op.succeeded:
                for delivery in op.deliveries:
                    group_partition.sights.setdefault(delivery.place, []).append(
                        Sight(op, delivery)
                    )
        elif isinstance(op, Settle):
            for index, settlement in enumerate(op.settlements):
                attempts = group_partition.attempts.setdefault(settlement.place, [])
                attempts.append((op, settlement, _result(op, index)))
        elif isinstance(op, Extend):
            group_partition.extends.setdefault(op.place, []).append(op)
        elif isinstance(op, Look):
            group_partition.looks.append(op)
        elif isinstance(op, GroupChange):
            group_partition.changes += [op] if not op.error else []
        elif op.succeeded:
            group_partition.letters.append(op)
    return group_partitions


def _result(op: Settle, index: int) -> str | None:
    if op.answered_us == NEVER:
        return None
    if op.error:
        return op.error
    return op.results[index] if index < len(op.results) else ""


class GroupPartitionJudge:
    """Judge of the records of one group and topic."""

    def __init__(
        self,
        history: History,
        lives: Lives,
        records: Records,
        removal: Removal,
        group_partition: GroupPartition,
    ) -> None:
        self.undecided = 0
        self._model = LeaseModel()
        self._changes = Changes(
            history.rules, lives, group_partition.changes, group_partition.acquires, removal
        )
        self._lives = lives
        self._records = records
        self._group_partition = group_partition
        self._owners = {op.client for op in group_partition.acquires}
        self._grants_max = len(group_partition.unanswered)
        self._alters = group_partition.alters
        self._hidden = hidden_grants(self._model, lives, group_partition.unanswered)
        drained = group_partition.last_acquire(history.audit_us)
        self._nothing_left = drained if drained is not None and not drained.deliveries else None
        self._no_lag = [
            op for op in group_partition.looks if op.succeeded and _is_all_done(op.view)
        ]
        self._letters = [
            (op, lives.span(op), {letter.place: letter for letter in op.letters})
            for op in group_partition.letters
        ]
        self._is_steady = history.is_steady
        polls = idle_polls(history, lives, group_partition.acquires)
        self._waiting = Waiting(history.rules, lives, removal, polls, group_partition.changes)
        self._lettered = {letter.place for op in group_partition.letters for letter in op.letters}

    def judge(self) -> Iterator[Violation]:
        """Return the violations of all records that this group leased or had to lease.

        Damage after a run without fsync can remove any event of a record. Such groups are not
        judged.
        """
        known: set[Record] = set()
        for place in sorted(
            {
                *self._group_partition.sights,
                *self._group_partition.attempts,
                *self._group_partition.extends,
            }
        ):
            known.update(self._records.by_place.get((self._group_partition.topic, place), ()))
            yield from self._judge_existence(place)
        for record in self._records.of_topic.get(self._group_partition.topic, ()):
            is_met = record in known or self._nothing_left or record.place in self._lettered
            if is_met and not self._records.damaged:
                yield from self._judge(record)

    # -- one record -----------------------------------------------------------------------------

    def _judge(self, record: Record) -> Iterator[Violation]:
        if self._is_plain(record):
            return
        place, group_partition = record.place, self._group_partition
        ours = partial(self._is_of, record)
        certain = [
            self._granted(sight)
            for sight in group_partition.sights.get(place, ())
            if ours(sight.acquire)
        ]
        uncertain: list[Event] = []
        for attempt in group_partition.attempts.get(place, ()):
            if ours(attempt[0]) and (event := self._settled(record, attempt)) is not None:
                (uncertain if attempt[2] is None else certain).append(event)
        for op in group_partition.extends.get(place, ()):
            if ours(op) and (event := self._extended(record, op)) is not None:
                (uncertain if op.answered_us == NEVER else certain).append(event)
        certain += self._seen(record)
        if not certain:
            return
        changed = self._changes.of(record, self._owners, ours)
        certain += changed.certain
        uncertain += changed.uncertain
        certain += self._crossed(record, certain)
        loses = any(event.crossing is not None and event.crossing.loses for event in certain)
        outcomes = [
            explain(
                stored(*record.stored, rules),
                certain,
                uncertain,
                self._hidden,
                grants_max=self._grants_max,
                counts_anew=loses or changed.resets,
                loses=loses,
            )
            for rules in changed.rules
        ]
        if None in outcomes:
            return
        if any(isinstance(outcome, TooManyOrders) for outcome in outcomes):
            self.undecided += 1
        elif isinstance(outcomes[0], NoOrder):
            yield self._told(record, outcomes[0])

    def _is_plain(self, record: Record) -> bool:
        """Return whether the record was leased at most once and then settled by its holder."""
        place, group_partition = record.place, self._group_partition
        sights, attempts = (
            group_partition.sights.get(place, ()),
            group_partition.attempts.get(place, ()),
        )
        if (
            len(sights) != 1
            or place in group_partition.extends
            or place in self._lettered
            or self._alters
        ):
            return False
        acquire, delivery = sights[0]
        if delivery.grants not in (None, 1) or self._waiting.polls:
            return False
        if not attempts:
            is_asked = self._nothing_left is not None or group_partition.letters
            return not is_asked or group_partition.group.startswith(AUDIT)
        if len(attempts) > 1:
            return False
        op, settlement, result = attempts[0]
        return (
            result == ""
            and settlement.success
            and op.client == acquire.client
            and settlement.token in (None, delivery.token)
            and self._lives.span(acquire).first_us <= self._lives.span(op).last_us
        )

    def _is_of(self, record: Record, op: Operation) -> bool:
        return op.boot == NEVER or record.first_boot <= op.boot <= record.last_boot

    # -- events ---------------------------------------------------------------------------------

    def _granted(self, sight: Sight[Acquire]) -> Event:
        acquire, delivery = sight
        step = partial(
            self._model.grant,
            owner=acquire.client,
            duration_us=None if acquire.by_default else acquire.duration_us,
            grants=delivery.grants,
            token=delivery.token,
        )
        return Event(self._lives.span(acquire), step, acquire, delivery.grants)

    def _settled(self, record: Record, attempt: Attempt) -> Event | None:
        op, settlement, result = attempt
        if not result:
            accepted = partial(
                self._model.settle,
                owner=op.client,
                token=settlement.token,
                success=settlement.success,
                delay_us=settlement.delay_us,
                reason=settlement.reason,
                dead=settlement.dead,
            )
            return Event(self._lives.span(op), accepted, op)
        return self._refused(op, settlement.token, result, settles=True)

    def _extended(self, record: Record, op: Extend) -> Event | None:
        if not op.error:
            accepted = partial(
                self._model.extend, owner=op.client, token=op.token, duration_us=op.duration_us
            )
            return Event(self._lives.span(op), accepted, op)
        return self._refused(op, op.token, op.error, settles=False)

    def _refused(
        self, op: Settle | Extend, token: int | None, error: str, settles: bool
    ) -> Event | None:
        """Return the event of a refusal; None when it concerns another record."""
        if NOT_OWNER in error:
            not_owner = partial(self._model.not_owner, owner=op.client, token=token)
            return Event(self._lives.span(op), not_owner, op)
        if LEASE_LOST in error:
            lost = partial(self._model.lease_lost, token=token, settles=settles)
            return Event(self._lives.span(op), lost, op)
        return None

    def _seen(self, record: Record) -> Iterator[Event]:
        """Return the events that the group's dead letters and the audit give for the record."""
        if self._records.damaged or record.last_boot < EVER_US:
            return
        for op, span, letters in self._letters:
            if not self._is_of(record, op):
                continue
            letter = letters.get(record.place)
            if letter is not None:
                yield Event(
                    span, partial(self._model.is_letter, letter=letter), op, letter.grants + 1
                )
            elif record.stored.is_before(span):
                yield Event(span, partial(self._model.is_no_letter, in_time=self._is_steady), op)
        yield from self._waiting.events(record, self._group_partition.sights.get(record.place, []))
        told: list[tuple[Operation, Step]] = [
            (look, self._model.is_over) for look in self._no_lag if self._is_of(record, look)
        ]
        if self._nothing_left is not None:
            told.append((self._nothing_left, self._model.is_not_eligible))
        for asked, step in told:
            if record.stored.is_before(self._lives.span(asked)):
                yield Event(self._lives.span(asked), step, asked)

    def _crossed(self, record: Record, events: list[Event]) -> Iterator[Event]:
        """Return the restarts between the first and the last event."""
        first_us = min(record.stored.first_us, *(event.span.first_us for event in events))
        last_us = max(event.span.last_us for event in events)
        for crossing in self._lives.crossings:
            if first_us <= crossing.ended_us and crossing.ready_us <= last_us:
                span = Span(crossing.ended_us, crossing.ended_us)
                step = partial(self._model.cross, crossing=crossing)
                yield Event(span, step, crossing=crossing)

    # -- reports -----------------------------------------------------------------------------------

    def _told(self, record: Record, outcome: NoOrder) -> Violation:
        event, refusal, before = outcome
        shown = [e.operation for e in (*before[-3:], event) if e.operation is not None]
        what = type(event.operation).__name__.lower() if event.operation is not None else "restart"
        text = f"group {self._group_partition.group}, {record.name}: {what}: {refusal.text}"
        return violation(refusal.promise, text, *shown)

    def _judge_existence(self, place: Place) -> Iterator[Violation]:
        """P1, P8: check that only a settle of an unknown record is refused as such.

        Offsets that recovery left out after damage count as settled.
        """
        if self._records.damaged:
            return
        known = self._records.by_place.get((self._group_partition.topic, place), ())
        for op, _, result in self._group_partition.attempts.get(place, ()):
            if (
                result == ""
                and not known
                and not self._records.may_be_unseen(self._group_partition.topic)
            ):
                text = f"offset {place.offset} was never produced, and its settle was accepted"
                yield violation("P8-unknown", text, op)
            elif result and any(text in result for text in UNKNOWN_OFFSET):
                for record in known:
                    if self._is_of(record, op) and record.stored.is_before(self._lives.span(op)):
                        text = f"{record.name} was stored, and the broker says it never was"
                        yield violation("P1-kept", text, record.sent.produce, op)


def hidden_grants(model: LeaseModel, lives: Lives, acquires: list[Acquire]) -> list[Event]:
    """Return the leases that acquires without an answer may have made.

    Such an acquire may have leased any record for its sender. There may be hundreds, so overlapping
    acquires of one client become one, from the first moment to the last.
    """
    bursts: list[list[Acquire]] = []
    last: dict[tuple[str, int], list[Acquire]] = {}
    for acquire in sorted(acquires, key=lives.span):
        together = last.get((acquire.client, acquire.boot), [])
        if together and lives.span(acquire).first_us <= lives.span(together[-1]).last_us:
            together.append(acquire)
        else:
            last[acquire.client, acquire.boot] = together = [acquire]
            bursts.append(together)
    return [_hidden_grant(model, lives, together) for together in bursts]


def _hidden_grant(model: LeaseModel, lives: Lives, acquires: list[Acquire]) -> Event:
    spans = [lives.span(acquire) for acquire in acquires]
    durations_us = [acquire.duration_us for acquire in acquires]
    durations_us += [0 for acquire in acquires if acquire.by_default]
    step = partial(
        model.grant,
        owner=acquires[0].client,
        duration_us=min(durations_us),
        longest_us=max(durations_us),
    )
    span = Span(min(s.first_us for s in spans), max(s.last_us for s in spans))
    return Event(span, step, acquires[0])


def _is_all_done(view: GroupView | None) -> bool:
    """Return whether an answer says that every record is settled or dead."""
    return view is not None and view.tells_settled and view.lag == 0
