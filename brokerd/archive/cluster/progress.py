# Tests: tests/archive/test_runner.py
"""The progress of a job's tasks, for a person at a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_SECONDS = 0.2


class Progress(Protocol):
    """Shows the progress of the job, one piece of work after the other."""

    def begin(self, name: str, tasks: int) -> None:
        """Begin a piece of work. ``tasks`` is 0 if their number is unknown."""

    def advance(self, tasks: int) -> None:
        """Show how many tasks are complete."""

    def end(self) -> None:
        """End the piece of work."""


class NoProgress:
    """Shows nothing."""

    def begin(self, name: str, tasks: int) -> None:
        """Do nothing."""

    def advance(self, tasks: int) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Do nothing."""


@contextmanager
def show_progress(
    context: SparkContext, group: str, tasks: int, progress: Progress
) -> Iterator[None]:
    """Show how many tasks of a job group are complete. A thread polls Spark for the number."""
    progress.begin(group, tasks)
    stop = threading.Event()
    earlier = frozenset(context.statusTracker().getJobIdsForGroup(group))
    arguments = context, group, earlier, progress, stop
    thread = threading.Thread(target=_poll, args=arguments, daemon=True)
    if not isinstance(progress, NoProgress):
        thread.start()
    try:
        yield
    finally:
        stop.set()
        if thread.is_alive():
            thread.join()
        progress.end()


def _poll(
    context: SparkContext,
    group: str,
    earlier: frozenset[int],
    progress: Progress,
    stop: threading.Event,
) -> None:
    from py4j.protocol import Py4JError

    while not stop.wait(_POLL_SECONDS):
        try:
            progress.advance(_complete_tasks(context, group, earlier))
        except (Py4JError, ConnectionError):
            return  # Java died: the thread that waits for the tasks raises the error


def _complete_tasks(context: SparkContext, group: str, earlier: frozenset[int]) -> int:
    """Count the complete tasks of a group, without those of earlier jobs."""
    tracker = context.statusTracker()
    count = 0
    for job in set(tracker.getJobIdsForGroup(group)) - earlier:
        info: Any = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            count += stage_info.numCompletedTasks if stage_info is not None else 0
    return count
