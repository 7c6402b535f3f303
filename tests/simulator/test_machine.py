"""A simulated computer boots the real broker, loses it in every way, and boots it again."""

from __future__ import annotations

import errno
import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from twisted.logger import globalLogPublisher

from brokerd.codecs import mamamia as mm
from brokerd.server.config import Broker, Config, Wal
from simulator.machine.bare import WAL_DIR
from simulator.machine.disk import Call, CrashModel, SimDisk
from simulator.machine.machine import Machine
from simulator.machine.network import Network
from simulator.machine.world import World
from simulator.plan import DiskTimes
from simulator.plan import Network as NetworkPlan

CONFIG = Config(wal=Wal(segment_bytes=1 << 16), broker=Broker(frame_bytes=1 << 14))


class Room:
    """A machine, and a way to ask it things."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.disk = SimDisk()
        self.machine = Machine(self.world, self.disk, CONFIG, DiskTimes())
        self.network = Network(self.world, NetworkPlan(), self.machine.service)
        self.machine.on_end = lambda boot: self.network.machine_gone(lambda: 0)

    def run(self, until: Callable[[], object]) -> None:
        while not until():
            assert self.world.step(), "nothing is due any more"

    def pass_us(self, us: int) -> None:
        over: list[bool] = []
        self.world.call_after(us, over.append, True)
        self.run(lambda: over)

    def boot(self) -> None:
        self.machine.boot()
        self.run(lambda: self.machine.is_ready)

    def ask(self, request: mm.Request) -> Any:
        """The answer, or None if the connection was lost before."""
        reader, answers, lost = mm.FrameReader(), [], []
        link = self.network.connect("client")
        link.on_data = lambda data: answers.extend(reader.feed(data))
        link.on_lost = lost.append
        link.send(mm.encode_request(request))
        self.run(lambda: answers or lost)
        link.close()
        return mm.decode_response(*answers[0]) if answers else None

    @property
    def ends(self) -> list[str]:
        return [boot.end for boot in self.machine.boots]


def produce(number: int) -> mm.Produce:
    return mm.Produce("orders", b"payload %d" % number)


def test_a_broker_boots_and_answers() -> None:
    """The real one, over a simulated connection, from a simulated disk."""
    room = Room()
    room.boot()
    assert room.ask(produce(1)) == mm.Produced(0)
    acquired = room.ask(mm.Acquire("orders", "g", "me"))
    assert acquired.message.payload == b"payload 1"
    assert room.disk.list(WAL_DIR)


@pytest.mark.parametrize("how", ["killed", "power", "stopped"])
def test_what_was_acknowledged_is_there_after_any_end(how: str) -> None:
    """However the broker ended; and the record says how."""
    room = Room()
    room.boot()
    for number in range(5):
        assert room.ask(produce(number)) == mm.Produced(number)
    end: dict[str, Callable[[], None]] = {
        "killed": room.machine.kill,
        "power": lambda: room.machine.power_off(CrashModel.DROP, random.Random(1)),
        "stopped": room.machine.stop,
    }
    end[how]()
    room.run(lambda: not room.machine.is_up)
    assert room.ask(produce(9)) is None
    room.boot()
    assert room.ask(produce(5)) == mm.Produced(5)
    assert room.ends == [how, ""]
    assert room.machine.boots[1].ready_us > room.machine.boots[0].ended_us > 0


def test_power_may_be_lost_at_a_disk_call() -> None:
    """Of the broker's threads, before the call has any effect; everything stops there."""
    room = Room()
    room.boot()
    done: list[str] = []
    leave = room.disk.leave

    def note(call: Call) -> None:
        done.append(call.name)
        leave(call)

    def crash() -> None:
        room.machine.power_off(CrashModel.DROP, random.Random(1))

    room.disk.leave = note
    room.machine.crash_at_call(1, crash)
    assert room.ask(produce(0)) is None
    assert set(done) <= {"free_bytes"}, "a call that changes nothing does not count"
    assert room.ends == ["power"]
    room.boot()
    assert room.ask(produce(0)) == mm.Produced(0)


def test_power_may_be_lost_at_a_disk_call_of_a_name() -> None:
    """Those of other names do not count: here the first segment was about to get its name."""
    room = Room()
    room.boot()
    done: list[str] = []
    leave = room.disk.leave

    def note(call: Call) -> None:
        done.append(call.name)
        leave(call)

    room.disk.leave = note
    room.machine.crash_at_call(1, room.machine.kill, "rename")
    assert room.ask(produce(0)) is None
    assert {"pwrite", "sync"} <= set(done) and "rename" not in done
    room.boot()
    assert room.ask(produce(0)) == mm.Produced(0)


