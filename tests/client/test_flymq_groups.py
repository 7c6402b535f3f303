"""Groups, dead letters and the cluster, as a user of the FlyMQ client sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerd.client.flymq import ConnectionLost, FlymqError
from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.client.flymq_peer import Call, FlymqPeer, client_of, peer

__all__ = ["peer"]

GROUP = fm.Group("t", "g", 2, (fm.GroupOffset(0, 43),))
LETTER = fm.DeadLetter("m-1", b"hi", "boom", 3)
NODES = fm.ClusterNodes("c", (fm.ClusterNode("n", "h:9092", "online", True),))
BY_ID, BY_OFFSET = fm.ReplayDlq("t", "m-1"), fm.ReplayDlq("t", 5)
DELETED = fm.ok(Opcode.DELETE_GROUP)

CALLS: list[Call] = [
    (lambda c: c.list_groups(), fm.ListGroups(), fm.listed_groups([GROUP]), (GROUP,)),
    (
        lambda c: c.describe_group("t", "g"),
        fm.DescribeGroup("g", "t"),
        fm.described_group(GROUP),
        GROUP,
    ),
    (lambda c: c.delete_group("", "g"), fm.DeleteGroup("g", ""), DELETED, None),
    (
        lambda c: c.seek_to_timestamp("t", 1, 1_700_000_000_000),
        fm.SeekToTimestamp("t", 1, 1_700_000_000_000),
        fm.position(Opcode.SEEK_TO_TIMESTAMP, 7),
        7,
    ),
    (
        lambda c: c.seek_to_timestamp("t", 1, -1, "g"),
        fm.SeekToTimestamp("t", 1, -1, "g"),
        fm.position(Opcode.SEEK_TO_TIMESTAMP, 0),
        0,
    ),
    (lambda c: c.fetch_dlq("t"), fm.FetchDlq("t", 10), fm.fetched_dlq([LETTER]), (LETTER,)),
    (lambda c: c.fetch_dlq("t", 1 << 40), fm.FetchDlq("t", (1 << 31) - 1), fm.fetched_dlq([]), ()),
    (lambda c: c.replay_dlq("t", "m-1"), BY_ID, fm.replayed(BY_ID), None),
    (lambda c: c.replay_dlq("t", 5), BY_OFFSET, fm.replayed(BY_OFFSET), None),
    (lambda c: c.purge_dlq("t"), fm.PurgeDlq("t"), fm.ok(Opcode.PURGE_DLQ, "OK"), None),
    (lambda c: c.cluster_status(), fm.ClusterStatus(), fm.cluster_nodes(NODES), NODES),
    (
        lambda c: c.cluster_join("h:9093"),
        fm.JoinCluster("h:9093"),
        fm.ok(Opcode.CLUSTER_JOIN),
        None,
    ),
    (lambda c: c.cluster_leave(), fm.LeaveCluster(), fm.ok(Opcode.CLUSTER_LEAVE), None),
]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_each_call_sends_its_request_and_returns_its_result(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    """The answers to CLUSTER_JOIN and CLUSTER_LEAVE are those of another server."""
    peer.will_accept(answer)
    with client_of(peer) as client:
        assert call(client) == result
    assert peer.requests() == [request_]


@pytest.mark.parametrize(("call", "request_", "answer", "result"), CALLS)
def test_every_call_may_be_refused(
    peer: FlymqPeer, call: Callable[..., object], request_: Any, answer: bytes, result: object
) -> None:
    peer.will_accept(fm.error("unauthorized", sdk=True))
    with client_of(peer) as client, pytest.raises(FlymqError, match=r"^unauthorized$"):
        call(client)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda c: c.describe_group("t", b"g"), TypeError, "group must be a str"),
        (lambda c: c.delete_group(None, "g"), TypeError, "topic must be a str"),
        (lambda c: c.seek_to_timestamp("t", -1, 0), ValueError, "partition must be from 0"),
        (lambda c: c.seek_to_timestamp("t", 0, 1 << 63), ValueError, "time_ms must be from"),
        (lambda c: c.seek_to_timestamp("t", 0, 0, 7), TypeError, "group must be a str"),
        (lambda c: c.fetch_dlq("t", -1), ValueError, "max_messages must be from 0"),
        (lambda c: c.fetch_dlq("t", "1"), TypeError, "max_messages must be an int"),
        (lambda c: c.replay_dlq("t", b"m-1"), TypeError, "message must be a str or an int"),
        (lambda c: c.replay_dlq("t", 1 << 64), ValueError, "message must be from 0"),
        (lambda c: c.replay_dlq("t", "\ud800"), ValueError, "message"),
        (lambda c: c.cluster_join(None), TypeError, "peer must be a str"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_sent(
    peer: FlymqPeer, call: Callable[..., object], error: type[Exception], text: str
) -> None:
    with client_of(peer) as client, pytest.raises(error, match=text):
        call(client)


@pytest.mark.parametrize(
    "call", [lambda c: c.replay_dlq("t", "m-1"), lambda c: c.delete_group("t", "g")]
)
def test_what_would_do_harm_twice_is_not_sent_again(
    peer: FlymqPeer, call: Callable[..., object]
) -> None:
    """A replay may produce, and a deletion be refused, a second time."""
    peer.will_accept(then_close=True, in_bytes=True)
    with client_of(peer) as client, pytest.raises(ConnectionLost):
        call(client)
