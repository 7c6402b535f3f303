# Tests: tests/test_stalls.py
"""Measure two tenants with quotas beside clients that take all they can, all at once.

``python -m benchmarks.tenants [--minutes 10] [--peers 100] [--json]``. One broker serves, at the
same time: the heavy requests of `benchmarks.neighbours`, without those of new groups; clients of
each format that ask for records of 1 MB and never read, and clients that do not finish frames of 3
MB (`benchmarks.claims`); and two tenants, whose quotas promise them a rate of produces. A tenant
always has `WINDOW` produces under way. A consumer of each tenant leases and settles what it
produced, and checks that each acknowledged message comes, in order.

The report has the produces of each tenant in percent of the promised rate, over the whole run and
in its worst interval; their latencies; and resident memory and claims along the run.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from brokerd.cli.bench.machine import describe
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient, MamamiaError
from brokerd.client.mega import MegaClient
from brokerd.codecs import mamamia

from .admin import fetch_status
from .claims import RECORD_BYTES, RECORDS, TOPIC, Peers, cases, numbers, reads, unfinished
from .neighbours import CASES, TOPICS
from .process import BrokerFailed, BrokerProcess, die_with_parent, interrupt_on_signals

MINUTES = 10.0
PEERS = 100
WINDOW = 32
INTERVAL_SECONDS = 10.0
MIB = 1 << 20
PROMISES = {"127.0.0.2": 200, "127.0.0.3": 50}
"""Address of a tenant -> produces a second."""
NOT_SENT = ("idle", "windows", "acquires", "groups")
"""Cases that are light, a smaller flood, and those whose requests make groups without end."""
SETTINGS = ("retention.bytes=67108864", "retention.check_seconds=5")
"""The broker removes what the heavy clients wrote, and what the tenants' consumers have had."""
_TIMEOUT_SECONDS = 120.0
_POLL_SECONDS = 0.05


@dataclass
class Tenant:
    """The figures of one tenant."""

    address: str
    promised: int
    """Produces a second."""
    produced: int = 0
    percent: float = 0.0
    """Produces in percent of the promise."""
    worst_percent: float = 0.0
    """The same in the worst interval of `INTERVAL_SECONDS`."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    consumed: int = 0


class Producer(threading.Thread):
    """Produces numbered messages, always `WINDOW` at a time, from an address of its own."""

    def __init__(self, broker: str, tenant: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._broker, self._tenant, self._over = broker, tenant, over
        self.acknowledged: list[float] = []
        """Times of the answers."""
        self.latencies_ms: list[float] = []
        self.failure = ""

    def run(self) -> None:
        try:
            self._produce()
        except (OSError, AssertionError) as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _produce(self) -> None:
        host, _, port = self._broker.rpartition(":")
        with socket.create_connection(
            (host, int(port)), _TIMEOUT_SECONDS, source_address=(self._tenant, 0)
        ) as wire:
            reader, sent = mamamia.FrameReader(), deque[float]()
            number = 0
            while not self._over.is_set() or sent:
                while len(sent) < WINDOW and not self._over.is_set():
                    message = mamamia.Produce(self._tenant, str(number).encode())
                    wire.sendall(mamamia.encode_request(message))
                    sent.append(time.monotonic())
                    number += 1
                data = wire.recv(65_536)
                assert data, "the broker closed the connection of a tenant"
                now = time.monotonic()
                for command, body in reader.feed(data):
                    answer = mamamia.decode_response(command, body)
                    assert isinstance(answer, mamamia.Produced), answer
                    self.acknowledged.append(now)
                    self.latencies_ms.append((now - sent.popleft()) * 1000)


class Consumer(threading.Thread):
    """Leases and settles what a tenant produced, and checks the order of its numbers."""

    def __init__(self, broker: str, tenant: str, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self._broker, self._tenant, self._over = broker, tenant, over
        self.consumed = 0
        self.failure = ""

    def run(self) -> None:
        try:
            with MamamiaClient(self._broker, timeout=_TIMEOUT_SECONDS) as client:
                idle_since = None
                while idle_since is None or time.monotonic() - idle_since < 5.0:
                    found = client.acquire_batch(self._tenant, "g", "c", 500, 600.0, 0.5)
                    for one in found:
                        assert one.payload == str(self.consumed).encode(), (
                            f"message {self.consumed} of {self._tenant} is missing: "
                            f"{one.payload!r} came"
                        )
                        self.consumed += 1
                    if found:
                        client.settle_batch(
                            self._tenant,
                            "g",
                            "c",
                            [mamamia.BatchSettle(one.id, True) for one in found],
                        )
                        idle_since = None
                    elif self._over.is_set():
                        idle_since = idle_since or time.monotonic()
        except (OSError, AssertionError, MamamiaError) as error:
            self.failure = f"{type(error).__name__}: {error}"


class Heavy:
    """The processes that send heavy requests. A process that ends is started again."""

    def __init__(self, broker: BrokerProcess, stack: ExitStack) -> None:
        self._broker, self._stack = broker, stack
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.restarts = 0

    def keep(self) -> None:
        """Start the processes that do not run."""
        for name, case in CASES.items():
            running = self._processes.get(name)
            if name in NOT_SENT or (running is not None and running.poll() is None):
                continue
            self.restarts += running is not None
            address = self._broker.address_of(case.wire_format)
            self._processes[name] = process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.neighbours", "--attack", name, address],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent,
            )
            self._stack.callback(process.kill)

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
            process.wait()


class Claimants:
    """Clients that never read, of each format, and clients that do not finish their frames."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        self._broker, self._count = broker, count
        self._peers: dict[str, Peers] = {}

    def renew(self) -> None:
        """Let new clients take the place of those before, which the broker may have closed."""
        self.close()
        for case in cases():
            wire_format = case.partition("-")[2] or "mamamia"
            address = self._broker.address_of(wire_format)
            asking = numbers(wire_format, address, self._count)

            def make(
                number: int, wire_format: str = wire_format, asking: Sequence[int] = asking
            ) -> bytes:
                return reads(wire_format, asking[number])

            begins = unfinished if case == "unfinished" else make
            self._peers[case] = Peers(address, self._count, begins)

    def send(self) -> None:
        for peers in self._peers.values():
            peers.send()

    def close(self) -> None:
        for peers in self._peers.values():
            peers.close()
        self._peers.clear()


