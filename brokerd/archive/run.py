# Tests: tests/archive/test_run.py
"""What each step of the job is given, and what it gives back.

A step is a function of a :class:`Run`; what it does on Spark it does by :meth:`Run.map` or inside
of :meth:`Run.described`, so that Spark's page and event log name it, progress is shown, and what
goes wrong becomes one line.
"""

from __future__ import annotations

import gc
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from brokerd.archive.cluster.master_url import is_local
from brokerd.archive.cluster.shipping import carried, package
from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.storage.store import Place, Store, open_store
from brokerd.errors import BrokerdError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOOK_SECONDS = 0.2
"""How often progress is looked at."""


class JobFailed(BrokerdError):
    """The job cannot go on; what it has committed stays."""


def counted(count: int, what: str) -> str:
    """``1 file``, ``2,000 files``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


class Settings(NamedTuple):
    """What the job is configured to do: section ``[archive]`` of the configuration."""

    lot_bytes: int = 4 << 30
    file_bytes: int = 128 << 20
    derived: bool = True
    retention: bool = True
    compaction: bool = True
    tombstone_seconds: int = 86_400
    rewrite_percent: int = 20
    merge: bool = True
    vacuum: bool = True
    vacuum_hours: int = 24
    events_days: int = 0


class Progress(Protocol):
    """Shows a person how far the job is."""

    def begin(self, what: str, tasks: int) -> None:
        """Something begins that takes so many tasks; 0: nobody knows."""

    def advance(self, tasks: int) -> None:
        """So many tasks of it are done."""

    def end(self) -> None:
        """It is over."""


class Quiet:
    """Shows nothing."""

    def begin(self, what: str, tasks: int) -> None:
        """Nothing."""

    def advance(self, tasks: int) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


@dataclass
class StepReport:
    """What a step did."""

    name: str
    numbers: dict[str, int] = field(default_factory=dict)
    """For programs: ``{"files_removed": 3}``."""
    lines: list[str] = field(default_factory=list)
    """For people: what was done and why, a sentence each; none if nothing was to do."""


@dataclass(frozen=True)
class Run:
    """One run of the job."""

    root: Place
    """Where the archive is; its tables are directories below."""
    bounds: Bounds
    """What may be removed; its ``time_us`` is the only time that a step goes by."""
    settings: Settings
    spark: Callable[[], SparkSession]
    """The session, which starts when it is first asked for: a run with nothing to do needs none."""
    now_ms: Callable[[], int]
    """The wall clock, in milliseconds, for what Delta keeps for people: not for decisions."""
    only: frozenset[int] | None = None
    """Ids of the topics that maintenance is limited to; None: all."""
    at: Callable[[str], None] = lambda point: None
    """Called at points with names, where tests stop the process."""
    progress: Progress = Quiet()  # noqa: RUF009  # it has no state

    @property
    def store(self) -> Store:
        """The files of the archive."""
        return open_store(self.root)

    @property
    def tasks_have_journal(self) -> bool:
        """Whether tasks see the disk of the journal. They have to, if the archive is on a disk."""
        return isinstance(self.root, Path) or is_local(str(self.spark().sparkContext.master))

    def map(
        self, what: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Call a function for each item in tasks of Spark, and return what it returned, in order.

        ``function`` is one of a module, and it and the items can be pickled. ``what`` names the
        stage. A task whose process died is tried again. A `BrokerdError` or OSError of a task is
        not: it ends the run.

        :raises JobFailed: naming what failed, and why.
        """
        if not items:
            return []
        with self.described(what, len(items)) as context:
            pickled = [pickle.dumps(item) for item in items]
            expected = None if is_local(str(context.master)) else package()
            guarded = carried(_Guarded(function), expected)
            tasks = context.parallelize(pickled, len(items)).map(guarded)
            answers = tasks.collect()
        failed = [text for _, text in answers if text]
        failed += [outcome.text for outcome, _ in answers if isinstance(outcome, _Failed)]
        if failed:
            raise JobFailed(f"{what}: {failed[0]}")
        return [outcome for outcome, _ in answers]

    @contextmanager
    def described(self, what: str, tasks: int = 0) -> Iterator[SparkContext]:
        """Name the stages that Spark runs meanwhile, and show their progress.

        :raises JobFailed: for what Spark raises.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        context = self.spark().sparkContext
        try:
            context.setJobGroup(what, what)
            with _watched(context, what, tasks, self.progress):
                yield context
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise JobFailed(f"{what}: {_reason(error)}") from error
        finally:
            _forget_group(context)


# -- Tasks ---------------------------------------------------------------------------------------


class _Failed(NamedTuple):
    """In place of what a task would have returned."""

    text: str


class _Guarded(Generic[Item, Result]):
    """A function whose named errors come back as values: no second try would cure them."""

    def __init__(self, function: Callable[[Item], Result]) -> None:
        self._function = function

    def __call__(self, item: Item) -> Result | _Failed:
        _spare_modules()
        try:
            return self._function(item)
        except BrokerdError as error:
            return _Failed(str(error))
        except OSError as error:
            return _Failed(f"{error.filename or 'a file'}: {error.strerror or error}")


def _spare_modules() -> None:
    """Keep what this worker has imported from being looked at when garbage is collected.

    Spark's workers do that after each task, and it would take 20 ms (pyspark.daemon).
    """
    if not gc.get_freeze_count():
        gc.freeze()


# -- Spark's own errors --------------------------------------------------------------------------


def _reason(error: Exception) -> str:
    """What went wrong in one line: the last one of a task's traceback, or what Java says."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception)
    elif isinstance(error, Py4JError | ConnectionError):
        return (
            "Spark's Java process died; if its memory was short, raise archive.driver_memory_bytes"
        )
    else:
        text = str(error)
    if "Python worker exited unexpectedly" in text or "Python worker failed to" in text:
        return "a task's process was killed each time it was tried; is memory short?"
    if "ExecutorLostFailure" in text:
        return "the executors of a task were lost each time it was tried; is their memory short?"
    unstarted = re.search(r"Cannot run program .+", text)
    if unstarted is not None:
        return f"tasks have no Python: {unstarted[0]}; PYSPARK_PYTHON names it"
    lines = [line.strip() for line in text.split("Driver stacktrace:")[0].splitlines()]
    lines = [line for line in lines if line and not line.startswith("at ")]
    return lines[-1] if lines else type(error).__name__


