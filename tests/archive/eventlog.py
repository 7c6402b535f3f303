"""Spark's event log: what ran."""

from __future__ import annotations

import json
from pathlib import Path


def jobs_with_tasks(directory: Path) -> set[str]:
    """What the tasks that ended were for: descriptions of jobs, "" where there was none."""
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
