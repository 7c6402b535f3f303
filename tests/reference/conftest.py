"""One broker process for all stand-ins, every format on a free port, as by default."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from benchmarks.process import BrokerProcess

# The default of 100 ms makes a second delivery whenever the machine is busy for so long.
SETTINGS = ("blipmq.retry_base_ms=20000",)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """The broker, which holds no topic at first."""
    directory = tmp_path_factory.mktemp("reference")
    with BrokerProcess(directory / "data", directory / "log", SETTINGS) as process:
        process.start()
        yield process


@pytest.fixture(autouse=True)
def no_waiting_for_ever() -> Iterator[None]:
    """Most of the originals have no time-out: here an answer that never comes fails the test."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)
    yield
    socket.setdefaulttimeout(before)
