"""One run in a process of its own."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, RUSAGE_SELF, getrusage, setrlimit
from time import monotonic

from twisted.logger import globalLogBeginner

from tests.fuzz.desk import SLOW_MS
from tests.fuzz.run import Result, fuzz
from tests.fuzz.sockets import fuzz_sockets
from tests.fuzz.wire import wires_of

ADDRESS_SPACE_BYTES = 4 << 30
"""Limit of memory for this process and its broker; a claimed length cannot exceed it."""
ON_SOCKETS = 0.1
"""Share of the time spent on real sockets."""


def fuzz_apart(run: str, seed: int, seconds: float) -> Result:
    """Fuzz for ``seconds``, first in memory and then on real sockets; return the result."""
    setrlimit(RLIMIT_AS, (ADDRESS_SPACE_BYTES, RLIM_INFINITY))
    globalLogBeginner.beginLoggingTo([], discardBuffer=True, redirectStandardIO=False)
    gc.disable()  # a broker has a collector of its own; here each broker is collected at its end
    gc.freeze()
    wires = wires_of(run)
    over_at = monotonic() + seconds * (1 - ON_SOCKETS)
    result = fuzz(run, wires, seed, lambda _: monotonic() > over_at, SLOW_MS)
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="brokerd-fuzz-") as directory:
        failure = fuzz_sockets(
            run,
            seed,
            lambda _: monotonic() > began + seconds * ON_SOCKETS,
            Path(directory),
            result.on_sockets,
        )
    if failure is not None:
        result.failures.append(failure)
    result.seconds += monotonic() - began
    result.peak_bytes = getrusage(RUSAGE_SELF).ru_maxrss * 1024
    return result
