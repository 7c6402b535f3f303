# Tests: tests/archive/
"""Strategies for the archive's rules: partitions with few keys, and histories of groups."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from brokerd.errors import LeaseLost, NotLeaseOwner
from brokerd.groups.settings import GroupSettings
from brokerd.groups.store import LeaseStore
from brokerd.walformat import GroupEvent

RECORDS_MAX = 12


def on_spark(examples: int) -> settings:
    """Return settings for few and large examples on Spark, which are never shrunk.

    Profiles with more examples than `fast` run more of these, too. Hypothesis begins with the
    smallest example. Tests reject it with `assume` before Spark runs.
    """
    return settings(
        max_examples=examples * max(1, settings().max_examples // 25),
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


keys = st.sampled_from([None, None, b"", b"a", b"b", b"c"])


class Row(NamedTuple):
    """The fields of a record that the rules use."""

    offset: int
    key: bytes | None
    is_empty: bool
    append_time_us: int
    expires_at_us: int


class Partition(NamedTuple):
    """Records of one partition in ascending order, some offsets missing, and its bounds."""

    rows: list[Row]
    start: int
    compact_below: int
    compact: bool


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    """Draw a partition with repeated keys, tombstones and expiry; times are 0 to 20 seconds."""
    seconds = st.integers(0, 20).map(lambda second: second * 1_000_000)
    offsets = sorted(draw(st.sets(st.integers(0, RECORDS_MAX), max_size=RECORDS_MAX)))
    expiry = st.one_of(st.just(0), seconds)
    rows = [
        Row(offset, draw(keys), draw(st.booleans()), draw(seconds), draw(expiry))
        for offset in offsets
    ]
    bound = st.integers(0, RECORDS_MAX + 1)
    return Partition(rows, draw(bound), draw(bound), draw(st.booleans()))


WORK = ["acquire", "acquire", "done", "done", "fail", "give up", "release", "wait", "wait"]
OPERATIONS = [*WORK, "seek", "replay", "purge", "remove", "delete", "configure"]


@st.composite
def group_histories(draw: st.DrawFn) -> list[list[GroupEvent]]:
    """Draw a group's events on the records of a partition, entry by entry, from the lease store."""
    settings = GroupSettings(max_attempts=2, attempts=draw(st.sampled_from(["failures", "grants"])))
    group = LeaseStore(settings)
    now_us, entries = 0, []
    for what in draw(st.lists(st.sampled_from(OPERATIONS), max_size=25)):
        offset = draw(st.integers(0, 4))
        now_us += draw(st.sampled_from([1, 5, 40]))
        with suppress(LeaseLost, NotLeaseOwner):  # refused, without an effect
            _do(group, what, offset, now_us, draw(st.sampled_from(["ann", "bob"])))
        if group.events:
            entries.append(list(group.events))
            group.events.clear()
    return entries


def _do(group: LeaseStore, what: str, offset: int, now_us: int, owner: str) -> None:
    end = 5
    if what == "acquire":
        group.acquire(now_us, end, owner, 30, limit=1 + offset // 2)
    elif what == "done":
        group.settle(now_us, end, offset, True)
    elif what == "fail":
        group.settle(now_us, end, offset, False, reason="bad" if offset % 2 else "")
    elif what == "give up":
        group.settle(now_us, end, offset, False, reason="worse", dead=True)
    elif what == "release":
        group.release(now_us, offset)
    elif what == "wait":
        group.end_due(now_us + 40)
    elif what == "seek":
        group.seek(offset)
    elif what == "replay":
        group.replay_dead()
    elif what == "purge":
        group.purge_dead()
    elif what == "remove":
        group.settle_range(0, offset)
    elif what == "delete":
        group.delete()
    else:
        group.configure(group.settings)
