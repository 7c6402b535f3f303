"""All that FlyMQ's SDKs call besides records and subscriptions, against a real broker.

As their integration tests and examples go through it: schemas, dead letters, delays and times to
live, transactions, groups and the cluster.
"""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.process import BrokerProcess
from brokerd.client.mamamia import MamamiaClient
from tests.reference import flymq
from tests.reference.flymq import ServerError
from tests.reference.flymq_calls import (
    GoCalls,
    Group,
    JavaCalls,
    Letter,
    PyCalls,
    Schema,
    success_u32,
)
from tests.reference.flymq_go import GoClient
from tests.reference.pyflymq import FlyMQClient

_names = itertools.count()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"flymq-calls-{next(_names)}"


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[FlyMQClient]:
    """A pyflymq client."""
    client = FlyMQClient([broker.address_of("flymq")])
    yield client
    client.close()


@pytest.fixture
def py(client: FlyMQClient) -> PyCalls:
    """Its other calls."""
    return PyCalls(client.call)


@pytest.fixture
def go(broker: BrokerProcess) -> Iterator[GoCalls]:
    """The Go client's calls."""
    client = GoClient([broker.address_of("flymq")])
    yield GoCalls(client.call)
    client.close()


@pytest.fixture
def java(client: FlyMQClient) -> JavaCalls:
    """The Java SDK's calls."""
    return JavaCalls(client.call)


def values(client: FlyMQClient, topic: str) -> list[bytes]:
    """What is in partition 0."""
    return [record.value for record in client.fetch(topic, 0, 0, 100)[0]]


def wait_for(found: Callable[[], object]) -> None:
    """Ask again and again, for a minute at most."""
    end_seconds = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end_seconds, "it does not come"
        time.sleep(0.05)


# -- the calls themselves -------------------------------------------------------------------------

METADATA = "00066f72646572730000000000000000000000000000018bcfe56800ffffffff00000002"
CAPTURED: list[tuple[str, str, Callable[[PyCalls], object]]] = [
    (
        "af0130010000001600066f72646572730000000268690000000000001388",
        METADATA,
        lambda py: py.produce_delayed("orders", b"hi", 5000),
    ),
    (
        "af0114010000001b00066f7264657273000000087b226964223a317d00056f72646572",
        METADATA,
        lambda py: py.produce_with_schema("orders", b'{"id":1}', "order"),
    ),
    (
        "af0110010000002300056f72646572046a736f6e000000137b227265717569726564223a5b226964225d7d",
        "00056f72646572046a736f6e00000001",
        lambda py: py.register_schema("order", "json", b'{"required":["id"]}'),
    ),
    (
        "af0111010000000b00056f7264657200000000",
        "0000000100056f72646572046a736f6e00000001",
        lambda py: py.get_schema("order"),
    ),
    (
        "af0113010000000d00056f72646572000000027b7d",
        "0000000000",
        lambda py: py.validate_schema("order", b"{}"),
    ),
    ("af01400100000000", "000574786e2d3101", lambda py: py.transaction()),
    (
        "af0120010000000c00066f72646572730000000a",
        "0000000100036d2d310000000268690004626f6f6d00000003",
        lambda py: py.fetch_dlq("orders"),
    ),
    ("af0121010000000d00066f726465727300036d2d31", "", lambda py: py.replay_dlq("orders", "m-1")),
    (
        "af0121010000001000066f72646572730000000000000005",
        "01000000024f4b",
        lambda py: py.re_inject_dlq("orders", 5),
    ),
    (
        "af01620100000000",
        "0000000100066f726465727300026731000000010000000100000000000000000000002b",
        lambda py: py.list_groups(),
    ),
]


@pytest.mark.parametrize(("request_", "answer", "call"), CAPTURED)
def test_calls_are_those_that_were_captured(
    request_: str, answer: str, call: Callable[[PyCalls], object]
) -> None:
    """What the original clients sent to a stub, and the answers that they read."""
    sent: list[bytes] = []

    def exchange(opcode: int, payload: bytes) -> bytes:
        sent.append(flymq.header(opcode, len(payload)) + payload)
        return bytes.fromhex(answer)

    call(PyCalls(exchange))
    assert [one.hex() for one in sent] == [request_]


# -- dead letters ---------------------------------------------------------------------------------


