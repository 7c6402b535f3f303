# Tests: tests/test_bench_formats.py
"""The wire formats of the load generator, one module each; `FORMATS` has them by name.

A format makes a new topic and, where the scenario needs one, a backlog. It opens connections and
gives each a role (`brokerd.cli.bench.scenarios`). A message counts once the broker has confirmed
that it is durable, or has delivered it.
"""

from __future__ import annotations

from brokerd.cli.bench.formats.base import (
    BenchFailed,
    BenchFormat,
    LoadSpec,
    LoadTarget,
    TargetSpec,
)
from brokerd.cli.bench.formats.blipmq import BlipmqFormat
from brokerd.cli.bench.formats.flymq import FlymqFormat
from brokerd.cli.bench.formats.mamamia import MamamiaFormat
from brokerd.cli.bench.formats.mega import MegaFormat
from brokerd.cli.bench.formats.rustlog import RustlogFormat

__all__ = [
    "FORMATS",
    "SCENARIOS",
    "BenchFailed",
    "BenchFormat",
    "LoadSpec",
    "LoadTarget",
    "TargetSpec",
]

FORMATS: dict[str, BenchFormat] = {
    "mamamia": MamamiaFormat(),
    "flymq": FlymqFormat(),
    "blipmq": BlipmqFormat(),
    "rustlog": RustlogFormat(),
    "mega": MegaFormat(),
}

SCENARIOS = tuple(
    dict.fromkeys(one for bench_format in FORMATS.values() for one in bench_format.scenarios)
)
"""Scenarios of all formats."""
