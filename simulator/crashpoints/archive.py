# Tests: tests/simulator/test_crashpoints.py
"""A plan in which the log shrinks because of the archive, for `simulator.crashpoints.runs`.

Segments are sealed on request, archived and deleted at once. Bounds are written and a topic is
compacted, while one client leases and one reads everything repeatedly.
"""

from __future__ import annotations

from simulator.plan import ArchiveSlow, ClientPlan, DiskTimes, Plan, Rollup, Seal, Settings, Topic

SECOND = 1_000_000
TOPIC = Topic(name="t", partitions=2, compact=True)

PLAN = Plan(
    seed=9,
    end_us=5 * SECOND,
    settings=Settings(
        segment_bytes=64 << 10,
        segment_age_seconds=900,
        snapshot_interval_bytes=4 << 10,
        tail_cache_bytes=0,
        read_cache_bytes=0,
        archive=True,
        archive_poll_seconds=1,
    ),
    disk=DiskTimes(stuck_permille=200, stuck_us_max=50_000),
    topics=(TOPIC,),
    clients=(
        ClientPlan(
            name="ann",
            identity="ann",
            role="worker",
            seed=21,
            operations=70,
            think_us=100_000,
            topics=(TOPIC,),
            groups=("g",),
            mix={"produce_batch": 4, "acquire_batch": 3, "settle": 4, "settle_batch": 3},
            batch_max=6,
            payload_bytes_max=1_200,
            keys=4,
            failure_permille=100,
            duration_us_min=50_000,
            duration_us_max=SECOND,
        ),
        ClientPlan(
            name="eve",
            identity="eve",
            role="worker",
            format="flymq",
            seed=22,
            operations=200,
            think_us=40_000,
            topics=(TOPIC,),
            mix={"read": 1},
            reconnect_us_max=1_000,
        ),
        ClientPlan(
            name="op",
            identity="op",
            role="operator",
            seed=23,
            operations=8,
            think_us=900_000,
            topics=(TOPIC,),
            groups=("g",),
            mix={"seek": 1, "describe": 1},
        ),
    ),
    faults=(
        ArchiveSlow(at_us=0, for_us=5 * SECOND, factor=50),
        *(
            event
            for half_seconds in range(2, 10)
            for event in (
                Seal(at_us=half_seconds * SECOND // 2),
                Rollup(at_us=half_seconds * SECOND // 2 + 200_000, step_us=5_000, vacuums=True),
            )
        ),
    ),
)
"""Clients that make the log long, and a job that makes it short again.

Syncs get stuck, so that segments may be deleted during a commit. Reads of the archive take long, so
that a start gets requests for records before it has seen the archive.
"""
