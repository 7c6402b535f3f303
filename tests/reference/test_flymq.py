"""FlyMQ's Python and Go clients, rewritten from their documents, against a real broker."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.process import BrokerProcess
from tests.reference import flymq
from tests.reference.flymq import Lag, Record, ServerError
from tests.reference.flymq_go import GoClient, GoConsumer
from tests.reference.pyflymq import (
    Consumer,
    ConsumerGroup,
    FlyMQClient,
    HighLevelConsumer,
    HighLevelProducer,
)

UNKNOWN_OPCODE = 0x16
FNV_OF_6 = {b"user-123": 5, b"a": 4, b"b": 1, b"key": 4, b"hello": 3}
"""Keys and their partitions of six, as the clients choose them."""


@pytest.fixture
def address(broker: BrokerProcess) -> str:
    """Where FlyMQ listens."""
    return broker.address_of("flymq")


@pytest.fixture
def client(address: str) -> Iterator[FlyMQClient]:
    """A pyflymq client of its own connection, by a name that means IPv6 to it first."""
    client = FlyMQClient([address.replace("127.0.0.1", "localhost")])
    yield client
    client.close()


@pytest.fixture
def go(address: str) -> Iterator[GoClient]:
    """A Go client; the first of its bootstrap servers is gone."""
    client = GoClient([unused_address(), address])
    yield client
    client.close()


def unused_address() -> str:
    """Where nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{reserved.getsockname()[1]}"


_names = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"flymq-{next(_names)}"


# -- the stand-ins themselves ---------------------------------------------------------------------

CAPTURED: list[tuple[str, str, str, Callable[[FlyMQClient], object]]] = [
    (
        "produce",
        "af0101010000001600066f726465727300000000000000026869ffffffff",
        "00066f726465727300000000000000000000002a0000018bcfe56800ffffffff00000002",
        lambda client: client.produce("orders", b"hi"),
    ),
    (
        "produce-key",
        "af0101010000001800066f7264657273000000026b3100000002686900000002",
        "00066f72646572730000000200000000000000070000018bcfe568000000000200000002",
        lambda client: client.produce("orders", b"hi", b"k1", 2),
    ),
    (
        "consume",
        "af0102010000001400066f726465727300000000000000000000002a",
        "000000026b31000000026869",
        lambda client: client.consume("orders", 42),
    ),
    (
        "fetch",
        "af0107010000001a00066f7264657273000000000000000000000029000000020000",
        "00000002000000000000002b0000000000000029000000000000000161000000000000002a"
        "000000026b31000000026869",
        lambda client: client.fetch("orders", 0, 41, 2),
    ),
    (
        "create",
        "af0103010000000c00066f726465727300000003",
        "010000",
        lambda client: client.create_topic("orders", 3),
    ),
    (
        "subscribe",
        "af0105010000001900066f72646572730002673100000000086561726c69657374",
        "0000000000000000",
        lambda client: client.subscribe("orders", "g1", 0, "earliest"),
    ),
    (
        "commit",
        "af0106010000001800066f72646572730002673100000000000000000000002b",
        "010000",
        lambda client: client.commit("orders", "g1", 0, 43),
    ),
    (
        "reset",
        "af0161010000001f00066f72646572730002673100000000066f66667365740000000000000007",
        "01",
        lambda client: client.reset_offset("orders", "g1", 0, "offset", 7),
    ),
    (
        "lag",
        "af0164010000001000066f72646572730002673100000000",
        "000000000000002b000000000000002b00000000000000320000000000000007",
        lambda client: client.get_lag("orders", "g1"),
    ),
    (
        "cluster",
        "af0153010000000800066f7264657273",
        "000263310000000100066f7264657273000000010000000000026e31000d31302e302e302e353a39303932"
        "000000000000000100066f6e6c696e650000000100026e310000000100026e31",
        lambda client: client.cluster_metadata("orders"),
    ),
]


@pytest.mark.parametrize(
    ("request_hex", "answer_hex", "call"),
    [case[1:] for case in CAPTURED],
    ids=[case[0] for case in CAPTURED],
)
def test_the_stand_in_sends_what_was_captured_from_the_original(
    request_hex: str, answer_hex: str, call: Callable[[FlyMQClient], object]
) -> None:
    """Byte for byte, against a stub that gives the captured answer."""
    request, answer = bytes.fromhex(request_hex), bytes.fromhex(answer_hex)
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                received.append(connection.recv(65536))
                connection.sendall(flymq.header(request[2], len(answer)) + answer)

        thread = threading.Thread(target=serve)
        thread.start()
        stub_client = FlyMQClient([f"127.0.0.1:{listening.getsockname()[1]}"])
        call(stub_client)
        thread.join()
        stub_client.close()
    assert received == [request]


