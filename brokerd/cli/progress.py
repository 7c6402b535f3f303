# Tests: tests/cli/test_progress.py
"""A progress bar on stderr, drawn by ``rich``, if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS = 500
"""Most changes of a bar: a change costs more than many a frame of the log."""


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar; yield a function that takes the numbers of bytes that are done, and of all.

    The bar disappears at the end.
    """
    if not sys.stderr.isatty():
        yield lambda done_bytes, all_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    shown_bytes = 0

    def show(done_bytes: int, all_bytes: int) -> None:
        nonlocal shown_bytes
        if done_bytes >= min(all_bytes, shown_bytes + max(1, all_bytes // STEPS)):
            progress.update(task, completed=done_bytes, total=all_bytes)
            shown_bytes = done_bytes

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    ) as progress:
        task = progress.add_task(what, total=None)
        yield show
