# Tests: tests/groups/
"""Strategies for the lease store: few owners, short times, offsets at word boundaries."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerd.groups import GroupSettings

owners = st.sampled_from(["ann", "bob", "cid"])
durations_us = st.sampled_from([-5, 0, 1, 2, 5, 10, 50])
delays_us = st.sampled_from([-1, 0, 1, 3, 10])
steps_us = st.sampled_from([0, 1, 2, 5, 10, 60])
limits = st.sampled_from([0, 1, 1, 2, 3, 10, 300])
batch_sizes = st.sampled_from([1, 1, 2, 3, 10, 260, 1030])
reasons = st.sampled_from(["", "too_large", "bad key"])

BOUNDARIES = (0, 255, 256, 257, 511, 512, 1022, 1023, 1024, 1025, 1279, 1280, 2047, 2048, 2049)
offsets = st.one_of(
    st.integers(min_value=-1, max_value=12),
    st.integers(min_value=-1, max_value=2100),
    st.sampled_from(BOUNDARIES),
)
close_offsets = st.one_of(st.integers(0, 5), st.sampled_from(BOUNDARIES))
"""Few different offsets, so that many steps concern the same one."""
close_ranges = st.builds(
    lambda one, other: (min(one, other), max(one, other)), close_offsets, close_offsets
)
FAR_BOUNDARIES = tuple(word * 1024 + step for word in range(13) for step in (0, 1, 500, 1023))
far_offsets = st.sampled_from(FAR_BOUNDARIES)
far_ranges = st.builds(
    lambda one, other: (min(one, other), max(one, other)), far_offsets, far_offsets
)
"""Ranges over many words."""
near = st.sampled_from([-1, 0, 0, 0, 1, 2, 3])
"""A step from a critical place: the floor, the cursor, a lease."""

gone = st.sampled_from([(0, 1), (2, 0), (2, 1), (3, 1), (5, 2), (40, 7)]).map(
    lambda choice: lambda offset: choice[0] != 0 and offset % choice[0] == choice[1]
)
"""Predicates of removed offsets: none, or every nth."""


def key_of(offset: int) -> int:
    """Return the key of an offset: a few keys are frequent; 0 means none."""
    return (0, 1, 2, 2, 3, 1 << 63, 7)[offset * 5 % 7] if offset % 11 else offset % 4


DELAYS_US = {"fail for long": 20, "fail for longer": 30}
ENDS = ["done", "fail", *DELAYS_US, "lapse", "late fail", "late", "give back"]
"""The ends of a worker's lease, and the delays that it requests."""


@st.composite
def group_settings(draw: st.DrawFn) -> GroupSettings:
    """Draw settings with few attempts and short back-offs."""
    return GroupSettings(
        max_attempts=draw(st.sampled_from([1, 2, 2, 3, 4])),
        attempts=draw(st.sampled_from(["failures", "grants"])),
        backoff_base_us=draw(st.sampled_from([0, 0, 2, 7])),
        backoff_max_us=draw(st.sampled_from([5, 20])),
        key_ordered=draw(st.booleans()),
        lease_doubling=draw(st.booleans()),
    )
