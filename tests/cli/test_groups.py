"""``brokerctl group``."""

from __future__ import annotations

import pytest

from brokerd.codecs.mamamia import Acquire, Settle
from tests.cli.shell import Shell
from tests.house import ask

ON = ("orders", "billing")


@pytest.fixture
def busy(shell: Shell) -> Shell:
    """Four records; the group settled one, holds one, and failed one for good."""
    shell.run("produce", "orders", "--lines", input="a\nb\nc\nd\n")
    house = shell.caller.house
    ask(house, Acquire(*ON, "c"), Settle(*ON, 0, "c", True))
    for _ in range(3):
        ask(house, Acquire(*ON, "c"), Settle(*ON, 1, "c", False))
    ask(house, Acquire(*ON, "c"))
    house.pass_time(90, 1)
    ask(house, Acquire(*ON, "c"))
    return shell


def test_groups_are_listed_with_what_they_have_to_do(busy: Shell) -> None:
    assert busy.lines("group", "list", "orders") == [
        "GROUP    LAG  LEASED  DELAYED  DEAD  COMMITTED  STATE",
        "billing    2       1        0     1  -          running",
    ]
    (group,) = busy.json("group", "list", "orders")["groups"]
    assert (group["group"], group["lag"]) == ("billing", 2)
    assert "no topic 'none'" in busy.refused("group", "list", "none")


def test_the_groups_of_all_topics_are_listed(busy: Shell) -> None:
    busy.run("topic", "create", "empty")
    busy.run("group", "pause", "invoices", "mail", "--create")
    busy.run("topic", "create", "invoices")
    busy.run("group", "pause", "invoices", "mail", "--create")
    assert busy.lines("group", "list") == [
        "TOPIC     GROUP    LAG  LEASED  DELAYED  DEAD  COMMITTED  STATE",
        "orders    billing    2       1        0     1  -          running",
        "invoices  mail       0       0        0     0  -          paused",
    ]
    groups = busy.json("group", "list")["groups"]
    assert [(group["topic"], group["group"]) for group in groups] == [
        ("orders", "billing"),
        ("invoices", "mail"),
    ]


def test_a_group_is_described(busy: Shell) -> None:
    assert busy.lines("group", "describe", *ON) == [
        "topic         orders",
        "group         billing",
        "state         running",
        "lag           2",
        "oldest        1m 30s",
        "max attempts  3 failures",
        "back-off      none",
        "lease         30s",
        "order         none",
        "",
        "PARTITION  FLOOR  NEXT  LAG  LEASED  DELAYED  DEAD  COMMITTED",
        "        0      2     4    2       1        0     1  -",
    ]
    assert busy.json("group", "describe", *ON)["by_partition"][0]["floor"] == 2
    assert "no group 'none'" in busy.refused("group", "describe", "orders", "none")


def test_a_group_that_only_commits_is_told_of_by_its_commits(busy: Shell) -> None:
    busy.caller.house.broker.groups.commit_offset("orders", "readers", 0, 3)
    assert busy.lines("group", "list", "orders") == [
        "GROUP    LAG  LEASED  DELAYED  DEAD  COMMITTED  STATE",
        "billing    2       1        0     1          -  running",
        "readers    1       0        0     0          3  running",
    ]
    assert "lag           1 by its commits" in busy.lines("group", "describe", "orders", "readers")


def test_a_group_is_paused_and_resumed(busy: Shell) -> None:
    assert "state         paused" in busy.lines("group", "pause", *ON)
    assert busy.lines("group", "list", "orders")[1].endswith("paused")
    assert busy.json("group", "resume", *ON)["paused"] is False


@pytest.mark.parametrize(
    "verb",
    [["pause"], ["resume"], ["delete", "--yes"], ["configure", "--max-attempts", "5"]]
    + [["seek", "--yes", *to] for to in (["--to-start"], ["--to-time", "2026-01-01"])],
)
def test_a_name_that_is_misspelt_is_told(busy: Shell, verb: list[str]) -> None:
    """Nobody believes that a group is paused when it was another that was made."""
    text = busy.refused("group", verb[0], "orders", "biling", *verb[1:])
    assert "no group 'biling' (is 'billing' meant?)" in text
    assert len(busy.json("group", "list", "orders")["groups"]) == 1


@pytest.mark.parametrize(
    "verb",
    [["pause"], ["configure", "--max-attempts", "5"]]
    + [["seek", *to] for to in (["--to-end"], ["--to-time", "2026-01-01"])],
)
def test_a_group_is_made_where_that_is_said(busy: Shell, verb: list[str]) -> None:
    assert busy.json("group", verb[0], "orders", "new", *verb[1:], "--create")["group"] == "new"


