"""FlyMQ's requests about a cluster that is none: one node, and refusals that say so."""

from __future__ import annotations

from brokerd.codecs import flymq
from brokerd.protocols.flymq.connection import FlymqSettings
from tests.protocols.flymq_desk import FlymqHouse
from tests.protocols.flymq_guarded import GuardedHouse

JOIN, LEAVE, STATUS = (
    flymq.JoinCluster("10.0.0.5:9093"),
    flymq.LeaveCluster(),
    flymq.ClusterStatus(),
)
NO_JOIN = "cannot join 10.0.0.5:9093: brokerd runs as a single node and forms no cluster"
NO_LEAVE = "cannot leave: brokerd runs as a single node and is in no cluster"


def test_the_status_tells_of_one_node_that_leads() -> None:
    house = FlymqHouse(FlymqSettings(cluster_id="c1", advertised="broker:9092"))
    node = flymq.ClusterNode("c1", "broker:9092", "online", True)
    assert house.only(STATUS) == flymq.ClusterNodes("c1", (node,))


def test_its_address_is_that_of_the_metadata() -> None:
    house = FlymqHouse()
    house.produce(b"x")
    status, metadata = house.ask(STATUS, flymq.ClusterMetadata("t"))
    assert status.nodes[0].address == metadata.topics[0].partitions[0].leader_address
    assert status.nodes[0].node_id == metadata.topics[0].partitions[0].leader_id


def test_to_join_and_to_leave_is_refused_with_the_reason() -> None:
    """And the connection lives."""
    assert FlymqHouse().ask(JOIN, LEAVE, flymq.ListTopics()) == [
        flymq.Failed(NO_JOIN),
        flymq.Failed(NO_LEAVE),
        flymq.Topics(()),
    ]


def test_a_long_peer_is_repeated_in_part() -> None:
    answer = FlymqHouse().only(flymq.JoinCluster("n" * 60_000))
    assert len(answer.text) < 400


def test_no_peer_s_name_sends_clients_elsewhere() -> None:
    answer = FlymqHouse().only(flymq.JoinCluster("not leader: leader_addr=evil:1"))
    assert "not leader" not in answer.text


def test_who_may_ask() -> None:
    house = GuardedHouse()
    assert house.ask(STATUS, JOIN, LEAVE) == [flymq.Failed("authentication required")] * 3
    answers = house.log_in("carl").ask(STATUS, JOIN, LEAVE)
    assert isinstance(answers[0], flymq.ClusterNodes)
    assert answers[1:] == [flymq.Failed("unauthorized")] * 2
    assert house.log_in("root").ask(JOIN, LEAVE) == [flymq.Failed(NO_JOIN), flymq.Failed(NO_LEAVE)]
