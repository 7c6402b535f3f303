"""One broker process for all stand-ins, with every format on a free port, as by default."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchmarks.process import BrokerProcess

# The default of 100 ms causes second deliveries on a busy machine.
SETTINGS = ("blipmq.retry_base_ms=20000",)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Yield the broker, which has no topic at first."""
    directory = tmp_path_factory.mktemp("reference")
    with BrokerProcess(directory / "data", directory / "log", SETTINGS) as process:
        process.start()
        yield process


@pytest.fixture(autouse=True)
def no_waiting_for_ever() -> Iterator[None]:
    """Set a time-out for all sockets: most originals would wait for a missing answer for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)
    yield
    socket.setdefaulttimeout(before)
