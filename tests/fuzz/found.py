"""The forbidden outcomes and their signs: a log event, an exception, memory."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from twisted.logger import ILogObserver, LogLevel, globalLogPublisher
from zope.interface import provider

MEMORY_BYTES = 6 << 20
"""Memory that a broker may use for clients that send next to nothing.

It covers the segment that it allocates, the frames that it commits, and Python's own use.
"""
MEMORY_FACTOR = 40
"""Further memory for each byte sent or answered.

It covers objects of requests, and records in the caches, on the simulated disk and in the
transport's buffers.
"""


class Found(Exception):
    """A forbidden outcome. ``kind`` is a word of docs/fuzzing.rst."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    @property
    def signature(self) -> str:
        """Return a text that is equal for findings with most likely the same cause."""
        lines = self.text.splitlines() or [""]
        return f"{self.kind}: {re.sub('[0-9][0-9,]*', 'N', lines[-1])[:120]}"


@contextmanager
def faults_are_found() -> Iterator[None]:
    """Raise `Found` for an exception, and for a fault in the log."""
    logged: list[str] = []

    @provider(ILogObserver)
    def observe(event: Any) -> None:
        failure = event.get("log_failure")
        if failure is not None:
            logged.append(failure.getTraceback())
        elif event.get("log_level") in (LogLevel.error, LogLevel.critical):
            logged.append(str(event.get("log_format")))

    globalLogPublisher.addObserver(observe)
    try:
        yield
    except Found:
        raise
    except Exception as error:
        text = f"{_place(error.__traceback__)}\n{type(error).__name__}: {error}"
        raise Found("fault", text) from error
    finally:
        globalLogPublisher.removeObserver(observe)
    if logged:
        raise Found("fault", logged[0].strip())


def _place(traceback: TracebackType | None) -> str:
    """Return the place where an exception was raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "nowhere"
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


@contextmanager
def no_more_memory_than_due(sent_bytes: int, besides_bytes: int) -> Iterator[list[int]]:
    """Raise `Found` if more memory was used than the traffic explains.

    The caller adds the numbers of answered bytes to the list.
    """
    answered: list[int] = []
    tracemalloc.start()
    try:
        yield answered
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    due = MEMORY_BYTES + besides_bytes + MEMORY_FACTOR * (sent_bytes + sum(answered))
    if peak > due:
        raise Found(
            "memory", f"{peak:,} bytes for {sent_bytes:,} sent and {sum(answered):,} answered"
        )
