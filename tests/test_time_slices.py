"""Short time slices of the threads for which clients wait."""

from __future__ import annotations

import ctypes
import os
import platform
import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.task import Clock

from brokerd.server import time_slices
from brokerd.server.host import RealHost
from brokerd.server.time_slices import SHORT_SLICE_NS, ask_for_slices

SET_ATTRIBUTES, GET_ATTRIBUTES = 314, 315
"""``sched_setattr`` and ``sched_getattr`` of x86_64."""
SOME_SLICE_NS = 5_000_000


def in_thread(call: Callable[[], Any]) -> Any:
    """Return the result of a call in a thread of its own."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def attributes() -> Any:
    """Return ``struct sched_attr`` of the calling thread, as 7 words; the slice is at 3."""
    found = (ctypes.c_uint64 * 7)()
    assert ctypes.CDLL(None).syscall(GET_ATTRIBUTES, 0, found, ctypes.sizeof(found), 0) == 0
    return found


def slice_ns() -> int:
    """Return the length of the calling thread's slices, as the kernel tells it."""
    return int(attributes()[3])


def grants_slices() -> bool:
    """Return whether this kernel lets a thread choose its slices. Calls nothing of brokerd."""

    def granted() -> bool:
        asked = attributes()
        asked[3] = SOME_SLICE_NS
        done = ctypes.CDLL(None).syscall(SET_ATTRIBUTES, 0, asked, 0) == 0
        return done and slice_ns() == SOME_SLICE_NS

    known = (platform.system(), platform.machine()) == ("Linux", "x86_64")
    return known and bool(in_thread(granted))


needs_slices = pytest.mark.skipif(
    not grants_slices(), reason="needs Linux 6.12 or newer on x86_64 and the right to the call"
)


@needs_slices
def test_a_thread_gets_short_slices_and_its_own_ones_back() -> None:
    before = slice_ns()
    nice = os.getpriority(os.PRIO_PROCESS, 0)

    def asked() -> tuple[Any, ...]:
        ask_for_slices()
        short = slice_ns()
        ask_for_slices(0)
        return short, slice_ns(), os.getpriority(os.PRIO_PROCESS, 0)

    assert in_thread(asked) == (SHORT_SLICE_NS, before, nice)
    assert slice_ns() == before


@needs_slices
@pytest.mark.parametrize("is_awaited", [True, False])
def test_threads_that_clients_wait_for_have_short_slices(is_awaited: bool) -> None:
    reactor: Any = Clock()
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    reactor.callFromThread = calls.put
    threads = RealHost(reactor).threads("work", is_awaited=is_awaited)
    results: list[int | None] = []
    threads.submit(slice_ns, lambda result, _: results.append(result))
    threads.start()
    calls.get(timeout=60)()
    threads.stop()
    assert results == [SHORT_SLICE_NS if is_awaited else slice_ns()]


@needs_slices
def test_the_reactor_has_short_slices_while_it_serves() -> None:
    def served() -> tuple[Any, ...]:
        host = RealHost(Clock())
        host.begin_serving(lambda: None)
        serving = slice_ns()
        host.end_serving()
        return serving, slice_ns()

    assert in_thread(served) == (SHORT_SLICE_NS, slice_ns())


def test_other_systems_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not ask_for_slices()


def test_the_policy_of_an_operator_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread with a real-time policy, for example, has no slices to ask for."""
    fifo = 1
    monkeypatch.setattr(time_slices, "_attributes", lambda: (48, fifo, 0, 0, 10, 0, 0, 0))
    monkeypatch.setattr(time_slices, "_call", lambda *_: pytest.fail("it is changed"))
    assert not ask_for_slices()
