# Tests: tests/archive/test_runner.py
"""Shows the progress of a job's tasks to a person at a terminal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_SECONDS = 0.2


class Progress(Protocol):
    """Shows the progress of a job: one stage of work at a time."""

    def begin(self, name: str, tasks: int) -> None:
        """Begin a stage. ``tasks`` is the number of its tasks; 0 if unknown."""

    def advance(self, tasks: int) -> None:
        """Show the number of complete tasks."""

    def end(self) -> None:
        """End the stage."""


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
    """Show the number of complete tasks of a job group. A thread polls Spark for it."""
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
    """Count the complete tasks of a group, without tasks of the jobs ``earlier``."""
    tracker = context.statusTracker()
    count = 0
    for job in set(tracker.getJobIdsForGroup(group)) - earlier:
        info: Any = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            count += stage_info.numCompletedTasks if stage_info is not None else 0
    return count
