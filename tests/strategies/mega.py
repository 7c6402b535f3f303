"""Requests and answers of the MEGA format, and conversations in both dialects."""

from __future__ import annotations

import string

from hypothesis import strategies as st

from brokerd.codecs import mega

correlation_ids = st.sampled_from([0, 1, 0x01000000, 0x02000000, 0x03000000, -1]) | st.integers(
    -(1 << 31), (1 << 31) - 1
)
timestamps = st.sampled_from([0, -1, 1_700_000_000_000]) | st.integers(-(1 << 63), (1 << 63) - 1)
offsets = st.integers(-(1 << 31), mega.MAX_OFFSET)
names = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=255)
"""Valid names of topics."""
topics = names | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
"""Names in requests, without those that confuse the look-ahead (page, Bad input)."""
payloads = st.binary(max_size=300)

requests = st.one_of(
    st.builds(mega.Produce, correlation_ids, topics, timestamps, payloads),
    st.builds(mega.Consume, correlation_ids, topics, timestamps, offsets),
    st.builds(mega.CreateTopic, correlation_ids, topics, timestamps),
)
dialects = st.sampled_from(mega.Dialect)
conversations = st.lists(st.tuples(requests, dialects), max_size=12)
"""Requests, each with its dialect."""
codes = st.sampled_from(mega.Code).map(int)
