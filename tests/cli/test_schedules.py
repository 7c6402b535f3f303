"""``brokerctl schedule``."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_delayed_messages_are_listed_and_cancelled(shell: Shell) -> None:
    shell.run("produce", "orders", "now")
    assert shell.lines("schedule", "list", "orders") == ["nothing waits"]
    assert shell.lines("produce", "orders", "later", "--delay", "1h") == ["delayed, id 0"]
    shell.run("produce", "orders", "sooner", "--delay", "5m", "--partition", "0", "--key", "k")
    lines = shell.lines("schedule", "list", "orders")
    assert lines[0].split() == ["ID", "DUE", "PARTITION", "SIZE", "KEY", "VALUE"]
    assert lines[1].split()[0::3] == ["0", "any", "-"]
    assert lines[1].endswith("5 B   -    later")
    assert lines[2].endswith("7 B   k    sooner")
    assert [
        one["schedule_id"] for one in shell.json("schedule", "list", "orders")["scheduled"]
    ] == [
        0,
        1,
    ]
    assert shell.json("schedule", "cancel", "orders", "0", "--yes") == {"cancelled": 0}
    assert "no delayed message 0" in shell.refused("schedule", "cancel", "orders", "0", "--yes")
    shell.caller.house.pass_time(301, 1)
    assert len(shell.lines("tail", "orders")) == 2


def test_a_preview_is_short_and_can_be_read(shell: Shell) -> None:
    shell.run("produce", "orders", '{"n": 1}', "--as", "json", "--delay", "1h")
    shell.run("produce", "orders", "x" * 99, "--delay", "1h", "--key", "k" * 99)
    shell.run("produce", "orders", "--file", "-", "--delay", "1h", input=b"\xff\n")
    scheduled = shell.json("schedule", "list", "orders")["scheduled"]
    assert [one["key"] for one in scheduled] == [None, "k" * 64, None]
    previews = [one["preview"] for one in scheduled]
    assert previews == ['{"n": 1}', "x" * 64, "\\xff\n"]


def test_more_than_a_page_is_listed(shell: Shell) -> None:
    values = "\n".join(map(str, range(1_001)))
    shell.run("produce", "orders", "--lines", "--delay", "1h", input=values)
    assert len(shell.json("schedule", "list", "orders")["scheduled"]) == 1_001
