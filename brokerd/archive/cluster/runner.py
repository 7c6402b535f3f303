# Tests: tests/archive/test_runner.py
"""Runs the tasks of a job on Spark, in named job groups, with one line for each error.

Spark's web page and event log show the name of the job group.
"""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from brokerd.archive.cluster.attempts import ATTEMPTS, AttemptFailed, retry_later, task_error_text
from brokerd.archive.cluster.master_url import attempts_of, is_local
from brokerd.archive.cluster.progress import NoProgress, Progress, show_progress
from brokerd.archive.cluster.shipping import package, portable_task
from brokerd.archive.errors import JobFailed
from brokerd.errors import BrokerdError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


class SparkRunner:
    """A Spark session that starts on first use, so an idle run starts no Spark.

    As a context manager it stops Spark at the end.
    """

    def __init__(
        self,
        open_spark: Callable[[], AbstractContextManager[SparkSession]],
        progress: Progress | None = None,
    ) -> None:
        self._open_spark = open_spark
        self._progress = progress or NoProgress()
        self._stack = ExitStack()
        self._session: SparkSession | None = None
        self._is_here = False

    def __enter__(self) -> SparkRunner:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def session(self) -> SparkSession:
        """Return the session. The first call starts Spark."""
        if self._session is None:
            self._progress.begin("starting Spark", 0)
            try:
                self._session = self._stack.enter_context(self._open_spark())
            finally:
                self._progress.end()
        return self._session

    @contextmanager
    def here(self, is_small: bool = True) -> Iterator[None]:
        """Run the tasks of the ``with`` block in this process, one after the other.

        If Spark has started already, or the work is not small, Spark runs them.
        """
        self._is_here = is_small and self._session is None
        try:
            yield
        finally:
            self._is_here = False

    def is_local(self) -> bool:
        """Return whether tasks run on this machine, beside the driver."""
        if self._is_here:
            return True
        return is_local(str(self.session().sparkContext.master))

    def map(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Call a function for each item in Spark tasks, and return the results in order.

        Spark tries a task again if its process died, or by `retry_later`. Another `BrokerdError` or
        OSError ends the run at once.

        :param name: the name of the job group.
        :param function: a function of a module. Spark pickles it and the items.
        :raises JobFailed: a task failed; the text names the group and the cause.
        """
        if not items:
            return []
        if self._is_here:
            return self._map_here(name, function, items)
        with self.job_group(name, len(items)) as context:
            pickled = [pickle.dumps(item) for item in items]
            expected = None if self.is_local() else package()
            task = portable_task(_Task(function), expected)
            answers = context.parallelize(pickled, len(items)).map(task).collect()
        errors = [text for _, text in answers if text]
        errors += [result.text for result, _ in answers if isinstance(result, _TaskError)]
        if errors:
            raise JobFailed(f"{name}: {errors[0]}")
        return [result for result, _ in answers]

    def _map_here(
        self, name: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Do the work of `map` in this process. Each task has one attempt. Raises JobFailed."""
        results = []
        self._progress.begin(name, len(items))
        try:
            for item in items:
                results.append(function(item))
                self._progress.advance(len(results))
        except (BrokerdError, OSError) as error:
            raise JobFailed(f"{name}: {task_error_text(error)}") from error
        finally:
            self._progress.end()
        return results

    @contextmanager
    def job_group(self, name: str, tasks: int = 0) -> Iterator[SparkContext]:
        """Name the jobs of the ``with`` block, and show their progress. Yield the context.

        :raises JobFailed: Spark raised an error.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        context = self.session().sparkContext
        try:
            context.setJobGroup(name, name)
            master, limit = str(context.master), context.getConf().get("spark.task.maxFailures")
            context.setLocalProperty(ATTEMPTS, str(attempts_of(master, limit)))
            with show_progress(context, name, tasks, self._progress):
                yield context
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise JobFailed(f"{name}: {_error_line(error)}") from error
        finally:
            _clear_job_group(context)


def _clear_job_group(context: SparkContext) -> None:
    from py4j.protocol import Py4JError

    try:
        for name in ("spark.jobGroup.id", "spark.job.description", ATTEMPTS):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # it unsets the property
    except (Py4JError, ConnectionError):
        return  # Java died: the caller has the error


# -- Tasks ---------------------------------------------------------------------------------------


class _TaskError(NamedTuple):
    """The result of a task that failed."""

    text: str


class _Task(Generic[Item, Result]):
    """Wraps a function. Returns expected errors as values, unless another attempt may succeed."""

    def __init__(self, function: Callable[[Item], Result]) -> None:
        self._function = function

    def __call__(self, item: Item) -> Result | _TaskError:
        _freeze_modules()
        try:
            return self._function(item)
        except (BrokerdError, OSError) as error:
            retry_later(error)
            return _TaskError(task_error_text(error))


def _freeze_modules() -> None:
    """Exclude the imported modules of this worker from garbage collection.

    Spark's workers collect garbage after each task (pyspark.daemon). The modules would add 20 ms.
    """
    if not gc.get_freeze_count():
        gc.freeze()


# -- Spark's errors ------------------------------------------------------------------------------

_FRAMES = re.compile(r"at |\.\.\. \d+ more$")
"""Begins a line of a stack trace of Java: a frame, or how many frames it shares with another."""


def _error_line(error: Exception) -> str:
    """Return the cause in one line: the last line of the task's traceback or of Java's error."""
    from py4j.protocol import Py4JError, Py4JJavaError

    if isinstance(error, Py4JJavaError):
        text = str(error.java_exception)
    elif isinstance(error, Py4JError | ConnectionError):
        return (
            "Spark's Java process died; if it ran out of memory, raise archive.driver_memory_bytes"
        )
    else:
        text = str(error)
    if "Python worker exited unexpectedly" in text or "Python worker failed to" in text:
        return "a task's process was killed in each attempt; is the machine short of memory?"
    if "ExecutorLostFailure" in text:
        return "a task's executor was lost in each attempt; is it short of memory?"
    no_python = re.search(r"Cannot run program .+", text)
    if no_python is not None:
        return f"tasks have no Python: {no_python[0]}; set PYSPARK_PYTHON"
    lines = [line.strip() for line in text.split("Driver stacktrace:")[0].splitlines()]
    lines = [line for line in lines if line and not _FRAMES.match(line)]
    line = lines[-1].removeprefix("Caused by: ") if lines else type(error).__name__
    return line.removeprefix(f"{AttemptFailed.__module__}.{AttemptFailed.__name__}: ")
