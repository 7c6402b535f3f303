"""``brokerctl connections``."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from tests.house import Client


@pytest.fixture
def clients(shell: Shell) -> list[Client]:
    """Three connections."""
    return [shell.caller.house.connect() for _ in range(3)]


def are_open(clients: list[Client]) -> list[bool]:
    return [bool(client.transport.connected) for client in clients]


def test_connections_are_listed(shell: Shell, clients: list[Client]) -> None:
    shell.caller.house.pass_time(65, 1)
    lines = shell.lines("connections", "list", "--format", "mamamia")
    assert lines[:2] == [
        "ID  FORMAT   PEER  USER  TLS  OPEN   IDLE   REQUESTS  UNREAD  HOLDS",
        " 1  mamamia  unix  -     no   1m 5s  1m 5s         0  0 B     -",
    ]
    assert len(lines) == 4
    (first, *_) = shell.json("connections", "list")["connections"]
    assert (first["id"], first["open_seconds"]) == (1, 65.0)
    assert shell.lines("connections", "list", "--user", "ann") == ["no connections"]


def test_a_list_goes_on_behind_a_page(
    shell: Shell, clients: list[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brokerd.cli.verbs.connections.PAGE", 2)
    found = shell.json("connections", "list")["connections"]
    assert [one["id"] for one in found] == [1, 2, 3]


def test_connections_are_closed_by_id(shell: Shell, clients: list[Client]) -> None:
    assert shell.json("connections", "close", "1", "3") == {"closed": [1, 3]}
    assert are_open(clients) == [False, True, False]
    assert "no connection 1" in shell.refused("connections", "close", "1")


def test_all_that_match_are_closed_after_a_question(shell: Shell, clients: list[Client]) -> None:
    text = shell.refused("connections", "close", "--address", "unix")
    assert "close 3 connections" in text and "--yes" in text
    assert are_open(clients) == [True] * 3
    assert shell.lines("connections", "close", "--user", "ann") == ["0 connections closed"]
    lines = shell.lines("connections", "close", "--address", "unix", "--yes")
    assert lines == ["3 connections closed"]
    assert are_open(clients) == [False] * 3


@pytest.mark.parametrize("arguments", [[], ["1", "--user", "ann"]])
def test_either_ids_or_a_choice_is_named(shell: Shell, arguments: list[str]) -> None:
    assert "name ids, or" in shell.misused("connections", "close", *arguments)
