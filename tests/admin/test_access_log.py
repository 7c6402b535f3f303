"""The access log: a line for each request of somebody, and no flood from anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.logger import capturedLogs

from brokerd.admin.http.access_log import LINES, SHOWN_MAX, WINDOW_SECONDS
from tests.admin.caller import Caller
from tests.admin.test_authentication import Door, basic


@pytest.fixture
def log() -> Iterator[Any]:
    with capturedLogs() as events:
        yield events


def get(caller: Caller, path: str, head: str = "", times: int = 1) -> None:
    channel, _ = caller.connect()
    for _ in range(times):
        channel.dataReceived(f"GET {path} HTTP/1.1\r\nhost: here\r\n{head}\r\n".encode())
        caller.house.run()


def lines(log: Any, event_id: str = "admin-request") -> list[Any]:
    return [event for event in log if event.get("event_id") == event_id]


def test_a_long_path_is_cut(log: Any) -> None:
    get(Caller(), f"/{'A' * 15_000}")
    (line,) = lines(log)
    assert line["path"] == f"/{'A' * (SHOWN_MAX - 1)}..."


@pytest.mark.parametrize(
    ("path", "head"),
    [
        ("/health/live", ""),
        ("/api/v1/topics", ""),
        ("/nothing", ""),
        ("/api/v1/topics/secret", basic("ann")),
    ],
)
def test_who_is_nobody_or_refused_does_not_fill_the_log(log: Any, path: str, head: str) -> None:
    """What is left out is counted; the next minute has lines again."""
    caller = Caller(guard=Door())
    get(caller, path, head, LINES + 7)
    assert len(lines(log)) == LINES and not lines(log, "admin-requests-more")
    caller.house.clock.advance(WINDOW_SECONDS)
    assert [event["count"] for event in lines(log, "admin-requests-more")] == [7]
    get(caller, path, head)
    assert len(lines(log)) == LINES + 1


@pytest.mark.parametrize("guard", [Door(), None])
def test_each_request_of_somebody_has_its_line(log: Any, guard: Door | None) -> None:
    """Whatever others did before; with security off everybody is somebody."""
    caller = Caller(guard=guard) if guard else Caller()
    get(caller, "/nothing", "", LINES + 7)
    get(caller, "/api/v1/topics", basic("ann"), 80)
    assert len([line for line in lines(log) if line["code"] == 200]) == 80


def test_what_was_left_out_is_told_at_the_end(log: Any) -> None:
    caller = Caller()
    caller.site.doStart()
    get(caller, "/nothing", "", LINES + 7)
    caller.site.doStop()
    assert [event["count"] for event in lines(log, "admin-requests-more")] == [7]
