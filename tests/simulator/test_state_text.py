"""The state of a directory as text: the same however it is read, and different where it differs."""

from __future__ import annotations

import pytest

from brokerd.codecs import mamamia as mm
from brokerd.groups import GroupSettings
from simulator.directory.state_text import state_of, without_snapshots
from tests.simulator.test_machine import CONFIG, Room, produce


def a_room() -> Room:
    """Records, a live lease, a failure and a settled record, with a snapshot in the middle."""
    room = Room()
    room.boot()
    for number in range(4):
        room.ask(produce(number))
    room.ask(mm.AcquireBatch("orders", "g", "me", 3))
    room.ask(mm.Settle("orders", "g", 0, "me", True))
    room.machine.stop()
    room.run(lambda: not room.machine.is_up)
    room.boot()
    room.ask(mm.Settle("orders", "g", 1, "me", False))
    room.machine.kill()
    return room


def test_snapshot_and_log_tell_the_same() -> None:
    """And it is what was done."""
    disk = a_room().disk
    assert any(path.endswith(".snap") for path in disk.files())
    quick = state_of(disk, CONFIG)
    bare = without_snapshots(disk)
    assert not any(path.endswith(".snap") for path in bare.files())
    assert state_of(bare, CONFIG) == quick
    assert quick[:2] == ["1 'orders' {}", "1 'orders'/0: 0 to 4"]
    assert "floor 1" in quick[2] and "(2, 'me', 3)" in quick[2]
    assert "1: (1, 1)" in quick[2], "one grant, one failure"


@pytest.mark.parametrize("is_configured", [False, True])
def test_tokens_of_unused_group_partitions_do_not_count(is_configured: bool) -> None:
    """A start from a snapshot makes them anew, with the tokens of groups deleted meanwhile.

    Also if they get an event after that start.
    """
    room = Room()
    room.boot()
    core = room.machine.core
    assert core is not None
    core.broker.topics.create("orders", 2)
    core.broker.topics.create("old", 1)
    core.broker.groups.pause("orders", "g")
    core.broker.groups.resume("orders", "g")
    room.ask(mm.Produce("old", b"payload"))
    room.ask(mm.Acquire("old", "g", "me"))
    core.broker.topics.delete("old")
    room.machine.stop()
    room.run(lambda: not room.machine.is_up)
    if is_configured:
        room.boot()
        core = room.machine.core
        assert core is not None
        core.broker.groups.configure("orders", "g", GroupSettings(max_attempts=3))
        room.machine.stop()
        room.run(lambda: not room.machine.is_up)
    quick = state_of(room.disk, CONFIG)
    assert state_of(without_snapshots(room.disk), CONFIG) == quick
    tokens = [line.split(" leases ")[0] for line in quick if line.startswith("  'g'")]
    assert tokens == ["  'g': floor 0 lag 0 token 1"] * 2, "the token base"


def test_tokens_of_used_group_partitions_count() -> None:
    """Also where a lease that was given back left nothing but its token."""
    room = Room()
    room.boot()
    room.ask(produce(0))
    for token in (1, 2):
        room.ask(mm.Acquire("orders", "g", "me"))
        room.ask(mm.Release("orders", "g", "me"))
        room.machine.kill()
        assert f"floor 0 lag 1 token {token} leases []" in state_of(room.disk, CONFIG)[2]
        room.boot()


def test_reading_changes_nothing() -> None:
    """It is done on a copy."""
    disk = a_room().disk
    before = disk.digest()
    state_of(disk, CONFIG)
    without_snapshots(disk)
    assert disk.digest() == before


def test_another_state_is_another_text() -> None:
    """One more settle shows."""
    room = a_room()
    before = state_of(room.disk, CONFIG)
    room.boot()
    room.ask(mm.Settle("orders", "g", 2, "me", True))
    room.machine.kill()
    assert state_of(room.disk, CONFIG) != before
