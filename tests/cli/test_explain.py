"""``brokerctl explain``."""

from __future__ import annotations

import pytest

from brokerd.codecs.mamamia import Acquire, Produce, Settle
from tests.cli.shell import Shell
from tests.house import ask

ON = ("orders", "billing")


@pytest.fixture
def shell(shell: Shell) -> Shell:
    """A record that failed once and was settled then."""
    house = shell.caller.house
    ask(house, Produce("orders", b"x"))
    ask(house, Acquire(*ON, "worker-1"), Settle(*ON, 0, "worker-1", False, 5.0))
    house.pass_time(6, 1)
    ask(house, Acquire(*ON, "worker-2"), Settle(*ON, 0, "worker-2", True))
    return shell


def test_a_life_is_printed(shell: Shell) -> None:
    lines = shell.lines("explain", "orders", "0")
    assert lines[:3] == [
        "record         orders 0:0",
        "written        2023-11-14 22:13:20.000Z",
        "format         mamamia",
    ]
    assert "no account or address of producers" in lines[3]
    at = lines.index("")
    assert [line.split(None, 2)[2] for line in lines[at + 2 :]] == [
        "billing  leased   by worker-1, grant 1, for 30s",
        "billing  failed   failure 1, ready again after 5s",
        "billing  leased   by worker-2, grant 2, for 30s",
        "billing  settled  -",
    ]


def test_pages_are_put_together(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = shell.json("explain", "orders", "0")
    assert len(whole["events"]) == 4 and "next" not in whole
    monkeypatch.setattr("brokerd.cli.verbs.explain.PAGE", 1)
    assert shell.json("explain", "orders", "0", "--partition", "0") == whole


def test_a_record_without_events_and_an_unknown_one(shell: Shell) -> None:
    shell.run("produce", "orders", "y")
    assert shell.lines("explain", "orders", "1")[-1] == "no events of groups"
    assert "has no record 2 yet" in shell.refused("explain", "orders", "2")
    assert "no topic 'none'" in shell.refused("explain", "none", "0")
