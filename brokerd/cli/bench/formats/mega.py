# Tests: tests/test_bench_formats.py
"""MEGA under load: PRODUCE, and CONSUME along the offsets. Page: docs/protocols/mega.rst."""

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
from brokerd.client.mega import MegaClient
from brokerd.codecs.mega import (
    Consume,
    Produce,
    consumed,
    encode_request,
    produced,
    refused,
)
from brokerd.errors import BrokerdError

_PRODUCED_BYTES = len(produced(0, 0, 0))
_CONSUMED_BYTES = len(consumed(0, 0, 0, b""))
_REFUSED_BYTES = len(refused(0, 1))
_FLAG_AT = 4
_NEXT_LENGTH = Struct(">13xii")
"""Next offset and payload length of an answer to CONSUME."""


class MegaFormat:
    """See `BenchFormat`."""

    port = 8080
    scenarios: tuple[str, ...] = ("produce", "consume")
    batched: tuple[str, ...] = ()

    def consumes(self, scenario: str) -> bool:
        return scenario == "consume"

    def prepare(self, target: TargetSpec) -> LoadTarget:
        try:
            options = target.connection.client_options(target.address)
            with MegaClient(target.address, timeout=PROBE_SECONDS, **options) as client:
                client.create_topic(target.topic)
        except (BrokerdError, OSError) as error:
            raise BenchFailed(f"{target.address}: {error}; is it a MEGA listener?") from error
        if not self.consumes(target.scenario):
            return LoadTarget(target.topic)
        role = RepeatRole(
            _produce(target.topic, target.size),
            fill_window(target.backlog),
            parse_produced,
            _FLAG_AT + 1,
        )
        return LoadTarget(target.topic, records=pump(target, self.open, role))

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Do nothing: the format has no greeting."""

    def role(self, spec: LoadSpec, number: int) -> Role:
        if not self.consumes(spec.scenario):
            return RepeatRole(
                _produce(spec.topic, spec.size), spec.window, parse_produced, _FLAG_AT + 1
            )
        starts = spread(number, spec.connections, spec.window, spec.records)

        def consume(offset: int) -> bytes:
            return before + offset.to_bytes(4, "big") + after

        whole = encode_request(Consume(1, spec.topic, 0, 0))
        before, after = whole[:-8], whole[-4:]
        return FollowRole(consume, starts, spec.records, parse_consumed)


def _produce(topic: str, size: int) -> bytes:
    return encode_request(Produce(1, topic, 0, b"x" * size))


def parse_produced(data: bytes, at: int) -> ParsedAnswer | None:
    """A `ParseAnswer` for answers to PRODUCE."""
    if len(data) - at < _REFUSED_BYTES:
        return None
    if not data[at + _FLAG_AT]:
        return ParsedAnswer(at + _REFUSED_BYTES, REFUSED)
    stop = at + _PRODUCED_BYTES
    return ParsedAnswer(stop, 1) if stop <= len(data) else None


def parse_consumed(data: bytes, at: int) -> ParsedAnswer | None:
    """A `ParseAnswer` for answers to CONSUME."""
    there = len(data) - at
    if there < _REFUSED_BYTES:
        return None
    if not data[at + _FLAG_AT]:
        return ParsedAnswer(at + _REFUSED_BYTES, REFUSED)
    if there < _CONSUMED_BYTES:
        return None
    next_offset, length = _NEXT_LENGTH.unpack_from(data, at)
    stop = at + _CONSUMED_BYTES + length
    return ParsedAnswer(stop, 1, next_offset) if stop <= len(data) else None
