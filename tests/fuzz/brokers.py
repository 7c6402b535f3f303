"""Brokers in memory for the fuzzer: their settings, and the measurement of their turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import thread_time
from typing import Any, NamedTuple

from msgpack import packb

from brokerd.broker import BrokerSettings
from brokerd.protocols.base.connection import Limits
from brokerd.values import Encoding, Format
from brokerd.wal import WalOptions
from tests.fuzz.found import Found
from tests.fuzz.wire import Wires
from tests.house import Client, House

TURNS_MAX = 20_000


class Setup(NamedTuple):
    """Limits and settings of a broker."""

    limits: Limits
    settings: BrokerSettings
    segment_bytes: int
    buffer_bytes: int
    """The most unread bytes of a peer before its connection is paused."""
    tick_seconds: float = 0.0
    """Advance of the clock at each call of it."""
    stock_bytes: int = 0
    """If not 0, the broker begins with records of another format.

    A reader may need this much memory: a megabyte as bytes, as on disk, and as JSON.
    """


_ROOMY = Setup(
    Limits(in_flight_bytes=256 << 10),
    BrokerSettings(tail_cache_bytes=1 << 20, read_cache_bytes=1 << 20),
    segment_bytes=1 << 20,
    buffer_bytes=64 << 10,
)
SETUPS = {
    "roomy": _ROOMY,
    "stocked": _ROOMY._replace(stock_bytes=16 << 20),
    "tight": Setup(
        Limits(frame_bytes=64 << 10, in_flight_bytes=32 << 10, in_flight_requests=8),
        BrokerSettings(
            tail_cache_bytes=0,
            read_cache_bytes=0,
            frame_bytes=16 << 10,
            max_uncommitted_bytes=8 << 10,
        ),
        segment_bytes=256 << 10,
        buffer_bytes=2 << 10,
        tick_seconds=0.004,
    ),
}
"""See docs/fuzzing.rst, A run."""
_LIFE_US = 1_000_000


class FuzzedHouse(House):
    """A broker that serves some formats and measures the processor time of its turns."""

    def __init__(self, wires: Wires, setup: Setup, disk: Any = None) -> None:
        super().__init__(
            disk,
            setup.settings,
            WalOptions(segment_bytes=setup.segment_bytes, free_bytes_min=0),
            setup.limits,
        )
        is_tight = setup is SETUPS["tight"]
        self._factories = {
            name: wire.factory(self.broker, self.clock, self.limits, is_tight)
            for name, wire in wires.items()
        }
        for factory in self._factories.values():
            factory.startFactory()
        if setup.tick_seconds:
            self._let_tick(setup.tick_seconds)
        self._buffer_bytes = setup.buffer_bytes
        self._inner_ms = 0.0
        self.longest_turn_ms = 0.0
        """Processor time in milliseconds."""

    def client(self, wire: str) -> Client:
        """Return a new client of a format."""
        client = Client(self._factories[wire], self.clock)
        client.transport.BUFFER_BYTES = self._buffer_bytes
        received = client.protocol.dataReceived
        client.protocol.dataReceived = lambda data: self.timed(received, data)
        return client

    def _let_tick(self, tick_seconds: float) -> None:
        """Let time pass within a turn, so that shares of a turn are used up."""

        def seconds() -> float:
            self.clock.rightNow += tick_seconds
            now: float = self.clock.rightNow
            return now

        self.clock.seconds = seconds  # type: ignore[method-assign]

    def stock(self, topics: Sequence[str]) -> None:
        """Store records with keys, metadata, MessagePack and expiry, and large ones."""
        for name in topics:
            is_last = name == topics[-1]  # one topic is enough to read a megabyte
            for value, encoding, key, metadata, lives in (
                (packb({"n": 1}), Encoding.MSGPACK, b"k", packb({"ts": 1.5}), True),
                ("é".encode(), Encoding.TEXT, None, None, True),
                (b"gone", Encoding.BYTES, None, None, False),
                (b"gone", Encoding.BYTES, None, None, False),
                (b"fleeting", Encoding.BYTES, None, packb({"qos": 0}), True),
                (bytes(range(256)) * (4_400 if is_last else 400), Encoding.BYTES, None, None, True),
                (b"gone", Encoding.BYTES, None, None, False),
                (b"", Encoding.BYTES, b"", None, True),
            ):
                self.append(
                    name,
                    value,
                    encoding=encoding,
                    key=key,
                    metadata=metadata,
                    producer_format=Format.MAMAMIA,
                    expires_at_us=None if lives else self.broker.appender.expiry_us(_LIFE_US),
                )
        self.let_pass(2 * _LIFE_US / 1e6)

    def timed(self, call: Callable[..., None], *arguments: object) -> None:
        """Call a function and measure it as one turn, without the turns measured within it."""
        others_ms, self._inner_ms = self._inner_ms, 0.0
        began = thread_time()
        call(*arguments)
        whole_ms = (thread_time() - began) * 1e3
        self.longest_turn_ms = max(self.longest_turn_ms, whole_ms - self._inner_ms)
        self._inner_ms = others_ms + whole_ms

    def run(self) -> None:
        """Run until no work is left for now."""
        for _ in range(TURNS_MAX):
            self.timed(self.turn)
            if not (self._step() or self._is_due()):
                return
        raise Found("hang", f"there is still work after {TURNS_MAX:,} turns")

    def _is_due(self) -> bool:
        calls = self.clock.getDelayedCalls()
        return any(call.getTime() <= self.clock.rightNow for call in calls)

    def let_pass(self, seconds: float) -> None:
        """Advance both clocks at once."""
        self.wall_seconds += seconds
        self.timed(self.clock.advance, seconds)
        self.run()
