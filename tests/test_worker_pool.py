"""Worker pools: work elsewhere, answers in the reactor thread, in order, errors included."""

from __future__ import annotations

import queue
import threading
from typing import Any

from brokerd.worker_pool import MEMORY_SECONDS, ThreadPool
from simulator.machine.inline import InlinePool


class Reactor:
    """Runs in this thread what other threads ask for."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def call_from_thread(self, function: Any, *args: Any) -> None:
        self.calls.put((function, *args))

    def run(self, count: int) -> None:
        for _ in range(count):
            function, *args = self.calls.get(timeout=60)
            function(*args)


def test_one_thread_keeps_the_order_and_answers_in_the_reactor_thread() -> None:
    reactor = Reactor()
    pool = ThreadPool(reactor.call_from_thread)
    results: list[Any] = []
    threads: set[int] = set()

    def work(number: int) -> int:
        threads.add(threading.get_ident())
        return number

    for number in range(5):
        pool.submit(
            lambda n=number: work(n),
            lambda result, error: results.append((result, threading.get_ident())),
        )
    assert not threads
    pool.start()
    reactor.run(5)
    pool.stop()
    assert results == [(number, threading.get_ident()) for number in range(5)]
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_a_thread_without_memory_reports_each_end_once_as_soon_as_it_can() -> None:
    pauses: list[float] = []
    reactor = Reactor()
    calls = 0

    def call_from_thread(function: Any) -> None:
        """Fail twice, the second time after the call is queued."""
        nonlocal calls
        calls += 1
        if calls != 1:
            reactor.call_from_thread(function)
        if calls < 3:
            raise MemoryError

    def work() -> None:
        raise MemoryError

    pool = ThreadPool(call_from_thread, sleep=pauses.append)
    pool.start()
    answers: list[Any] = []
    pool.submit(work, lambda result, error: answers.append(type(error)))
    pool.submit(lambda: 7, lambda result, error: answers.append(result))
    reactor.run(3)
    pool.stop()
    assert answers == [MemoryError, 7]
    assert pauses == [MEMORY_SECONDS] * 2


def test_an_error_is_the_answer_and_the_thread_goes_on() -> None:
    reactor = Reactor()
    pool = ThreadPool(reactor.call_from_thread)
    pool.start()
    answers: list[Any] = []
    pool.submit(lambda: 1 // 0, lambda result, error: answers.append(error))
    pool.submit(lambda: 7, lambda result, error: answers.append(result))
    reactor.run(2)
    pool.stop()
    assert isinstance(answers[0], ZeroDivisionError) and answers[1] == 7


def test_stop_finishes_what_was_submitted_and_joins_the_threads() -> None:
    reactor = Reactor()
    pool = ThreadPool(reactor.call_from_thread, threads=3, name="joined")
    pool.start()
    threads = [one for one in threading.enumerate() if one.name.startswith("joined-")]
    for number in range(20):
        pool.submit(lambda n=number: n, lambda result, error: None)
    pool.stop()
    assert reactor.calls.qsize() == 20
    assert [one.is_alive() for one in threads] == [False] * 3


def test_a_stop_waits_no_longer_than_it_is_told_to() -> None:
    """For work that never ends; what is behind it is not begun."""
    reactor, forever = Reactor(), threading.Event()
    pool = ThreadPool(reactor.call_from_thread)
    pool.start()
    pool.submit(forever.wait, lambda result, error: None)
    assert pool.stop(0.05) == ["wal-0"]
    forever.set()
    reactor.run(1)
    others = ThreadPool(reactor.call_from_thread, threads=2)
    others.start()
    assert others.stop(60.0) == []


def test_the_inline_one_runs_when_told() -> None:
    pool = InlinePool()
    answers: list[Any] = []
    pool.submit(lambda: 1, lambda result, error: answers.append(result))
    pool.submit(lambda: 1 // 0, lambda result, error: answers.append(type(error)))
    assert answers == [] and len(pool) == 2
    assert pool.step() and answers == [1]
    pool.run()
    assert answers == [1, ZeroDivisionError] and not pool.step()
    pool.submit(lambda: 2, lambda result, error: answers.append(result))
    pool.drop()
    pool.run()
    assert answers == [1, ZeroDivisionError]


class TestWait:
    """The reactor waits for a short piece of work, and goes on without a long one."""

    def pool(self) -> tuple[Reactor, ThreadPool, list[Any]]:
        reactor = Reactor()
        pool = ThreadPool(reactor.call_from_thread)
        pool.start()
        return reactor, pool, []

    def test_short_work_is_reported_before_the_wait_returns(self) -> None:
        reactor, pool, answers = self.pool()
        go_on = threading.Event()
        pool.submit(go_on.wait, lambda result, error: answers.append(threading.get_ident()))
        threading.Timer(0.01, go_on.set).start()
        pool.wait(60.0)
        assert answers == [threading.get_ident()]
        assert pool.stop() == [] and not reactor.calls.qsize(), "the reactor is not woken up"

    def test_an_error_is_reported_too(self) -> None:
        _, pool, answers = self.pool()
        pool.submit(lambda: 1 // 0, lambda result, error: answers.append(type(error)))
        pool.wait(60.0)
        pool.stop()
        assert answers == [ZeroDivisionError]

    def test_stuck_work_is_reported_later(self) -> None:
        reactor, pool, answers = self.pool()
        stuck = threading.Event()
        pool.submit(stuck.wait, lambda result, error: answers.append(result))
        pool.wait(0.001)
        assert not answers
        stuck.set()
        reactor.run(1)
        pool.stop()
        assert answers == [True]

    def test_work_that_had_ended_is_reported_once(self) -> None:
        reactor, pool, answers = self.pool()
        pool.submit(lambda: 7, lambda result, error: answers.append(result))
        pool.stop()
        pool.wait(60.0)
        reactor.run(1)
        assert answers == [7]

    def test_work_that_ends_as_the_wait_does_is_reported(self) -> None:
        """At every moment: before the time is up, just then, or after it."""
        reactor, pool, answers = self.pool()
        for number in range(300):
            pool.submit(lambda n=number: n, lambda result, error: answers.append(result))
            pool.wait(number % 20 / 1_000_000)
            while len(answers) <= number:
                reactor.run(1)
        pool.stop()
        assert answers == list(range(300))

    def test_reports_keep_their_order(self) -> None:
        reactor, pool, answers = self.pool()
        for number in range(2):
            pool.submit(lambda n=number: n, lambda result, error: answers.append(result))
        pool.wait(60.0)
        reactor.run(2)
        pool.stop()
        assert answers == [0, 1]
