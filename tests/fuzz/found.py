"""What must not happen, and how it shows: in the log, as an exception, as memory."""

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
"""What a broker may ask for while it serves clients that send next to nothing: the segment it
allocates, the frames it commits, and what Python needs."""
MEMORY_FACTOR = 40
"""And for each byte that was really sent or answered: objects of requests, records in the caches,
on the simulated disk, in the transport's buffers."""


class Found(Exception):
    """Something that must not happen. ``kind`` is a word of docs/fuzzing.rst."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"

    @property
    def signature(self) -> str:
        """The same for what is most likely the same mistake."""
        lines = self.text.splitlines() or [""]
        return f"{self.kind}: {re.sub('[0-9][0-9,]*', 'N', lines[-1])[:120]}"


@contextmanager
def faults_are_found() -> Iterator[None]:
    """Raise `Found` for an exception, and for what the log says of one."""
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
    """Where an exception was raised."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return "nowhere"
    return f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


@contextmanager
def no_more_memory_than_due(sent_bytes: int, besides_bytes: int) -> Iterator[list[int]]:
    """Raise `Found` when more was asked for than what came and went accounts for.

    What was answered is to be added to the list, in bytes.
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
