"""``brokerctl topic``."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell


def test_topics_are_created_listed_and_described(shell: Shell) -> None:
    """Tables for people; with --json the objects of the API."""
    assert shell.lines("topic", "list") == ["no topics"]
    shell.run("topic", "create", "orders", "--partitions", "2", "--ttl", "12h")
    shell.run("topic", "create", "a", "--retention", "none", "--retention-bytes", "64MiB")
    shell.run("produce", "orders", "x", "--partition", "1")
    assert shell.lines("topic", "list") == [
        "TOPIC   PARTITIONS  RECORDS  GROUPS",
        "orders           2        1       0",
        "a                1        0       0",
    ]
    assert shell.lines("topic", "describe", "orders") == [
        "topic            orders",
        "id               1",
        "records          1",
        "groups           0",
        "retention        default",
        "retention bytes  default",
        "ttl              12h",
        "compact          no",
        "",
        "PARTITION  START  NEXT  RECORDS",
        "        0      0     0        0",
        "        1      0     1        1",
    ]
    assert shell.json("topic", "describe", "a")["settings"] == {
        "retention_seconds": 0,
        "retention_bytes": 64 << 20,
        "ttl_seconds": None,
        "compact": None,
    }
    assert [topic["name"] for topic in shell.json("topic", "list")["topics"]] == ["orders", "a"]


def test_a_topic_is_created_once(shell: Shell) -> None:
    shell.run("topic", "create", "orders")
    assert "there is a topic 'orders' already" in shell.refused("topic", "create", "orders")


def test_settings_change_one_by_one(shell: Shell) -> None:
    shell.run("topic", "create", "orders", "--ttl", "5s")
    topic = shell.json("topic", "configure", "orders", "--retention-bytes", "1KiB")
    assert tuple(topic["settings"].values()) == (None, 1024, 5, None)
    topic = shell.json("topic", "configure", "orders", "--ttl", "default", "--retention", "7d")
    assert tuple(topic["settings"].values()) == (604_800, 1024, None, None)
    topic = shell.json("topic", "configure", "orders", "--compact", "yes")
    assert tuple(topic["settings"].values()) == (604_800, 1024, None, True)
    assert "compact          yes" in shell.lines("topic", "describe", "orders")
    assert "neither yes nor no" in shell.misused("topic", "configure", "orders", "--compact", "1")
    assert "name a setting" in shell.misused("topic", "configure", "orders")
    assert "not a duration" in shell.misused("topic", "configure", "orders", "--ttl", "soon")


def test_a_topic_is_trimmed_and_deleted(shell: Shell) -> None:
    for value in "abc":
        shell.run("produce", "orders", value)
    assert shell.lines("topic", "trim", "orders", "--offset", "2", "--yes") == [
        "partition 0 begins at 2"
    ]
    assert shell.json("topic", "trim", "orders", "--offset", "2", "--yes") == {"start_offset": 2}
    assert shell.lines("topic", "delete", "orders", "--yes") == ["topic orders is deleted"]
    assert "no topic 'orders'" in shell.refused("topic", "describe", "orders")


@pytest.mark.parametrize(
    "verb",
    [
        ["topic", "delete", "orders"],
        ["topic", "trim", "orders", "--offset", "1"],
        ["group", "seek", "orders", "g", "--to-end"],
        ["group", "delete", "orders", "g"],
        ["dlq", "purge", "orders", "g", "--all"],
        ["schedule", "cancel", "orders", "0"],
    ],
)
def test_harm_is_done_only_when_somebody_said_yes(shell: Shell, verb: list[str]) -> None:
    """Without a terminal nobody can be asked, so --yes must be there."""
    shell.run("produce", "orders", "x")
    shell.run("group", "pause", "orders", "g", "--create")
    broker = shell.caller.house.broker
    broker.leases.dead_letter(broker.leases.group_partition("orders", "g", 0, 0), 0, "odd")
    shell.caller.house.run()
    text = shell.refused(*verb)
    assert text.startswith("this would ")
    assert text.endswith("and there is no terminal to ask: say --yes")
    assert shell.json("topic", "describe", "orders")["start_offsets"] == [0]


@pytest.mark.parametrize(("answer", "is_there"), [("y\n", False), ("n\n", True), ("\n", True)])
def test_on_a_terminal_harm_is_asked_about(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, answer: str, is_there: bool
) -> None:
    """No is what Enter means."""
    shell.run("produce", "orders", "x")
    monkeypatch.setattr("brokerd.cli.options.on_terminal", lambda: True)
    result = shell.run("topic", "delete", "orders", input=answer)
    assert "This will delete topic 'orders' with 1 record, 0 groups" in result.stderr
    assert result.exit_code == (1 if is_there else 0)
    assert (shell.run("topic", "describe", "orders").exit_code == 0) == is_there


def test_names_may_hold_anything(shell: Shell) -> None:
    """A slash, a blank, nothing at all."""
    shell.run("produce", "", "x")  # as a program of the Mamamia format may
    for name in ("a/b c?ü", "..", "--", "%41", ""):
        if name:
            assert shell.json("topic", "create", "--", name)["name"] == name
        assert shell.json("topic", "describe", "--", name)["name"] == name
    assert '""  ' in "\n".join(shell.lines("topic", "list"))


def test_a_topic_without_a_name_is_not_made_by_mistake(shell: Shell) -> None:
    """An empty variable in a script must not make a topic that is hard to name."""
    assert "must not be empty" in shell.misused("topic", "create", "")
    assert shell.lines("topic", "list") == ["no topics"]


def test_a_topic_has_a_number_of_partitions(shell: Shell) -> None:
    for number in ("0", "32768"):
        text = shell.misused("topic", "create", "orders", "--partitions", number)
        assert f"'--partitions': '{number}' is not from 1 to 32767" in text


def test_a_topic_that_is_not_there_is_not_deleted(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked about it, nor told to create it first."""
    monkeypatch.setattr("brokerd.cli.options.on_terminal", lambda: True)
    text = shell.refused("topic", "delete", "ordres")
    assert text == "there is no topic 'ordres'; nothing was deleted"


def test_more_topics_than_a_page_are_all_listed(shell: Shell) -> None:
    for number in range(1_001):
        shell.caller.house.broker.topics.create(f"t{number}")
    assert len(shell.json("topic", "list")["topics"]) == 1_001
