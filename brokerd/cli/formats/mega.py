# Tests: tests/test_bench_formats.py
"""MEGA under load: PRODUCE, and CONSUME along the offsets. Page: docs/protocols/mega.rst."""

from __future__ import annotations

import socket
from struct import Struct

from brokerd.cli.credentials import Credentials
from brokerd.cli.formats.ground import (
    PROBE_SECONDS,
    BenchFailed,
    Ground,
    LoadSpec,
    Wanted,
    fill_window,
    pump,
)
from brokerd.cli.formats.roles import REFUSED, Following, Repeating, Seen, spread
from brokerd.cli.scenarios import Role
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

    def prepare(self, wanted: Wanted) -> Ground:
        try:
            options = wanted.way.client_options(wanted.address)
            with MegaClient(wanted.address, timeout=PROBE_SECONDS, **options) as client:
                client.create_topic(wanted.log)
        except (BrokerdError, OSError) as error:
            raise BenchFailed(f"{wanted.address}: {error}; is it a MEGA listener?") from error
        if not self.consumes(wanted.scenario):
            return Ground(wanted.log)
        role = Repeating(
            _produce(wanted.log, wanted.size), fill_window(wanted.backlog), look_produced
        )
        return Ground(wanted.log, records=pump(wanted, self.open, role))

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """There is no greeting."""

    def role(self, spec: LoadSpec, number: int) -> Role:
        if not self.consumes(spec.scenario):
            return Repeating(_produce(spec.log, spec.size), spec.window, look_produced)
        starts = spread(number, spec.connections, spec.window, spec.records)

        def consume(offset: int) -> bytes:
            return before + offset.to_bytes(4, "big") + after

        whole = encode_request(Consume(1, spec.log, 0, 0))
        before, after = whole[:-8], whole[-4:]
        return Following(consume, starts, spec.records, look_consumed)


def _produce(log: str, size: int) -> bytes:
    return encode_request(Produce(1, log, 0, b"x" * size))


def look_produced(data: bytes, at: int) -> Seen | None:
    """A `Look` at an answer to PRODUCE."""
    if len(data) - at < _REFUSED_BYTES:
        return None
    if not data[at + _FLAG_AT]:
        return Seen(at + _REFUSED_BYTES, REFUSED)
    stop = at + _PRODUCED_BYTES
    return Seen(stop, 1) if stop <= len(data) else None


def look_consumed(data: bytes, at: int) -> Seen | None:
    """A `Look` at an answer to CONSUME."""
    there = len(data) - at
    if there < _REFUSED_BYTES:
        return None
    if not data[at + _FLAG_AT]:
        return Seen(at + _REFUSED_BYTES, REFUSED)
    if there < _CONSUMED_BYTES:
        return None
    next_offset, length = _NEXT_LENGTH.unpack_from(data, at)
    stop = at + _CONSUMED_BYTES + length
    return Seen(stop, 1, next_offset) if stop <= len(data) else None
