"""The smaller part of a run: a broker in a process of its own, on real sockets and files.

The conversations are the same, but there is no simulated clock, so no client waits for a time
limit. The judgement is that of `tests.fuzz.desk`, with the broker's log, its peak of memory, its
exit code and its next start in addition.
"""

from __future__ import annotations

import selectors
import socket
import struct
from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from time import monotonic

from benchmarks.process import BrokerFailed, BrokerProcess
from tests.fuzz.case import Case, Delivery
from tests.fuzz.desk import Counts
from tests.fuzz.found import Found
from tests.fuzz.judge import judge
from tests.fuzz.run import Failure, draw
from tests.fuzz.wire import Ask, FuzzedFormat, Wires, wires_of

FRAME_BYTES = 64 << 10
SETTINGS = (
    "wal.segment_bytes=1MiB",
    f"limits.frame_bytes={FRAME_BYTES}",
    "limits.in_flight_bytes=256KiB",
)
PEAK_BYTES_MAX = 400 << 20
"""About three times the memory of a broker that has just started."""
SECONDS_MAX = 120.0
"""Time limit for all immediate work of a broker."""
WITNESS_EVERY = 4
KEPT = 20
"""Number of the last connections that a failure keeps."""
Address = tuple[str, int]
_READ_BYTES = 65_536
_FAULTS = ("Traceback", "connection-fault", "Unhandled")
_RESET = struct.pack("ii", 1, 0)


