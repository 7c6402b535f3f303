"""Read Spark's event log."""

from __future__ import annotations

import json
from pathlib import Path


def jobs_with_tasks(directory: Path) -> set[str]:
    """Return the job descriptions of all ended tasks; "" for a job without one."""
    events = [
        json.loads(line)
        for path in directory.rglob("*")
        if path.is_file() and not path.name.startswith((".", "appstatus"))
        for line in path.read_text().splitlines()
    ]
    descriptions = {
        stage: event["Properties"].get("spark.job.description", "")
        for event in events
        if event["Event"] == "SparkListenerJobStart"
        for stage in event["Stage IDs"]
    }
    return {
        descriptions[event["Stage ID"]]
        for event in events
        if event["Event"] == "SparkListenerTaskEnd"
    }
