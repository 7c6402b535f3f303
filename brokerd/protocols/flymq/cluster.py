# Tests: tests/protocols/test_flymq_cluster.py
"""FlyMQ's cluster requests (0x50 to 0x52): the cluster has one node."""

from __future__ import annotations

from brokerd.codecs import flymq
from brokerd.codecs.flymq import ClusterNode, ClusterNodes, ClusterStatus, JoinCluster, LeaveCluster
from brokerd.errors import InvalidRequest
from brokerd.protocols.flymq.topics import ONLINE
from brokerd.security import ADMIN, Access

PEER_LETTERS = 255
"""Longest part of a peer's name that a refusal repeats."""


def answer(
    access: Access, request: JoinCluster | LeaveCluster | ClusterStatus, name: str, address: str
) -> bytes:
    """Answer CLUSTER_STATUS with one node, the leader; refuse to join and to leave."""
    if isinstance(request, ClusterStatus):
        access.require_known()
        node = ClusterNode(name, address, ONLINE, True)
        return flymq.cluster_nodes(ClusterNodes(name, (node,)))
    access.require_server(ADMIN)
    if isinstance(request, JoinCluster):
        raise InvalidRequest(
            f"cannot join {request.peer[:PEER_LETTERS]}: brokerd runs as a single node and forms "
            "no cluster"
        )
    raise InvalidRequest("cannot leave: brokerd runs as a single node and is in no cluster")
