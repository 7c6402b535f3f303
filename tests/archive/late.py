"""A task whose first attempt is slow, for tests of what becomes of two attempts of one task."""

from __future__ import annotations

import os
import time
from typing import Any

from brokerd.archive.tasks import write_records

MARK = "BROKERD_TESTS_LATE"
"""The variable with the path of a file that the first attempt makes."""
LATE_SECONDS = 300.0


def write_records_late(task: Any) -> Any:
    """Write a file of records; in the very first attempt of all, say so much later."""
    written = write_records(task)
    try:
        os.close(os.open(os.environ[MARK], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return written
    time.sleep(LATE_SECONDS)
    return written
