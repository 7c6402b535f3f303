# Tests: tests/test_bench_formats.py
"""RustLog's binary dialect under load: Produce with a record or many, Fetch of 1 MiB.

Page: docs/protocols/rustlog.rst.
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
from brokerd.cli.bench.formats.roles import (
    REFUSED,
    FollowRole,
    ParseAnswer,
    ParsedAnswer,
    RepeatRole,
    spread,
)
from brokerd.cli.bench.scenarios import Role
from brokerd.cli.credentials import Credentials
from brokerd.client.rustlog import RustlogClient
from brokerd.codecs.rustlog import CODECS, Dialect, Fetch, Produce
from brokerd.errors import BrokerdError

FETCH_BYTES = 1 << 20
_FILL_BATCH = 1000
_ENCODE = CODECS[Dialect.BINARY].encode_request
_LENGTH_TYPE = Struct(">IB")
_COUNT = Struct(">I")
_NEXT = Struct(">Q")
_COUNT_AT = _LENGTH_TYPE.size
_PRODUCED, _FETCHED = 1, 2


class RustlogFormat:
    """See `BenchFormat`."""

    port = 9092
    scenarios: tuple[str, ...] = ("produce", "produce-batch", "fetch")
    batched: tuple[str, ...] = ("produce-batch",)

    def consumes(self, scenario: str) -> bool:
        return scenario == "fetch"

    def prepare(self, target: TargetSpec) -> LoadTarget:
        try:
            options = target.connection.client_options(target.address)
            with RustlogClient(target.address, timeout=PROBE_SECONDS, **options) as client:
                client.create_topic(target.topic)
        except (BrokerdError, OSError) as error:
            raise BenchFailed(f"{target.address}: {error}; is it a RustLog listener?") from error
        if not self.consumes(target.scenario):
            return LoadTarget(target.topic)
        template = _produce(target.topic, target.size, _FILL_BATCH)
        role = RepeatRole(
            template,
            fill_window(target.backlog, _FILL_BATCH),
            parse_produced(_FILL_BATCH),
            _LENGTH_TYPE.size,
        )
        return LoadTarget(target.topic, records=pump(target, self.open, role))

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """Do nothing: the format has no greeting."""

    def role(self, spec: LoadSpec, number: int) -> Role:
        if not self.consumes(spec.scenario):
            batch = spec.batch if spec.scenario == "produce-batch" else 1
            template = _produce(spec.topic, spec.size, batch)
            return RepeatRole(template, spec.window, parse_produced(batch), _LENGTH_TYPE.size)
        starts = spread(number, spec.connections, spec.window, spec.records)

        def fetch(offset: int) -> bytes:
            return before + offset.to_bytes(8, "big") + after

        whole = _ENCODE(Fetch(spec.topic, 0, 0, FETCH_BYTES))
        before, after = whole[:-12], whole[-4:]
        return FollowRole(fetch, starts, spec.records, parse_fetched)


def _produce(topic: str, size: int, batch: int) -> bytes:
    return _ENCODE(Produce(topic, 0, [b"x" * size] * batch))


def parse_produced(batch: int) -> ParseAnswer:
    """A `ParseAnswer` for answers to Produce with so many records."""

    def parse(data: bytes, at: int) -> ParsedAnswer | None:
        if len(data) - at < _LENGTH_TYPE.size:
            return None
        length, kind = _LENGTH_TYPE.unpack_from(data, at)
        stop = at + 4 + length
        if stop > len(data):
            return None
        return ParsedAnswer(stop, batch if kind == _PRODUCED else REFUSED)

    return parse


def parse_fetched(data: bytes, at: int) -> ParsedAnswer | None:
    """A `ParseAnswer` for answers to Fetch."""
    if len(data) - at < _LENGTH_TYPE.size:
        return None
    length, kind = _LENGTH_TYPE.unpack_from(data, at)
    stop = at + 4 + length
    if stop > len(data):
        return None
    if kind != _FETCHED:
        return ParsedAnswer(stop, REFUSED)
    (count,) = _COUNT.unpack_from(data, at + _COUNT_AT)
    (next_offset,) = _NEXT.unpack_from(data, stop - _NEXT.size)
    return ParsedAnswer(stop, count, next_offset)
