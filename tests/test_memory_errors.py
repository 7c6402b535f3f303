"""Which `MemoryError` ends the broker, and which one closes a connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from twisted.logger import Logger, globalLogPublisher
from twisted.python import threadable
from twisted.python.failure import Failure

from brokerd.broker.callbacks import run_callback
from brokerd.codecs import mamamia as mm
from brokerd.server.memory_errors import MemoryErrorObserver
from tests.house import House


class Reactor:
    """Collects calls of other threads."""

    def __init__(self) -> None:
        self.calls: list[Callable[..., object]] = []

    def callFromThread(self, function: Callable[..., object], *arguments: object) -> None:
        self.calls.append(function)


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Errors with which the broker would end."""
    found: list[MemoryError] = []
    monkeypatch.setattr(threadable, "ioThread", threadable.getThreadID())
    observer = MemoryErrorObserver(found.append, Reactor())
    globalLogPublisher.addObserver(observer)
    yield found
    globalLogPublisher.removeObserver(observer)


def run_out(*_: object) -> None:
    raise MemoryError


def test_a_request_that_cannot_be_decoded_closes_its_connection(
    errors: list[MemoryError], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    client = house.connect()
    monkeypatch.setattr(client.protocol, "_decode", run_out)
    client.send(mm.Produce("orders", b"x"))
    house.run()
    assert not client.transport.connected
    assert errors == []


def test_a_change_that_may_be_incomplete_ends_the_broker(
    errors: list[MemoryError], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    client = house.connect()
    monkeypatch.setattr(house.broker.group_commit, "_schedule", run_out)
    client.send(mm.Produce("orders", b"x"))
    house.run()
    assert errors


def test_a_lost_callback_ends_the_broker(errors: list[MemoryError]) -> None:
    run_callback(run_out)
    Logger().failure("Unhandled Error", Failure(MemoryError()))
    Logger().failure("another fault", Failure(ValueError()))
    assert len(errors) == 2


def test_a_socket_that_cannot_be_read_closes_its_connection(errors: list[MemoryError]) -> None:
    def _doReadOrWrite() -> None:
        run_out()

    try:
        _doReadOrWrite()
    except MemoryError:
        Logger().failure("Unhandled Error")
    assert errors == []


def test_an_error_in_another_thread_is_handled_in_the_reactor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reactor = Reactor()
    failed: list[MemoryError] = []
    monkeypatch.setattr(threadable, "ioThread", 0)
    MemoryErrorObserver(failed.append, reactor)({"log_failure": Failure(MemoryError())})
    assert reactor.calls == [failed.append] and failed == []
