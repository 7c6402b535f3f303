# Tests: tests/test_memory_limits.py
"""Run a broker out of memory, again and again, for moments and for seconds.

Clients of one wire format write records of 1 KiB to 9 MiB and read them. During that, `RLIMIT_AS`
of the broker goes down to its present size, or near it, and up again. After each step the broker
has to answer a produce while ``/health/ready`` says 200, or to have ended with `ENDED`. SIGTERM has
to end it within `STOP_SECONDS`. After the last end a broker without limits has to have every
acknowledged record once::

    python -m benchmarks.memory_limits --format flymq --steps 30 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import random
import resource
import struct
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from brokerd.client.blipmq import BlipmqClient
from brokerd.client.flymq import FlymqClient
from brokerd.client.mamamia import MamamiaClient
from brokerd.client.mega import MegaClient
from brokerd.client.rustlog import RustlogClient
from brokerd.errors import BrokerdError

from .process import BrokerFailed, BrokerProcess, interrupt_on_signals

MIB = 1 << 20
SETTINGS = ("wal.segment_bytes=1048576", "wal.snapshot_interval_bytes=8388608")
ENDED = (74,)
"""Exit codes of a broker that ends for lack of memory."""
STOPPED = (0, *ENDED)
"""Exit codes after SIGTERM."""
ANSWER_SECONDS = 60.0
"""Longest time to an answer after a step."""
STOP_SECONDS = 120.0
"""Longest time from SIGTERM to the end."""
FORMATS = ("mamamia", "flymq", "blipmq", "rustlog", "mega")
TOPIC, PROBE = "records", "probe"

_HEAD = struct.Struct("<Q16s")
_SIZES = (1 << 10, 16 << 10, 200 << 10, 1 << 20, 3 << 20, 9 << 20)
_SPARE_BYTES = (0, 0, 64 << 10, 1 << 20, 4 << 20, 12 << 20, 30 << 20)
_SECONDS = (0.02, 0.1, 0.5, 2.0, 4.0)
_AWAY_SECONDS = 0.05
_CLIENT_SECONDS = 10.0


class Form:
    """A wire format's functions to connect, to write a record durably, and to read a topic."""

    def __init__(
        self,
        connect: Callable[[str], Any],
        produce: Callable[[Any, str, bytes], object],
        read: Callable[[Any, threading.Event], object],
    ) -> None:
        self.connect = connect
        self.produce = produce
        self.read = read


def _publish(client: BlipmqClient, topic: str, value: bytes) -> None:
    client.publish(topic, value)
    client.flush()


def _lease(client: MamamiaClient, over: threading.Event) -> None:
    while not over.is_set():
        found = client.acquire(TOPIC, "g", "c", 5.0, 0.2)
        if found is not None:
            client.settle(TOPIC, "g", found.id, "c", True)


def _subscribe(client: BlipmqClient, over: threading.Event) -> None:
    subscription = client.subscribe(TOPIC)
    while not over.is_set():
        delivery = client.receive(subscription, 0.2)
        if delivery is not None:
            client.ack(delivery)


def _fetch(client: FlymqClient, over: threading.Event) -> None:
    offset = 0
    while not over.is_set():
        records = client.fetch(TOPIC, 0, offset, 10).records
        offset = records[-1].offset + 1 if records else 0
        over.wait(0.05)


def _again(client: Any, over: threading.Event) -> None:
    while not over.is_set():
        for _ in client.read(TOPIC):
            if over.is_set():
                break
        over.wait(0.05)


FORMS: Mapping[str, Form] = {
    "mamamia": Form(
        lambda address: MamamiaClient(address, timeout=_CLIENT_SECONDS),
        lambda client, topic, value: client.produce(topic, value),
        _lease,
    ),
    "flymq": Form(
        lambda address: FlymqClient(address, timeout=_CLIENT_SECONDS),
        lambda client, topic, value: client.produce(topic, value),
        _fetch,
    ),
    "blipmq": Form(
        lambda address: BlipmqClient(address, timeout=_CLIENT_SECONDS), _publish, _subscribe
    ),
    "rustlog": Form(
        lambda address: RustlogClient(address, timeout=_CLIENT_SECONDS),
        lambda client, topic, value: client.produce(topic, [value]),
        _again,
    ),
    "mega": Form(
        lambda address: MegaClient(address, timeout=_CLIENT_SECONDS),
        lambda client, topic, value: client.produce(topic, value),
        _again,
    ),
}


