# Tests: tests/test_worker_pool.py
"""Worker pools run slow work outside of the reactor's thread.

A pool runs ``work()`` in another thread and then ``done(result, error)`` in the reactor's thread. A
pool of one thread keeps the order of work, and of the ``done`` calls. The log has one pool of one
thread for writes. Others serve allocation, snapshots and reads.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Protocol

STOP_SECONDS = 10.0
MEMORY_SECONDS = 0.1
"""Pause before a thread without memory tries again to report."""

Work = Callable[[], Any]
Done = Callable[[Any, Exception | None], None]
Submit = Callable[[Work, Done], None]
"""The type of `WorkerPool.submit`."""


class WorkerPool(Protocol):
    """Runs work outside of the reactor's thread and reports its end inside of it."""

    def submit(self, work: Work, done: Done) -> None:
        """Run ``work()``, then ``done(result, None)`` or ``done(None, error)``."""


class CommitPool(WorkerPool, Protocol):
    """A worker pool whose work may be so short that the reactor waits for its end."""

    def wait(self, seconds: float) -> None:
        """Block for ``seconds`` at most until the submitted work ends, then call its ``done``.

        Returns at once unless exactly one piece of work has not been reported.
        """


class Mutex(Protocol):
    """A lock between threads, such as `threading.Lock`."""

    def acquire(self, blocking: bool = True) -> bool: ...

    def release(self) -> None: ...

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


def run_inline(work: Work, done: Done) -> None:
    """Run the work in the caller's thread: a `Submit` for callers without threads."""
    try:
        result = work()
    except Exception as error:
        done(None, error)
    else:
        done(result, None)


class FailStopPool:
    """Submits to another pool. ``failed(what, error)`` is called for an error in a ``done``.

    The caller of ``done`` could only log the error, and what waits for the work would wait forever.
    """

    def __init__(self, pool: WorkerPool, failed: Callable[[str, Exception], None]) -> None:
        self._pool = pool
        self._failed = failed

    def submit(self, work: Work, done: Done) -> None:
        def report(result: Any, error: Exception | None) -> None:
            try:
                done(result, error)
            except Exception as failure:
                self._failed("the log cannot go on after disk work", failure)

        self._pool.submit(work, report)


class _Task:
    """Work, and the report of its end, which is made once."""

    def __init__(self, work: Work, done: Done) -> None:
        self.work = work
        self.done = done
        self.result: Any = None
        self.error: Exception | None = None
        self.is_awaited = False
        """Whether the reactor blocks until ``ended`` is free, and then reports."""
        self.ended = threading.Lock()
        """Held until the work has ended."""
        self.ended.acquire()

    def run(self) -> None:
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error
        self.ended.release()


class ThreadPool:
    """Threads that take work from one queue. One thread keeps the order of work.

    ``call_from_thread(function, *args)`` runs a function in the reactor's thread, as
    ``reactor.callFromThread`` of Twisted does. ``sleep(seconds)`` blocks a thread without memory.
    Each thread first calls ``begin``.
    """

    def __init__(
        self,
        call_from_thread: Callable[..., object],
        threads: int = 1,
        name: str = "wal",
        sleep: Callable[[float], object] = time.sleep,
        begin: Callable[[], object] | None = None,
    ) -> None:
        self._begin = begin
        self._call_from_thread = call_from_thread
        self._count = threads
        self._name = name
        self._sleep = sleep
        self._work: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._unreported: dict[_Task, None] = {}
        """Submitted tasks whose ``done`` was not called, oldest first."""
        self._threads: list[threading.Thread] = []
        self._at_work: set[str] = set()
        """Names of the threads that run work now."""

    def start(self) -> None:
        """Start the threads. Work submitted earlier waits for this."""
        for index in range(self._count):
            thread = threading.Thread(target=self._run, name=f"{self._name}-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, seconds: float = STOP_SECONDS) -> list[str]:
        """Let the threads finish the submitted work, and join them within ``seconds`` in all.

        Returns the names of the threads that are still at work. These end with the process.
        """
        end = time.monotonic() + seconds
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        self._threads.clear()
        return sorted(self._at_work)

    def submit(self, work: Work, done: Done) -> None:
        task = _Task(work, done)
        self._unreported[task] = None
        self._work.put(task)

    def wait(self, seconds: float) -> None:
        if len(self._unreported) != 1:
            return
        (task,) = self._unreported
        task.is_awaited = True
        if not task.ended.acquire(timeout=seconds):
            task.is_awaited = False
            # The thread may have ended just before, and does not report then.
            if not task.ended.acquire(blocking=False):
                return
        self._report(task)

    def _report(self, task: _Task) -> None:
        """Call ``done`` in the reactor's thread. The second call does nothing."""
        if task in self._unreported:
            del self._unreported[task]
            task.done(task.result, task.error)

    def _run(self) -> None:
        name = threading.current_thread().name
        if self._begin is not None:
            self._begin()
        while (task := self._work.get()) is not None:
            self._at_work.add(name)
            task.run()
            if not task.is_awaited:
                self._report_from_thread(task)
            self._at_work.discard(name)
            del task

    def _report_from_thread(self, task: _Task) -> None:
        """Report until it works: the reactor waits for it. Memory may be short for a moment."""
        while True:
            try:
                self._call_from_thread(partial(self._report, task))
            except MemoryError:
                self._sleep(MEMORY_SECONDS)
            else:
                return
