"""Messages of the BlipMQ format."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerd.codecs import blipmq as bm

u64 = st.integers(0, (1 << 64) - 1)
u16 = st.integers(0, (1 << 16) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
topics = texts.filter(bool)
qos = st.integers(0, 1)

messages = st.one_of(
    st.builds(bm.Hello, u64, u16),
    st.builds(bm.Auth, u64, texts),
    st.builds(bm.Publish, u64, qos, topics, st.binary(max_size=300)),
    st.builds(bm.Subscribe, u64, topics, qos),
    st.builds(bm.Ack, u64, u64),
    st.builds(bm.Nack, u64, u16, texts),
    st.builds(bm.Ping, u64),
    st.builds(bm.Pong, u64),
    st.builds(bm.Poll, u64, u64),
)
"""All messages of either side."""
