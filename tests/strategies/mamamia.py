"""Requests, answers and payloads of the Mamamia format."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import strategies as st

from brokerd.codecs import mamamia as mm
from brokerd.values import Encoding

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
message_ids = st.integers(0, (1 << 63) - 1)
seconds = st.integers(0, 10**12).map(lambda number: number / 1_000_000)
durations = st.none() | st.integers(-(10**9), 10**12).map(lambda number: number / 1_000_000)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=300),
)
keys = st.text(max_size=12) | st.binary(max_size=12)
payloads = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=15,
)
"""Any object that a client may send."""
metadata_maps = st.none() | st.dictionaries(keys, payloads, max_size=3).map(msgpack.packb)


@st.composite
def values(draw: st.DrawFn) -> tuple[bytes, int]:
    """Draw a payload in its stored form."""
    payload: Any = draw(payloads)
    if isinstance(payload, bytes):
        return payload, int(Encoding.BYTES)
    if isinstance(payload, str):
        return payload.encode(), int(Encoding.TEXT)
    return msgpack.packb(payload), int(Encoding.MSGPACK)


message_fields = st.tuples(
    values(),
    metadata_maps,
    st.none() | st.binary(max_size=20),
    st.none() | st.integers(0, 32_766),
    st.none() | seconds.filter(bool),
    st.none() | seconds,
)
producers = st.tuples(st.none(), st.none()) | st.tuples(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), message_ids
)
produces = st.builds(
    lambda log_id, fields: mm.Produce(log_id, *fields[0], *fields[1:]), names, message_fields
)
batch_messages = message_fields.map(lambda fields: mm.BatchMessage(*fields[0], *fields[1:]))
acquires = st.builds(mm.Acquire, names, names, names, durations, seconds)
reasons = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60)
"""Reasons hold no control characters."""
settles = st.builds(
    mm.Settle,
    names,
    names,
    message_ids,
    names,
    st.booleans(),
    st.none() | seconds,
    reasons,
    st.booleans(),
)
batch_settles = st.builds(
    mm.BatchSettle,
    message_ids,
    st.booleans(),
    st.none() | st.integers(0, (1 << 63) - 1),
    st.none() | seconds,
    reasons,
    st.booleans(),
)
requests = st.one_of(
    produces,
    acquires,
    settles,
    st.builds(mm.Extend, names, names, names, message_ids, durations),
    st.builds(
        lambda log_id, messages, producer: mm.ProduceBatch(log_id, messages, *producer),
        names,
        st.lists(batch_messages, min_size=1, max_size=20).map(tuple),
        producers,
    ),
    st.builds(mm.AcquireBatch, names, names, names, st.integers(1, 10_000), durations, seconds),
    st.builds(
        mm.SettleBatch,
        names,
        names,
        names,
        st.lists(batch_settles, min_size=1, max_size=20).map(tuple),
    ),
    st.builds(mm.GroupInfo, names, names),
    st.builds(
        mm.Release,
        names,
        names,
        names,
        st.none() | st.lists(message_ids, min_size=1, max_size=20).map(tuple),
    ),
    st.builds(mm.Cancel, names, message_ids),
)
frames = st.tuples(st.integers(0, 255), st.binary(max_size=200))
