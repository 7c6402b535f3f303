# Tests: tests/test_compare.py
"""Other message brokers, for `benchmarks.compare`: how each starts, and its load.

`RIVALS` has them by name. Each is a format of brokerd's load generator, so one generator loads all
of them. The servers come from packages of the system, and a missing one is left out.
"""

from __future__ import annotations

from benchmarks.rivals.base import Rival
from benchmarks.rivals.beanstalkd import BEANSTALKD
from benchmarks.rivals.nats import NATS
from benchmarks.rivals.rabbitmq import RABBITMQ
from benchmarks.rivals.redis import REDIS
from brokerd.cli.bench.formats import FORMATS

__all__ = ["RIVALS", "Rival", "add_rivals"]

RIVALS: dict[str, Rival] = {one.name: one for one in (REDIS, BEANSTALKD, NATS, RABBITMQ)}


def add_rivals() -> None:
    """Add the rivals to the formats of the load generator in this process."""
    FORMATS.update({one.name: one.load for one in RIVALS.values()})