@dataclass
class Report:
    """The figures of a run."""

    seconds: float
    tenants: list[Tenant]
    memory_mib: list[int]
    """Resident memory at ten times along the run, and its peak."""
    claimed_mib: list[int]
    """Claims on the budget at the same times."""
    limit_mib: int
    cut: int
    """Connections that the broker closed for their claims."""
    restarts: int
    """Processes of heavy clients that ended, and were started again."""


def run(directory: Path, seconds: float, peers: int, topics: int = TOPICS) -> Report:
    """Run all at once for ``seconds``.

    :raises BrokerFailed: the broker or a tenant fails, or a message is lost.
    """
    with ExitStack() as stack:
        broker = stack.enter_context(
            BrokerProcess(directory / "data", directory / "log", settings=SETTINGS)
        )
        broker.start()
        _prepare(broker, topics)
        tenants_over, consumers_over = threading.Event(), threading.Event()
        producers = {one: Producer(broker.address, one, tenants_over) for one in PROMISES}
        consumers = {one: Consumer(broker.address, one, consumers_over) for one in PROMISES}
        claimants = Claimants(broker, peers)
        stack.callback(claimants.close)
        heavy = Heavy(broker, stack)
        heavy.keep()
        claimants.renew()
        begun = time.monotonic()
        for thread in (*producers.values(), *consumers.values()):
            thread.start()
        memory: list[int] = []
        claimed: list[int] = []
        renewed = begun
        while (now := time.monotonic()) < begun + seconds:
            claimants.send()
            if now - renewed > INTERVAL_SECONDS:
                renewed = now
                heavy.keep()
                claimants.renew()
            if now >= begun + len(memory) * seconds / 10:
                memory.append(broker.memory_bytes() // MIB)
                budget = fetch_status(broker.admin).get("memory", {})
                claimed.append(sum(budget.get("claimed_bytes", {}).values()) // MIB)
            time.sleep(_POLL_SECONDS)
        tenants_over.set()
        for producer in producers.values():
            producer.join(_TIMEOUT_SECONDS)
        status = fetch_status(broker.admin).get("memory", {})
        heavy.stop()
        claimants.close()
        consumers_over.set()
        for consumer in consumers.values():
            consumer.join(_TIMEOUT_SECONDS)
        memory.append(broker.memory_bytes("VmHWM") // MIB)
        found = [_tenant(one, begun, seconds, producers[one], consumers[one]) for one in PROMISES]
        broker.stop(_TIMEOUT_SECONDS)
    return Report(
        seconds,
        found,
        memory,
        claimed,
        status.get("budget_bytes", 0) // MIB,
        status.get("cut", 0),
        heavy.restarts,
    )


def _prepare(broker: BrokerProcess, topics: int) -> None:
    """Set the quotas, and make the topics that the other clients read and list."""
    brokerctl = [str(Path(sys.executable).with_name("brokerctl")), "--server"]
    brokerctl.append(f"http://{broker.admin}")
    for address, promised in PROMISES.items():
        limit = ["quota", "set", "address", address, "--requests", str(promised)]
        subprocess.run([*brokerctl, *limit], check=True, stdout=subprocess.DEVNULL)
    with MegaClient(broker.address_of("mega"), timeout=_TIMEOUT_SECONDS) as producer:
        producer.create_topic(TOPIC)
        for number in range(RECORDS):
            producer.produce(TOPIC, bytes([number]) * RECORD_BYTES)
    with FlymqClient(broker.address_of("flymq"), timeout=_TIMEOUT_SECONDS) as client:
        for number in range(topics):
            client.create_topic(f"topic-{number:05}")


def _tenant(
    address: str, begun: float, seconds: float, producer: Producer, consumer: Consumer
) -> Tenant:
    """Return the figures of a tenant. Raises BrokerFailed if it failed or lost a message."""
    produced = len(producer.acknowledged)
    for failure in (producer.failure, consumer.failure):
        if failure:
            raise BrokerFailed(f"tenant {address}: {failure}")
    if consumer.consumed < produced:
        raise BrokerFailed(
            f"tenant {address}: {produced} messages are acknowledged, {consumer.consumed} came"
        )
    promised = PROMISES[address]
    counts = [0] * max(1, int(seconds / INTERVAL_SECONDS))
    for moment in producer.acknowledged:
        index = int((moment - begun) / seconds * len(counts))
        if index < len(counts):
            counts[index] += 1
    interval = seconds / len(counts)
    latencies = sorted(producer.latencies_ms)
    return Tenant(
        address,
        promised,
        produced,
        round(100 * sum(counts) / (promised * seconds), 1),
        round(100 * min(counts) / (promised * interval), 1),
        round(statistics.median(latencies), 1),
        round(latencies[len(latencies) * 99 // 100], 1),
        consumer.consumed,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tenants", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument(
        "--peers", type=int, default=PEERS, help="clients of each kind that hold memory"
    )
    parser.add_argument("--topics", type=int, default=TOPICS, help="topics that are listed")
    parser.add_argument("--directory", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    try:
        with tempfile.TemporaryDirectory(prefix=".bench-", dir=options.directory) as name:
            machine = describe(Path(name))
            report = run(Path(name), options.minutes * 60, options.peers, options.topics)
    except (BrokerFailed, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"machine": asdict(machine), "durability": "fsync", **asdict(report)}))
        return 0
    print(machine.text())
    print(f"durability fsync; {report.seconds:.0f} s, each tenant with {WINDOW} produces under way")
    for one in report.tenants:
        print(
            f"  {one.address}: {one.produced} produces, {one.percent} % of {one.promised}/s "
            f"(worst interval {one.worst_percent} %); latency p50 {one.p50_ms} p99 {one.p99_ms} "
            f"ms; {one.consumed} consumed in order"
        )
    print(
        f"  resident MiB along the run {report.memory_mib[:-1]}, peak {report.memory_mib[-1]}; "
        f"claims {report.claimed_mib}; "
        f"limits.memory {report.limit_mib} MiB; {report.cut} connections cut; "
        f"{report.restarts} heavy clients restarted"
    )
    return 0


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        sys.exit(main())
