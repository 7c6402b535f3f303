# Tests: tests/test_bytecodes.py
"""Count the bytecode instructions that the broker executes for each message.

The count does not depend on the load of the machine: the whole core runs in this process on a
simulated disk, without threads, and its clock stands still. A reactor of its own serves clients of
the load generator over TCP, so the count includes Twisted's share. A trace function counts
each instruction of brokerd and of the libraries in Python. Work in C is not counted.

``bytecodes.json`` holds the committed counts. `compare` returns the scenarios whose count grew by
more than `MARGIN`. Counts of another version of Python, or of compiled modules, are not comparable.
``python -m benchmarks.bytecodes`` prints all counts, ``--record`` writes the file. ``--time``
prints processor time instead, which depends on the machine, and which compiled modules change.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.epollreactor import EPollReactor

from brokerd.archive.contract.view import Archive
from brokerd.cli.bench.formats import FORMATS, LoadSpec
from brokerd.cli.bench.formats.mamamia import produce_frame
from brokerd.cli.bench.scenarios import Role
from brokerd.codecs import blipmq
from brokerd.codecs.rustlog import CODECS, CreateTopic, Dialect
from brokerd.protocols.base.transport import DirectReads, read_directly, readable_bytes
from brokerd.schemas.checker import CheckRunner, InlineCheckRunner
from brokerd.server.assembly import BrokerCore
from brokerd.server.compiled import is_compiled
from brokerd.server.config import Config
from brokerd.server.sections import Wal
from brokerd.worker_pool import STOP_SECONDS
from simulator.machine.bare import DATA_DIR, MONOTONIC_SECONDS, WALL_SECONDS, counting_ids
from simulator.machine.disk import SimDisk
from simulator.machine.inline import InlinePool

MARGIN = 0.04
"""Growth of a count that `compare` allows."""
COUNTS_FILE = Path(__file__).with_name("bytecodes.json")
_NOT_COUNTED = tuple(f"/{name}/" for name in ("benchmarks", "simulator"))
_READ_BYTES = 1 << 20
_SEGMENT_BYTES = 4 << 20
_MEMORY_BYTES = 8 << 30
"""Memory of the simulated machine."""
_SECONDS_MAX = 10.0
_WARM_UP_ROUNDS = 3
_PAYLOAD_BYTES = 100


_GREETING = blipmq.encode(blipmq.Hello(1, blipmq.VERSION)) + blipmq.encode(
    blipmq.Auth(2, "any key")
)


class Shape(NamedTuple):
    """One scenario of the load generator."""

    format: str
    scenario: str
    connections: int
    window: int
    """Requests in flight on each connection."""
    rounds: int
    """Number of counted rounds. In a round each connection gets all answers that are due."""
    batch: int = 1

    @property
    def name(self) -> str:
        batch = f" x {self.batch}" if self.batch > 1 else ""
        return f"{self.format} {self.scenario} {self.connections} x {self.window}{batch}"


SHAPES = (
    Shape("mamamia", "produce", 1, 1, 20),
    Shape("mamamia", "produce", 64, 1, 2),
    Shape("mamamia", "produce", 4, 64, 2),
    Shape("mamamia", "acquire-settle", 1, 1, 20),
    Shape("mamamia", "acquire-settle", 64, 1, 2),
    Shape("mamamia", "acquire-settle", 4, 64, 2),
    Shape("mamamia", "produce-batch", 2, 2, 2, 100),
    Shape("mamamia", "acquire-settle-batch", 2, 2, 2, 100),
    Shape("rustlog", "produce-batch", 2, 2, 2, 100),
    Shape("flymq", "produce", 4, 64, 2),
    Shape("blipmq", "produce", 64, 1, 2),
    Shape("blipmq", "produce", 4, 64, 2),
    Shape("blipmq", "acquire-settle", 64, 1, 2),
    Shape("blipmq", "acquire-settle", 4, 64, 2),
    Shape("mega", "produce", 4, 64, 2),
)


class _Reactor(EPollReactor):
    """A reactor whose time stands still, and whose turns the counter makes."""

    def seconds(self) -> float:
        return MONOTONIC_SECONDS

    def turn(self) -> None:
        """Run the due calls, then serve the ready sockets."""
        self.runUntilCurrent()
        self.doIteration(0)


class _Threads(InlinePool):
    """A pool whose work is done between two turns."""

    def start(self) -> None: ...

    def wait(self, seconds: float) -> None:
        if len(self) == 1:
            self.step()

    def stop(self, seconds: float = STOP_SECONDS) -> list[str]:
        self.run()
        return []


class _Lock:
    """A lock that is always free."""

    def acquire(self, file_system: str = "", allow_network: bool = False) -> None: ...

    def release(self) -> None: ...


class _Host:
    """A `brokerd.server.host.Host` without threads, on a simulated disk."""

    open_archive: Callable[..., Archive] | None = None

    def __init__(self) -> None:
        self.reactor = _Reactor()
        self.reads = DirectReads(self.reactor)
        self.disk = SimDisk()
        self.pools: list[_Threads] = []
        self.random_bytes = counting_ids(b"")

    def prepare(self) -> int:
        return 1_000_000

    def memory_bytes(self) -> int:
        return _MEMORY_BYTES

    def trim_memory(self) -> None: ...

    def descriptors_left(self) -> int:
        return 1_000_000

    def begin_replay(self) -> None: ...

    def call_at_turn_end(self, function: Callable[[], None]) -> None:
        self.reads.call_at_turn_end(function)

    def begin_serving(self, before_heavy: Callable[[], None]) -> Callable[[], bool]:
        self.reads = read_directly(self.reactor, before_heavy)
        return self.reads.light_arrives

    def records_kept(self, count: int) -> None: ...

    def end_serving(self) -> None: ...

    def lock(self, data_dir: Path) -> _Lock:
        return _Lock()

    def threads(self, name: str, count: int = 1, *, is_awaited: bool = False) -> _Threads:
        self.pools.append(_Threads())
        return self.pools[-1]

    def make_lock(self) -> threading.Lock:
        return threading.Lock()

    def wall_seconds(self) -> float:
        return WALL_SECONDS

    def schema_check_runner(self) -> CheckRunner:
        return InlineCheckRunner()

    def run(self) -> None:
        """Make turns, and do the work of all threads, until no work is left for now."""
        for _ in range(2):
            self.reactor.turn()
            while any([pool.step() for pool in self.pools]):
                self.reactor.turn()


class _Counter:
    """A trace function that counts instructions."""

    DIGITS = 1

    def __init__(self) -> None:
        self.count = 0
        self._before = sys.gettrace()

    def start(self) -> None:
        sys.settrace(self.call)

    def stop(self) -> None:
        sys.settrace(self._before)

    def call(self, frame: FrameType, event: str, argument: object) -> Any:
        if any(part in frame.f_code.co_filename for part in _NOT_COUNTED):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            self.count += 1
        return self._step


class _ProcessorTime:
    """Counts microseconds of processor time of this thread, in user mode and in the kernel."""

    DIGITS = 2

    def __init__(self) -> None:
        self.count = 0.0
        self._begin = 0

    def start(self) -> None:
        self._begin = time.thread_time_ns()

    def stop(self) -> None:
        if self._begin:
            self.count += (time.thread_time_ns() - self._begin) / 1000
        self._begin = 0


class _Client:
    """One connection of the load generator; it does not block."""

    def __init__(self, host: _Host, core: BrokerCore, wire_format: str, role: Role) -> None:
        self.role = role
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self._socket = socket.create_connection(listening.getsockname(), _SECONDS_MAX)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._served, _ = listening.accept()
        self._inbox = b""
        host.reactor.adoptStreamConnection(
            self._served.fileno(), socket.AF_INET, core.factory(wire_format)
        )

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes, and wait until the broker's end has all of them."""
        self._socket.sendall(data)
        deadline = time.monotonic() + _SECONDS_MAX
        while readable_bytes(self._served.fileno()) < len(data):
            assert time.monotonic() < deadline, "the bytes do not arrive"

    def receive(self, answers: int) -> bytes | memoryview:
        """Return the requests that follow as many answers."""
        replies, reply = 0, b""
        while replies < answers:
            self._inbox += self._socket.recv(_READ_BYTES)
            step = self.role.answers(self._inbox)
            self._inbox = self._inbox[step.consumed :]
            replies, reply = replies + step.replies, reply + step.reply
        assert replies == answers, "each answer is due once"
        return reply

    def exchange(self, host: _Host, data: bytes) -> None:
        """Send bytes, and drop the answer."""
        self.send(data)
        host.run()
        self._socket.recv(_READ_BYTES)

    def messages(self) -> int:
        """Return the messages so far: a settled message counts, and its lease does not."""
        tally = self.role.tally
        assert not tally.errors, tally.example
        return tally.produced + tally.settled

    def close(self) -> None:
        self._socket.close()
        self._served.close()


