"""Brokers in memory to be fuzzed: how they are set up, and how their turns are watched."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any, NamedTuple

from brokerd.broker import BrokerSettings
from brokerd.protocols.connection import Limits
from brokerd.wal import WalOptions
from tests.fuzz.found import Found
from tests.fuzz.wire import WireFormat
from tests.house import House

TURNS_MAX = 20_000


class Setup(NamedTuple):
    """Limits and settings of a broker."""

    limits: Limits
    settings: BrokerSettings
    segment_bytes: int


SETUPS = {
    "roomy": Setup(
        Limits(in_flight_bytes=256 << 10),
        BrokerSettings(tail_cache_bytes=1 << 20, read_cache_bytes=1 << 20),
        segment_bytes=1 << 20,
    ),
    "tight": Setup(
        Limits(frame_bytes=64 << 10, in_flight_bytes=32 << 10, in_flight_requests=8),
        BrokerSettings(
            tail_cache_bytes=0,
            read_cache_bytes=0,
            frame_bytes=32 << 10,
            max_uncommitted_bytes=64 << 10,
        ),
        segment_bytes=256 << 10,
    ),
}
"""``roomy`` as brokers are by default, but for what is in flight. ``tight`` meets every limit, and
reads every record from disk."""


class FuzzedHouse(House):
    """A broker that serves a given format, and watches how long its turns compute."""

    def __init__(self, wire: WireFormat, setup: Setup, disk: Any = None) -> None:
        super().__init__(
            disk,
            setup.settings,
            WalOptions(segment_bytes=setup.segment_bytes, free_bytes_min=0),
            setup.limits,
        )
        self.factory = wire.factory(self.broker, self.clock, self.limits)
        self.factory.startFactory()
        self.longest_turn_ms = 0.0
        """Of processor time."""

    def timed(self, call: Callable[..., None], *arguments: object) -> None:
        """Call something that is part of a reactor's turn."""
        began = thread_time()
        call(*arguments)
        self.longest_turn_ms = max(self.longest_turn_ms, (thread_time() - began) * 1e3)

    def run(self) -> None:
        """Go on until nothing is left to do now."""
        for _ in range(TURNS_MAX):
            self.timed(self.turn)
            if not (self._step() or self._is_due()):
                return
        raise Found("hang", f"there is still work after {TURNS_MAX:,} turns")

    def _is_due(self) -> bool:
        calls = self.clock.getDelayedCalls()
        return any(call.getTime() <= self.clock.seconds() for call in calls)

    def let_pass(self, seconds: float) -> None:
        """Let both clocks advance at once."""
        self.wall_seconds += seconds
        self.timed(self.clock.advance, seconds)
        self.run()
