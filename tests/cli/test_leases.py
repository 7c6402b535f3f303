"""``brokerctl lease``."""

from __future__ import annotations

import pytest

from brokerd.codecs.mamamia import Acquire, AcquireBatch
from tests.cli.shell import Shell
from tests.house import ask

ON = ("orders", "billing")


@pytest.fixture
def leased(shell: Shell) -> Shell:
    """Four records, leased by two clients in turns."""
    shell.run("produce", "orders", "--lines", input="a\nb\nc\nd\n")
    ask(shell.caller.house, *(Acquire(*ON, f"c{number % 2}", 3600.0) for number in range(4)))
    return shell


def test_leases_are_listed(leased: Shell) -> None:
    leased.caller.house.pass_time(10, 1)
    lines = leased.lines("lease", "list", *ON, "--client", "c1")
    assert lines[0] == "PARTITION  OFFSET  CLIENT  REMAINING  GRANTS  FAILURES"
    assert [line.split()[:3] for line in lines[1:]] == [["0", "1", "c1"], ["0", "3", "c1"]]
    assert " 59m 50s " in lines[1] or " 59m 49s " in lines[1]
    assert len(leased.json("lease", "list", *ON)["leases"]) == 4
    assert leased.lines("lease", "list", *ON, "--partition", "1") == ["no leases"]


def test_leases_of_a_client_are_released(leased: Shell) -> None:
    assert leased.lines("lease", "release", *ON, "--client", "c0") == ["2 released"]
    text = leased.refused("lease", "release", *ON, "--client", "c0")
    assert "client 'c0' holds no lease in group 'billing'" in text


def test_a_group_that_is_not_there_is_told(leased: Shell) -> None:
    for verb in (["lease", "list"], ["lease", "release", "--client", "c0"], ["dlq", "list"]):
        text = leased.refused(*verb[:2], "orders", "biling", *verb[2:])
        assert "no group 'biling' (is 'billing' meant?)" in text


def test_more_than_a_page_is_listed(shell: Shell) -> None:
    house = shell.caller.house
    shell.run("produce", "orders", "--lines", input="x\n" * 1_001)
    ask(house, *(AcquireBatch(*ON, "c", 100) for _ in range(11)))
    assert len(shell.json("lease", "list", *ON)["leases"]) == 1_001


def test_one_lease_is_released(leased: Shell) -> None:
    options = ("--offset", "1", "--partition", "0", "--delay", "5")
    assert leased.json("lease", "release", *ON, *options) == {"released": 1}
    assert "is over" in leased.refused("lease", "release", *ON, "--offset", "1")


@pytest.mark.parametrize(
    "options", [[], ["--client", "c", "--offset", "1"], ["--client", "c", "--delay", "5"]]
)
def test_a_release_is_of_a_client_or_of_a_record(shell: Shell, options: list[str]) -> None:
    assert "--offset" in shell.misused("lease", "release", *ON, *options)
