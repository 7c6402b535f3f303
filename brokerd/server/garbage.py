# Tests: tests/test_garbage.py
"""Python's cyclic garbage collector, so that it never looks through the whole heap of a broker.

A full collection looks through every container there is: a second and more with 100,000 groups.
But nearly all of it lives long, and what dies is freed by reference counts: topics, groups and
connections break their cycles when they go. So what has just been proven alive is *frozen*, that
is, never looked through again:

* what the replay built, when the broker begins to serve;
* what survives a full collection that took long. The next one then sees only what is new.

So how long one takes depends on what came since the last one, not on the heap. What cannot be
freed is a cycle that was frozen while it was in use and that nothing breaks: at most what is under
way at such a moment.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Literal, Protocol

THRESHOLDS = (5_000, 2, 1)
"""New containers before a collection of the youngest; such collections before one of the next
generation; and those before a full one, which so sees about 30,000 new containers."""

LONG_SECONDS = 0.005
"""Processor time of a full collection whose survivors are frozen."""

_OLDEST = 2

Phase = Literal["start", "stop"]


class Collector(Protocol):
    """What is used of the module `gc`."""

    callbacks: list[Callable[[Phase, dict[str, int]], object]]

    def disable(self) -> None: ...

    def enable(self) -> None: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def get_threshold(self) -> tuple[int, int, int]: ...

    def set_threshold(self, youngest: int, middle: int, oldest: int) -> None: ...


class GarbageFreezer:
    """Keeps long-lived objects away from ``collector``, which is the whole process's.

    ``processor_seconds`` is the processor time of the calling thread.
    """

    def __init__(
        self,
        collector: Collector = gc,
        processor_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._collector = collector
        self._seconds = processor_seconds
        self._began = 0.0
        self._thresholds: tuple[int, int, int] | None = None

    def pause(self) -> None:
        """Collect nothing until `begin`: what is rebuilt now is many objects and no garbage."""
        self._collector.disable()

    def begin(self) -> None:
        """Freeze all there is now, and what long full collections leave from now on."""
        if self._thresholds is None:
            collector = self._collector
            self._thresholds = collector.get_threshold()
            collector.set_threshold(*THRESHOLDS)
            collector.callbacks.append(self._on_collection)
            collector.freeze()
        self._collector.enable()

    def end(self) -> None:
        """Let the collector be as it was before `pause` and `begin`."""
        self._collector.enable()
        if self._thresholds is not None:
            collector = self._collector
            collector.callbacks.remove(self._on_collection)
            collector.set_threshold(*self._thresholds)
            collector.unfreeze()
            self._thresholds = None

    def _on_collection(self, phase: Phase, info: dict[str, int]) -> None:
        if info["generation"] == _OLDEST:
            if phase == "start":
                self._began = self._seconds()
            elif self._seconds() - self._began >= LONG_SECONDS:
                self._collector.freeze()