def count(shape: Shape, make_counter: Callable[[], _Counter | _ProcessorTime] = _Counter) -> float:
    """Return the bytecode instructions for each message of a scenario, or what else is counted."""
    host = _Host()
    core = BrokerCore(Config(wal=Wal(segment_bytes=_SEGMENT_BYTES)), Path(DATA_DIR), host)
    core.lock()
    opened: list[object] = []
    opening: Deferred[Any] = core.open()
    opening.addBoth(opened.append)
    host.run()
    assert opened == [None], opened
    spec = LoadSpec(
        shape.scenario, "", shape.connections, shape.window, _PAYLOAD_BYTES, 1.0, "bench",
        "1" if shape.format == "blipmq" else "bench", "0", shape.batch, format=shape.format,
    )  # fmt: skip
    clients = [
        _Client(host, core, shape.format, FORMATS[shape.format].role(spec, number))
        for number in range(shape.connections)
    ]
    counter = make_counter()
    collects = gc.isenabled()
    gc.disable()  # a pass may run finalizers in Python
    try:
        _make_topic(host, core, shape)
        if shape.format == "blipmq":
            for client in clients:
                client.exchange(host, _GREETING)
        waiting = [client.role.first()[0] for client in clients]
        for number in range(_WARM_UP_ROUNDS + shape.rounds):
            if number == _WARM_UP_ROUNDS:
                counter.count = 0
                messages = sum(client.messages() for client in clients)
            for client, data in zip(clients, waiting, strict=True):
                client.send(data)
            counter.start()
            host.run()
            counter.stop()
            waiting = [client.receive(shape.window) for client in clients]
        messages = sum(client.messages() for client in clients) - messages
    finally:
        counter.stop()
        if collects:
            gc.enable()
        for client in clients:
            client.close()
        host.run()
        host.reactor.removeAll()
    return round(counter.count / messages, counter.DIGITS)


