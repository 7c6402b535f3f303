# Tests: tests/test_size.py
"""Measure the length of the reactor's turns and sample the stacks during long ones.

Contract: between :meth:`StallProbe.begin` and :meth:`StallProbe.end` a timer of one millisecond
notes how late it is called. The delay is the length of a turn, waits for the interpreter's lock
included, as a client feels it. A thread samples the stacks whenever the timer is overdue. For each
long turn it keeps the most frequent line of the reactor's thread and, if another thread of the
broker ran Python during it, the most frequent line of that thread.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

BEAT_SECONDS = 0.001
LOOK_SECONDS = 0.004
LONG_SECONDS = 0.050
"""The limit for a turn."""
_SHOWN = 3


@dataclass
class Stalls:
    """The turns of one phase."""

    phase: str
    seconds: float = 0.0
    longest_ms: float = 0.0
    busiest_ms: float = 0.0
    """The most processor time of the reactor's thread in one turn. During the remainder of a turn
    it waits for the interpreter's lock, or for a core on a busy machine.
    """
    over_50_ms: int = 0
    gc_longest_ms: float = 0.0
    """The longest pass of the garbage collector; it is part of a turn."""
    where: list[str] = field(default_factory=list)
    """The longest turns: milliseconds, and the most frequent lines."""


class StallProbe:
    """Watches one reactor from inside its process; `begin` and `end` are called in its thread.

    :param reactor: has ``callLater`` and a monotonic ``seconds``.
    """

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._now: Callable[[], float] = reactor.seconds
        self._main = threading.main_thread().ident
        self._beat = self._now()
        self._running = False
        self._seen: defaultdict[str, float] = defaultdict(float)
        """Seconds in this turn by line of the reactor's thread."""
        self._seen_elsewhere: defaultdict[str, float] = defaultdict(float)
        self._gc_seconds = 0.0
        """Seconds of garbage collection in this turn."""
        self._turns: list[tuple[float, str]] = []
        self._stalls = Stalls("")
        self._gc_began = 0.0
        self._began = 0.0
        self._processor = 0.0

    def begin(self, phase: str) -> None:
        """Start to watch."""
        self._stalls = Stalls(phase)
        self._turns = []
        self._running = True
        self._began = self._beat = self._now()
        self._processor = time.thread_time()
        gc.callbacks.append(self._on_gc)
        threading.Thread(target=self._look, daemon=True).start()
        self._reactor.callLater(BEAT_SECONDS, self._on_beat)

    def end(self) -> Stalls:
        """Stop watching and return the turns, the present one included."""
        self._note(self._now())
        self._running = False
        gc.callbacks.remove(self._on_gc)
        stalls = self._stalls
        stalls.seconds = round(self._now() - self._began, 2)
        self._turns.sort(reverse=True)
        stalls.where = [f"{ms:.0f} ms: {seen}" for ms, seen in self._turns[:_SHOWN]]
        return stalls

    def _on_beat(self) -> None:
        if self._running:
            self._note(self._now())
            self._reactor.callLater(BEAT_SECONDS, self._on_beat)

    def _note(self, now: float) -> None:
        late = now - self._beat - BEAT_SECONDS
        self._beat = now
        processor, self._processor = self._processor, time.thread_time()
        busy_ms = round((self._processor - processor) * 1000, 1)
        self._stalls.busiest_ms = max(self._stalls.busiest_ms, busy_ms)
        seen, self._seen = self._seen, defaultdict(float)
        elsewhere, self._seen_elsewhere = self._seen_elsewhere, defaultdict(float)
        gc_seconds, self._gc_seconds = self._gc_seconds, 0.0
        self._stalls.longest_ms = max(self._stalls.longest_ms, round(late * 1000, 1))
        if late > LONG_SECONDS:
            self._stalls.over_50_ms += 1
        if late > LONG_SECONDS / 2:
            lines = [max(seen, key=lambda line: seen[line])] if seen else ["(not seen)"]
            if elsewhere:
                lines.append(f"thread: {max(elsewhere, key=lambda line: elsewhere[line])}")
            if gc_seconds > late / 10:
                lines.append(f"gc {gc_seconds * 1000:.0f} ms")
            self._turns.append((late * 1000, "; ".join(lines)))

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        now = self._now()
        if phase == "start":
            self._gc_began = now
        else:
            spent = now - self._gc_began
            self._gc_seconds += spent
            self._stalls.gc_longest_ms = max(self._stalls.gc_longest_ms, round(spent * 1000, 1))

    def _look(self) -> None:
        me = threading.get_ident()
        looked = self._now()
        while self._running:
            time.sleep(LOOK_SECONDS)
            since, looked = looked, self._now()
            if looked - self._beat < 2 * LOOK_SECONDS:
                continue
            # A thread that holds the interpreter's lock for long delays this sample, too.
            weight = looked - since
            for ident, frame in sys._current_frames().items():
                if ident == self._main:
                    self._seen[_line(frame)] += weight
                elif ident != me and _works(frame):
                    self._seen_elsewhere[_line(frame)] += weight


def _works(frame: FrameType) -> bool:
    """Return whether a thread runs the broker's Python code: no wait for work, no disk call."""
    path = frame.f_code.co_filename
    return "/brokerd/" in path and not path.endswith(("/worker_pool.py", "/disk.py"))


def _line(frame: FrameType | None) -> str:
    """Return ``file:line function`` of the innermost frame, after that of its brokerd caller."""
    place = inner = _place(frame)
    while frame is not None:
        if "/brokerd/" in frame.f_code.co_filename:
            place = _place(frame)
            break
        frame = frame.f_back
    return place if inner == place else f"{place} > {inner}"


def _place(frame: FrameType | None) -> str:
    if frame is None:
        return "-"
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
