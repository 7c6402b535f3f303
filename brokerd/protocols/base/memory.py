# Tests: tests/protocols/test_memory.py
"""The memory that peers claim: one budget for the connections of all listeners.

A connection reports what it holds at the end of a turn, not for each message. Each connection may
always hold `OWN_BYTES`. What it holds beyond that is a *claim* on the budget. The budget has three
kinds of claims, and a share of it belongs to each kind alone:

* requests: unfinished frames, and frames that wait;
* answers: answers that wait, answers that the peer has not read, and reads from disk in progress;
* waits: long polls and other reserved places of answers.

Another share belongs to answers of *prompt* connections, whose peers read and wait for each answer:
else a client that reads would wait until connections are cut whose peers never do. The rest of the
budget is common. A kind is *full* when its share and the common part are used. When half of the
common part is used, a connection gets further answers only after its peer has read the earlier
ones. A connection without room waits. When there is room, connections go on in turn, one of each
group: prompt ones, others whose peers read, and all others. In a group, the connection that waits
longest and the newest one go on alternately. When one has waited for `PATIENCE_SECONDS` because a
kind is full, the worst claims are cut: the connection is closed. The worst claim has the largest
product of bytes and time without progress.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import gt
from typing import Any, Final, NamedTuple, Protocol

from twisted.logger import Logger

from brokerd.broker import Clock, Congested

_log = Logger("brokerd.protocols.base.memory.MemoryBudget")

OWN_BYTES: Final = 64 << 10
"""Bytes that each connection may hold beside the budget."""
PLACE_BYTES: Final = 1_000
"""Memory of a long poll, or of another queued answer, besides its bytes."""
PATIENCE_SECONDS: Final = 2.0
"""Longest wait for room before claims without progress are cut."""
SWEEP_SECONDS: Final = 0.5
WAKE_SECONDS: Final = 0.003
"""Time that connections with new room get in one reactor turn."""
UNLIMITED: Final = 1 << 60
RANKS: Final = 3
"""Groups of connections that go on in turn: see `_rank`."""

REQUESTS, ANSWERS, WAITS, FURTHER_ANSWERS, PROMPT_ANSWERS = range(5)
KINDS = ("requests", "answers", "waits")
"""Names of the kinds, by number. Further answers are answers of a connection that holds some."""
SHARES = (4, 4, 16)
"""The share of each kind is the budget divided by this."""
PROMPT_SHARE = 16
"""The same for the answers of prompt connections."""


class AwaitMemory(Congested):
    """The request waits for memory for its answer. The connection handles it again."""


class Claimant(Protocol):
    """A connection with a claim."""

    @property
    def reads_answers(self) -> bool:
        """Whether the peer got an answer, and has read all that it got, as far as is known."""

    @property
    def awaits_each_answer(self) -> bool:
        """Whether the peer sent a whole request, the last one, after its last answer."""

    def memory_freed(self) -> None:
        """Go on: there is room now."""

    def cut_for_memory(self) -> None:
        """Close now and drop everything."""

    def peer_name(self) -> str:
        """Return listener and address of the peer, for the log."""


class Claim(NamedTuple):
    """What a connection holds beyond its own share."""

    sizes: tuple[int, int, int]
    """Bytes by kind."""
    since: float
    """Time of the last progress: the beginning, or the last decrease."""


class MemoryBudget:
    """Counts claims, and decides which connections wait and which are cut.

    :param total_bytes: all claims together; one pass of a connection may exceed it.
    :param clock: tells the time and calls later.
    """

    def __init__(self, total_bytes: int, clock: Clock) -> None:
        self.cut = 0
        """Connections closed for their claims."""
        self.used = [0, 0, 0]
        """Claimed bytes by kind."""
        self.full = [False] * 5
        """Whether connections have to wait, by kind."""
        self.on_freed: Callable[[], None] = lambda: None
        """Called when most of a large amount of memory is free again."""
        self._clock = clock
        self._claims: dict[Claimant, Claim] = {}
        self._waiting: dict[Claimant, tuple[int, float]] = {}
        """Connections that wait -> the kind and since when, the longest first."""
        self._next_rank = 0
        """The rank (`_rank`) of the connection that goes on next, if one of it waits."""
        self._takes_newest = [False] * RANKS
        """By rank: whether the newest connection goes on next, not the longest waiting one."""
        self._wake_call: Any = None
        self._sweep_call: Any = None
        self._peak = 0
        """Largest sum of claims since `on_freed`."""
        self.resize(total_bytes)

    def resize(self, total_bytes: int) -> None:
        """Limit all claims together to another sum. A lower limit closes no connection at once."""
        self.total_bytes = total_bytes
        self.expected_bytes_max = total_bytes // 32
        """The largest claim for an answer whose size is not known yet."""
        self._shares = tuple(total_bytes // part for part in SHARES)
        self._prompt = total_bytes // PROMPT_SHARE
        self._common = total_bytes - sum(self._shares) - self._prompt
        self._change((0, 0, 0), (0, 0, 0))

    # -- claims -------------------------------------------------------------------------------

    def charge(self, claimant: Claimant, requests: int, answers: int, waits: int) -> bool:
        """Set what a connection holds, by kind; return whether this is a claim on the budget."""
        claim = self._claims.get(claimant)
        if requests + answers + waits <= OWN_BYTES:
            if claim is not None:
                del self._claims[claimant]
                self._change(claim.sizes, (0, 0, 0))
            return False
        sizes = (requests, answers, waits)
        if claim is None:
            self._claims[claimant] = Claim(sizes, self._clock.seconds())
            self._change((0, 0, 0), sizes)
        elif claim.sizes != sizes:
            has_progress = sum(sizes) < sum(claim.sizes)
            since = self._clock.seconds() if has_progress else claim.since
            self._claims[claimant] = Claim(sizes, since)
            self._change(claim.sizes, sizes)
        return True

    def forget(self, claimant: Claimant) -> None:
        """Drop the claim and the wait of a closed connection."""
        self._waiting.pop(claimant, None)
        claim = self._claims.pop(claimant, None)
        if claim is not None:
            self._change(claim.sizes, (0, 0, 0))

    def _change(self, before: tuple[int, int, int], after: tuple[int, int, int]) -> None:
        used, shares = self.used, self._shares
        common = 0
        for kind in range(3):
            used[kind] += after[kind] - before[kind]
            common += max(0, used[kind] - shares[kind])
        before_full = self.full
        self.full = [
            *(used[kind] >= shares[kind] and common >= self._common for kind in range(3)),
            used[ANSWERS] >= shares[ANSWERS] and 2 * common >= self._common,
            used[ANSWERS] >= shares[ANSWERS] and common >= self._common + self._prompt,
        ]
        if self._waiting and any(map(gt, before_full, self.full)):
            self._wake_later()
        total = sum(used)
        if total > self._peak:
            self._peak = total
        elif 4 * total < self._peak:
            if self._peak > self.total_bytes // 16:
                self.on_freed()
            self._peak = total

    # -- waits --------------------------------------------------------------------------------

    def lacking(self, claimant: Claimant, held_bytes: int) -> int | None:
        """Return the kind that the next answer of a connection has to wait for, or None.

        ``held_bytes`` are the bytes of its earlier answers that its peer has not read.
        """
        is_first = held_bytes <= OWN_BYTES
        if self.full[ANSWERS]:
            if not is_first or _rank(claimant):
                return ANSWERS
            return PROMPT_ANSWERS if self.full[PROMPT_ANSWERS] else None
        return FURTHER_ANSWERS if self.full[FURTHER_ANSWERS] and not is_first else None

    def wait(self, claimant: Claimant, kind: int) -> None:
        """Call `Claimant.memory_freed` once this kind has room."""
        since = self._waiting.get(claimant)
        if since is None or since[0] != kind:
            self._waiting[claimant] = kind, self._clock.seconds()
        if not self.full[kind]:
            self._wake_later()
        if self._sweep_call is None:
            self._sweep_call = self._clock.callLater(SWEEP_SECONDS, self._sweep)

    def awaited(self, claimant: Claimant) -> int | None:
        """Return the kind for which a connection waits, or None."""
        found = self._waiting.get(claimant)
        return None if found is None else found[0]

    @property
    def waiting(self) -> int:
        """Number of connections that wait."""
        return len(self._waiting)

    def _wake_later(self) -> None:
        if self._wake_call is None:
            self._wake_call = self._clock.callLater(0, self._wake)

    def _wake(self) -> None:
        """Let connections go on while there is room: one of each rank in turn.

        So many peers that never read cost a peer that reads one turn, and not all of theirs. Until
        its first large answer, a peer that never reads looks like one that waits for each answer.
        Many of them began to wait together, so a peer that asks later is the newest and goes on
        after one of them. (Compare adaptive LIFO: Maurer, "Fail at Scale", ACM Queue 13(8), 2015.)
        """
        self._wake_call = None
        end = self._clock.seconds() + WAKE_SECONDS
        ranks = [deque[Claimant]() for _ in range(RANKS)]
        for claimant in self._waiting:
            ranks[_rank(claimant)].append(claimant)
        while any(ranks):
            rank = self._next_rank
            while not ranks[rank]:
                rank = (rank + 1) % RANKS
            queue = ranks[rank]
            claimant = queue.pop() if self._takes_newest[rank] else queue.popleft()
            waiting = self._waiting.get(claimant)
            if waiting is None or self.full[waiting[0]]:
                continue
            if self._clock.seconds() > end:
                self._wake_later()
                return
            self._next_rank = (rank + 1) % RANKS
            self._takes_newest[rank] ^= True
            del self._waiting[claimant]
            claimant.memory_freed()

    def _sweep(self) -> None:
        """Cut the worst claims of each kind for which a connection has waited too long."""
        self._sweep_call = None
        if not self._waiting:
            return
        now = self._clock.seconds()
        late = {kind for kind, since in self._waiting.values() if now - since >= PATIENCE_SECONDS}
        if PROMPT_ANSWERS in late:
            late.add(ANSWERS)
        for kind in late - {FURTHER_ANSWERS, PROMPT_ANSWERS}:
            if self.full[kind]:
                self._cut_worst(kind, now)
        self._sweep_call = self._clock.callLater(SWEEP_SECONDS, self._sweep)

    def _cut_worst(self, kind: int, now: float) -> None:
        """Close connections without progress until there is room for those that wait.

        At least a quarter of the claims of the kind is freed, if it is without progress. A
        connection that waits and has no claim counts as much as an average claim.
        """
        still = [
            (claim.sizes[kind] * (now - claim.since), claimant)
            for claimant, claim in self._claims.items()
            if claim.sizes[kind] > OWN_BYTES // 4 and now - claim.since >= PATIENCE_SECONDS
        ]
        if not still:
            return
        still.sort(key=lambda one: one[0], reverse=True)
        awaited = (kind, PROMPT_ANSWERS) if kind == ANSWERS else (kind,)
        waiting = sum(
            its_kind in awaited and claimant not in self._claims
            for claimant, (its_kind, _) in self._waiting.items()
        )
        average = self.used[kind] // sum(
            claim.sizes[kind] > OWN_BYTES // 4 for claim in self._claims.values()
        )
        wanted = self.used[kind] - max(self.used[kind] // 4, waiting * average)
        count = 0
        freed = self.used[kind]
        for _, claimant in still:
            if self.used[kind] <= wanted:
                break
            if not count:
                worst = claimant.peer_name()
            count += 1
            claimant.cut_for_memory()
        if count:
            self.cut += count
            _log.warn(
                "memory: {count} connections are closed, which held {size} bytes of {kind} without "
                "progress while others waited; the worst was {worst}",
                count=count,
                size=freed - self.used[kind],
                kind=KINDS[kind],
                worst=worst,
                event_id="memory-cut",
            )

    def status(self) -> dict[str, Any]:
        """Return the figures of the budget.

        ``kind_limit_bytes`` is what a kind may claim while the others leave it the common part.
        """
        limits = [share + self._common for share in self._shares]
        limits[ANSWERS] += self._prompt
        return {
            "limit_bytes": self.total_bytes,
            "claimed_bytes": dict(zip(KINDS, self.used, strict=True)),
            "kind_limit_bytes": dict(zip(KINDS, limits, strict=True)),
            "waiting": self.waiting,
            "cut": self.cut,
        }


def _rank(claimant: Claimant) -> int:
    """Return 0 for a prompt connection, 1 for another whose peer reads, 2 for the rest."""
    if not claimant.reads_answers:
        return 2
    return 0 if claimant.awaits_each_answer else 1