class TestDeadLetters:
    ENVELOPE = json.dumps(
        {
            "id": "m-1",
            "original_topic": "{topic}",
            "original_offset": 0,
            "payload": base64.b64encode(b"hi").decode(),
            "reason": "processing_error",
            "error_message": "boom",
            "retry_count": 3,
            "first_failed_at": "2024-01-01T00:00:00Z",
            "last_failed_at": "2024-01-01T00:01:00Z",
            "headers": None,
        }
    )

    def test_a_program_sees_replays_and_purges_what_it_put_there(
        self, client: FlyMQClient, py: PyCalls, topic: str
    ) -> None:
        """By an ordinary PRODUCE to the topic's dead letters."""
        assert py.fetch_dlq(topic) == []
        py.purge_dlq(topic)
        client.produce(f"{topic}.dlq", self.ENVELOPE.replace("{topic}", topic).encode())
        client.produce(f"{topic}.dlq", b"no JSON")
        assert py.fetch_dlq(topic) == [
            Letter("m-1", b"hi", "boom", 3),
            Letter("1", b"no JSON", "", 0),
        ]
        py.replay_dlq(topic, "m-1")
        assert py.re_inject_dlq(topic, 1) == (True, "OK")
        assert values(client, topic) == [b"hi", b"no JSON"]
        assert f"{topic}.dlq" in client.list_topics()
        py.purge_dlq(topic)
        assert py.fetch_dlq(topic) == []
        assert f"{topic}.dlq" not in client.list_topics()

    def test_what_workers_of_another_format_gave_up_is_shown_and_goes_back_to_them(
        self, broker: BrokerProcess, py: PyCalls, topic: str
    ) -> None:
        """Dead letters are one for all formats."""
        with MamamiaClient(broker.address_of("mamamia")) as worker:
            worker.produce(topic, b"hot")
            given = worker.acquire(topic, "workers", "ann")
            worker.settle(topic, "workers", given.id, "ann", False, reason="too hot", dead=True)
            assert py.fetch_dlq(topic) == [Letter("0:0:workers", b"hot", "too hot", 1)]
            assert worker.acquire(topic, "workers", "ann") is None
            py.replay_dlq(topic, "0:0:workers")
            assert worker.acquire(topic, "workers", "ann").payload == b"hot"
            worker.settle(topic, "workers", given.id, "ann", False, dead=True)
            assert py.re_inject_dlq(topic, given.id) == (True, "OK")
            assert py.fetch_dlq(topic) == []

    def test_what_is_not_there_cannot_be_replayed(self, py: PyCalls, topic: str) -> None:
        """The whole text is shown."""
        with pytest.raises(ServerError, match=r"^message not found: m-1$"):
            py.replay_dlq(topic, "m-1")
        with pytest.raises(ServerError, match=r"^message not found: 5$"):
            py.re_inject_dlq(topic, 5)

    def test_a_short_answer_would_break_pyflymq(self) -> None:
        """So the answer to an offset has the longer length."""
        with pytest.raises(flymq.ProtocolError):
            success_u32(bytes.fromhex("0100024f4b"))


# -- schemas --------------------------------------------------------------------------------------

ORDER = b'{"type":"object","required":["id"],"properties":{"id":{"type":"integer"}}}'


class TestSchemas:
    def test_a_schema_goes_through_its_life(
        self, client: FlyMQClient, py: PyCalls, go: GoCalls, topic: str
    ) -> None:
        """Versions, validation, producing in both layouts, deletion of all."""
        py.register_schema(topic, "json", ORDER)
        py.register_schema(topic, "json", ORDER)
        assert py.get_schema(topic) == Schema(topic, "json", 2)
        assert py.get_schema(topic, 1) == Schema(topic, "json", 1)
        assert py.list_schemas(topic) == [Schema(topic, "json", 1), Schema(topic, "json", 2)]
        assert py.validate_schema(topic, b'{"id":1}')
        assert not py.validate_schema(topic, b"{}")
        assert go.validate(topic, b"{}") == (False, ["missing required field: id"])
        assert py.produce_with_schema(topic, b'{"id":1}', topic).offset == 0
        assert go.produce_with_schema(topic, b'{"id":2}', topic).offset == 1
        with pytest.raises(ServerError, match="schema validation failed"):
            py.produce_with_schema(topic, b"{}", topic)
        assert values(client, topic) == [b'{"id":1}', b'{"id":2}']
        py.delete_schema(topic, 2)
        assert py.get_schema(topic) == Schema(topic, "json", 1)
        go.delete_schemas(topic)
        assert py.list_schemas(topic) == []
        with pytest.raises(ServerError, match=f"^no schema found for topic: {topic}$"):
            py.get_schema(topic)


# -- later, for a time, all at once ---------------------------------------------------------------


