# Tests: tests/simulator/test_crashpoints.py
"""A plan with every change of groups and topics, for `simulator.crashpoints.runs`.

Settings, order by key, pauses, seeks, deletions, releases, replays, purges, schedules, cancels,
expiry, resends, trims, retention, and deleted segments.
"""

from __future__ import annotations

from typing import Any

from simulator.plan import Action, ClientPlan, Plan, Settings, Topic

SECOND = 1_000_000
SEED = 6
TOPIC = Topic(name="t", partitions=2)
OTHER = Topic(name="u")

KEPT: dict[Action, int] = {
    "configure": 1,
    "pause": 1,
    "resume": 2,
    "seek": 1,
    "release": 1,
    "replay": 4,
    "purge": 3,
    "cancel": 1,
    "trim": 2,
    "configure_topic": 1,
}
GONE: dict[Action, int] = {"delete_group": 1, "delete_topic": 1, "configure_topic": 2}


def _client(name: str, seed: int, **changes: Any) -> ClientPlan:
    fields: dict[str, Any] = {
        "name": name,
        "identity": name,
        "role": "worker",
        "seed": seed,
        "operations": 100,
        "think_us": 60_000,
        "topics": (TOPIC, OTHER),
        "groups": ("g", "h"),
    }
    return ClientPlan(**{**fields, **changes})


WORKER: dict[Action, int] = {
    "produce": 4,
    "produce_batch": 5,
    "acquire": 3,
    "acquire_batch": 3,
    "settle": 5,
    "settle_batch": 2,
    "extend": 1,
    "release": 1,
    "cancel": 1,
}

PLAN = Plan(
    seed=SEED,
    end_us=4 * SECOND,
    settings=Settings(
        segment_bytes=64 << 10,
        segment_age_seconds=1,
        snapshot_interval_bytes=16 << 10,
        max_attempts=2,
        retention_check_seconds=1,
    ),
    topics=(TOPIC, OTHER),
    clients=(
        _client(
            "ann",
            11,
            mix=WORKER,
            window=4,
            batch_max=6,
            payload_bytes_max=2_500,
            keys=4,
            resends=True,
            failure_permille=500,
            duration_us_min=50_000,
            duration_us_max=3 * SECOND,
            default_permille=200,
            delayed_permille=300,
            schedule_us_max=2 * SECOND,
            ttl_permille=200,
            ttl_us_max=2 * SECOND,
        ),
        _client(
            "bob",
            12,
            mix=WORKER,
            batch_max=4,
            keys=4,
            failure_permille=500,
            duration_us_min=50_000,
            duration_us_max=SECOND,
            delayed_permille=300,
            schedule_us_max=SECOND,
        ),
        _client(
            "op",
            55,
            role="operator",
            topics=(TOPIC,),
            owners=("ann", "bob"),
            operations=60,
            think_us=150_000,
            mix=KEPT,
            configures_first=True,
            ordered_permille=700,
            retention_us_max=SECOND,
        ),
        _client(
            "admin",
            56,
            role="operator",
            topics=(OTHER,),
            owners=("ann",),
            operations=16,
            think_us=400_000,
            mix=GONE,
            retention_us_max=SECOND,
            retention_bytes_max=16 << 10,
            ttl_us_max=SECOND,
        ),
    ),
)
"""Two workers and two operators: one changes a topic's groups, one ends groups and a topic."""
