# Tests: tests/codecs/test_flymq_cluster.py
"""Requests about the cluster, of which brokerd is the only node: values, free of bytes.

Layouts: docs/protocols/flymq.rst, 0x50 to 0x52.
"""

from __future__ import annotations

from typing import NamedTuple


class JoinCluster(NamedTuple):
    peer: str
    """``host:port``."""


class LeaveCluster(NamedTuple):
    pass


class ClusterStatus(NamedTuple):
    pass


ClusterRequest = JoinCluster | LeaveCluster | ClusterStatus


class ClusterNode(NamedTuple):
    node_id: str
    address: str
    status: str
    is_leader: bool


class ClusterNodes(NamedTuple):
    """The answer to CLUSTER_STATUS."""

    cluster_id: str
    nodes: tuple[ClusterNode, ...]


ClusterAnswer = ClusterNodes
