"""A task whose first attempt is slow, for tests of two attempts of one task."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from brokerd.archive.ingest.tasks import write_records

MARK = "BROKERD_TESTS_LATE"
"""The variable with the path of a file. The first attempt creates it with its executor's id."""
LATE_SECONDS = 300.0


def write_records_late(task: Any) -> Any:
    """Write a file of records; the very first attempt reports it `LATE_SECONDS` later."""
    written = write_records(task)
    try:
        with open(os.environ[MARK], "x") as mark:
            mark.write(f"{_parent(os.getppid())}\n")
    except FileExistsError:
        return written
    time.sleep(LATE_SECONDS)
    return written


def _parent(pid: int) -> int:
    """Return ``PPid`` of a process, by proc_pid_status(5)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nPPid:")[2].split()[0])
