# Tests: tests/broker/test_slices.py
"""The share of a reactor turn for long work: cooperative slices, by deficit round-robin.

Long work is cut into slices of about a millisecond. All connections of all listeners share one
`SliceQueue`. In a turn it runs slices until `SLICE_SECONDS` are used. Each *owner*, an account or a
connection, gets the same time: it pays for its slices by their measured cost, and waits while the
others catch up. An owner that used less than its share goes first (RFC 8290, "new" and "old"
queues), so a light request waits for one slice of others at most. After `NEW_SECONDS` of such
owners one slice is another's: else a stream of new connections left the others none. A step that
cannot be cut may be long. While light requests wait for a commit (`light_waits`), heavy work pauses
after each `PAUSE_AFTER_SECONDS`, and longer each time, so that the thread that commits, and then
the answers, have the rest of the time.

The queue also limits the requests that connections handle as they arrive: `charge` adds the cost
of a long run, and while `is_full`, connections with several long runs wait in the queue. Short runs
are not charged, so many light connections take no detour. A connection whose runs are mostly short
goes on after a long one by `go_on`: such runs and the slices take turns.

Costs come from the clock that is given. A clock that stands still makes every slice free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from twisted.internet.defer import Deferred

from brokerd.broker.clock import Clock

SLICE_SECONDS: Final = 0.001
"""Length of a slice. It ends after the step of work during which this time runs out. Also the time
in which a turn begins slices, and the time that each owner gets in a round."""

TURN_SECONDS: Final = 0.003
"""A turn is full when the long runs of requests of all connections took this time."""

CHARGED_SECONDS: Final = 0.001
"""A run of requests that takes more is long: it is charged."""

NEW_SECONDS: Final = 0.004
"""Time of owners that came with credit after which others have a slice."""

PAUSE_AFTER_SECONDS: Final = 0.004
"""Time of slices after which heavy work pauses, while light requests wait for one commit."""

PAUSE_FACTOR: Final = 4
"""The first pause beside a commit is this many times as long as the slices before it. Later ones
grow with the square of the time of all slices beside that commit. So slices of 4 ms are followed by
pauses of 16, 64, 144 ms: beside a commit of 100 ms heavy work has 12 ms."""

PAUSE_SECONDS_MAX: Final = 0.25
"""The longest pause: beside a commit of seconds heavy work goes on slowly."""

PAUSE_CHECK_SECONDS: Final = 0.001
"""Time between two looks at the end of a pause."""


class SliceOwner:
    """The work of one account or connection that waits, and its credit."""

    __slots__ = (
        "__weakref__",
        "credit_seconds",
        "idle_since_seconds",
        "is_queued",
        "runs",
        "works",
    )

    def __init__(self) -> None:
        self.works: deque[Callable[[], object]] = deque()
        self.runs: deque[Callable[[], object]] = deque()
        """Further runs of requests, of `SliceQueue.go_on`."""
        self.credit_seconds = SLICE_SECONDS
        """Time that it may use in this round. It may use more, and then waits for longer."""
        self.idle_since_seconds = 0.0
        self.is_queued = False


class SliceQueue:
    """Runs the long work of all owners, about a millisecond in each reactor turn."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._accounts: WeakValueDictionary[str, SliceOwner] = WeakValueDictionary()
        self._unowned = SliceOwner()
        self._new: deque[SliceOwner] = deque()
        """Owners that came with credit. They go first."""
        self._old: deque[SliceOwner] = deque()
        """Owners that used up their credit in this round."""
        self._new_seconds = 0.0
        """Time of new owners' slices since one of an old owner. A long one counts as a slice."""
        self._waiting_works = 0
        self._runners: deque[SliceOwner] = deque()
        """Owners with runs, those first that had one least recently."""
        self._waiting_runs = 0
        self._runs_are_next = True
        """Whether the last turn had slices."""
        self._is_scheduled = False
        self._in_slice = False
        self._charged_seconds = 0.0
        self._pause_ends_seconds = 0.0
        self._awaited = 0
        self._beside_seconds = 0.0
        """Time of slices since the commit ``_awaited`` is awaited."""
        self._pause_at_seconds = PAUSE_AFTER_SECONDS
        """The ``_beside_seconds`` beyond which the next pause begins."""
        self.light_waits: Callable[[], int] = lambda: 0
        """Returns the number of the next commit if a request that was handled as it arrived waits
        for a commit, or 0."""
        self.gives_way: Callable[[], bool] = lambda: False
        """Returns whether the work of this turn waits for the next one. It is called before the
        work, and its time does not count."""
        self.is_full = False
        """Whether the requests of this turn took `TURN_SECONDS`."""

    def account(self, name: str) -> SliceOwner:
        """Return the owner that all connections of an account share."""
        owner = self._accounts.get(name)
        if owner is None:
            owner = self._accounts[name] = SliceOwner()
        return owner

    def add(self, work: Callable[[], object], owner: SliceOwner | None = None) -> None:
        """Call ``work`` in a later reactor turn, after the works of its owner that wait already."""
        owner = owner or self._unowned
        owner.works.append(work)
        self._waiting_works += 1
        if not owner.is_queued:
            self._earn(owner)
            owner.is_queued = True
            (self._new if owner.credit_seconds > 0 else self._old).append(owner)
        self._schedule()

    def go_on(self, run: Callable[[], object], owner: SliceOwner) -> None:
        """Call ``run``, a further run of requests, in one of the next turns. Owners take turns."""
        owner.runs.append(run)
        self._waiting_runs += 1
        if len(owner.runs) == 1:
            self._runners.append(owner)
        self._schedule()

    def wait(self, owner: SliceOwner | None = None) -> Deferred[None]:
        """Return a Deferred that fires in the owner's next slice: a coroutine goes on in it."""
        slice_begins: Deferred[None] = Deferred()
        self.add(partial(slice_begins.callback, None), owner)
        return slice_begins

    def charge(self, owner: SliceOwner, seconds: float) -> None:
        """Count the time of a run of requests. Ignored in a slice, which is measured itself."""
        if self._in_slice:
            return
        if not owner.is_queued:
            self._earn(owner)
        owner.credit_seconds -= seconds
        self._charged_seconds += seconds
        self.is_full = self._charged_seconds >= TURN_SECONDS
        self._schedule()

    def _earn(self, owner: SliceOwner) -> None:
        """Give an owner that was idle its share of that time, up to the credit of a round."""
        now_seconds = self.clock.seconds()
        share = (now_seconds - owner.idle_since_seconds) / (len(self._new) + len(self._old) + 1)
        owner.credit_seconds = min(SLICE_SECONDS, owner.credit_seconds + share)
        owner.idle_since_seconds = now_seconds

    def _schedule(self, delay_seconds: float = 0) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.clock.callLater(delay_seconds, self._turn)

    def _turn(self) -> None:
        """Begin a turn: further runs of requests in one, slices in the next.

        In a pause, only owners that came with credit have slices.
        """
        self._is_scheduled = self.is_full = False
        self._charged_seconds = 0.0
        if not (self._waiting_works or self._waiting_runs):
            return
        if not self._has_new() and self._is_pause():
            self._schedule(PAUSE_CHECK_SECONDS)
            return
        if self.gives_way():
            self._schedule()
            return
        is_pause = self._is_pause()
        end_seconds = self.clock.seconds() + SLICE_SECONDS
        try:
            runs_are_next = self._runs_are_next or not self._waiting_works
            if self._waiting_runs and runs_are_next and not is_pause:
                self._run_requests(end_seconds)
            else:
                self._run_slices(end_seconds, is_pause)
        finally:
            if self._waiting_works or self._waiting_runs:
                self._schedule(PAUSE_CHECK_SECONDS if is_pause and not self._has_new() else 0)

    def _run_requests(self, end_seconds: float) -> None:
        """Begin runs of requests until the time is used, at most as many as wait now."""
        self._runs_are_next = False
        for _ in range(self._waiting_runs):
            owner = self._runners.popleft()
            run = owner.runs.popleft()
            self._waiting_runs -= 1
            if owner.runs:
                self._runners.append(owner)
            run()
            if self.clock.seconds() >= end_seconds:
                break

    def _run_slices(self, end_seconds: float, is_pause: bool) -> None:
        """Run slices until the time is used, at most as many as works wait now."""
        self._runs_are_next = True
        left = self._waiting_works
        self._in_slice = True
        try:
            while left and (not is_pause or self._has_new()):
                left -= 1
                if self._run_one(is_pause) >= end_seconds:
                    break
        finally:
            self._in_slice = False

    def _is_pause(self) -> bool:
        """Return whether heavy work pauses now, while light requests wait for a commit."""
        now_seconds = self.clock.seconds()
        awaited = self.light_waits()
        if awaited != self._awaited:
            self._awaited, self._beside_seconds = awaited, 0.0
            self._pause_at_seconds = PAUSE_AFTER_SECONDS
            short_pause_ends_seconds = now_seconds + PAUSE_FACTOR * PAUSE_AFTER_SECONDS
            self._pause_ends_seconds = min(self._pause_ends_seconds, short_pause_ends_seconds)
        return bool(awaited) and now_seconds < self._pause_ends_seconds

    def _has_new(self) -> bool:
        """Return whether an owner that came with credit waits. One that was charged is old."""
        new = self._new
        while new and new[0].credit_seconds <= 0:
            self._old.append(new.popleft())
        return bool(new)

    def _run_one(self, is_pause: bool) -> float:
        """Run the next slice, charge its owner, and return the time."""
        owners = self._next_owners(is_pause)
        owner = owners.popleft()
        work = owner.works.popleft()
        self._waiting_works -= 1
        before_seconds = self.clock.seconds()
        try:
            work()
        finally:
            after_seconds = owner.idle_since_seconds = self.clock.seconds()
            took_seconds = after_seconds - before_seconds
            owner.credit_seconds -= took_seconds
            if owners is self._new:
                self._new_seconds += min(took_seconds, SLICE_SECONDS)
            else:
                self._new_seconds = 0.0
            self._beside_seconds += took_seconds
            if self._beside_seconds > self._pause_at_seconds:
                pause_seconds = PAUSE_FACTOR * self._beside_seconds**2 / PAUSE_AFTER_SECONDS
                self._pause_ends_seconds = after_seconds + min(pause_seconds, PAUSE_SECONDS_MAX)
                self._pause_at_seconds = self._beside_seconds + PAUSE_AFTER_SECONDS
            if not owner.works:
                owner.is_queued = False
            elif owner.credit_seconds > 0:
                owners.appendleft(owner)
            else:
                self._old.append(owner)
        return after_seconds

    def _next_owners(self, is_pause: bool) -> deque[SliceOwner]:
        """Return the queue whose first owner has credit: mostly the new owners' if there are any.

        After `NEW_SECONDS` of them it is that of the old ones, but not in a pause. Old owners get
        more credit when it is their turn in the round.
        """
        old = self._old
        if self._has_new() and (is_pause or not old or self._new_seconds < NEW_SECONDS):
            return self._new
        while old[0].credit_seconds <= 0:
            old[0].credit_seconds += SLICE_SECONDS
            if old[0].credit_seconds <= 0:
                old.rotate(-1)
        return old


class Pace:
    """Lets a coroutine work in slices."""

    def __init__(self, slices: SliceQueue, owner: SliceOwner) -> None:
        self._slices = slices
        self._owner = owner
        self._end_seconds = slices.clock.seconds() + SLICE_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether this slice is used up."""
        return self._slices.clock.seconds() > self._end_seconds

    async def rest(self) -> None:
        """Wait for the owner's next slice if this one is used up."""
        if self.is_over:
            await self.next_slice()

    async def next_slice(self) -> None:
        """Wait for the owner's next slice."""
        await self._slices.wait(self._owner)
        self._end_seconds = self._slices.clock.seconds() + SLICE_SECONDS
