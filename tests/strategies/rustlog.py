"""Requests and answers of the RustLog format, both dialects."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerd.codecs import rustlog as rl

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
groups = st.none() | names.filter(bool)
u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
record_lists = st.lists(st.binary(max_size=40), max_size=12) | st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=12)
)
"""Records of all lengths, and records of one length."""

produces = st.builds(rl.Produce, names, u32, record_lists.map(tuple))
requests = st.one_of(
    produces,
    st.builds(rl.Fetch, names, u32, u64, u32, groups),
    st.builds(rl.OffsetCommit, names, u32, names, u64),
    st.builds(rl.OffsetFetch, names, u32, names),
    st.builds(rl.CreateTopic, names, u32),
    st.just(rl.ListTopics()),
    st.builds(rl.DescribeTopic, names),
    st.builds(rl.DescribePartition, names, u32),
    st.just(rl.MetricsFetch()),
    st.just(rl.Ping()),
)
"""Requests that both dialects can encode."""


@st.composite
def fetched(draw: st.DrawFn) -> rl.Fetched:
    """Draw records without a gap, or none."""
    records = draw(record_lists)
    first = draw(st.integers(0, (1 << 63) - 1))
    return rl.Fetched(
        tuple(range(first, first + len(records))), tuple(records), first + len(records)
    )


answers = st.one_of(
    st.builds(rl.Produced, st.integers(0, (1 << 63) - 1), st.integers(1, 50)),
    st.just(rl.Produced(0, 0)),
    fetched(),
    st.builds(rl.OffsetCommitted, st.booleans()),
    st.builds(rl.OffsetFetched, st.none() | u64),
    st.just(rl.TopicCreated()),
    st.builds(
        rl.TopicList, st.lists(st.builds(rl.TopicSummary, names, u32), max_size=5).map(tuple)
    ),
    st.builds(rl.TopicDescription, names, st.lists(u64, max_size=5).map(tuple)),
    st.builds(rl.PartitionDescription, names, u32, u64),
    st.builds(rl.Metrics, st.text(st.characters(exclude_categories=["Cs"]), max_size=200)),
    st.just(rl.Pong()),
)
failures = st.builds(rl.Failed, st.integers(0, 65_535), names)
payloads = st.binary(min_size=1, max_size=200)
