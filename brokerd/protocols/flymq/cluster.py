# Tests: tests/protocols/test_flymq_cluster.py
"""What FlyMQ's clients are told of the cluster: there is one node (0x50 to 0x52)."""

from __future__ import annotations

from brokerd.codecs import flymq
from brokerd.codecs.flymq import ClusterNode, ClusterNodes, ClusterStatus, JoinCluster, LeaveCluster
from brokerd.errors import InvalidRequest
from brokerd.protocols.flymq.topics import ONLINE
from brokerd.security import ADMIN, Access

PEER_LETTERS = 255
"""Of a peer that a refusal repeats."""


def answer(
    access: Access, request: JoinCluster | LeaveCluster | ClusterStatus, name: str, address: str
) -> bytes:
    """CLUSTER_STATUS: the only node, which leads, of this name. To join and to leave is refused."""
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
