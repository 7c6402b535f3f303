"""Requests, answers and frames of the FlyMQ format."""

from __future__ import annotations

from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.values import Record

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u64 = st.integers(0, (1 << 64) - 1)
committable = st.integers(0, fm.MAX_OFFSET)
values = st.binary(max_size=300)
keys = st.none() | st.binary(min_size=1, max_size=20)
modes = st.sampled_from(["earliest", "latest", "commit", ""]) | texts


def mode8(mode: str) -> bool:
    """Return whether the SDKs' layout can encode this mode."""
    return len(mode.encode()) < 256


@st.composite
def subscribes(draw: st.DrawFn) -> fm.Subscribe:
    mode = draw(modes)
    sdk = draw(st.booleans()) and mode8(mode)
    return fm.Subscribe(draw(texts), draw(texts), draw(i32), mode, sdk)


@st.composite
def resets(draw: st.DrawFn) -> fm.ResetOffset:
    mode = draw(st.just("offset") | modes)
    offset = draw(committable) if mode == "offset" else None
    # An empty mode in the SDKs' layout begins with 00, so decoders read the document's layout.
    sdk = draw(st.booleans()) and bool(mode) and mode8(mode)
    return fm.ResetOffset(draw(texts), draw(texts), draw(i32), mode, offset, sdk)


@st.composite
def fetches(draw: st.DrawFn) -> fm.Fetch:
    sdk = draw(st.booleans())
    opcode = draw(st.sampled_from([fm.Opcode.FETCH, fm.Opcode.FETCH_BINARY]))
    about = draw(texts) if sdk else ""
    return fm.Fetch(draw(texts), draw(i32), draw(u64), draw(i32), about, sdk, opcode)


produces = st.builds(fm.Produce, texts, keys, values, i32)
consumes = st.builds(
    fm.Consume,
    texts,
    i32,
    u64,
    st.sampled_from([fm.Opcode.CONSUME, fm.Opcode.CONSUME_ZERO_COPY]),
)
names = st.lists(texts, max_size=3).map(tuple)
account_requests = st.one_of(
    st.builds(fm.Auth, texts, texts),
    st.just(fm.WhoAmI()),
    st.builds(fm.CreateUser, texts, texts, names),
    st.builds(fm.DeleteUser, texts),
    st.builds(fm.UpdateUser, texts, names, st.booleans()),
    st.just(fm.ListUsers()),
    st.builds(fm.GetUser, texts),
    st.builds(fm.ChangePassword, texts, texts, texts),
    st.builds(fm.SetAcl, texts, st.booleans(), names, names),
    st.builds(fm.GetAcl, texts),
    st.builds(fm.DeleteAcl, texts),
    st.just(fm.ListAcls()),
    st.just(fm.ListRoles()),
)
audit_queries = st.builds(
    fm.QueryAudit, i64, i64, names, texts, texts, texts, texts, i32, i32, st.booleans()
)


def exportable(query: fm.QueryAudit) -> fm.QueryAudit:
    """Return the query as an export can send it: the Java layout has no limit and no offset."""
    return query._replace(limit=0, offset=0) if query.java else query


audit_requests = audit_queries | st.builds(fm.ExportAudit, audit_queries.map(exportable), texts)


def is_text(message: str) -> bool:
    """Return whether a topic and this text are read as such: eight bytes may be a number."""
    return len(message.encode()) != 6 or (message.isascii() and message.isdigit())


def is_short(text: str) -> bool:
    """Return whether a text is not empty and fits a ``str8``."""
    return 0 < len(text.encode()) < 256


def is_number(number: int) -> bool:
    """Return whether eight bytes are read as a number, and not as six digits."""
    data = number.to_bytes(8, "big")
    return data[:2] != b"\0\6" or not data[2:].isdigit()


