# Tests: tests/test_garbage.py
"""Freezes long-lived objects, so that the garbage collector never traverses the whole heap.

A full collection traverses every container: with 100,000 groups it takes over a second. Nearly all
of these live long, and reference counts free the rest, because topics, groups and connections break
their cycles. So the objects that have just been found alive are *frozen*, that is, excluded from
later collections:

* the state that the replay built, when the broker begins to serve;
* the survivors of a full collection that took long.

The duration of a collection then depends on the objects since the last one, not on the heap. A
cycle that is frozen while in use and that no code breaks is never freed. That is at most the work
in progress at such a moment.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Literal, Protocol

THRESHOLDS = (700, 2, 1)
"""Thresholds of the collector: new containers before a collection of generation 0, such collections
before generation 1, and those before a full one. A full collection then sees 1,400 to 7,000 new
containers, and takes some 0.5 ms, at most 1.3. With 2,000 it took 4 to 9 ms while groups were
created."""

LONG_SECONDS = 0.0005
"""Processor time from which the survivors of a full collection are frozen."""

COLLECTED_RECORDS = 8_192
"""Records of full chunks after which the collector looks at the youngest objects. A pass takes 0.3
ms then. The collector counts containers, of which floods keep few, so it met 100,000 records at
once."""

_YOUNGEST = 0
_OLDEST = 2

Phase = Literal["start", "stop"]


class Collector(Protocol):
    """The functions of the module `gc` that are used here."""

    callbacks: list[Callable[[Phase, dict[str, int]], object]]

    def collect(self, generation: int) -> object: ...

    def disable(self) -> None: ...

    def enable(self) -> None: ...

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def get_threshold(self) -> tuple[int, int, int]: ...

    def set_threshold(self, youngest: int, middle: int, oldest: int) -> None: ...


class GarbageFreezer:
    """Freezes long-lived objects of ``collector``, which is global to the process.

    ``processor_seconds`` returns the processor time of the calling thread.
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
        self._uncollected_records = 0

    def pause(self) -> None:
        """Disable the collector until `begin`: a replay makes many objects and no garbage."""
        self._collector.disable()

    def begin(self) -> None:
        """Freeze all objects now, and later the survivors of long full collections."""
        if self._thresholds is None:
            collector = self._collector
            self._thresholds = collector.get_threshold()
            collector.set_threshold(*THRESHOLDS)
            collector.freeze()
            # The collector skips full collections until new objects are a quarter of the survivors
            # of the last one. This one, after the freeze, sets their number to about zero.
            collector.collect(_OLDEST)
            collector.callbacks.append(self._on_collection)
        self._collector.enable()

    def records_kept(self, count: int) -> None:
        """Count records of full chunks, and collect the youngest objects after many."""
        self._uncollected_records += count
        if self._uncollected_records >= COLLECTED_RECORDS:
            self._uncollected_records = 0
            self._collector.collect(_YOUNGEST)

    def end(self) -> None:
        """Restore the collector's state from before `pause` and `begin`."""
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
