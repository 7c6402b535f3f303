# Tests: tests/test_worker_pool.py
"""A worker pool whose jobs run step by step in the caller's thread."""

from __future__ import annotations

from collections import deque

from brokerd.worker_pool import Done, Work, run_inline


class InlinePool:
    """A pool without threads: jobs wait for :meth:`step` or :meth:`run`."""

    def __init__(self) -> None:
        self._work: deque[tuple[Work, Done]] = deque()

    def __len__(self) -> int:
        return len(self._work)

    def submit(self, work: Work, done: Done) -> None:
        self._work.append((work, done))

    def step(self) -> bool:
        """Run the oldest piece of work and its ``done``. Return False if none waits."""
        if not self._work:
            return False
        run_inline(*self._work.popleft())
        return True

    def wait(self, seconds: float) -> None:
        """Do nothing: work ends when the caller steps."""

    def run(self) -> None:
        """Run all waiting work, also the work that ``done`` calls submit."""
        while self.step():
            pass

    def drop(self) -> None:
        """Drop the waiting work, as a crash does."""
        self._work.clear()