u32 = st.integers(0, (1 << 32) - 1)
schema_requests = st.one_of(
    st.builds(fm.RegisterSchema, texts, texts.filter(is_short), values, st.just(True)),
    st.builds(fm.RegisterSchema, texts, texts, values, st.just(False)),
    st.builds(fm.GetSchema, texts, u32),
    st.builds(fm.ListSchemas, texts),
    st.builds(fm.ValidateSchema, texts, values),
    st.builds(fm.ProduceWithSchema, texts, values, texts, st.just(False)),
    st.builds(fm.ProduceWithSchema, texts, values, texts.filter(bool), st.just(True)),
    st.builds(fm.DeleteSchema, texts, u32),
)
timed_requests = st.one_of(
    st.builds(fm.ProduceDelayed, texts, values, i64),
    st.builds(fm.ProduceWithTtl, texts, values, i64),
    st.builds(fm.CancelDelayed, texts, st.none()),
    st.builds(fm.CancelDelayed, texts.filter(is_text), texts),
    st.builds(fm.CancelDelayed, u64.filter(is_number), texts),
)
transaction_requests = st.one_of(
    st.just(fm.BeginTransaction()),
    st.builds(fm.CommitTransaction, texts),
    st.builds(fm.RollBackTransaction, texts),
    st.builds(fm.ProduceInTransaction, texts, texts, values),
)


def is_offset(number: int) -> bool:
    """Return whether eight bytes are read as an offset, and not as an id of six bytes."""
    return number >> 48 != 6


no_topics = st.none() | texts
group_requests = st.one_of(
    st.just(fm.ListGroups()),
    st.builds(fm.DescribeGroup, texts, no_topics),
    st.builds(fm.DeleteGroup, texts, no_topics),
    st.builds(fm.SeekToTimestamp, texts, i32, i64, no_topics),
)
dead_letter_requests = st.one_of(
    st.builds(fm.FetchDlq, texts, i32),
    st.builds(fm.ReplayDlq, texts, texts | u64.filter(is_offset)),
    st.builds(fm.PurgeDlq, texts),
)
cluster_requests = st.one_of(
    st.builds(fm.JoinCluster, texts),
    st.just(fm.LeaveCluster()),
    st.just(fm.ClusterStatus()),
)
requests = st.one_of(
    group_requests,
    dead_letter_requests,
    cluster_requests,
    account_requests,
    audit_requests,
    schema_requests,
    timed_requests,
    transaction_requests,
    produces,
    consumes,
    fetches(),
    subscribes(),
    resets(),
    st.builds(fm.CreateTopic, texts, i32),
    st.builds(fm.Metadata, texts),
    st.builds(fm.Commit, texts, texts, i32, committable),
    st.just(fm.ListTopics()),
    st.builds(fm.DeleteTopic, texts),
    st.builds(fm.ClusterMetadata, texts),
    st.builds(fm.GetOffset, texts, texts, i32),
    st.builds(fm.GetLag, texts, texts, i32),
)
records = st.builds(Record, offset=u64, value=values, key=st.none() | st.binary(max_size=20))
partition_offsets = st.builds(fm.PartitionOffsets, i32, i32, u64, u64)
partition_places = st.builds(
    fm.PartitionPlace,
    i32,
    texts,
    texts,
    u64,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
)
topic_places = st.builds(fm.TopicPlaces, texts, st.lists(partition_places, max_size=3).map(tuple))
identities = st.builds(fm.Identity, st.just(True), texts, names, names)
users = st.builds(fm.User, texts, names, names, st.booleans(), i64, i64)
acls = st.builds(fm.Acl, texts, st.booleans(), st.booleans(), names, names)
roles = st.builds(fm.Role, texts, names, texts)
audit_events = st.builds(
    fm.AuditEvent,
    texts,
    i64,
    *[texts] * 7,
    st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)
groups = st.builds(
    fm.Group,
    texts,
    texts,
    st.integers(0, (1 << 32) - 1),
    st.lists(st.builds(fm.GroupOffset, i32, u64), max_size=3).map(tuple),
)
java_groups = st.builds(fm.JavaGroup, texts, texts, names, names, texts)
dead_letters = st.builds(fm.DeadLetter, texts, values, texts, i32)
cluster_nodes = st.builds(fm.ClusterNode, texts, texts, texts, st.booleans())
frames = st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=200))
