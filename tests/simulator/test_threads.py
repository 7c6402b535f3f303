"""Simulated threads: they interleave where they wait, and end with their process."""

from __future__ import annotations

from typing import Any

from simulator.machine.threads import PowerLost, Process, SimMutex, SimThreads, current_thread
from simulator.machine.world import World


class Desk:
    """A process, and notes of what its threads did."""

    def __init__(self) -> None:
        self.world = World(1)
        self.process = Process(self.world)
        self.notes: list[str] = []

    def threads(self, count: int = 1) -> SimThreads:
        threads = SimThreads(self.process, count, lambda: 1)
        threads.start()
        return threads

    def work(self, name: str, *pauses_us: int) -> Any:
        def work() -> str:
            self.notes.append(f"{name} begins")
            for pause_us in pauses_us:
                self.process.sleep(pause_us)
                self.notes.append(f"{name} at {self.world.now_us}")
            return name

        return work

    def done(self, result: Any, error: Exception | None) -> None:
        self.notes.append(f"told {result or error}")

    def run(self) -> list[str]:
        while self.world.step():
            pass
        return self.notes


def test_one_thread_does_its_work_in_order() -> None:
    """The second piece begins when the first is done, and so are they told."""
    desk = Desk()
    threads = desk.threads()
    threads.submit(desk.work("a", 100), desk.done)
    threads.submit(desk.work("b"), desk.done)
    assert desk.run() == ["a begins", "a at 101", "b begins", "told a", "told b"]


def test_threads_interleave_where_they_wait() -> None:
    """While one waits another goes on; in between nobody is interrupted."""
    desk = Desk()
    threads = desk.threads(2)
    threads.submit(desk.work("a", 100, 100), desk.done)
    threads.submit(desk.work("b", 150), desk.done)
    desk.run()
    assert desk.notes[:5] == ["a begins", "b begins", "a at 101", "b at 151", "told b"]
    assert desk.notes[5:] == ["a at 201", "told a"]


def test_an_error_is_told() -> None:
    """And the thread goes on with what comes next."""
    desk = Desk()
    threads = desk.threads()

    def fails() -> None:
        raise OSError("no")

    threads.submit(fails, desk.done)
    threads.submit(desk.work("next"), desk.done)
    assert desk.run() == ["next begins", "told no", "told next"]


def test_work_waits_for_the_start() -> None:
    """As that of real threads does."""
    desk = Desk()
    threads = SimThreads(desk.process, 1, lambda: 1)
    threads.submit(desk.work("a"), desk.done)
    assert desk.run() == []
    threads.start()
    assert desk.run() == ["a begins", "told a"]


def test_stop_waits_for_what_was_submitted() -> None:
    """Whether a thread is in the middle of it or has not begun; time stands still meanwhile."""
    desk = Desk()
    threads = desk.threads()
    threads.submit(desk.work("a", 100, 100), desk.done)
    threads.submit(desk.work("b", 100), desk.done)
    for _ in range(2):
        desk.world.step()
    assert desk.world.now_us == 101
    threads.stop()
    assert desk.notes == ["a begins", "a at 101", "a at 101", "b begins", "b at 101"]
    assert desk.run()[5:] == ["told a", "told b"]


def test_the_end_of_the_process_unwinds_its_threads() -> None:
    """Where they wait, and they do nothing more; nobody is told."""
    desk = Desk()
    threads = desk.threads()
    unwound: list[str] = []

    def work() -> None:
        try:
            desk.process.sleep(100)
            desk.notes.append("woke")
        except PowerLost:
            unwound.append("ended")
            raise

    threads.submit(work, desk.done)
    desk.world.step()
    desk.process.end()
    assert unwound == ["ended"]
    assert desk.run() == []


def test_a_thread_may_end_its_own_process() -> None:
    """It ends with the others, at the call that did it."""
    desk = Desk()
    threads = desk.threads(2)
    threads.submit(desk.work("other", 100), desk.done)

    def ends() -> None:
        desk.process.end()
        desk.process.sleep(0)
        desk.notes.append("went on")

    threads.submit(ends, desk.done)
    assert desk.run() == ["other begins"]


def test_the_reactor_cannot_wait() -> None:
    """Its own calls return at once, and say so when the process is gone."""
    desk = Desk()
    desk.process.sleep(100)
    assert desk.world.now_us == 0
    assert current_thread() is None
    desk.process.end()
    try:
        desk.process.sleep(1)
    except PowerLost:
        return
    raise AssertionError("the process is no more")


def test_a_lock_makes_threads_wait_for_each_other() -> None:
    """In order of asking; the reactor may only try."""
    desk = Desk()
    mutex = SimMutex(desk.process)
    threads = desk.threads(3)

    def guarded(name: str) -> Any:
        def work() -> None:
            with mutex:
                desk.work(name, 100)()

        return work

    for name in "abc":
        threads.submit(guarded(name), desk.done)
    desk.world.step()
    assert not mutex.acquire(blocking=False)
    desk.run()
    notes = [note for note in desk.notes if not note.startswith("told")]
    assert notes == ["a begins", "a at 101", "b begins", "b at 201", "c begins", "c at 301"]
    assert mutex.acquire(blocking=False)


def test_stop_waits_for_threads_that_wait_for_a_lock() -> None:
    """Whoever holds it."""
    desk = Desk()
    mutex = SimMutex(desk.process)
    threads = desk.threads(2)

    def work() -> None:
        with mutex:
            desk.work("x", 100)()

    threads.submit(work, desk.done)
    threads.submit(work, desk.done)
    for _ in range(2):
        desk.world.step()
    threads.stop()
    assert desk.notes.count("x begins") == 2


def test_the_reactor_waits_for_a_job_that_is_short() -> None:
    """It learns of the end before anything else happens, once."""
    desk = Desk()
    threads = desk.threads()
    threads.submit(desk.work("a", 100, 100), desk.done)
    threads.wait(0.000_2)
    assert desk.notes == ["a begins", "a at 0", "a at 0", "told a"]
    threads.submit(desk.work("b", 100), desk.done)
    assert desk.run()[4:] == ["b begins", "b at 101", "told b"]


def test_the_reactor_does_not_wait_for_a_job_that_is_long() -> None:
    """The job takes its time from the call that is too long, and is reported as any other."""
    desk = Desk()
    threads = desk.threads()
    threads.submit(desk.work("a", 100, 101, 1), desk.done)
    threads.wait(0.000_2)
    assert desk.notes == ["a begins", "a at 0"]
    assert desk.run()[2:] == ["a at 101", "a at 102", "told a"]


def test_the_reactor_does_not_wait_for_one_of_two_jobs() -> None:
    """Their ends are told in order."""
    desk = Desk()
    threads = desk.threads()
    threads.submit(desk.work("a"), desk.done)
    threads.submit(desk.work("b"), desk.done)
    threads.wait(0.000_2)
    assert desk.run() == ["a begins", "b begins", "told a", "told b"]


def test_a_process_may_end_in_a_job_that_the_reactor_waits_for() -> None:
    """Nobody is told."""
    desk = Desk()
    threads = desk.threads()

    def ends() -> None:
        desk.process.end()
        desk.process.sleep(0)

    threads.submit(ends, desk.done)
    threads.wait(0.000_2)
    assert desk.run() == []
