# Tests: tests/broker/test_broker.py
"""Log lines about the clocks of a broker."""

from __future__ import annotations

from twisted.logger import Logger

from brokerd.broker.clock import BrokerTime

_log = Logger()


def report_jump(from_us: int, to_us: int) -> None:
    """Log that broker time jumped forward with the wall clock."""
    _log.warn(
        "the wall clock jumped forward by {seconds} s, and broker time with it",
        seconds=(to_us - from_us) // 1_000_000,
        event_id="clock-jump",
    )


def report_ahead(time: BrokerTime) -> None:
    """Log that broker time became untrusted, or that it is trusted again."""
    if time.ahead_us:
        _log.warn(
            "{problem}",
            problem=time.problem,
            seconds=time.ahead_us // 1_000_000,
            event_id="clock-ahead",
        )
    else:
        _log.info("broker time is trusted again", event_id="clock-right")
