"""``brokerctl status`` and ``brokerctl top``, with the status of a whole core in memory."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli import output
from brokerd.cli.verbs import top
from brokerd.codecs.mamamia import Acquire, Produce
from tests.admin.caller import Caller
from tests.cli.shell import Shell
from tests.compiled import COMPILED
from tests.house import Client
from tests.watched import Watched


class _House:
    """The part of a house that a `Caller` uses."""

    def __init__(self, watched: Watched) -> None:
        self.broker = watched.broker
        self.clock = watched.clock
        self.run = watched.run


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, watched: Watched) -> Shell:
    """``brokerctl`` with the service of ``watched``."""
    shell = Shell(monkeypatch)
    house: Any = _House(watched)
    shell.caller = Caller(house, status=watched.service.status)
    return shell


@pytest.fixture
def client(watched: Watched) -> Client:
    return watched.connect()


def produce(watched: Watched, client: Client, count: int) -> None:
    client.send(*(Produce("orders", b"12345678") for _ in range(count)))
    client.send(Acquire("orders", "billing", "c"))
    watched.run()


def sleep_and(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], None]) -> list[float]:
    """Do one of the acts in each sleep; return how long the sleeps were."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        acts[len(slept) - 1]()

    monkeypatch.setattr(top, "sleep", sleep)
    return slept


def facts(lines: list[str]) -> dict[str, str]:
    return {line[:14].strip(): line[16:] for line in lines if line}


def test_a_sound_broker_is_described(shell: Shell, watched: Watched, client: Client) -> None:
    produce(watched, client, 3)
    watched.pass_time(65)
    lines = shell.lines("status")
    shown = facts(lines)
    assert shown["state"] == "ready"
    assert shown["uptime"] == "1m 5s"
    assert shown["topics"] == "1"
    assert shown["lag of groups"] == "3, 0 dead letters"
    assert shown["durability"] == "fsync"
    assert shown["core"] == ("compiled" if COMPILED else "pure Python")
    assert shown["journal"].endswith(" in 1 file")
    assert not any(line.startswith("CONDITION") for line in lines)
    assert shell.json("status") == json.loads(watched.get("/api/v1/status")[1])


def test_the_memory_of_clients_is_shown_by_kind_with_transactions(
    shell: Shell, watched: Watched
) -> None:
    watched.broker.transactions.begin()
    memory = shell.json("status")["memory"]
    lines = shell.lines("status")
    claimed = sum(memory["claimed_bytes"].values())
    budget = memory["budget_bytes"]
    assert facts(lines)["client memory"] == f"{output.size(claimed)} of {output.size(budget)}"
    at = next(index for index, line in enumerate(lines) if line.startswith("CLIENT MEMORY"))
    shown = {line.split()[0]: line.split(None, 1)[1] for line in lines[at + 1 : at + 5]}
    assert shown.keys() == {"requests", "answers", "waits", "transactions"}
    limit = output.size(memory["kind_limit_bytes"]["transactions"])
    assert shown["transactions"].split("  ") == ["4.0 KiB", limit]


def test_conditions_are_shown_with_their_reasons(shell: Shell, watched: Watched) -> None:
    watched.host.wall_ahead_seconds = 86_400.0
    watched.pass_time(2)
    lines = shell.lines("status")
    assert facts(lines)["state"] == "ready, degraded"
    at = next(index for index, line in enumerate(lines) if line.startswith("CONDITION"))
    assert lines[at + 1].startswith("clock-ahead  broker time is not trusted: ")


def test_a_broker_that_does_not_serve_yet_is_described(shell: Shell, watched: Watched) -> None:
    watched.broker.ready = False
    shown = facts(shell.lines("status"))
    assert "topics" not in shown
    assert shown["state"] == "ready"


def test_top_shows_rates_of_the_interval(
    shell: Shell, watched: Watched, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(watched, client, 100)  # before the first read: not in any rate

    def work() -> None:
        produce(watched, client, 20)
        watched.pass_time(4)

    slept = sleep_and(monkeypatch, work, lambda: watched.pass_time(4))
    lines = shell.lines("--json", "top", "--count", "2", "--interval", "4s")
    assert slept == [4.0, 4.0]
    busy, idle = map(json.loads, lines)
    assert busy["rates"]["produced"] == 5.0
    assert busy["rates"]["leased"] == 0.2  # 1 in 4 s
    assert idle["rates"]["produced"] == 0.0
    assert busy["connections"] == 1
    (topic,) = busy["topics"]
    assert (topic["topic"], topic["written_records"]) == ("orders", 5.0)
    (group,) = busy["groups"]
    assert (group["group"], group["lag"]) == ("billing", 120)


@pytest.mark.parametrize("interval", ["99ms", "25h", "999999999999999w"])
def test_an_interval_is_a_tenth_of_a_second_to_a_day(shell: Shell, interval: str) -> None:
    assert f"{interval!r} is" in shell.misused("top", "--interval", interval)


def test_top_prints_one_sample_below_the_other_without_a_terminal(
    shell: Shell, watched: Watched, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        produce(watched, client, 20)
        watched.pass_time(2)

    sleep_and(monkeypatch, work, work)
    lines = shell.lines("top", "--count", "2")
    assert lines[0] == "ready, up 2s, 1 connection"
    assert lines[1].startswith("produced 10.0/s  bytes produced ")
    assert lines[3] == "TOPIC   WRITTEN/S  BYTES/S  READ/S  READ BYTES/S"
    assert lines[4].startswith("orders       10.0  ")
    assert lines[6].split() == [
        *("TOPIC", "GROUP", "PARTITION", "LAG", "LEASED", "DELAYED", "DEAD", "OLDEST")
    ]
    assert lines[8] == "" and lines[9] == "ready, up 4s, 1 connection"


def test_top_has_no_rates_over_a_restart(
    shell: Shell, watched: Watched, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.pass_time(60)
    produce(watched, client, 5)

    def restart() -> None:
        watched.service._started_at = watched.clock.seconds()

    sleep_and(monkeypatch, restart)
    (line,) = shell.lines("--json", "top", "--count", "1")
    assert set(json.loads(line)["rates"].values()) == {None}


def test_top_ends_quietly_with_an_interrupt(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    sleep_and(monkeypatch, lambda: None, interrupt)
    result = shell.run("top")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("ready, up ")


def test_top_draws_the_screen_of_a_terminal(
    shell: Shell, watched: Watched, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It uses the alternate screen, and gives the screen back."""
    produce(watched, client, 5)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    samples = iter([top._sample(s := watched.service.status(), s, 10)] * 2)
    top._draw(samples, 2)
    drawn = terminal.getvalue()
    assert drawn.startswith("\x1b[?1049h") and "\x1b[?1049l" in drawn
    assert drawn.count("billing") == 2


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("interval", ["0", "99ms", "soon"])
def test_a_wrong_interval_is_refused(shell: Shell, interval: str) -> None:
    assert interval in shell.misused("top", "--interval", interval)
