# Tests: tests/test_bench_formats.py
"""What the load generator must know of each wire format, a module each; `FORMATS` has them by name.

A format makes the ground ready (a new topic, a backlog where the scenario needs one), opens
connections, and gives each the role that talks on it (`brokerd.cli.scenarios`). A message counts
when the broker has said that it is durable, or has delivered it.
"""

from __future__ import annotations

from brokerd.cli.formats.base import BenchFailed, BenchFormat, LoadSpec, LoadTarget, TargetSpec
from brokerd.cli.formats.blipmq import BlipmqFormat
from brokerd.cli.formats.flymq import FlymqFormat
from brokerd.cli.formats.mamamia import MamamiaFormat
from brokerd.cli.formats.mega import MegaFormat
from brokerd.cli.formats.rustlog import RustlogFormat

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

SCENARIOS = tuple(dict.fromkeys(one for form in FORMATS.values() for one in form.scenarios))
"""Those of all formats."""
