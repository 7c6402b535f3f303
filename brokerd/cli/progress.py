# Tests: tests/cli/test_progress.py
"""A progress bar on stderr, drawn by ``rich``, if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS = 500
"""Most changes of a bar: a change costs more than many a frame of the log."""


@contextmanager
def progress_bar(what: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function that takes the number of further bytes that are done.

    The bar disappears at the end.
    """
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    step_bytes = max(1, total_bytes // STEPS)
    waiting_bytes = 0

    def advance(size: int) -> None:
        nonlocal waiting_bytes
        waiting_bytes += size
        if waiting_bytes >= step_bytes:
            progress.advance(task, waiting_bytes)
            waiting_bytes = 0

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    ) as progress:
        task = progress.add_task(what, total=total_bytes)
        yield advance