class TestTimes:
    def test_a_delayed_record_comes_later(
        self, client: FlyMQClient, py: PyCalls, topic: str
    ) -> None:
        """And not before."""
        told = py.produce_delayed(topic, b"later", 300)
        assert (told.topic, told.partition, told.key_size, told.value_size) == (topic, 0, -1, 5)
        assert values(client, topic) == []
        wait_for(lambda: values(client, topic) == [b"later"])

    def test_more_than_a_day_is_refused(self, py: PyCalls, topic: str) -> None:
        with pytest.raises(ServerError, match="exceeds maximum allowed delay"):
            py.produce_delayed(topic, b"later", 86_400_001)

    def test_a_record_lives_for_its_time(
        self, client: FlyMQClient, py: PyCalls, topic: str
    ) -> None:
        """The one behind it stays where it is."""
        py.produce_with_ttl(topic, b"short", 200)
        py.produce_with_ttl(topic, b"for ever", 0)
        wait_for(lambda: values(client, topic) == [b"for ever"])
        with pytest.raises(ServerError, match="offset 0 has no record"):
            client.consume(topic, 0)


class TestTransactions:
    @pytest.mark.parametrize("sdk", [PyCalls, GoCalls])
    def test_a_block_commits_to_several_topics(
        self, client: FlyMQClient, topic: str, sdk: type[PyCalls]
    ) -> None:
        """Nothing is there before."""
        other = f"{topic}-{sdk.__name__}"
        with sdk(client.call).transaction() as transaction:
            told = transaction.produce(topic, b"1")
            assert (told.partition, told.offset, told.key_size) == (0, 0, -1)
            transaction.produce(other, b"2")
            assert other not in client.list_topics()
        assert (values(client, topic), values(client, other)) == ([b"1"], [b"2"])

    def test_an_error_in_the_block_rolls_back(
        self, client: FlyMQClient, py: PyCalls, topic: str
    ) -> None:
        """And is the one that is seen."""
        with pytest.raises(ZeroDivisionError), py.transaction() as transaction:
            transaction.produce(topic, b"1")
            raise ZeroDivisionError
        assert topic not in client.list_topics()

    def test_a_commit_that_fails_says_why(self, py: PyCalls, topic: str) -> None:
        """The roll back behind it hides nothing."""
        transaction = py.transaction()
        transaction.commit()
        with pytest.raises(ServerError, match="transaction is not active: committed"), transaction:
            pass
        with pytest.raises(ServerError, match="transaction is not active: committed"):
            transaction.produce(topic, b"late")


# -- groups and the cluster -----------------------------------------------------------------------


class TestGroups:
    def test_a_group_is_listed_described_and_deleted(
        self, client: FlyMQClient, py: PyCalls, go: GoCalls, java: JavaCalls, topic: str
    ) -> None:
        """In the layouts of all three."""
        name = f"group of {topic}"
        client.create_topic(topic, 2)
        client.subscribe(topic, name, 1, "latest")
        client.commit(topic, name, 1, 43)
        expected = Group(topic, name, 1, {1: 43})
        assert expected in py.list_groups()
        assert py.describe_group(topic, name) == go.describe(name) == expected
        described = java.describe(name)
        assert (described.group, described.topics) == (name, [topic])
        assert [one.rpartition(":")[0] for one in described.members] == ["127.0.0.1"]
        go.delete(name)
        with pytest.raises(ServerError, match=f"consumer group not found: {topic}:{name}"):
            py.describe_group(topic, name)
        with pytest.raises(ServerError, match="consumer group not found"):
            java.delete(name)

    def test_java_resets_to_either_end(
        self, client: FlyMQClient, java: JavaCalls, topic: str
    ) -> None:
        """Its spare bytes are no offset."""
        client.produce(topic, b"x")
        for mode, offset in (("latest", 1), ("earliest", 0)):
            java.reset_offset(topic, "g", mode)
            assert client.get_committed_offset(topic, "g") == offset

    def test_java_reads_how_many_partitions_there_are(
        self, client: FlyMQClient, java: JavaCalls, topic: str
    ) -> None:
        client.create_topic(topic, 3)
        assert java.metadata(topic) == (topic, 3)


class TestCluster:
    def test_who_wants_to_join_or_leave_is_told_why_not(
        self, client: FlyMQClient, py: PyCalls
    ) -> None:
        """And is sent nowhere else."""
        for call in (lambda: py.cluster_join("10.0.0.5:9093"), py.cluster_leave):
            with pytest.raises(ServerError, match="brokerd runs as a single node") as refused:
                call()
            assert type(refused.value) is ServerError
        assert client.list_topics() is not None