def test_a_sync_may_get_stuck_and_the_power_go_then() -> None:
    """A sync that is not stuck does not count."""
    room = Room()
    room.boot()
    room.machine.crash_at_call(1, room.machine.kill, is_stuck=True)
    assert room.ask(produce(0)) == mm.Produced(0)
    room.machine.times = DiskTimes(stuck_permille=1_000, stuck_us_max=9_000_000)
    began_us = room.world.now_us
    assert room.ask(produce(1)) is None
    assert room.ends == ["killed"]
    assert 1_000 < room.world.now_us - began_us < 10_000_000


def test_power_may_be_lost_while_the_broker_starts() -> None:
    """At any call of its recovery; the next start has it all the same."""
    room = Room()
    room.boot()
    assert room.ask(produce(0)) == mm.Produced(0)
    room.machine.kill()
    crashes = 0
    for nth in range(1, 100):
        room.machine.boot()
        room.machine.crash_at_call(nth, room.machine.kill)
        room.run(lambda: room.machine.is_ready or not room.machine.is_up)
        if room.machine.is_ready:
            break
        crashes += 1
    assert crashes > 5
    room.machine.disarm()
    assert room.ask(produce(1)) == mm.Produced(1)


def test_a_broker_whose_sync_fails_ends() -> None:
    """Nothing is acknowledged any more, and the record says what the broker said."""
    room = Room()
    room.boot()
    assert room.ask(produce(0)) == mm.Produced(0)
    room.pass_us(1_000_000)  # until the segment allocated ahead is there
    room.disk.fail("sync", 1, errno.EIO)
    assert room.ask(produce(1)) is None
    assert room.ends == ["failed"]
    assert "the broker stops" in room.machine.boots[0].reason
    room.boot()


def test_a_stop_that_fails_began_as_a_stop() -> None:
    """The record says when the broker began to stop, not when its last commit failed."""
    room = Room()
    room.boot()
    assert room.ask(produce(0)) == mm.Produced(0)
    room.pass_us(1_000_000)  # until the segment allocated ahead is there
    room.disk.fail("sync", 1, errno.EIO)
    syncs = room.disk.calls["sync"]
    link = room.network.connect("client")
    link.send(mm.encode_request(produce(1)))
    room.run(lambda: room.disk.calls["sync"] > syncs)
    begun_us = room.world.now_us
    room.machine.stop()
    room.pass_us(60_000_000)
    assert room.ends == ["failed"]
    boot = room.machine.boots[0]
    assert boot.stopping_us == begun_us < boot.ended_us


def test_a_broker_that_cannot_read_refuses_to_start() -> None:
    """And the machine may try again."""
    room = Room()
    room.boot()
    assert room.ask(produce(0)) == mm.Produced(0)
    room.machine.kill()
    room.disk.fail("pread", 1, errno.EIO)
    room.machine.boot()
    room.run(lambda: not room.machine.is_up)
    assert room.ends == ["killed", "refused"]
    room.boot()
    assert room.ask(produce(1)) == mm.Produced(1)


def test_the_wall_clock_can_be_set() -> None:
    """The broker sees it, and time in the world goes on as before."""
    room = Room()
    before = room.machine.wall_seconds()
    room.machine.wall_step_us -= 3_000_000
    assert room.machine.wall_seconds() == before - 3


def test_the_same_seed_gives_the_same_run_to_the_byte() -> None:
    """Trace and disk; another seed gives another."""

    def digests(seed: int) -> tuple[str, str]:
        room = Room(seed)
        room.boot()
        for number in range(20):
            room.ask(produce(number))
        room.machine.stop()
        room.run(lambda: not room.machine.is_up)
        return room.world.digest(), room.disk.digest()

    assert digests(1) == digests(1)
    assert digests(1)[0] != digests(2)[0]
    assert digests(1)[1] != digests(2)[1]


def lines_of_a_stop_with_a_deaf_client() -> list[str]:
    """Its answers are more than the way to it holds."""
    room = Room()
    room.boot()
    for number in range(3):
        room.ask(mm.Produce("orders", bytes([number]) * 15_000))
    link = room.network.connect("client")
    link.pause()
    for number in range(20):
        link.send(mm.encode_request(mm.AcquireBatch("orders", f"g{number}", "me", 3)))
    room.pass_us(1_000_000)
    room.machine.stop()
    room.run(lambda: not room.machine.is_up)
    assert room.ends == ["stopped"]
    return room.world.lines


def test_a_stop_waits_for_answers_only_so_long(room_log: list[str]) -> None:
    """A client that reads nothing keeps its connection open; the broker stops all the same, and
    says what did not leave.
    """
    lines = lines_of_a_stop_with_a_deaf_client()
    assert any("some answers did not leave in time" in line for line in lines)
    gc.collect()
    assert room_log == []


@pytest.fixture
def room_log() -> Iterator[list[str]]:
    """Faults that Twisted logs."""
    found: list[str] = []

    def note(event: dict[str, Any]) -> None:
        if "log_failure" in event:
            found.append(event["log_failure"].getTraceback())

    globalLogPublisher.addObserver(note)  # type: ignore[arg-type]
    yield found
    globalLogPublisher.removeObserver(note)  # type: ignore[arg-type]
