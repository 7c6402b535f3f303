"""What a supervisor such as systemd hears."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from twisted.logger import Logger, capturedLogs

from brokerd.server.notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def supervisor(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[str, socket.socket]]:
    name = f"{tmp_path}/notify" if request.param == "path" else f"@brokerd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0"))
        receiver.setblocking(False)
        yield name, receiver


def test_lines_arrive_in_one_message(supervisor: tuple[str, socket.socket]) -> None:
    """READY and STATUS reach the socket of NOTIFY_SOCKET, be it a path or an abstract name."""
    name, receiver = supervisor
    Notifier({"NOTIFY_SOCKET": name}, Logger()).send("READY=1", "STATUS=serving")
    assert receiver.recv(100) == b"READY=1\nSTATUS=serving"


def test_without_a_supervisor_nothing_happens() -> None:
    """A broker started by hand needs no supervisor."""
    with capturedLogs() as captured:
        Notifier({}, Logger()).send("READY=1")
    assert captured == []


def test_a_supervisor_that_is_gone_is_only_logged(tmp_path: Path) -> None:
    """The broker goes on when nobody listens."""
    with capturedLogs() as captured:
        Notifier({"NOTIFY_SOCKET": f"{tmp_path}/gone"}, Logger()).send("READY=1")
    assert [event["event_id"] for event in captured] == ["notify-failed"]
