# Tests: tests/simulator/test_oracle.py, tests/simulator/test_oracle_random.py
"""Search for an order of the operations on one record that explains its history.

The method is that of Wing and Gong, *Testing and Verifying Concurrent Objects* (1993), for one
record in one group. Overlapping operations may have happened in any order. Answered operations
happened; others may have, also at the end of the broker (*durable* linearizability: Izraelevitz,
Mendes and Scott, 2016). Linearizability is local, so records are judged one by one (Herlihy and
Wing, 1990).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.history.operations import Operation
from simulator.oracle.groups.lease_model import Refusal, State, Status, Step
from simulator.oracle.timeline.spans import EVER_US, Crossing, Span

NODES_MAX = 4_000
"""The most steps of a search. Beyond them nothing is said about the record."""


class Event(NamedTuple):
    """An event, certain or possible, of a record."""

    span: Span
    step: Step
    operation: Operation | None = None
    told_grants: int | None = None
    """The number of grants in the answer, this one included."""
    crossing: Crossing | None = None
    revives: bool = False
    """Whether it may change settled, dead or removed records."""


class NoOrder(NamedTuple):
    """The event that no order passes, and the refusal of the most promising order."""

    event: Event
    refusal: Refusal
    before: tuple[Event, ...]
    """The events before it in that order."""


class TooManyOrders(NamedTuple):
    """The record has too many orders to try."""

    nodes: int


class _Node(NamedTuple):
    """The events so far and the resulting state."""

    done: int
    """Bits of the certain events."""
    used: int
    """Bits of the uncertain events."""
    hidden: int
    """The number of grants without an answer."""
    state: State
    trail: tuple[State, ...]
    """The states of this boot so far, where power loss may undo some."""


class _Budget:
    def __init__(self) -> None:
        self.left = NODES_MAX


def explain(
    begin: State,
    certain: Sequence[Event],
    uncertain: Sequence[Event] = (),
    grants: Sequence[Event] = (),
    *,
    grants_max: int = 0,
    counts_anew: bool = False,
    loses: bool = False,
) -> NoOrder | TooManyOrders | None:
    """Find an order in which all ``certain`` events and some of the others follow ``begin``.

    ``uncertain`` are requests without an answer: each happened once or not at all. ``grants`` are
    leases without an answer: each may have happened any number of times, all together at most
    ``grants_max`` times. ``counts_anew``: counts of grants may go down. ``loses``: a crossing may
    undo acknowledged events. Returns None when an order exists.
    """
    budget = _Budget()
    events = sorted(certain, key=lambda event: event.span)
    first: NoOrder | None = None
    for some, hidden in _widening(uncertain, grants):
        failure = _Search(begin, events, some, hidden, grants_max, counts_anew, loses, budget).run()
        if not isinstance(failure, NoOrder):
            return failure
        first = first or failure
    return first


def _widening(
    uncertain: Sequence[Event], grants: Sequence[Event]
) -> Iterator[tuple[Sequence[Event], Sequence[Event]]]:
    """Yield sets of hidden events, the empty one first. It nearly always suffices."""
    yield (), ()
    if uncertain:
        yield uncertain, ()
    if grants:
        yield uncertain, grants


class _Search:
    """Depth-first search that visits each node once."""

    def __init__(
        self,
        begin: State,
        certain: Sequence[Event],
        uncertain: Sequence[Event],
        grants: Sequence[Event],
        grants_max: int,
        counts_anew: bool,
        loses: bool,
        budget: _Budget,
    ) -> None:
        self._certain = certain
        self._spans = [event.span for event in certain]
        self._uncertain = uncertain
        self._grants = grants
        self._grants_max = grants_max
        self._counts_anew = counts_anew
        self._loses = loses
        self._budget = budget
        self._all = (1 << len(certain)) - 1
        self._stack = [_Node(0, 0, 0, begin, (begin,) if loses else ())]
        self._seen: set[_Node] = set()
        self._best: tuple[int, Event, Refusal, int] | None = None

    def run(self) -> NoOrder | TooManyOrders | None:
        if not (self._uncertain or self._grants or self._loses):
            self._go_straight()
        while self._stack:
            node = self._stack.pop()
            if node.done == self._all:
                return None
            # While there is one order only, no other order can have led to this node.
            if self._stack or self._seen:
                if node in self._seen:
                    continue
                self._seen.add(node)
            self._budget.left -= 1
            if self._budget.left < 0:
                return TooManyOrders(NODES_MAX)
            self._try_uncertain(node)
            self._try_certain(node)
        assert self._best is not None, "a search that fails was refused somewhere"
        _, event, refusal, done = self._best
        before = (e for i, e in enumerate(self._certain) if done >> i & 1)
        return NoOrder(event, refusal, tuple(before))

    def _go_straight(self) -> None:
        """Take the first events as long as only one can be next and one state follows it.

        Most records need nothing else. The rest of the search meets a refusal again, and keeps it.
        """
        ((_, _, _, state, _),) = self._stack
        taken = 0
        ends = [*(span.first_us for span in self._spans[1:]), EVER_US + 1]
        for event, next_us in zip(self._certain, ends, strict=True):
            first_us, last_us = event.span
            if next_us <= last_us or state.clock_us > last_us or not self._budget.left:
                break
            outcome = event.step(state, max(first_us, state.clock_us), last_us)
            if isinstance(outcome, Refusal) or len(outcome) != 1:
                break
            (state,) = outcome
            self._budget.left -= 1
            taken += 1
        self._stack = [_Node((1 << taken) - 1, 0, 0, state, ())]

    def _try_certain(self, node: _Node) -> None:
        """Push each event that may come next; the likeliest is pushed last."""
        spans, done = self._spans, node.done
        # The events are in the order of their begin: those after the first gap cannot be next.
        next_ones = []
        first_end_us = EVER_US
        first_waiting = (~done & done + 1).bit_length() - 1
        for index in range(first_waiting, len(spans)):
            if done >> index & 1:
                continue
            span = spans[index]
            if span.first_us > first_end_us:
                break
            first_end_us = min(first_end_us, span.last_us)
            next_ones.append(index)
        for index in reversed(next_ones):
            event = self._certain[index]
            if node.state.clock_us > spans[index].last_us:
                refusal = Refusal("P3-order", "it was answered before what must have come first")
                self._refused(node, event, refusal)
                continue
            after_done = done | 1 << index
            for state, trail in self._after(node, event):
                self._stack.append(_Node(after_done, node.used, node.hidden, state, trail))

    def _after(self, node: _Node, event: Event) -> list[tuple[State, tuple[State, ...]]]:
        if not self._loses:
            return [(state, ()) for state in self._stepped(node, event, node.state)]
        if event.crossing is not None and event.crossing.loses:
            return [
                (state, (state,))
                for begin in (*node.trail, node.state)
                for state in self._stepped(node, event, begin)
            ]
        states = self._stepped(node, event, node.state)
        if event.crossing is not None:
            return [(state, (state,)) for state in states]
        return [(state, (*node.trail, state)) for state in states]

    def _stepped(self, node: _Node, event: Event, state: State) -> list[State]:
        now_us = max(event.span.first_us, state.clock_us)
        outcome = event.step(state, now_us, event.span.last_us)
        if isinstance(outcome, Refusal):
            self._refused(node, event, outcome)
            return []
        return outcome

    def _refused(self, node: _Node, event: Event, refusal: Refusal) -> None:
        """Keep the latest refusal, because it is the most useful to report."""
        depth = node.done.bit_count()
        if self._best is None or depth > self._best[0]:
            self._best = depth, event, refusal, node.done

    def _try_uncertain(self, node: _Node) -> None:
        """Push the events without an answer that may come next."""
        is_over = node.state.status >= Status.SETTLED
        for index, event in enumerate(self._uncertain):
            if not node.used >> index & 1 and (event.revives or not is_over):
                self._maybe(node, event, node.used | 1 << index, node.hidden)
        if is_over:
            return
        if self._grants and node.hidden < min(self._grants_max, self._room_for_grants(node)):
            for event in self._grants:
                self._maybe(node, event, node.used, node.hidden + 1)

    def _maybe(self, node: _Node, event: Event, used: int, hidden: int) -> None:
        state = node.state
        now_us = max(event.span.first_us, state.clock_us)
        if now_us > event.span.last_us:
            return
        outcome = event.step(state, now_us, event.span.last_us)
        if not isinstance(outcome, Refusal):
            for after in outcome:
                trail = (*node.trail, after) if self._loses else ()
                self._stack.append(_Node(node.done, used, hidden, after, trail))

    def _room_for_grants(self, node: _Node) -> int:
        """Return how many grants may be hidden, according to counts in later answers."""
        told = [
            event.told_grants
            for index, event in enumerate(self._certain)
            if event.told_grants is not None and not node.done >> index & 1
        ]
        if not told or self._counts_anew:
            return self._grants_max
        return node.hidden + min(told) - node.state.grants - 1
