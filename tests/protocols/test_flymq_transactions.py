"""FlyMQ's transactions as their clients and those who read see them: all of one, or nothing."""

from __future__ import annotations

import pytest

from brokerd.broker import BrokerSettings
from brokerd.codecs import flymq
from brokerd.protocols.flymq.connection import CONTENT_BYTES_MAX, FlymqSettings
from brokerd.security.audit import EventType
from tests.codecs.test_flymq_golden import BYTES
from tests.protocols.flymq_desk import FlymqClient, FlymqHouse
from tests.protocols.flymq_guarded import GuardedHouse

KIB = 1024
NOT_IN = flymq.Failed("authentication required")
MAY_NOT = flymq.Failed("unauthorized")
ABORTED = flymq.Failed("transaction is not active: aborted")
COMMITTED = flymq.Failed("transaction is not active: committed")


@pytest.fixture
def house() -> FlymqHouse:
    return FlymqHouse()


def begin(client: FlymqClient, *records: tuple[str, bytes]) -> str:
    """Begin a transaction with these records; its id."""
    (told,) = client.ask(flymq.BeginTransaction())
    assert isinstance(told, flymq.TransactionAnswer), told
    assert told.success
    name = told.transaction
    answers = client.ask(*[flymq.ProduceInTransaction(name, *record) for record in records])
    assert all(isinstance(answer, flymq.Produced) for answer in answers), answers
    return name


def values(house: FlymqHouse, topic: str, partition: int = 0) -> list[bytes]:
    return [value for _, _, value in house.records(topic, partition, 0, 100)]


def topics(house: FlymqHouse) -> tuple[str, ...]:
    answer = house.only(flymq.ListTopics())
    assert isinstance(answer, flymq.Topics)
    return answer.names


def held_bytes(house: FlymqHouse) -> int:
    return int(house.broker.status()["transactions"]["held_bytes"])


class TestCommit:
    def test_nothing_is_seen_before_it_and_all_of_it_after(self, house: FlymqHouse) -> None:
        house.produce(b"before", topic="a")
        client = house.client()
        name = begin(client, ("a", b"1"), ("b", b"2"), ("a", b"3"))
        assert (topics(house), values(house, "a")) == (("a",), [b"before"])
        assert client.ask(flymq.CommitTransaction(name)) == [flymq.TransactionAnswer(name, True)]
        assert topics(house) == ("a", "b")
        assert values(house, "a") == [b"before", b"1", b"3"]
        assert values(house, "b") == [b"2"]

    def test_a_record_in_it_has_no_place_yet(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client)
        (answer,) = client.ask(flymq.ProduceInTransaction(name, "a", b"hi"))
        now_ms = round(house.wall_seconds * 1000)
        assert answer._replace(timestamp_ms=now_ms) == flymq.Produced("a", 0, 0, now_ms, -1, 2)
        assert 0 <= answer.timestamp_ms - now_ms < 1_000

    def test_its_topics_get_as_many_partitions_as_any(self) -> None:
        house = FlymqHouse(FlymqSettings(partitions=2))
        client = house.client()
        name = begin(client, ("a", b"1"), ("a", b"2"), ("a", b"3"))
        client.ask(flymq.CommitTransaction(name))
        assert (values(house, "a"), values(house, "a", 1)) == ([b"1", b"3"], [b"2"])

    def test_whole_conversations_may_be_sent_at_once(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client)
        answers = client.ask(
            flymq.ProduceInTransaction(name, "a", b"1"),
            flymq.Produce("a", None, b"0"),
            flymq.CommitTransaction(name),
            flymq.Fetch("a", 0, 0, 10),
        )
        fetched = [record.value for record in answers[3].records]
        assert fetched == [b"0", b"1"]

    def test_several_are_open_at_once_and_apart(self, house: FlymqHouse) -> None:
        client = house.client()
        first, second = begin(client, ("a", b"1")), begin(client, ("a", b"2"))
        assert first != second
        client.ask(flymq.RollBackTransaction(first), flymq.CommitTransaction(second))
        assert values(house, "a") == [b"2"]

    def test_an_answered_commit_outlasts_a_loss_of_power(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client, ("a", b"1"), ("b", b"2"))
        other = begin(client, ("c", b"3"))
        client.ask(flymq.CommitTransaction(name))
        house.disk.crash()
        house = house.again()
        assert topics(house) == ("a", "b")
        assert values(house, "b") == [b"2"]
        assert house.only(flymq.CommitTransaction(other)) == flymq.Failed(
            f"transaction not found: {other}"
        )

    def test_ids_are_not_given_again_after_a_restart(self, house: FlymqHouse) -> None:
        """A client that does not know that its connection is new meets nobody else's."""
        first = begin(house.client())
        house.disk.crash()
        house = house.again(wall_seconds=house.wall_seconds + 1)
        assert begin(house.client()) != first

    def test_it_waits_for_room_in_the_log_as_any(self) -> None:
        house = FlymqHouse(settings=BrokerSettings(max_uncommitted_bytes=64 * KIB))
        client = house.client()
        names = [begin(client, *[("t", bytes(20 * KIB))] * 3) for _ in range(4)]
        client.send(*[flymq.CommitTransaction(name) for name in names])
        house.run()
        assert client.answers() == [flymq.TransactionAnswer(name, True) for name in names]
        assert len(values(house, "t")) == 12

    def test_it_is_told_to_the_audit_trail_which_topics_it_made(self) -> None:
        house = GuardedHouse()
        client = house.log_in("pat")
        client.ask(flymq.CommitTransaction(begin(client, ("a", b"1"), ("b", b"2"))))
        (told,) = house.log_in("root").ask(
            flymq.QueryAudit(types=(EventType.TOPIC_CREATED.value,), user="pat")
        )
        assert sorted(event.resource for event in told.events) == ["a", "b"]

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_it_is_answered_byte_for_byte(self, house: FlymqHouse, end: str) -> None:
        client = house.client()
        for name in ("ours-txn-begin", "ours-txn-produce", f"ours-txn-{end}"):
            client.send_bytes(BYTES[name, ">"])
            house.run()
            assert client.received_bytes().hex(" ") == BYTES[name, "<"].hex(" ")