def test_a_seek_beyond_the_end_says_where_it_came_to(busy: Shell) -> None:
    result = busy.run("group", "seek", *ON, "--to-offset", "99", "--yes")
    assert result.exit_code == 0
    assert result.stderr == "brokerctl: partition 0 goes on at 4: it has no record 99\n"
    assert busy.run("group", "seek", *ON, "--to-offset", "2", "--yes").stderr == ""


def test_a_seek_of_a_group_that_commits_says_what_consumers_do(busy: Shell) -> None:
    busy.caller.house.broker.groups.commit_offset("orders", "readers", 0, 4)
    result = busy.run("group", "seek", "orders", "readers", "--to-start", "--yes")
    assert result.exit_code == 0
    assert "the committed offset moves too; a running consumer keeps" in result.stderr
    (group_partition,) = busy.json("group", "describe", "orders", "readers")["by_partition"]
    assert (group_partition["floor"], group_partition["committed"], group_partition["lag"]) == (
        0,
        0,
        4,
    )


def test_a_pause_says_that_it_does_not_hold_consumers_that_commit(busy: Shell) -> None:
    busy.caller.house.broker.groups.commit_offset("orders", "readers", 0, 4)
    result = busy.run("group", "pause", "orders", "readers")
    assert result.exit_code == 0
    assert "consumers that fetch by offset are not held by a pause" in result.stderr
    assert "state         paused" in result.stdout.splitlines()
    assert busy.run("group", "pause", *ON).stderr == ""


def test_a_seek_says_what_it_would_end(busy: Shell) -> None:
    text = busy.refused("group", "seek", *ON, "--to-start", "--partition", "0")
    assert "move partition 0 of group 'billing' of topic 'orders' to the start" in text
    assert "end 1 lease, " in text
    assert "move " in busy.refused("group", "seek", *ON, "--to-start", "--create")
    text = busy.refused("group", "delete", *ON)
    assert "with 1 lease and 1 dead letter, " in text


@pytest.mark.parametrize(
    ("option", "floor"),
    [
        (["--to-offset", "1"], 1),
        (["--to-start"], 0),
        (["--to-end"], 4),
        (["--to-time", "2100-01-01"], 4),
        (["--to-time", "2000-01-01T00:00:00+02:00", "--partition", "0"], 0),
    ],
)
def test_a_group_is_sent_elsewhere(busy: Shell, option: list[str], floor: int) -> None:
    group = busy.json("group", "seek", *ON, *option, "--yes")
    assert (group["floor"], group["leased"]) == (floor, 0)


def test_a_seek_needs_one_place(busy: Shell) -> None:
    for options in (
        [],
        ["--to-start", "--to-end"],
        ["--to-offset", "1", "--to-time", "2026-01-01"],
    ):
        assert "name one of --to-offset" in busy.misused("group", "seek", *ON, *options)
    assert "not a time" in busy.misused("group", "seek", *ON, "--to-time", "noon")
    assert "no partition 7" in busy.refused(
        "group", "seek", *ON, "--to-start", "--partition", "7", "--yes"
    )


def test_settings_change_one_by_one(busy: Shell) -> None:
    lines = busy.lines(
        *("group", "configure", *ON, "--max-attempts", "5", "--attempts", "grants"),
        *("--backoff-base", "500ms", "--backoff-max", "1m", "--key-ordered", "yes"),
    )
    assert "max attempts  5 grants" in lines
    assert "back-off      0.5s, doubling to 1m" in lines
    assert "order         by key" in lines
    group = busy.json("group", "configure", *ON, "--max-attempts", "default")
    assert (group["settings"]["max_attempts"], group["settings"]["attempts"]) == (3, "grants")
    assert "name a setting" in busy.misused("group", "configure", *ON)
    text = busy.misused("group", "configure", *ON, "--max-attempts", "0")
    assert "'--max-attempts': '0' is not from 1 to 1000000" in text
    assert "neither yes nor no" in busy.misused("group", "configure", *ON, "--key-ordered", "1")
    text = busy.refused("group", "configure", *ON, "--backoff-base", "2m")
    assert "(120 s) is longer than the longest back-off (60 s); lower backoff_base or" in text


def test_a_group_is_deleted(busy: Shell) -> None:
    assert busy.lines("group", "delete", *ON, "--yes") == ["group billing is deleted"]
    assert busy.json("group", "list", "orders") == {"groups": []}