def _make_topic(host: _Host, core: BrokerCore, shape: Shape) -> None:
    """Create the topic with one record, and the backlog of a consumer."""
    rustlog = CODECS[Dialect.BINARY].encode_request(CreateTopic("bench", 1))
    setup = [("rustlog", rustlog)]
    if shape.format == "blipmq":  # its subscriptions begin at the end of the topic
        setup.append(("blipmq", _GREETING + blipmq.encode(blipmq.Subscribe(3, "bench", 1))))
    if FORMATS[shape.format].consumes(shape.scenario):
        requests = shape.connections * shape.window * (_WARM_UP_ROUNDS + shape.rounds)
        setup += [("mamamia", produce_frame("bench", _PAYLOAD_BYTES, 100))] * (
            requests * shape.batch // 100 + 1
        )
    for wire_format, data in setup:
        spec = LoadSpec("produce", "", 1, 1, _PAYLOAD_BYTES, 1.0, "bench", "bench", "0")
        client = _Client(host, core, wire_format, FORMATS[wire_format].role(spec, 0))
        client.exchange(host, data)
        client.close()
        host.run()


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def not_comparable() -> str:
    """Return why counts of this process are not compared with the committed ones, or ""."""
    if is_compiled():
        return "compiled code has no bytecode instructions to count"
    if not COUNTS_FILE.exists():
        return f"there is no file {COUNTS_FILE}"
    python: str = json.loads(COUNTS_FILE.read_text())["python"]
    if python != python_version():
        return f"the committed counts are of Python {python}, this is {python_version()}"
    return ""


def committed() -> dict[str, float]:
    """Return the committed counts by scenario; none if they are `not_comparable`."""
    if not_comparable():
        return {}
    counts: dict[str, float] = json.loads(COUNTS_FILE.read_text())["instructions"]
    return counts


def compare(counts: dict[str, float], known: dict[str, float]) -> list[str]:
    """Return a line for each scenario that executes more instructions than ``known`` allows."""
    return [
        f"{name}: {counts[name]:,.1f} bytecode instructions a message, {known[name]:,.1f} committed"
        for name in counts
        if name in known and counts[name] > known[name] * (1 + MARGIN)
    ]


def show_counts(show: Callable[[str], None], formats: Sequence[str]) -> dict[str, float]:
    """Count the scenarios of these formats, and show each beside its committed count."""
    known = committed()
    if reason := not_comparable():
        rest = "; these are of the modules that stay Python" if is_compiled() else ""
        show(f"no committed counts to compare with: {reason}{rest}")
    show(f"{'bytecode instructions a message':<44}{'now':>10}{'committed':>12}")
    counts = {}
    for shape in SHAPES:
        if shape.format in formats:
            counts[shape.name] = count(shape)
            beside = f"{known[shape.name]:,.1f}" if shape.name in known else "-"
            show(f"{shape.name:<44}{counts[shape.name]:>10,.1f}{beside:>12}")
    return counts


def processor_time(shape: Shape, runs: int = 5) -> float:
    """Return the microseconds of processor time for each message: the least of several runs."""
    longer = shape._replace(rounds=shape.rounds * 5)
    return min(count(longer, _ProcessorTime) for _ in range(runs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 1: a count grew."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bytecodes", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--record", action="store_true", help="write the counts to the file")
    parser.add_argument("--time", action="store_true", help="microseconds of processor time")
    options = parser.parse_args(arguments)
    if options.record and is_compiled():
        parser.error(f"--record: {not_comparable()}")
    if options.time:
        print(f"{'microseconds a message':<44}{'compiled' if is_compiled() else 'pure Python':>12}")
        for shape in SHAPES:
            print(f"{shape.name:<44}{processor_time(shape):>12.2f}", flush=True)
        return 0
    counts = show_counts(print, tuple(FORMATS))
    if options.record:
        found = {"python": python_version(), "instructions": counts}
        COUNTS_FILE.write_text(json.dumps(found, indent=2) + "\n")
        return 0
    grown = compare(counts, committed())
    for line in grown:
        print(line)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
