# Tests: tests/codecs/test_flymq_cluster.py
"""Encodes and decodes CLUSTER_JOIN, CLUSTER_LEAVE and CLUSTER_STATUS (page, 0x50 to 0x52)."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from brokerd.codecs.flymq.cluster_values import (
    ClusterNode,
    ClusterNodes,
    ClusterRequest,
    ClusterStatus,
    JoinCluster,
    LeaveCluster,
)
from brokerd.codecs.flymq.fields import Fields, pack_text
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.values import Opcode

_NODE_BYTES = 7

_U32 = Struct(">I")


def cluster_nodes(found: ClusterNodes) -> bytes:
    """The answer to CLUSTER_STATUS."""
    head = pack_text(found.cluster_id) + _U32.pack(len(found.nodes))
    return frame(Opcode.CLUSTER_STATUS, head + b"".join(map(_node_bytes, found.nodes)))


def _node_bytes(node: ClusterNode) -> bytes:
    texts = pack_text(node.node_id) + pack_text(node.address) + pack_text(node.status)
    return texts + bytes([node.is_leader])


DECODERS: dict[int, Callable[[Fields], ClusterRequest]] = {
    Opcode.CLUSTER_JOIN: lambda fields: JoinCluster(fields.text("peer")),
    Opcode.CLUSTER_LEAVE: lambda fields: LeaveCluster(),
    Opcode.CLUSTER_STATUS: lambda fields: ClusterStatus(),
}


# -- the client's half ------------------------------------------------------------------------

OPCODES: dict[type[Any], Opcode] = {
    JoinCluster: Opcode.CLUSTER_JOIN,
    LeaveCluster: Opcode.CLUSTER_LEAVE,
    ClusterStatus: Opcode.CLUSTER_STATUS,
}

PAYLOADS: dict[type[Any], Callable[[Any], bytes]] = {
    JoinCluster: lambda one: pack_text(one.peer),
    LeaveCluster: lambda one: b"",
    ClusterStatus: lambda one: b"",
}


def _cluster_nodes(fields: Fields) -> ClusterNodes:
    cluster_id = fields.text("cluster id")
    count = fields.count("nodes", _NODE_BYTES)
    return ClusterNodes(cluster_id, tuple([_node(fields) for _ in range(count)]))


def _node(fields: Fields) -> ClusterNode:
    return ClusterNode(
        fields.text("node id"), fields.text("address"), fields.text("status"), fields.flag("leader")
    )


ANSWERS: dict[int, Callable[[Fields], ClusterNodes]] = {Opcode.CLUSTER_STATUS: _cluster_nodes}
