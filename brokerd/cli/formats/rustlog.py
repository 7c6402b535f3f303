# Tests: tests/test_bench_formats.py
"""RustLog's binary dialect under load: Produce with a record or many, Fetch of 1 MiB.

Page: docs/protocols/rustlog.rst.
"""

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
from brokerd.cli.formats.roles import REFUSED, Following, Look, Repeating, Seen, spread
from brokerd.cli.scenarios import Role
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

    def prepare(self, wanted: Wanted) -> Ground:
        try:
            options = wanted.way.client_options(wanted.address)
            with RustlogClient(wanted.address, timeout=PROBE_SECONDS, **options) as client:
                client.create_topic(wanted.log)
        except (BrokerdError, OSError) as error:
            raise BenchFailed(f"{wanted.address}: {error}; is it a RustLog listener?") from error
        if not self.consumes(wanted.scenario):
            return Ground(wanted.log)
        template = _produce(wanted.log, wanted.size, _FILL_BATCH)
        role = Repeating(
            template, fill_window(wanted.backlog, _FILL_BATCH), look_produced(_FILL_BATCH)
        )
        return Ground(wanted.log, records=pump(wanted, self.open, role))

    def open(self, sock: socket.socket, credentials: Credentials) -> None:
        """There is no greeting."""

    def role(self, spec: LoadSpec, number: int) -> Role:
        if not self.consumes(spec.scenario):
            batch = spec.batch if spec.scenario == "produce-batch" else 1
            template = _produce(spec.log, spec.size, batch)
            return Repeating(template, spec.window, look_produced(batch))
        starts = spread(number, spec.connections, spec.window, spec.records)

        def fetch(offset: int) -> bytes:
            return before + offset.to_bytes(8, "big") + after

        whole = _ENCODE(Fetch(spec.log, 0, 0, FETCH_BYTES))
        before, after = whole[:-12], whole[-4:]
        return Following(fetch, starts, spec.records, look_fetched)


def _produce(log: str, size: int, batch: int) -> bytes:
    return _ENCODE(Produce(log, 0, [b"x" * size] * batch))


def look_produced(batch: int) -> Look:
    """A `Look` at answers to Produce with so many records."""

    def look(data: bytes, at: int) -> Seen | None:
        if len(data) - at < _LENGTH_TYPE.size:
            return None
        length, kind = _LENGTH_TYPE.unpack_from(data, at)
        stop = at + 4 + length
        if stop > len(data):
            return None
        return Seen(stop, batch if kind == _PRODUCED else REFUSED)

    return look


def look_fetched(data: bytes, at: int) -> Seen | None:
    """A `Look` at an answer to Fetch."""
    if len(data) - at < _LENGTH_TYPE.size:
        return None
    length, kind = _LENGTH_TYPE.unpack_from(data, at)
    stop = at + 4 + length
    if stop > len(data):
        return None
    if kind != _FETCHED:
        return Seen(stop, REFUSED)
    (count,) = _COUNT.unpack_from(data, at + _COUNT_AT)
    (next_offset,) = _NEXT.unpack_from(data, stop - _NEXT.size)
    return Seen(stop, count, next_offset)