# -- pyflymq --------------------------------------------------------------------------------------


class TestTopics:
    def test_a_topic_is_created_listed_and_deleted(self, client: FlyMQClient, topic: str) -> None:
        """Creating it again, and deleting what is not there, are successes."""
        client.create_topic(topic, 3)
        client.create_topic(topic, 5)
        assert topic in client.list_topics()
        described = client.cluster_metadata(topic)[topic]
        assert [info.partition for info in described] == [0, 1, 2]
        assert topic in client.cluster_metadata()
        client.delete_topic(topic)
        client.delete_topic(topic)
        assert topic not in client.list_topics()

    def test_metadata_names_an_address_that_can_be_dialled(
        self, client: FlyMQClient, topic: str
    ) -> None:
        """A single broker leads every partition; no wildcard for an address."""
        client.create_topic(topic, 2)
        for info in client.cluster_metadata(topic)[topic]:
            assert (info.state, info.epoch) == ("online", 1)
            assert info.replicas == info.in_sync == [info.leader_id]
            other = FlyMQClient([info.leader_address])
            assert topic in other.list_topics()
            other.close()

    def test_a_topic_made_again_has_no_old_commits(self, client: FlyMQClient, topic: str) -> None:
        """Its group begins anew."""
        client.produce(topic, b"x")
        client.commit(topic, "g", 0, 1)
        client.delete_topic(topic)
        client.create_topic(topic)
        assert client.subscribe(topic, "g", 0, "commit") == 0