def make_value(seed: int, number: int, size: int) -> bytes:
    """Return a value that starts with its number and the digest of the other bytes."""
    rest = random.Random(f"{seed}:{number}").randbytes(1 << 10) * (size >> 10)
    return _HEAD.pack(number, hashlib.md5(rest).digest()) + rest


def number_of(value: bytes) -> int | None:
    """Return the number of a value, or None if the value is damaged."""
    number, digest = _HEAD.unpack_from(value)
    return number if hashlib.md5(value[_HEAD.size :]).digest() == digest else None


class Run:
    """A run of one format with one seed."""

    def __init__(
        self, wire_format: str, seed: int, directory: Path, say: Callable[[str], None] = print
    ) -> None:
        self.wire_format = wire_format
        self.seed = seed
        self.findings: list[str] = []
        self.acknowledged: list[int] = []
        self.ends: list[int] = []
        """Exit codes of brokers that ended for lack of memory."""
        self.log = directory / "broker.log"
        self._chance = random.Random(seed)
        self._say = say
        self._over = threading.Event()
        self._numbers = iter(range(1, 1 << 40))
        self._numbers_lock = threading.Lock()
        self._broker = BrokerProcess(directory / "data", self.log, SETTINGS)

    def run(self, steps: int) -> None:
        """Take the steps, end the broker, and check the records."""
        with self._broker as broker:
            broker.start()
            with FlymqClient(broker.address_of("flymq")) as client:
                client.create_topic(TOPIC)
                client.create_topic(PROBE)
            threads = [
                threading.Thread(target=self._client, args=(work,), daemon=True)
                for work in (self._write, self._write, FORMS[self.wire_format].read)
            ]
            for thread in threads:
                thread.start()
            for step in range(steps):
                time.sleep(self._chance.uniform(0.1, 0.6))
                self._step(step)
                if self.findings:
                    break
            is_short = self._chance.random() < 0.5
            if is_short:
                self._limit(self._chance.choice(_SPARE_BYTES))
            self._end()
            self._over.set()
            for thread in threads:
                thread.join(_CLIENT_SECONDS + ANSWER_SECONDS)
            broker.start()
            self._check_records()
            broker.kill()

    def _client(self, work: Callable[[Any, threading.Event], object]) -> None:
        """Run ``work`` over one connection after another."""
        while not self._over.is_set():
            with suppress(OSError, BrokerdError, ValueError, EOFError):
                client = FORMS[self.wire_format].connect(self._broker.address_of(self.wire_format))
                with client:
                    work(client, self._over)
            self._over.wait(_AWAY_SECONDS)

    def _write(self, client: Any, over: threading.Event) -> None:
        chance = random.Random(f"{self.seed}:{threading.get_ident()}")
        while not over.is_set():
            with self._numbers_lock:
                number = next(self._numbers)
            value = make_value(self.seed, number, chance.choice(_SIZES))
            FORMS[self.wire_format].produce(client, TOPIC, value)
            self.acknowledged.append(number)

    def _step(self, step: int) -> None:
        spare = self._chance.choice(_SPARE_BYTES)
        seconds = self._chance.choice(_SECONDS)
        self._limit(spare)
        time.sleep(seconds)
        before = len(self.acknowledged)
        is_lifted = self._chance.random() < 0.8
        if is_lifted:
            self._limit(None)
        outcome = self._outcome()
        self._limit(None)
        self._say(
            f"{self.wire_format} step {step}: {spare >> 10} KiB for {seconds} s"
            f"{'' if is_lifted else ' and on'}: {outcome}, {before} acknowledged"
        )

    def _limit(self, spare: int | None) -> None:
        """Limit the broker to its present size plus ``spare`` bytes; None lifts the limit."""
        with suppress(ProcessLookupError, FileNotFoundError, BrokerFailed):
            size = resource.RLIM_INFINITY
            if spare is not None:
                size = self._broker.memory_bytes("VmSize") + spare
            limits = (size, resource.RLIM_INFINITY)
            resource.prlimit(self._broker.pid, resource.RLIMIT_AS, limits)

    def _outcome(self) -> str:
        """Wait until the broker answers a produce or has ended; if it has ended, start it again."""
        deadline = time.monotonic() + ANSWER_SECONDS
        said = ""
        while time.monotonic() < deadline:
            if not self._broker.is_alive():
                return self._ended()
            ready, said = self._ready(), self._probe()
            if ready and said in ("answered", "refused"):
                return said
            time.sleep(0.1)
        if self._broker.is_alive():
            self.findings.append(
                f"no produce is answered within {ANSWER_SECONDS:g} s (last: {said}), and "
                f"/health/ready says {200 if self._ready() else 503}"
            )
        return said

    def _ended(self) -> str:
        code = self._broker.exit_code()
        assert code is not None
        self.ends.append(code)
        if code not in ENDED:
            self.findings.append(f"the broker ended with {code}: {self._broker.log_tail()}")
        self._broker.start()
        return f"ended with {code}"

    def _probe(self) -> str:
        wire_format = FORMS[self.wire_format]
        try:
            with wire_format.connect(self._broker.address_of(self.wire_format)) as client:
                wire_format.produce(client, PROBE, b"x" * 1024)
            return "answered"
        except TimeoutError:
            return "silent"
        except OSError as error:
            return type(error).__name__
        except (BrokerdError, ValueError, EOFError) as error:
            return f"{type(error).__name__}: {error}" if "refus" not in str(error) else "refused"

    def _ready(self) -> bool:
        with suppress(OSError):
            url = f"http://{self._broker.admin}/health/ready"
            with urllib.request.urlopen(url, timeout=_CLIENT_SECONDS) as answer:
                return bool(answer.status == 200)
        return False

    def _end(self) -> None:
        if self._chance.random() < 0.3:
            self._broker.kill()
            return
        begin = time.monotonic()
        try:
            code = self._broker.stop(STOP_SECONDS)
        except BrokerFailed as error:
            self.findings.append(str(error))
            self._broker.kill()
            return
        self._say(f"{self.wire_format} SIGTERM: {code} after {time.monotonic() - begin:.1f} s")
        if code not in STOPPED:
            self.findings.append(f"SIGTERM ended with {code}: {self._broker.log_tail()}")

    def _check_records(self) -> None:
        """Compare the topic with the acknowledged records."""
        found: dict[int, int] = {}
        with RustlogClient(self._broker.address_of("rustlog"), timeout=60.0) as client:
            for offset, value in client.read(TOPIC):
                number = number_of(value)
                if number is None:
                    self.findings.append(f"offset {offset} is damaged")
                else:
                    found[number] = found.get(number, 0) + 1
        missing = [number for number in self.acknowledged if number not in found]
        double = [number for number, count in found.items() if count > 1]
        if missing:
            self.findings.append(f"acknowledged and missing: {missing[:10]}")
        if double:
            self.findings.append(f"stored twice: {double[:10]}")
        self._say(f"{self.wire_format}: {len(self.acknowledged)} acknowledged, {len(found)} stored")


def main(arguments: Sequence[str]) -> int:
    """Run the formats one after another; return 1 after a finding."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory_limits")
    parser.add_argument("--format", choices=FORMATS, action="append")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path)
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    code = 0
    for wire_format in options.format or FORMATS:
        with tempfile.TemporaryDirectory(prefix="brokerd-memory-", dir=options.dir) as directory:
            run = Run(wire_format, options.seed, Path(directory))
            run.run(options.steps)
            for finding in run.findings:
                code = 1
                print(
                    f"{wire_format}, seed {options.seed}: {finding}\n{log_head(run.log)}",
                    flush=True,
                )
    return code


def log_head(log: Path, lines: int = 60) -> str:
    """Return the last lines of the broker's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