class TestRollback:
    def test_it_leaves_nothing_and_may_be_asked_again(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client, ("a", b"1"))
        back = flymq.TransactionAnswer(name, True)
        assert client.ask(flymq.RollBackTransaction(name), flymq.RollBackTransaction(name)) == [
            back,
            back,
        ]
        assert client.ask(
            flymq.ProduceInTransaction(name, "a", b"2"), flymq.CommitTransaction(name)
        ) == [ABORTED, ABORTED]
        assert topics(house) == ()
        assert held_bytes(house) == 0

    def test_of_one_that_is_committed_or_unknown_it_is_no_error(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client, ("a", b"1"))
        client.ask(flymq.CommitTransaction(name))
        assert client.ask(
            flymq.RollBackTransaction(name),
            flymq.RollBackTransaction("txn-nobody's"),
            flymq.CommitTransaction(name),
            flymq.ProduceInTransaction(name, "a", b"2"),
        ) == [
            flymq.TransactionAnswer(name, False),
            flymq.TransactionAnswer("txn-nobody's", False),
            COMMITTED,
            COMMITTED,
        ]
        assert values(house, "a") == [b"1"]

    def test_a_connection_takes_its_transactions_along(self, house: FlymqHouse) -> None:
        client = house.client()
        begin(client, ("a", b"1"))
        begin(client, ("b", b"2"))
        assert held_bytes(house) > 0
        client.disconnect()
        house.run()
        assert held_bytes(house) == 0
        assert topics(house) == ()

    def test_one_belongs_to_its_connection(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client, ("a", b"1"))
        unknown = flymq.Failed(f"transaction not found: {name}")
        assert house.ask(
            flymq.ProduceInTransaction(name, "a", b"2"),
            flymq.CommitTransaction(name),
            flymq.RollBackTransaction(name),
        ) == [unknown, unknown, flymq.TransactionAnswer(name, False)]
        client.ask(flymq.CommitTransaction(name))
        assert values(house, "a") == [b"1"]

    def test_it_comes_by_itself_after_a_minute(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client, ("a", b"1"))
        house.pass_time(60.1, step=1.0)
        over = flymq.Failed("transaction is not active: aborted (it was open for 60 seconds)")
        assert client.ask(
            flymq.ProduceInTransaction(name, "a", b"2"),
            flymq.CommitTransaction(name),
            flymq.RollBackTransaction(name),
        ) == [over, over, flymq.TransactionAnswer(name, True)]
        assert topics(house) == ()


