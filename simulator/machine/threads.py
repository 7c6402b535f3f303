# Tests: tests/simulator/test_threads.py
"""Threads of a simulated machine: the broker's blocking code, interleaved at each disk call.

Each thread is a greenlet. During a disk call simulated time passes, and the reactor and other
threads go on. A thread never switches between two disk calls. So threads can reach the disk in
every order, and the same seed repeats the order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from greenlet import getcurrent, greenlet

from brokerd.worker_pool import STOP_SECONDS, Done, Work
from simulator.machine.disk import PowerLost
from simulator.machine.world import World


class Process:
    """The life of one process. Its pending events end with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive = True
        self._threads: list[SimThread] = []

    def call_after(self, us: int, function: Callable[..., object], *arguments: object) -> None:
        """Call a function after a delay, unless the process has ended by then."""
        world = self.world
        world.call_at(world.now_us + us, self.if_alive, function, *arguments)

    def if_alive(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function unless the process has ended."""
        if self.alive:
            function(*arguments)

    def add_thread(self, work: Callable[[], None]) -> SimThread:
        """Return a new thread. `SimThread.resume` begins it."""
        self._threads = [thread for thread in self._threads if not thread.dead]
        thread = SimThread(self, work)
        self._threads.append(thread)
        return thread

    def sleep(self, us: int) -> None:
        """Let time pass in a thread. In the reactor's thread it returns at once.

        Raises PowerLost if the process has ended.
        """
        thread = current_thread()
        if thread is not None and not thread.skips(us):
            self.call_after(us, thread.resume)
            thread.wait()
        if not self.alive:
            raise PowerLost

    def end(self) -> None:
        """End the process at once. A thread that causes this ends with PowerLost."""
        self.alive = False
        for thread in self._threads:
            if thread is not current_thread():
                thread.end()


class SimThread(greenlet):
    """One thread. ``work`` may raise PowerLost only."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        super().__init__(self._run_work, parent=getcurrent())
        self._process = process
        self._work = work
        self.hurried = False
        """Whether a caller waits for the end of this thread. Then no other event happens before."""
        self.awaited_us = 0
        """Time for which a caller still waits for the end of this thread."""

    @property
    def process(self) -> Process:
        """Return the process of the thread."""
        return self._process

    def _run_work(self) -> None:
        try:
            self._work()
        except PowerLost:
            return

    def begin(self) -> None:
        """Begin the thread, unless it has begun."""
        if not self:
            self.resume()

    def skips(self, us: int) -> bool:
        """Return whether the thread goes on at once instead of a sleep: a caller waits for it."""
        if self.awaited_us >= us:
            self.awaited_us -= us
            return True
        self.awaited_us = 0
        return self.hurried

    def resume(self) -> None:
        """Begin or continue the thread. Return when it waits again or has ended."""
        if not self.dead:
            self.parent = getcurrent()
            self.switch()

    def wait(self) -> None:
        """Suspend the calling thread until `resume`."""
        assert self.parent is not None
        self.parent.switch()

    def end(self) -> None:
        """Unwind the thread."""
        if self and not self.dead:
            self.parent = getcurrent()
            self.throw(PowerLost)


def current_thread() -> SimThread | None:
    """Return the running thread, or None in the reactor's thread."""
    running = getcurrent()
    return running if isinstance(running, SimThread) else None


class SimMutex:
    """A lock between simulated threads. The reactor may try it, and never waits for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._held = False
        self._waiting: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock. Return False without ``blocking`` if it is held.

        Raises AssertionError if the real reactor would wait.
        """
        while self._held and blocking:
            thread = current_thread()
            assert thread is not None, "the reactor would wait for a thread that waits for a disk"
            self._waiting.append(thread)
            thread.wait()
            if not self._process.alive:
                raise PowerLost
        if self._held:
            return False
        self._held = True
        return True

    def release(self) -> None:
        self._held = False
        if self._waiting:
            self._process.call_after(0, self._waiting.popleft().resume)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class SimThreads:
    """A worker pool of `brokerd.server.host.Host`: threads that take jobs from one queue.

    ``lag_us()`` returns the delay before a job begins and before its end is reported.
    ``begins_in_time()`` returns whether a thread begins while the reactor waits for its job.
    """

    def __init__(
        self,
        process: Process,
        count: int,
        lag_us: Callable[[], int],
        begins_in_time: Callable[[], bool] = lambda: True,
    ) -> None:
        self._process = process
        self._count = count
        self._lag_us = lag_us
        self._begins_in_time = begins_in_time
        self._unreported = 0
        self._awaited: list[Callable[[], None]] | None = None
        """While the reactor waits: the report of the job that has ended."""
        self._started = False
        self._work: deque[tuple[Work, Done]] = deque()
        self._busy: list[SimThread] = []

    def start(self) -> None:
        self._started = True
        for _ in range(self._count):
            self._next()

    def submit(self, work: Work, done: Done) -> None:
        self._work.append((work, done))
        self._unreported += 1
        if self._started:
            self._next()

    def wait(self, seconds: float) -> None:
        """Let the only job go on for so long; if it ends, report it. No simulated time passes."""
        thread = self._busy[0] if self._unreported == 1 and len(self._busy) == 1 else None
        if thread is None or thread or not self._begins_in_time():
            return
        thread.awaited_us, self._awaited = int(seconds * 1_000_000), []
        thread.begin()
        thread.awaited_us = 0
        reports, self._awaited = self._awaited, None
        if self._process.alive:
            for report in reports:
                report()

    def _next(self) -> None:
        if self._work and len(self._busy) < self._count:
            self._process.call_after(self._lag_us(), self._new_thread().begin)

    def _new_thread(self) -> SimThread:
        thread = self._process.add_thread(lambda: self._run(thread))
        self._busy.append(thread)
        return thread

    def _run(self, thread: SimThread) -> None:
        while self._work:
            work, done = self._work.popleft()
            try:
                result = work()
            except Exception as error:
                self._tell(done, None, error)
            else:
                self._tell(done, result, None)
        self._busy.remove(thread)

    def _tell(self, done: Done, result: object, error: Exception | None) -> None:
        if self._awaited is not None:
            self._awaited.append(partial(self._report, done, result, error))
        else:
            self._process.call_after(self._lag_us(), self._report, done, result, error)

    def _report(self, done: Done, result: object, error: Exception | None) -> None:
        self._unreported -= 1
        done(result, error)

    def stop(self, seconds: float = STOP_SECONDS) -> list[str]:
        """Finish all submitted jobs. The caller waits, so no other event happens before the end.

        No simulated time passes.
        """
        self._started = False
        if self._work and not self._busy:
            self._new_thread()
        while self._busy and self._process.alive:  # a job may wait for a lock of another job
            for thread in list(self._busy):
                thread.hurried = True
                thread.resume()
        return []
