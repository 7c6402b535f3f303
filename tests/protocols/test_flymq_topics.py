"""FlyMQ's topics on the wire: created, listed, described, deleted."""

from __future__ import annotations

import pytest
from twisted.internet.address import IPv6Address, UNIXAddress

from brokerd.codecs import flymq
from brokerd.protocols.flymq import topics
from brokerd.protocols.flymq.connection import FlymqSettings
from tests.protocols.flymq_desk import FlymqHouse

DONE = flymq.Done()


def test_a_topic_has_the_partitions_asked_for_and_one_where_0_are() -> None:
    house = FlymqHouse()
    assert house.ask(flymq.CreateTopic("t", 3), flymq.CreateTopic("one", 0)) == [DONE, DONE]
    assert len(house.only(flymq.Metadata("t")).partitions) == 3
    assert len(house.only(flymq.Metadata("one")).partitions) == 1


def test_a_topic_that_exists_is_left_as_it_is_and_that_is_success() -> None:
    house = FlymqHouse()
    house.produce(b"x")
    assert house.only(flymq.CreateTopic("t", 5)) == DONE
    assert house.only(flymq.Metadata("t")) == flymq.TopicOffsets(
        "t", (flymq.PartitionOffsets(0, 0, 0, 1),)
    )


@pytest.mark.parametrize("partitions", [-1, -(1 << 31), 32_768, (1 << 31) - 1])
def test_a_number_of_partitions_that_makes_no_sense_is_refused(partitions: int) -> None:
    """The reference server's process ends at a negative one."""
    house = FlymqHouse()
    answer = house.only(flymq.CreateTopic("t", partitions))
    assert str(partitions) in answer.text
    assert house.only(flymq.ListTopics()) == flymq.Topics(())
    house.ask(flymq.CreateTopic("t", 1))
    if partitions < 0:
        assert isinstance(house.only(flymq.CreateTopic("t", partitions)), flymq.Failed)


def test_the_list_is_sorted_and_hides_internal_topics_and_names_not_of_this_format() -> None:
    house = FlymqHouse()
    for name in ("b", "a", "__audit", "", ".", "b.dlq", "\u00e9"):
        house.broker.topics.create(name)
    assert house.only(flymq.ListTopics()) == flymq.Topics(("a", "b", "b.dlq", "\u00e9"))


def test_an_internal_topic_can_be_used_by_its_name() -> None:
    house = FlymqHouse()
    house.produce(b"x", topic="__audit")
    assert house.records("__audit", 0, 0, 1) == [(0, None, b"x")]


def test_metadata_tells_where_each_partition_begins_and_ends() -> None:
    house = FlymqHouse()
    house.broker.topics.create("t", 2)
    house.produce(b"a", b"b", b"c", partition=1)
    house.broker.topics.trim("t", 1, 2)
    house.run()
    assert house.only(flymq.Metadata("t")).partitions == (
        flymq.PartitionOffsets(0, 0, 0, 0),
        flymq.PartitionOffsets(1, 0, 2, 3),
    )
    assert house.only(flymq.Metadata("none")) == flymq.Failed("topic not found: none")


def test_a_deleted_topic_takes_its_groups_and_commits_with_it() -> None:
    """One of the same name that comes later is new: the reference server serves stale commits."""
    house = FlymqHouse()
    house.produce(b"old", b"older")
    house.ask(flymq.Commit("t", "g", 0, 2))
    assert house.ask(flymq.DeleteTopic("t"), flymq.ListTopics()) == [DONE, flymq.Topics(())]
    assert house.only(flymq.GetOffset("t", "g", 0)) == flymq.Failed("topic not found: t")
    house.produce(b"new")
    assert house.records("t", 0, 0, 10) == [(0, None, b"new")]
    assert house.only(flymq.GetOffset("t", "g", 0)) == flymq.Failed("consumer group not found: t:g")
    assert house.only(flymq.Subscribe("t", "g", 0, "commit")) == flymq.Position(0)
    house = house.crash()
    assert house.only(flymq.GetOffset("t", "g", 0)) == flymq.Position(0)


def test_deleting_what_is_not_there_is_success() -> None:
    assert FlymqHouse().only(flymq.DeleteTopic("none")) == DONE


def test_a_record_produced_and_deleted_in_one_write_is_answered() -> None:
    house = FlymqHouse()
    answers = house.ask(
        flymq.Produce("t", None, b"x"), flymq.DeleteTopic("t"), flymq.Produce("t", None, b"y")
    )
    assert [type(answer) for answer in answers] == [flymq.Produced, flymq.Done, flymq.Produced]
    assert [answers[0].offset, answers[2].offset] == [0, 0]


# -- CLUSTER_METADATA -------------------------------------------------------------------------


def places(topic: str, partitions: int, node: str, address: str) -> flymq.TopicPlaces:
    return flymq.TopicPlaces(
        topic,
        tuple(
            flymq.PartitionPlace(index, node, address, 1, "online", (node,), (node,))
            for index in range(partitions)
        ),
    )


def test_this_node_leads_every_partition() -> None:
    house = FlymqHouse()
    house.broker.topics.create("t", 2)
    house.broker.topics.create("__audit")
    house.broker.topics.create("..")
    node, address = "standalone", "127.0.0.1:9092"
    assert house.only(flymq.ClusterMetadata("t")) == flymq.Cluster(
        node, (places("t", 2, node, address),)
    )
    assert house.only(flymq.ClusterMetadata("")) == flymq.Cluster(
        node, (places("t", 2, node, address), places("__audit", 1, node, address))
    )


def test_an_unknown_topic_has_no_places_and_that_is_an_error() -> None:
    """Given an empty list the Go client takes its connection for broken."""
    house = FlymqHouse()
    assert house.only(flymq.ClusterMetadata("none")) == flymq.Failed("topic not found: none")
    assert house.only(flymq.ClusterMetadata()) == flymq.Cluster("standalone", ())


def test_the_address_told_is_the_operator_s_or_the_connection_s_own() -> None:
    house = FlymqHouse(FlymqSettings(cluster_id="c1", advertised="broker.example:19092"))
    house.broker.topics.create("t")
    answer = house.only(flymq.ClusterMetadata("t"))
    assert answer == flymq.Cluster("c1", (places("t", 1, "c1", "broker.example:19092"),))
    for address, text in (
        (IPv6Address("TCP", "::1", 9092), "[::1]:9092"),
        (UNIXAddress(b"/run/flymq.sock"), "unix:/run/flymq.sock"),
    ):
        house = FlymqHouse()
        house.broker.topics.create("t")
        client = house.client()
        client.transport.getHost = lambda address=address: address  # type: ignore[method-assign,misc]
        (answer,) = client.ask(flymq.ClusterMetadata("t"))
        assert answer.topics[0].partitions[0].leader_address == text


def test_places_of_more_partitions_than_an_answer_tells_of_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topics, "PLACES_MAX", 4)
    house = FlymqHouse()
    house.broker.topics.create("a", 3)
    house.broker.topics.create("b", 2)
    assert "ask for one topic" in house.only(flymq.ClusterMetadata()).text
    assert len(house.only(flymq.ClusterMetadata("a")).topics[0].partitions) == 3