class TestLimits:
    def test_a_hundred_are_open_and_no_more(self, house: FlymqHouse) -> None:
        """Those that are over make way, the oldest first."""
        client = house.client()
        names = [begin(client) for _ in range(100)]
        (refused,) = client.ask(flymq.BeginTransaction())
        assert refused.text.startswith("100 transactions of this connection are open")
        client.ask(flymq.RollBackTransaction(names[7]), flymq.CommitTransaction(names[5]))
        begin(client)
        assert client.ask(
            flymq.CommitTransaction(names[5]), flymq.RollBackTransaction(names[7])
        ) == [
            flymq.Failed(f"transaction not found: {names[5]}"),
            flymq.TransactionAnswer(names[7], True),
        ]

    def test_48_mib_are_held_and_no_more(self, house: FlymqHouse) -> None:
        client = house.client()
        name = begin(client, ("a", bytes(31 << 20)), ("a", bytes((17 << 20) - 8 * KIB)))
        (refused,) = client.ask(flymq.ProduceInTransaction(name, "a", bytes(8 * KIB)))
        assert refused.text.startswith("a transaction holds at most 50331648 bytes")
        assert client.ask(flymq.CommitTransaction(name)) == [flymq.TransactionAnswer(name, True)]
        assert len(house.records("a", 0, 1, 10)) == 1

    def test_a_record_that_no_fetch_could_carry_is_refused(self) -> None:
        """Even where the clock says 1970: the ids of transactions are short then."""
        house = FlymqHouse(wall_seconds=1.0)
        client = house.client()
        name = begin(client, ("a", bytes(CONTENT_BYTES_MAX)))
        (refused,) = client.ask(flymq.ProduceInTransaction(name, "a", bytes(CONTENT_BYTES_MAX + 1)))
        assert refused.text.startswith(f"key and value have {CONTENT_BYTES_MAX + 1} bytes together")
        assert client.ask(flymq.CommitTransaction(name)) == [flymq.TransactionAnswer(name, True)]
        assert len(house.records("a", 0, 0, 10)) == 1

    def test_all_clients_together_hold_so_much(self) -> None:
        house = FlymqHouse(settings=BrokerSettings(max_transaction_bytes=1 << 20))
        client = house.client()
        begin(client, ("a", bytes(1020 * KIB - 512)))
        (refused,) = house.ask(flymq.BeginTransaction())
        assert refused.text.startswith("all open transactions together hold 1048576 bytes")
        client.disconnect()
        house.run()
        begin(house.client(), ("a", b"x"))

    @pytest.mark.parametrize("name", ["", "..", "a\nb", "__brokerd.x", "n" * 256])
    def test_names_are_refused_as_by_produce(self, house: FlymqHouse, name: str) -> None:
        client = house.client()
        transaction = begin(client)
        (refused,) = client.ask(flymq.ProduceInTransaction(transaction, name, b"x"))
        assert isinstance(refused, flymq.Failed)
        assert client.ask(flymq.CommitTransaction(transaction)) == [
            flymq.TransactionAnswer(transaction, True)
        ]


class TestPermissions:
    def test_a_login_begins_and_write_produces(self) -> None:
        house = GuardedHouse()
        anonymous, carl, pat = house.client(), house.log_in("carl"), house.log_in("pat")
        asked = [
            flymq.BeginTransaction(),
            flymq.ProduceInTransaction("txn-1", "t", b"x"),
            flymq.CommitTransaction("txn-1"),
            flymq.RollBackTransaction("txn-1"),
        ]
        assert anonymous.ask(*asked) == [NOT_IN] * 4
        name = begin(carl)
        assert carl.ask(flymq.ProduceInTransaction(name, "t", b"x")) == [MAY_NOT]
        assert carl.ask(flymq.CommitTransaction(name)) == [flymq.TransactionAnswer(name, True)]
        name = begin(pat, ("t", b"x"))
        assert pat.ask(flymq.CommitTransaction(name)) == [flymq.TransactionAnswer(name, True)]

    def test_write_is_asked_for_again_when_it_is_committed(self) -> None:
        """For each topic; and what is refused may be committed when it is given back."""
        house = GuardedHouse()
        house.grant("a", "gus")
        house.grant("b", "gus")
        gus = house.log_in("gus")
        name = begin(gus, ("a", b"1"), ("b", b"2"))
        house.grant("b")
        assert gus.ask(flymq.CommitTransaction(name)) == [MAY_NOT]
        assert house.broker.topics.find("a") is None
        house.grant("b", "gus")
        assert gus.ask(flymq.CommitTransaction(name)) == [flymq.TransactionAnswer(name, True)]
