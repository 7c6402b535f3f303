# Tests: tests/sim/test_oracle_views.py
"""What a group's state may tell while it changes: promises 1, 2 and 3.

A state was true at one moment between question and answer, so it is bounded from below by what had
been answered before, and from above by what had been asked until then.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from brokerd.sim.history import GroupRules, GroupView, Look, Place, Produce
from brokerd.sim.oracle.lanes import Attempt, Lane
from brokerd.sim.oracle.records import Records
from brokerd.sim.oracle.spans import Lives, Span, falling
from brokerd.sim.oracle.violation import Violation, violation


class Views:
    """Judges the states that groups told."""

    def __init__(self, rules: GroupRules, lives: Lives, records: Records) -> None:
        self._rules = rules
        self._lives = lives
        self._records = records
        self._produces: dict[str, list[tuple[Span, Produce]]] = defaultdict(list)
        for produce in records.produces:
            if not produce.error:
                self._produces[produce.topic].append((lives.span(produce), produce))

    def check(self, lane: Lane) -> Iterator[Violation]:
        """All that can be said of one group's states."""
        looks = [(self._lives.span(look), look) for look in lane.looks if look.succeeded]
        for span, look in looks:
            if look.view is not None:
                yield from _check_sums(look, look.view)
                if not self._records.damaged:
                    yield from self._check_next(span, look, look.view)
                    yield from self._check_settled(lane, span, look, look.view)
        yield from self._check_growing(looks)
        yield from self._check_letters(lane, looks)

    def _check_next(self, span: Span, look: Look, view: GroupView) -> Iterator[Violation]:
        """P1, P2: the records that were acknowledged, and no more than were sent."""
        least = most = 0
        for stored, produce in self._produces[look.topic]:
            if stored.is_before(span) and self._is_kept(produce.boot, look) and produce.succeeded:
                least += len(produce.messages)
            if not span.is_before(stored):
                most += len(produce.messages)
        if not least <= view.next <= most:
            text = f"{look.topic} tells {view.next} records; there were {least} to {most}"
            yield violation("P2-next", text, look)

    def _check_settled(
        self, lane: Lane, span: Span, look: Look, view: GroupView
    ) -> Iterator[Violation]:
        """P1, P8: what was settled, and no more than was tried."""
        surely: set[Place] = set()
        perhaps: set[Place] = set()
        for place, attempts in lane.attempts.items():
            if any(self._has_settled(attempt, span, look) for attempt in attempts):
                surely.add(place)
            if any(not a[2] and not span.is_before(self._lives.span(a[0])) for a in attempts):
                perhaps.add(place)
        settled = view.next - view.lag
        if settled < len(surely):
            text = f"group {lane.group} of {lane.topic} tells {settled} settled of {len(surely)}"
            yield violation("P1-settled", text, look)
        if self._rules.counts_grants:
            if lane.unanswered:
                return
            perhaps.update(lane.sights)
        if settled > len(perhaps):
            text = (
                f"group {lane.group} of {lane.topic} tells {settled} settled, "
                f"and {len(perhaps)} were tried"
            )
            yield violation("P8-settled", text, look)

    def _has_settled(self, attempt: Attempt, span: Span, look: Look) -> bool:
        op, settlement, result = attempt
        return (
            result == ""
            and settlement.success
            and self._lives.span(op).is_before(span)
            and self._is_kept(op.boot, look)
        )

    def _check_growing(self, looks: list[tuple[Span, Look]]) -> Iterator[Violation]:
        """P2, P3: next, floor and dead never go down."""
        for name, promise in ("next", "P2-next"), ("floor", "P1-settled"), ("dead", "P4-kept"):
            epochs: dict[int, list[tuple[Span, int, Look]]] = defaultdict(list)
            for span, look in looks:
                if look.view is not None:
                    value = getattr(look.view, name)
                    epochs[self._lives.epoch(look.boot)].append((span, value, look))
            for values in epochs.values():
                for (before, earlier), (after, later) in falling(values):
                    text = (
                        f"{name} of group {earlier.group} of {earlier.topic} went down from "
                        f"{before} to {after}"
                    )
                    yield violation(promise, text, earlier, later)

    def _check_letters(self, lane: Lane, looks: list[tuple[Span, Look]]) -> Iterator[Violation]:
        """P4: a group without lag tells as many dead letters as it lists."""
        for span, look in looks:
            for letters in lane.letters:
                if look.view is None or look.view.lag or letters.boot != look.boot:
                    continue
                if not span.is_before(self._lives.span(letters)) or self._may_grow(
                    look.topic, span
                ):
                    continue
                if look.view.dead != len(letters.letters):
                    text = f"tells {look.view.dead} dead letters, lists {len(letters.letters)}"
                    yield violation("P4-letter", text, look, letters)

    def _may_grow(self, topic: str, span: Span) -> bool:
        return any(not stored.is_before(span) for stored, _ in self._produces[topic])

    def _is_kept(self, boot: int, look: Look) -> bool:
        """Whether what was acknowledged in a boot is there when it is looked."""
        return boot == look.boot or not self._lives.loses(boot)


def _check_sums(look: Look, view: GroupView) -> Iterator[Violation]:
    """The numbers of one state add up."""
    settled = view.next - view.lag
    sound = (
        min(view) >= 0
        and view.lag == view.leased + view.ready + view.delayed
        and view.floor <= settled <= view.next
        and view.dead <= settled
        and (view.lag > 0 or view.floor == view.next)
    )
    if not sound:
        yield violation("P3-sums", f"group {look.group} of {look.topic} tells {view}", look)
