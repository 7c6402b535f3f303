"""Run tasks in this process instead of Spark's."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from brokerd.archive.cluster.attempts import task_error_text
from brokerd.archive.cluster.runner import SparkRunner
from brokerd.archive.contract.bounds import Bounds
from brokerd.archive.delta.tables import ensure_tables
from brokerd.archive.errors import JobFailed
from brokerd.archive.ingest.ingest import IngestReport, ingest_log
from brokerd.archive.run import Run, Settings
from brokerd.archive.storage.address import Place
from brokerd.errors import BrokerdError

Item = TypeVar("Item")
Result = TypeVar("Result")

NOW_MS = 1_700_000_000_000
NO_LIMIT = 1 << 60


def map_here(
    runner: SparkRunner, name: str, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """Do in this process what `SparkRunner.map` does in Spark's tasks.

    The items and the results are pickled, too. There is one attempt.
    """
    try:
        results = [function(item) for item in pickle.loads(pickle.dumps(items))]
    except (BrokerdError, OSError) as error:
        raise JobFailed(f"{name}: {task_error_text(error)}") from error
    return pickle.loads(pickle.dumps(results))  # type: ignore[no-any-return]


def map_with_session(
    runner: SparkRunner, name: str, function: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result]:
    """Do the same, but start Spark first, as `SparkRunner.map` does."""
    if not items:
        return []
    runner.session()
    return map_here(runner, name, function, items)


class InlineSpark(SparkRunner):
    """Calls functions in this process, where the journal is, and has no session."""

    def __init__(self) -> None:
        super().__init__(_no_spark)

    def is_local(self) -> bool:
        return True

    map = map_here


def _no_spark() -> NoReturn:
    raise AssertionError("nothing here needs Spark")


def ingest_inline(
    root: Place,
    wal: Path,
    bounds: Bounds,
    settings: Settings | None = None,
    failpoint: Callable[[str], None] = lambda name: None,
    free_bytes: Callable[[], int] = lambda: NO_LIMIT,
    spark: SparkRunner | None = None,
    **fields: Any,
) -> IngestReport:
    """Ingest all sealed segments of a log into an archive, which is created if needed."""
    run = Run(
        root=root,
        bounds=bounds,
        settings=settings or Settings(),
        tables=ensure_tables(root, bounds.log_id, NOW_MS),
        spark=spark or InlineSpark(),
        now_ms=lambda: NOW_MS,
        failpoint=failpoint,
        **fields,
    )
    report = IngestReport()
    ingest_log(run, wal, free_bytes, report)
    return report
