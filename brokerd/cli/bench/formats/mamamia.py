# Tests: tests/test_bench.py
"""Mamamia under load: produce, lease and settle, one message or a batch a request.

Page: docs/protocols/mamamia.rst; the roles are in `brokerd.cli.bench.scenarios`.
"""

from __future__ import annotations

import socket

from brokerd.cli.bench.formats.base import (
    FILL_SILENCE_SECONDS,
    FILL_WINDOW,
    PROBE_SECONDS,
    READ_BYTES,
    BenchFailed,
    LoadSpec,
    LoadTarget,
    TargetSpec,
)
from brokerd.cli.bench.formats.connect_options import PLAIN, ConnectOptions, connect
from brokerd.cli.bench.scenarios import (
    PRODUCE,
    PRODUCE_BATCH,
    SETTLE,
    BatchConsumer,
    Consumer,
    Repeater,
    Role,
    request,
)
from brokerd.cli.credentials import Credentials
from brokerd.errors import ConfigError

_MIXED_WAIT_SECONDS = 1.0
_PROBE = request(SETTLE, {})
"""A request without its required keys: a broker refuses it and changes nothing."""
_HEADER_BYTES = 6


class MamamiaFormat:
    """See `BenchFormat`."""

    port = 9000
    scenarios: tuple[str, ...] = (
        "produce",
        "acquire-settle",
        "mixed",
        "produce-batch",
        "acquire-settle-batch",
    )
    batched: tuple[str, ...] = ("produce-batch", "acquire-settle-batch")

    def consumes(self, scenario: str) -> bool:
        return scenario.startswith("acquire-settle")

    def prepare(self, target: TargetSpec) -> LoadTarget:
        probe(target.address, connection=target.connection)
        if self.consumes(target.scenario):
            fill(
                target.address,
                target.topic,
                target.backlog,
                target.size,
                connection=target.connection,
            )
        return LoadTarget(target.topic)

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Do nothing: the format has no greeting."""

    def role(self, spec: LoadSpec, number: int) -> Role:
        client = f"bench-{spec.worker}-{number}"
        scenario = spec.scenario
        if scenario == "mixed":
            scenario = "produce" if number % 2 == 0 else "acquire-settle"
        if scenario == "produce":
            return Repeater(produce_frame(spec.topic, spec.size), spec.window)
        if scenario == "produce-batch":
            frame = produce_frame(spec.topic, spec.size, spec.batch)
            return Repeater(frame, spec.window, spec.batch)
        if scenario == "acquire-settle":
            wait_seconds = _MIXED_WAIT_SECONDS if spec.scenario == "mixed" else 0.0
            return Consumer(
                spec.topic, spec.group, client, spec.window, spec.lease_seconds, wait_seconds
            )
        return BatchConsumer(
            spec.topic, spec.group, client, spec.window, spec.lease_seconds, spec.batch
        )


def produce_frame(topic: str, size: int, batch: int = 1) -> bytes:
    """Encode a PRODUCE with a payload of ``size`` bytes, or a PRODUCE_BATCH of ``batch``
    payloads.
    """
    message: dict[str, object] = {"payload": b"x" * size, "metadata": None}
    if batch == 1:
        return request(PRODUCE, {"log_id": topic, **message})
    return request(PRODUCE_BATCH, {"log_id": topic, "messages": [message] * batch})


def probe(address: str, seconds: float = PROBE_SECONDS, connection: ConnectOptions = PLAIN) -> None:
    """Check that a broker answers in this format.

    :param seconds: longest wait for the connection, and again for the answer.
    :raises BenchFailed: when it does not; the message says what happened.
    """
    header = b""
    try:
        with connect(address, connection, seconds) as sock:
            sock.sendall(_PROBE)
            while len(header) < _HEADER_BYTES:
                data = sock.recv(_HEADER_BYTES - len(header))
                if not data:
                    raise BenchFailed(
                        f"{address}: closed the connection instead of an answer; is it a Mamamia "
                        "listener, and does it speak TLS or not?"
                    )
                header += data
    except TimeoutError as error:
        raise BenchFailed(
            f"{address}: no answer within {seconds:g} s; is it a Mamamia listener?"
        ) from error
    except (ValueError, ConfigError) as error:
        raise BenchFailed(str(error)) from error
    except OSError as error:
        raise BenchFailed(f"{address}: {error}") from error
    if header[4:] != _PROBE[4:_HEADER_BYTES]:
        raise BenchFailed(f"{address}: the answer is not Mamamia; is it another kind of server?")


def fill(
    address: str,
    topic: str,
    messages: int,
    size: int,
    batch: int = 1,
    connection: ConnectOptions = PLAIN,
) -> None:
    """Produce a backlog through one pipelined connection and wait for all acknowledgements.

    :param batch: messages in a request; 1 uses PRODUCE.
    :raises BenchFailed: when no broker answers, or the broker refuses.
    """
    frame = produce_frame(topic, size, batch)
    window = max(1, FILL_WINDOW // batch)
    role = Repeater(frame, window, batch)
    requests = -(-messages // batch)
    inbox = b""
    asked = answered = 0
    try:
        with connect(address, connection) as sock:
            sock.settimeout(FILL_SILENCE_SECONDS)
            while answered < requests:
                more = min(window - (asked - answered), requests - asked)
                if more:
                    sock.sendall(frame * more)
                    asked += more
                data = sock.recv(READ_BYTES)
                if not data:
                    raise BenchFailed(f"{address}: the connection ended during the backlog")
                inbox += data
                step = role.answers(inbox)
                inbox = inbox[step.consumed :]
                answered += step.answers
                if role.tally.errors:
                    raise BenchFailed(f"{address}: refused the backlog: {role.tally.example}")
    except (OSError, ValueError) as error:
        raise BenchFailed(f"{address}: {error}") from error
