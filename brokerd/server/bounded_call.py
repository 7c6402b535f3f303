# Tests: tests/test_service.py
"""File operations of a stop, with a limit on the time for which they block the reactor."""

from __future__ import annotations

import errno
from collections.abc import Callable
from threading import Thread


def bounded_call(function: Callable[[], object], seconds: float) -> bool:
    """Call ``function`` in a thread and wait ``seconds`` at most; return whether it ended.

    An exception of the function is raised here. A thread that did not end in time ends with the
    process. Raises OSError if there is no memory for a thread.
    """
    errors: list[Exception] = []

    def call() -> None:
        try:
            function()
        except Exception as error:
            errors.append(error)

    thread = Thread(target=call, name="bounded-call", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.ENOMEM, f"no memory for a thread ({error})") from error
    thread.join(seconds)
    if errors:
        raise errors[0]
    return not thread.is_alive()