def _forget_group(context: SparkContext) -> None:
    from py4j.protocol import Py4JError

    try:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # so Java forgets it
    except (Py4JError, ConnectionError):
        return  # Java died, which the caller is told


# -- Progress ------------------------------------------------------------------------------------


@contextmanager
def _watched(context: SparkContext, what: str, tasks: int, progress: Progress) -> Iterator[None]:
    """Show how many tasks are done, looked at in a thread while the caller waits for them."""
    progress.begin(what, tasks)
    over = threading.Event()
    before = frozenset(context.statusTracker().getJobIdsForGroup(what))
    watch = partial(_watch, context, what, before, progress, over)
    watching = threading.Thread(target=watch, daemon=True)
    if not isinstance(progress, Quiet):
        watching.start()
    try:
        yield
    finally:
        over.set()
        if watching.is_alive():
            watching.join()
        progress.end()


def _watch(
    context: SparkContext,
    group: str,
    before: frozenset[int],
    progress: Progress,
    over: threading.Event,
) -> None:
    from py4j.protocol import Py4JError

    while not over.wait(_LOOK_SECONDS):
        try:
            progress.advance(_tasks_done(context, group, before))
        except (Py4JError, ConnectionError):
            return  # Java died, which whoever waits for the tasks is told


def _tasks_done(context: SparkContext, group: str, before: frozenset[int]) -> int:
    """Tasks that are done of a group's jobs, without those of jobs that were before."""
    tracker = context.statusTracker()
    done = 0
    for job in set(tracker.getJobIdsForGroup(group)) - before:
        info: Any = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            found = tracker.getStageInfo(stage)
            done += found.numCompletedTasks if found is not None else 0
    return done
