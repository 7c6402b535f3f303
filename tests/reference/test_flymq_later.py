"""Transactions, delayed records and times to live of FlyMQ's clients against a real broker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.process import BrokerProcess
from tests.reference import flymq
from tests.reference.flymq import Fields, ServerError
from tests.reference.flymq_go import GoClient
from tests.reference.pyflymq import FlyMQClient
from tests.reference.pyflymq_later import Transaction, produce_delayed, produce_with_ttl

_names = itertools.count()


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[FlyMQClient]:
    client = FlyMQClient([broker.address_of("flymq")])
    yield client
    client.close()


@pytest.fixture
def topic() -> str:
    """One that nobody has used."""
    return f"later-{next(_names)}"


def values(client: FlyMQClient, topic: str) -> list[bytes]:
    records, _ = client.fetch(topic, 0, 0, 100)
    return [record.value for record in records]


def eventually(seen: Callable[[], bool]) -> None:
    """Wait for something, a minute at most."""
    end_seconds = time.monotonic() + 60
    while not seen():
        assert time.monotonic() < end_seconds, "it does not come"
        time.sleep(0.01)


def test_a_transaction_is_committed_at_the_end_of_its_block(
    client: FlyMQClient, topic: str
) -> None:
    with Transaction(client) as transaction:
        stored = transaction.produce(topic, b"1")
        assert (stored.partition, stored.offset, stored.key_size) == (0, 0, -1)
        transaction.produce(f"{topic}-other", b"2")
        transaction.produce(topic, b"3")
        assert topic not in client.list_topics()
    assert values(client, topic) == [b"1", b"3"]
    assert values(client, f"{topic}-other") == [b"2"]


def test_an_error_in_the_block_leaves_nothing(client: FlyMQClient, topic: str) -> None:
    with pytest.raises(KeyError), Transaction(client) as transaction:
        transaction.produce(topic, b"1")
        raise KeyError
    assert topic not in client.list_topics()


def test_a_failed_commit_is_what_the_user_is_told(client: FlyMQClient, topic: str) -> None:
    """Not the rollback that follows it."""
    with pytest.raises(ServerError, match=r"^transaction not found: "), Transaction(client) as one:
        one.produce(topic, b"1")
        client.close()
    assert topic not in client.list_topics()


def test_an_explicit_commit_and_rollback(client: FlyMQClient, topic: str) -> None:
    first, second = Transaction(client), Transaction(client)
    first.produce(topic, b"1")
    second.produce(topic, b"2")
    second.rollback()
    first.commit()
    second.rollback()
    first.rollback()
    with pytest.raises(ServerError, match=r"^transaction is not active: committed"):
        first.commit()
    with pytest.raises(ServerError, match=r"^transaction is not active: aborted"):
        second.produce(topic, b"3")
    assert values(client, topic) == [b"1"]


def test_a_delayed_record_comes_when_it_is_due(client: FlyMQClient, topic: str) -> None:
    begun_seconds = time.monotonic()
    stored = produce_delayed(client, topic, b"later", 300)
    assert (stored.partition, stored.key_size, stored.value_size) == (0, -1, 5)
    produce_delayed(client, topic, b"never seen here", 3_600_000)
    eventually(lambda: values(client, topic) == [b"later"])
    assert time.monotonic() - begun_seconds >= 0.3
    with pytest.raises(ServerError, match=r"^delay 86400001 ms exceeds maximum allowed delay"):
        produce_delayed(client, topic, b"x", 86_400_001)


def test_a_record_with_a_ttl_goes(client: FlyMQClient, topic: str) -> None:
    produce_with_ttl(client, topic, b"short", 300)
    produce_with_ttl(client, topic, b"long", 0)
    assert values(client, topic)[-1] == b"long"
    eventually(lambda: values(client, topic) == [b"long"])
    with pytest.raises(ServerError):
        client.consume(topic, 0)


def test_the_last_byte_that_go_insists_on_is_there(broker: BrokerProcess, topic: str) -> None:
    go = GoClient([broker.address_of("flymq")])
    begun = Fields(go.call(flymq.TXN_BEGIN, b""))
    name = begun.text()
    assert begun.number("B") == 1
    for opcode in (flymq.TXN_COMMIT, flymq.TXN_ROLLBACK):
        told = Fields(go.call(opcode, flymq.text(name)))
        assert (told.text(), told.number("B")) == (name, opcode == flymq.TXN_COMMIT)
    go.close()
