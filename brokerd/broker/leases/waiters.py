# Tests: tests/broker/test_waiters.py
"""Long polls: acquires that found no record and wait for one.

Waiters are stored by the names that the client gave, because the topic may not exist yet. The
waiters of a group are served in the order in which they came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

from brokerd.broker.callbacks import run_callback
from brokerd.broker.clock import Clock, Timer

TURN_ATTEMPTS = 1_000
"""The most waiters that try, or that a deleted topic ends, in one reactor turn."""

TURN_SECONDS = 0.010
"""The longest time of their attempts in one turn. Others try in later turns, in order."""


class Waiter:
    """A waiting acquire. ``attempt()`` tries again and returns whether the wait is over."""

    __slots__ = ("_call", "_group", "_name", "_timed_out", "_waiters", "attempt")

    def __init__(
        self,
        waiters: Waiters,
        name: str,
        group: str,
        attempt: Callable[[], bool],
        timed_out: Callable[[], None],
        wait_us: int,
    ) -> None:
        self._waiters = waiters
        self._name = name
        self._group = group
        self.attempt = attempt
        self._timed_out = timed_out
        self._call = waiters.clock.callLater(wait_us / 1e6, self._time_out)

    def _time_out(self) -> None:
        self._waiters.forget(self._name, self._group, self)
        self._timed_out()

    def give_up(self) -> None:
        """End the wait now, as its timeout does."""
        self.cancel()
        run_callback(self._timed_out)

    def cancel(self) -> None:
        """Stop waiting. No callback is called later."""
        if self._call.active():
            self._call.cancel()
            self._waiters.forget(self._name, self._group, self)


class Waiters:
    """All waiting acquires, by topic name and group name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.count = 0
        self._topics: dict[str, dict[str, OrderedDict[Waiter, None]]] = {}
        self._due: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Groups with waiters that must try, by names of topic and group."""
        self._is_serving = False
        self._call: Timer | None = None
        self._ended: dict[Waiter, None] = {}
        """Waiters of deleted topics that were not told yet."""
        self._end_call: Timer | None = None

    def __bool__(self) -> bool:
        return bool(self._topics)

    def __contains__(self, name: str) -> bool:
        return name in self._topics

    def add(
        self,
        name: str,
        group: str,
        wait_us: int,
        attempt: Callable[[], bool],
        timed_out: Callable[[], None],
    ) -> Waiter:
        """Wait up to ``wait_us`` until ``attempt`` returns True, else call ``timed_out``."""
        waiter = Waiter(self, name, group, attempt, timed_out, wait_us)
        self._topics.setdefault(name, {}).setdefault(group, OrderedDict())[waiter] = None
        self.count += 1
        return waiter

    def forget(self, name: str, group: str, waiter: Waiter) -> None:
        """Remove a waiter, and its topic and group if they have no other."""
        self.count -= 1
        if waiter in self._ended:
            del self._ended[waiter]
            return
        groups = self._topics[name]
        del groups[group][waiter]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._topics[name]

    def end(self, name: str) -> None:
        """Time out all waiters of a deleted topic: some now, the others in later turns.

        None of them tries again, also not for a new topic of this name.
        """
        for queue in self._topics.pop(name, {}).values():
            self._ended.update(queue)
        if self._end_call is None:
            self._end_some()

    def _end_some(self) -> None:
        """Time out ended waiters up to the limits of one reactor turn; schedule the others."""
        self._end_call = None
        until = self.clock.seconds() + TURN_SECONDS
        for waiter in list(islice(self._ended, TURN_ATTEMPTS)):
            if waiter in self._ended:  # no earlier one cancelled it
                waiter.give_up()
            if self.clock.seconds() > until:
                break
        if self._ended:
            self._end_call = self.clock.callLater(0, self._end_some)

    def serve(self, names: Iterable[str]) -> None:
        """Let waiters of these topics try: in each group, until an attempt finds nothing."""
        for name in sorted(names):
            self._due.update(dict.fromkeys((name, group) for group in self._topics.get(name, ())))
        self._begin()

    def serve_group(self, name: str, group: str) -> None:
        """Let the waiters of one group try, until an attempt finds nothing."""
        if group in self._topics.get(name, ()):
            self._due[name, group] = None
            self._begin()

    def _begin(self) -> None:
        """Serve now, unless groups already wait for a later turn."""
        if self._due and not self._is_serving and self._call is None:
            self._serve_due()

    def _serve_due(self) -> None:
        """Serve groups up to the limits of one reactor turn; schedule the others."""
        self._call = None
        self._is_serving = True
        left = TURN_ATTEMPTS
        until = self.clock.seconds() + TURN_SECONDS
        try:
            while self._due and left and self.clock.seconds() <= until:
                (name, group), _ = self._due.popitem(last=False)
                if self._attempt(name, group):
                    self._due[name, group] = None
                    self._due.move_to_end((name, group), last=False)
                left -= 1
        finally:
            self._is_serving = False
            if self._due:
                self._call = self.clock.callLater(0, self._serve_due)

    def _attempt(self, name: str, group: str) -> bool:
        """Let the first waiter of a group try. Return whether the next one should try."""
        queue = self._topics.get(name, {}).get(group)
        if not queue:
            return False
        waiter = next(iter(queue))
        is_over = run_callback(waiter.attempt)
        if is_over is None:
            waiter.give_up()
        elif is_over:
            waiter.cancel()  # the attempt may have changed which waiter is first
        return is_over is not False
