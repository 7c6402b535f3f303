# Tests: tests/protocols/test_request_times.py
"""Times of requests by operation, for the metrics: from the read of a request to its answer.

One pass in `SAMPLED` is timed, by the last request that it handled: a pass handles the requests
that one read of a socket brings. So a message costs nothing, and a pass a few instructions. Waits
of long polls are not timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from brokerd.histogram import Histogram

SAMPLED: Final = 8
"""A power of two."""
OPERATION = "request"
"""Operation of a request without a name."""


class RequestTimes:
    """The times of one listener's requests."""

    def __init__(self) -> None:
        self.passes = -1
        """Number of the last pass that handled a request."""
        self.mask = SAMPLED - 1
        """Bits that are 0 in the number of a timed pass: the first, then every `SAMPLED`-th."""
        self._histograms: dict[str, Histogram] = {}

    def observe(self, operation: str, seconds: float) -> None:
        """Count the time of one request."""
        histogram = self._histograms.get(operation)
        if histogram is None:
            histogram = self._histograms[operation] = Histogram()
        histogram.observe(seconds)

    def status(self) -> dict[str, Any]:
        """Return the histograms by operation, in values that JSON can hold."""
        return {name: histogram.status() for name, histogram in self._histograms.items()}


def operation_names(types: Iterable[type]) -> dict[type, str]:
    """Return type of a request -> name of its operation, as ``create_topic`` for CreateTopic."""
    return {kind: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower() for kind in types}
