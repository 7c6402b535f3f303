"""``brokerctl clock``."""

from __future__ import annotations

from tests.cli.shell import Shell


def test_the_clocks_are_shown_and_set(shell: Shell) -> None:
    house = shell.caller.house
    house.run()
    assert shell.lines("clock", "status")[3] == "state        broker time is trusted"
    house.wall_seconds += 86_400
    assert shell.json("clock", "status")["ahead_seconds"] == 86_400
    house.wall_seconds -= 86_400
    broker_time, wall_clock, removal, state = shell.lines("clock", "status")
    assert broker_time.split()[2:] != wall_clock.split()[2:]
    assert removal.split()[2:] == wall_clock.split()[2:]
    assert state.startswith("state        broker time is not trusted: it is 86400 s ahead")
    assert shell.lines("clock", "set")[3] == "state        broker time is trusted"
    assert shell.json("clock", "status")["skew_seconds"] == 0
