# Tests: tests/test_bench_formats.py
"""FlyMQ under load: PRODUCE, and FETCH of many records, as the SDKs lay them out.

Page: docs/protocols/flymq.rst.
"""

from __future__ import annotations

import socket
from struct import Struct

from brokerd.cli.bench.formats.base import (
    PROBE_SECONDS,
    BenchFailed,
    LoadSpec,
    LoadTarget,
    TargetSpec,
    fill_window,
    pump,
)
from brokerd.cli.bench.formats.roles import REFUSED, FollowRole, ParsedAnswer, RepeatRole, spread
from brokerd.cli.bench.scenarios import Role
from brokerd.cli.credentials import Credentials
from brokerd.client.flymq import FlymqClient
from brokerd.codecs.flymq import (
    Auth,
    Failed,
    Fetch,
    Frame,
    FrameReader,
    Opcode,
    Produce,
    decode_answer,
    encode_request,
)
from brokerd.errors import BrokerdError

_HEAD = Struct(">xxBxI")
"""Opcode and payload length of a frame."""
_COUNT_NEXT = Struct(">IQ")


class FlymqFormat:
    """See `BenchFormat`."""

    port = 9092
    scenarios: tuple[str, ...] = ("produce", "fetch")
    batched: tuple[str, ...] = ("fetch",)

    def consumes(self, scenario: str) -> bool:
        return scenario == "fetch"

    def prepare(self, target: TargetSpec) -> LoadTarget:
        try:
            options = target.connection.client_options(target.address)
            login = target.connection.credentials
            if login.password:
                options |= {"user": login.user, "password": login.password}
            with FlymqClient(target.address, timeout=PROBE_SECONDS, delays=(), **options) as client:
                client.create_topic(target.topic)
        except (BrokerdError, OSError) as error:
            raise BenchFailed(f"{target.address}: {error}; is it a FlyMQ listener?") from error
        if not self.consumes(target.scenario):
            return LoadTarget(target.topic)
        role = RepeatRole(
            _produce(target.topic, target.size),
            fill_window(target.backlog),
            parse_produced,
            _HEAD.size,
        )
        return LoadTarget(target.topic, records=pump(target, self.open, role))

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Send AUTH and check its answer, if there is a password."""
        if not credentials.password:
            return
        login = Auth(credentials.user, credentials.password)
        sock.sendall(encode_request(login))
        reader = FrameReader()
        frames: list[Frame] = []
        while not frames:
            data = sock.recv(1 << 16)
            frames += reader.feed(data)
            if not data or reader.error is not None:
                raise OSError("the connection ended during the login")
        opcode, _, payload = frames[0]
        answer = decode_answer(login, opcode, payload)
        if isinstance(answer, Failed):
            raise OSError(f"the login was answered {answer.text!r}")

    def role(self, spec: LoadSpec, number: int) -> Role:
        if not self.consumes(spec.scenario):
            return RepeatRole(
                _produce(spec.topic, spec.size), spec.window, parse_produced, _HEAD.size
            )
        starts = spread(number, spec.connections, spec.window, spec.records)

        def fetch(offset: int) -> bytes:
            return before + offset.to_bytes(8, "big") + after

        last = encode_request(Fetch(spec.topic, 0, (1 << 64) - 1, spec.batch, sdk=True))
        at = last.rindex(b"\xff" * 8)
        before, after = last[:at], last[at + 8 :]
        return FollowRole(fetch, starts, spec.records, parse_fetched)


def _produce(topic: str, size: int) -> bytes:
    return encode_request(Produce(topic, None, b"x" * size))


def parse_produced(data: bytes, at: int) -> ParsedAnswer | None:
    """A `ParseAnswer` for answers to PRODUCE."""
    if len(data) - at < _HEAD.size:
        return None
    opcode, length = _HEAD.unpack_from(data, at)
    stop = at + _HEAD.size + length
    if stop > len(data):
        return None
    return ParsedAnswer(stop, 1 if opcode == Opcode.PRODUCE else REFUSED)


def parse_fetched(data: bytes, at: int) -> ParsedAnswer | None:
    """A `ParseAnswer` for answers to FETCH."""
    if len(data) - at < _HEAD.size:
        return None
    opcode, length = _HEAD.unpack_from(data, at)
    stop = at + _HEAD.size + length
    if stop > len(data):
        return None
    if opcode != Opcode.FETCH:
        return ParsedAnswer(stop, REFUSED)
    count, next_offset = _COUNT_NEXT.unpack_from(data, at + _HEAD.size)
    return ParsedAnswer(stop, count, next_offset)
