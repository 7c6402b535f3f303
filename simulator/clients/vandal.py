# Tests: tests/simulator/test_clients.py
"""A client that sends invalid input, half frames, and requests whose answers it does not read.

The broker refuses its requests, or they have no effect. So they are not in the history, and other
clients must not notice them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from brokerd.codecs import mamamia as mm
from brokerd.codecs.mamamia.packing import pack
from simulator.clients.links import Connect, Link
from simulator.history.operations import History
from simulator.machine.world import World
from simulator.plan import ClientPlan

FLOOD = 400
"""Requests of one visit that does not read the answers."""

LENGTH_BYTES = 4


def nonsense(chance: Random) -> bytes:
    """Return random bytes. The first byte announces a frame of more than 10 MiB."""
    return bytes([chance.randint(1, 255)]) + chance.randbytes(chance.randint(0, 300))


def bad_length(chance: Random) -> bytes:
    length = chance.choice((0, 1, mm.MAX_LENGTH + 1, 0xFFFFFFFF))
    return length.to_bytes(LENGTH_BYTES, "big")


def half_frame(chance: Random) -> bytes:
    """Return a PRODUCE without its end."""
    whole = mm.encode_request(mm.Produce("t0", b"half a message " * chance.randint(1, 500)))
    return whole[: chance.randrange(1, len(whole))]


BAD_BODIES = (
    b"",
    b"\xc1",
    b"\xc1\x05\xa8metadata\xc0",
    b"\x81\xa1",
    b"\x81\x01\x02",
    b"\x80\x80",
    b"\x81\xa6log_id\xa2\xff\xff",
)


def bad_body(chance: Random) -> bytes:
    """Return a frame of a known command whose body is not one MessagePack object."""
    return mm.frame(chance.choice(list(mm.COMMANDS.values())), chance.choice(BAD_BODIES))


def bad_values(chance: Random) -> bytes:
    """Return requests that the broker refuses one by one."""
    bodies: tuple[object, ...] = (
        [],
        {},
        {"log_id": "t0"},
        {"log_id": 7, "payload": 1},
        {"log_id": "t0", "payload": 1, "metadata": "text"},
        {"log_id": "t0", "messages": []},
        {"log_id": "t0", "group_id": "g0", "client_id": "vandal", "duration": float("nan")},
        {"log_id": "t0", "group_id": "g0", "settles": [{}]},
        {"log_id": "bell\a", "payload": 1},
    )
    commands = list(mm.COMMANDS.values())
    return b"".join(
        mm.frame(chance.choice(commands), pack(chance.choice(bodies)))
        for _ in range(chance.randint(1, 50))
    )


def unknown_commands(chance: Random) -> bytes:
    return b"".join(mm.frame(command, b"\x80") for command in chance.sample(range(0x10, 0x80), 5))


def silence(chance: Random) -> bytes:
    return b""


def flood(chance: Random) -> bytes:
    """Return many requests that change nothing."""
    return mm.encode_request(mm.GroupInfo("t0", "g0")) * chance.randint(1, FLOOD)


TRICKS: tuple[Callable[[Random], bytes], ...] = (
    nonsense,
    bad_length,
    half_frame,
    bad_body,
    bad_values,
    unknown_commands,
    silence,
    flood,
)


class Vandal:
    """Sends ``plan.operations`` pieces of input and records nothing."""

    def __init__(self, plan: ClientPlan, world: World, connect: Connect, history: History) -> None:
        self.plan = plan
        self.finished = False
        self.on_finished: Callable[[], None] = lambda: None
        self._world = world
        self._connect = connect
        self._chance = Random(plan.seed)
        self._left = plan.operations
        self._link: Link | None = None

    def start(self) -> None:
        self._world.call_after(self.plan.begin_us, self._visit)

    def stop(self) -> None:
        """Make no more connections."""
        self.hang_up()

    def hang_up(self) -> None:
        if not self.finished:
            self.finished = True
            self._part()
            self.on_finished()

    def note_arrivals(self) -> None:
        """Do nothing: the history has no requests of this client."""

    def _visit(self) -> None:
        if self.finished:
            return
        self._part()
        if not self._left:
            self.hang_up()
            return
        self._left -= 1
        trick = self._chance.choice(TRICKS)
        self._world.trace(f"{self.plan.name} vandal: {trick.__name__}")
        self._link = link = self._connect()
        if self._chance.random() < 0.3:
            link.pause()
        link.sends_part_of_frame = trick is half_frame
        link.send(trick(self._chance))
        self._world.call_after(self._chance.randint(1, max(1, self.plan.think_us)), self._visit)

    def _part(self) -> None:
        link, self._link = self._link, None
        if link is not None and link.is_open:
            link.close()
