"""Simulated time: in order, never early, the same again for the same seed."""

from __future__ import annotations

from simulator.machine.world import World


def everything(world: World) -> None:
    while world.step():
        pass


def test_things_happen_in_order_of_time_and_then_of_asking() -> None:
    """Two things due at one moment happen in the order they were asked for."""
    world, seen = World(1), []
    world.call_after(20, seen.append, "late")
    world.call_after(10, seen.append, "first")
    world.call_after(10, seen.append, "second")
    everything(world)
    assert seen == ["first", "second", "late"]
    assert world.now_us == 20


def test_nothing_happens_early() -> None:
    """Fractions of a microsecond are rounded up, and time never goes back."""
    world = World(1)
    event = world.call_later(0.0000011, lambda: None)
    assert event.at_us == 2
    world.step()
    assert world.call_at(0, lambda: None).at_us == 2


def test_what_was_cancelled_does_not_happen() -> None:
    """Neither it nor anything in its place."""
    world, seen = World(1), []
    event = world.call_after(5, seen.append, "cancelled")
    assert event.active()
    event.cancel()
    assert not event.active()
    assert not world.step()
    assert seen == []


def test_chance_follows_from_seed_and_purpose() -> None:
    """Equal seeds give equal chance, purposes do not disturb one another."""
    one, same, other = World(7), World(7), World(8)
    first = [one.chance("network").random() for _ in range(3)]
    same.chance("disk").random()
    assert [same.chance("network").random() for _ in range(3)] == first
    assert [other.chance("network").random() for _ in range(3)] != first


def test_the_digest_tells_traces_apart() -> None:
    """Text and time both count."""
    worlds = [World(1) for _ in range(3)]
    worlds[0].trace("a")
    worlds[1].trace("a")
    worlds[2].call_after(1, lambda: None)
    worlds[2].step()
    worlds[2].trace("a")
    assert worlds[0].digest() == worlds[1].digest() != worlds[2].digest()