class _Talk:
    """One connection; it ends when both sides have closed it."""

    def __init__(self, address: Address, delivery: Delivery) -> None:
        self.delivery = delivery
        self.received = bytearray()
        self.was_reset = False
        self.socket = socket.create_connection(address, SECONDS_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._chunks = list(delivery.chunks)
        self._unsent = b""
        self._end_if_sent()

    def events(self) -> int:
        """Return the events to wait for; 0 at the end."""
        if self._chunks or self._unsent:
            return selectors.EVENT_WRITE | (selectors.EVENT_READ if self.delivery.reads else 0)
        return 0 if self.delivery.ending == "cut" else selectors.EVENT_READ

    def write(self) -> None:
        """Send the next chunk, or the unsent part of the last one."""
        self._unsent = self._unsent or self._chunks.pop(0)
        self._unsent = self._unsent[self.socket.send(self._unsent) :]
        self._end_if_sent()

    def _end_if_sent(self) -> None:
        if not (self._unsent or self._chunks) and self.delivery.ending != "cut":
            self.socket.shutdown(socket.SHUT_WR)

    def read(self) -> bool:
        """Receive bytes; return False at the end."""
        data = self.socket.recv(_READ_BYTES)
        self.received += data
        return bool(data)

    def close(self) -> None:
        if self.delivery.ending == "cut":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.close()


def talk_all(deliveries: Sequence[tuple[Address, Delivery]]) -> list[_Talk]:
    """Run all these conversations at the same time, to their ends.

    :raises Found: a conversation does not end.
    """
    talks = [_Talk(address, delivery) for address, delivery in deliveries]
    deadline = monotonic() + SECONDS_MAX
    with selectors.DefaultSelector() as selector:
        for talk in talks:
            if talk.events():
                selector.register(talk.socket, talk.events(), talk)
            else:
                talk.close()
        while selector.get_map():
            if monotonic() > deadline:
                raise Found("hang", f"connections are open after {SECONDS_MAX:.0f} s")
            for key, ready in selector.select(1.0):
                if _go_on(key.data, ready):
                    selector.modify(key.data.socket, key.data.events(), key.data)
                else:
                    selector.unregister(key.data.socket)
                    key.data.close()
    return talks


def _go_on(talk: _Talk, ready: int) -> bool:
    """Read and write as far as possible; return False when the conversation is over."""
    try:
        if ready & selectors.EVENT_READ and not talk.read():
            return False
        if ready & selectors.EVENT_WRITE:
            talk.write()
    except OSError:  # the broker has closed and reset the connection
        talk.was_reset = True
        return False
    return bool(talk.events())


class _Beside:
    """The witness's connection."""

    def __init__(self, wire: FuzzedFormat, address: Address) -> None:
        self._wire = wire
        self._socket = socket.create_connection(address, SECONDS_MAX)
        if wire.greeting:
            self.ask(b"".join(wire.greeting), len(wire.greeting))

    def ask(self, data: bytes, count: int) -> bytes:
        self._socket.sendall(data)
        requests, _ = self._wire.split(data, FRAME_BYTES)
        received = b""
        while not self._is_whole(received, requests, count):
            more = self._socket.recv(_READ_BYTES)
            if not more:
                raise AssertionError("the witness's connection was closed")
            received += more
        return received

    def _is_whole(self, received: bytes, requests: list[bytes], count: int) -> bool:
        try:
            return self._wire.read_answers(received, requests) >= count
        except Exception:  # a cut answer can raise anything; the time-out ends the wait
            return False

    def close(self) -> None:
        self._socket.close()


class SocketDesk:
    """A broker in a process of its own, started with `SETTINGS` and this log. Raises `Found`."""

    def __init__(self, wires: Wires, broker: BrokerProcess, log: Path, counts: Counts) -> None:
        self._wires = wires
        self._broker = broker
        self._log = log
        self._counts = counts
        self._witnesses = {name: wire.witness(Random("witness")) for name, wire in wires.items()}
        self._turns = cycle(wires)
        self._beside = self._witness_connections()

    def deliver(self, deliveries: Sequence[Delivery], is_witnessed: bool) -> None:
        """Run the clients at the same time, then the witness if ``is_witnessed``."""
        talks = talk_all([(self._address(one.wire), one) for one in deliveries])
        if is_witnessed:
            name = next(self._turns)
            self._aside(name, self._witnesses[name].step)
            self._counts.witnessed += 1
        for talk in talks:
            self._judge(talk)

    def finish(self) -> None:
        """Stop the broker, start it again, and check that all data of the witness is there."""
        self._read_back()
        self._judge_process()
        try:
            code = self._broker.stop()
            if code:
                raise Found("fault", f"the broker stopped with {code}:\n{self._broker.log_tail()}")
            self._broker.start()
        except BrokerFailed as failed:
            raise Found("fault", str(failed)) from failed
        self._beside = self._witness_connections()
        self._read_back()
        self._judge_process()
        self._counts.restarts += 1

    def _address(self, name: str) -> Address:
        host, _, port = self._broker.address_of(name).rpartition(":")
        return host, int(port)

    def _witness_connections(self) -> dict[str, _Beside]:
        return {name: _Beside(wire, self._address(name)) for name, wire in self._wires.items()}

    def _read_back(self) -> None:
        """Let each witness read all of its data and disconnect."""
        for name, witness in self._witnesses.items():
            self._aside(name, witness.read_back)
            self._beside[name].close()

    def _aside(self, name: str, act: Callable[[Ask], None]) -> None:
        try:
            act(self._beside[name].ask)
        except (AssertionError, OSError, ValueError) as error:
            raise Found("witness", f"{name}: {type(error).__name__}: {error}") from error

    def _judge(self, talk: _Talk) -> None:
        """Judge the answers, unless some were lost on the way."""
        self._counts.connections += 1
        if talk.was_reset or talk.delivery.ending == "cut":
            return
        sent = b"".join(talk.delivery.chunks)
        judged = judge(
            self._wires[talk.delivery.wire],
            FRAME_BYTES,
            sent,
            bytes(talk.received),
            talk.delivery.ending,
        )
        self._counts.frames += judged.requests
        self._counts.answers += judged.answers

    def _judge_process(self) -> None:
        """Check that the broker runs, without a fault in its log and within its memory limit."""
        log = self._log.read_text(errors="replace")
        if any(fault in log for fault in _FAULTS) or not self._broker.is_alive():
            raise Found("fault", self._broker.log_tail())
        peak = _peak_bytes(self._broker.pid)
        if peak > PEAK_BYTES_MAX:
            raise Found("memory", f"the broker took {peak >> 20} MiB")


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def fuzz_sockets(
    run: str,
    seed: int,
    is_over: Callable[[int], bool],
    directory: Path,
    counts: Counts,
) -> Failure | None:
    """Start a broker in this directory and fuzz it until ``is_over(connections so far)``."""
    rng = Random(f"{seed}/{run}/sockets")
    wires = wires_of(run)
    log = directory / "log"
    made: list[Delivery] = []
    with BrokerProcess(directory / "data", log, SETTINGS, formats=tuple(wires)) as broker:
        broker.start()
        try:
            desk = SocketDesk(wires, broker, log, counts)
            while not is_over(len(made)):
                group = draw(rng, wires)
                made += group
                desk.deliver(group, is_witnessed=rng.random() < 1 / WITNESS_EVERY)
            desk.finish()
        except Found as found:
            case = Case(run, "tight", tuple(made[-KEPT:]))
            return Failure(seed, None, case, found, is_repeatable=False)
        broker.stop()
    return None
