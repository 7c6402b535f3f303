# Tests: tests/broker/test_waiters.py
"""Long polls: acquires that found nothing and wait for something to come.

Waiters are kept by the names the client gave, because they may wait for a topic that does not
exist yet. Within a group they are served in the order they came.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from brokerd.broker.journal import Clock


class Waiter:
    """One waiting acquire. ``attempt()`` tries again and says whether it was answered."""

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
        """Do now what happens when the wait is over."""
        self.cancel()
        self._timed_out()

    def cancel(self) -> None:
        """Stop waiting; nothing is called any more."""
        if self._call.active():
            self._call.cancel()
            self._waiters.forget(self._name, self._group, self)


class Waiters:
    """All waiting acquires, by topic name and group name."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._topics: dict[str, dict[str, OrderedDict[Waiter, None]]] = {}

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
        """Wait up to ``wait_us`` for ``attempt`` to succeed, else call ``timed_out``."""
        waiter = Waiter(self, name, group, attempt, timed_out, wait_us)
        self._topics.setdefault(name, {}).setdefault(group, OrderedDict())[waiter] = None
        return waiter

    def forget(self, name: str, group: str, waiter: Waiter) -> None:
        groups = self._topics[name]
        del groups[group][waiter]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._topics[name]

    def end(self, name: str) -> None:
        """Tell all that wait for a topic, which is gone, that nothing came."""
        for queue in list(self._topics.get(name, {}).values()):
            for waiter in list(queue):
                waiter.give_up()

    def serve(self, names: Iterable[str]) -> None:
        """Let the waiters of these topics try, by name, each group until one finds nothing."""
        for name in sorted(names):
            for group in list(self._topics.get(name, ())):
                self.serve_group(name, group)

    def serve_group(self, name: str, group: str) -> None:
        """Let the waiters of one group try, until one finds nothing."""
        queue = self._topics.get(name, {}).get(group)
        while queue and (waiter := next(iter(queue))).attempt():
            waiter.cancel()  # the attempt may have changed who is first