class TestRecords:
    def test_produce_creates_the_topic_and_tells_where_the_record_is(
        self, client: FlyMQClient, topic: str
    ) -> None:
        """With sizes, and -1 for no key."""
        before = time.time() * 1000
        first = client.produce(topic, b"hello")
        assert first[:3] == (topic, 0, 0)
        assert first[4:] == (-1, 5)
        assert before - 1000 <= first.timestamp_ms <= time.time() * 1000 + 1000
        second = client.produce(topic, b"", b"k1")
        assert (second.offset, second.key_size, second.value_size) == (1, 2, 0)
        assert client.consume(topic, 0) == (b"", b"hello")
        assert client.consume(topic, 1) == (b"k1", b"")

    def test_keys_choose_partitions_by_their_hash_and_no_key_by_turns(
        self, client: FlyMQClient, topic: str
    ) -> None:
        """FNV-1a over six partitions; keyless records start at partition 0."""
        client.create_topic(topic, 6)
        for key, partition in FNV_OF_6.items():
            assert client.produce(topic, b"v", key).partition == partition
        keyless = [client.produce(topic, b"v").partition for _ in range(7)]
        assert keyless == [0, 1, 2, 3, 4, 5, 0]
        assert client.produce(topic, b"v", b"key", 2).partition == 2

    @pytest.mark.parametrize("size", [0, 8_000, 8_192, 70_000, 1_000_000, 20_000_000])
    def test_values_of_any_size_come_back(self, client: FlyMQClient, topic: str, size: int) -> None:
        """Whether header and payload are one write or two."""
        value = bytes(range(250)) * (size // 250)
        client.produce(topic, value, b"k")
        assert client.consume(topic, 0) == (b"k", value)
        assert client.fetch(topic, 0, 0) == ([Record(0, b"k", value)], 1)

    def test_fetch_at_the_end_is_empty(self, client: FlyMQClient, topic: str) -> None:
        """No error, and the next offset is the one asked for."""
        for number in range(3):
            client.produce(topic, b"%d" % number)
        assert client.fetch(topic, 0, 3) == ([], 3)
        assert client.fetch(topic, 0, 0, 2) == (
            [Record(0, b"", b"0"), Record(1, b"", b"1")],
            2,
        )

    def test_errors_are_read_in_full_and_leave_the_connection(
        self, client: FlyMQClient, topic: str
    ) -> None:
        """The first ones before the broker can know that this is an SDK, the others after."""
        client.produce(topic, b"x")

        def text_of(call: Callable[[], object]) -> str:
            with pytest.raises(ServerError) as error:
                call()
            return str(error.value)

        def refusals() -> list[str]:
            return [
                text_of(lambda: client.consume("absent", 0)),
                text_of(lambda: client.consume(topic, 1)),
                text_of(lambda: client.consume(topic, 0, 7)),
                text_of(lambda: client.produce(topic, b"x", partition=7)),
                text_of(lambda: client.get_committed_offset(topic, "nobody")),
                text_of(lambda: client.call(UNKNOWN_OPCODE, b"")),
                text_of(lambda: client.produce("", b"x")),
            ]

        before = refusals()
        assert before[0].startswith("topic not found")
        assert before[1].startswith("offset 1 out of range")
        assert before[2].startswith("partition 7")
        assert before[3].startswith("partition 7 not found")
        assert before[4] == f"consumer group not found: {topic}:nobody"
        assert before[5].startswith("unknown opcode: 22")
        assert text_of(lambda: client.fetch("absent", 0, 0)) == "topic not found: absent"
        assert text_of(lambda: client.fetch(topic, 7, 0)).startswith("partition 7 not found")
        assert text_of(lambda: client.subscribe("absent", "g", 0, "latest")).startswith(
            "topic not found: absent"
        )
        assert refusals() == before
        assert not any("not leader" in text for text in before)


class TestConsumers:
    def test_latest_of_an_empty_partition_misses_nothing(
        self, client: FlyMQClient, topic: str
    ) -> None:
        """The first record comes, which the original broker skips."""
        client.create_topic(topic)
        consumer = Consumer(client, topic, "g")
        assert consumer.poll() == []
        client.produce(topic, b"first")
        assert [record.value for record in consumer.poll()] == [b"first"]

    def test_a_group_commits_and_sees_its_lag(self, client: FlyMQClient, topic: str) -> None:
        """Earliest is literal, the commit is the next offset to read."""
        for number in range(10):
            client.produce(topic, b"%d" % number)
        consumer = Consumer(client, topic, "g", mode="earliest")
        assert client.get_committed_offset(topic, "g") == 0
        assert client.get_lag(topic, "g") == Lag(0, 0, 10, 10)
        assert len(consumer.poll()) == 10
        consumer.commit()
        assert client.get_committed_offset(topic, "g") == 10
        client.produce(topic, b"10")
        assert client.get_lag(topic, "g") == Lag(10, 10, 11, 1)
        assert Consumer(client, topic, "g", mode="earliest").position == 0
        assert Consumer(client, topic, "g", mode="latest").position == 11
        assert Consumer(client, topic, "g", mode="commit").position == 10
        consumer.seek_to_end()
        assert consumer.position == 11

    def test_reset_offset_moves_the_commit(self, client: FlyMQClient, topic: str) -> None:
        """To either end, or to a number."""
        for _ in range(4):
            client.produce(topic, b"x")
        for mode, offset, expected in [
            ("latest", None, 4),
            ("earliest", None, 0),
            ("offset", 3, 3),
        ]:
            client.reset_offset(topic, "g", 0, mode, offset)
            assert client.get_committed_offset(topic, "g") == expected

    def test_a_consumer_without_a_group_spins_until_records_come(
        self, client: FlyMQClient, address: str, topic: str
    ) -> None:
        """Its iterator fetches without a pause while another connection produces."""
        client.create_topic(topic)
        values = [b"%d" % number for number in range(30)]

        def produce() -> None:
            other = FlyMQClient([address])
            for value in values:
                other.produce(topic, value)
            other.close()

        thread = threading.Thread(target=produce)
        thread.start()
        seen = [record.value for record in itertools.islice(Consumer(client, topic), 30)]
        thread.join()
        assert seen == values

    def test_a_filter_finds_its_record_behind_a_thousand_others(
        self, client: FlyMQClient, address: str, topic: str
    ) -> None:
        """The consumer looks at the next offset of no empty answer, so there must be none."""
        client.create_topic(topic)

        def produce_some() -> None:
            own_client = FlyMQClient([address])
            producer = HighLevelProducer(own_client)
            for number in range(126):
                producer.send(topic, b"ordinary %d" % number)
            producer.flush()
            own_client.close()

        threads = [threading.Thread(target=produce_some) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert client.produce(topic, b"ERROR: disk").offset == 1008
        consumer = Consumer(client, topic, pattern="error")
        assert [record.offset for record in consumer.poll()] == [1008]
        assert consumer.poll() == []

    def test_high_level_producer_and_consumer(self, client: FlyMQClient, topic: str) -> None:
        """Grouped on the client's side, read from partition 0, committed at the end."""
        producer = HighLevelProducer(client, batch_records=4)
        for number in range(10):
            producer.send(topic, b"%d" % number, b"k")
        assert len(producer.sent) == 8
        producer.flush()
        assert [metadata.offset for metadata in producer.sent] == list(range(10))
        consumer = HighLevelConsumer(client, topic, "never-subscribed")
        assert len(consumer.poll()) == 10
        consumer.close()
        assert client.get_committed_offset(topic, "never-subscribed") == 10

    def test_a_consumer_group_reads_every_partition_of_matching_topics(
        self, client: FlyMQClient, address: str, topic: str
    ) -> None:
        """Two members read everything each; their commits can be asked for."""
        names = [f"{topic}/a/x", f"{topic}/b/x"]
        for name in names:
            client.create_topic(name, 3)
        client.create_topic(f"{topic}/b/y", 1)
        sent = {(name, b"%d" % number) for name in names for number in range(30)}
        members: list[tuple[ConsumerGroup, FlyMQClient]] = []
        received: list[set[tuple[str, bytes]]] = [set(), set()]
        done = threading.Semaphore(0)

        def receiver(mine: set[tuple[str, bytes]]) -> Callable[[str, int, Record], None]:
            def receive(name: str, partition: int, record: Record) -> None:
                mine.add((name, record.value))
                if len(mine) == len(sent):
                    done.release()

            return receive

        for mine in received:
            own_client = FlyMQClient([address])
            member = ConsumerGroup(
                own_client,
                "members",
                [f"{topic}/+/x"],
                receiver(mine),
                mode="earliest",
                commit_seconds=0.0,
            )
            member.start()
            members.append((member, own_client))
        for name, value in sorted(sent):
            client.produce(name, value, value)
        for _ in members:
            assert done.acquire(timeout=60)
        for member, own_client in members:
            member.stop()
            own_client.close()
            assert member.positions.keys() == {(name, part) for name in names for part in range(3)}
            assert member.commits
        assert received == [sent, sent]
        for (name, partition), position in members[0][0].positions.items():
            assert client.get_committed_offset(name, "members", partition) <= position


# -- Go -------------------------------------------------------------------------------------------


class TestGo:
    def test_records_plain_and_compressed(self, go: GoClient, topic: str) -> None:
        """Header and payload in two writes; gzip is undone, other names are sent plain."""
        for offset, compression in enumerate(("", "gzip", "zstd")):
            value = b"value " * 1000
            metadata = go.produce(topic, value, b"k", compression=compression)
            assert (metadata.offset, metadata.value_size) == (offset, 6000)
            assert go.consume(topic, 0, offset) == (b"k", value)
        assert go.produce(topic, b"x", partition=-5).offset == 3
        records, next_offset = go.fetch(topic, 0, 2, 10)
        assert ([record.offset for record in records], next_offset) == ([2, 3], 4)

    def test_the_opcodes_that_only_codecs_know(self, go: GoClient, topic: str) -> None:
        """METADATA, CONSUME_ZERO_COPY and FETCH_BINARY, also with a value above 64 KiB."""
        value = bytes(100_000)
        go.create_topic(topic, 2)
        go.produce(topic, value, b"k", 1)
        assert go.metadata(topic) == (topic, [(0, 0, 0, 0), (1, 0, 0, 1)])
        assert go.consume(topic, 1, 0, flymq.CONSUME_ZERO_COPY) == (b"k", value)
        fetched = go.fetch(topic, 1, 0, 10, flymq.FETCH_BINARY)
        assert fetched == ([Record(0, b"k", value)], 1)

    def test_errors_are_exact_once_the_client_is_known(self, go: GoClient, topic: str) -> None:
        """Before that its fallback shows the whole payload, the message at the end."""
        with pytest.raises(ServerError, match=r"topic not found: absent$") as error:
            go.consume("absent", 0, 0)
        go.produce(topic, b"x")
        go.fetch(topic, 0, 0, 1)
        with pytest.raises(ServerError) as error:
            go.consume("absent", 0, 0)
        assert str(error.value) == "server error: topic not found: absent"

    def test_an_unknown_topic_in_metadata_is_an_error(self, go: GoClient) -> None:
        """No empty list, which the client would take for a broken connection."""
        with pytest.raises(ServerError, match="topic not found: absent"):
            go.cluster_metadata("absent")

    def test_consumer_reads_all_partitions_and_commits(self, go: GoClient, topic: str) -> None:
        """A second consumer of the group goes on from the commits only if it asks for them."""
        go.create_topic(topic, 3)
        for number in range(30):
            go.produce(topic, b"%d" % number)
        consumer = GoConsumer(go, "g", [topic, "absent"], "earliest")
        received = consumer.poll()
        assert sorted(int(record.value) for _, _, record in received) == list(range(30))
        assert consumer.poll() == []
        consumer.commit()
        assert consumer.positions == {(topic, partition): 10 for partition in range(3)}
        assert [go.subscribe(topic, "g", partition, "commit") for partition in range(3)] == [10] * 3

    def test_both_clients_share_topics_and_commits(
        self, go: GoClient, client: FlyMQClient, topic: str
    ) -> None:
        """What one writes the other reads."""
        go.produce(topic, b"from go", b"k")
        client.produce(topic, b"from python")
        assert [record.value for record in Consumer(client, topic).poll()] == [
            b"from go",
            b"from python",
        ]
        consumer = GoConsumer(go, "shared", [topic], "earliest")
        consumer.poll()
        consumer.commit()
        assert client.get_committed_offset(topic, "shared") == 2
