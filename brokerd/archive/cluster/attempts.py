# Tests: tests/archive/test_runner.py
"""Spark's attempts of a task. The next attempt retries after an error that may pass.

It may run in another executor, with another disk or connection. Only the last attempt returns such
an error to the driver.
"""

from __future__ import annotations

from brokerd.errors import BrokerdError

ATTEMPTS = "brokerd.task.attempts"
"""The local property of Spark that holds the number of attempts of a task."""


class AttemptFailed(Exception):
    """An attempt failed, and Spark makes another one."""


def retry_later(error: BrokerdError | OSError) -> None:
    """Raise AttemptFailed if an error may pass and Spark has another attempt for this task.

    A retryable error and an OSError may pass, except for a missing file.
    """
    may_pass = isinstance(error, OSError) or error.retryable
    is_missing = isinstance(error.__cause__ or error, FileNotFoundError)
    if may_pass and not is_missing and _attempts_left() > 0:
        raise AttemptFailed(task_error_text(error)) from error


def task_error_text(error: BrokerdError | OSError) -> str:
    """Return the text of an error. The text of an OSError begins with the file's name."""
    if isinstance(error, BrokerdError):
        return str(error)
    return f"{error.filename or 'a file'}: {error.strerror or error}"


def _attempts_left() -> int:
    """Return the number of attempts after the present attempt; 0 outside of a task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return 0
    return int(context.getLocalProperty(ATTEMPTS) or 1) - 1 - context.attemptNumber()
