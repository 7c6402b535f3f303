"""A sender and a broker in memory: each batch once, also after losses and refusals."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import pytest

from brokerd.broker import BrokerSettings
from brokerd.client.errors import OutOfStep
from brokerd.spark.sink.sender import NotReachable, Numbered, Refused, SequenceTaken
from tests.house import House
from tests.spark.sink_desk import Desk, block


def round_of(first: int, *values: str) -> list[Numbered]:
    """One block of one value for each lane."""
    return [
        Numbered(lane, first + lane, block("orders", value)) for lane, value in enumerate(values)
    ]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("fault", ["lost 0", "lost 2", "lost 3", "answered 1", "refused"])
def test_what_is_lost_is_sent_again_with_the_same_sequences(desk: Desk, fault: str) -> None:
    desk.faults = [fault, fault, ""]
    desk.sender().send(round_of(0, "a", "b", "c"))
    assert sorted(desk.values("orders")) == [b"a", b"b", b"c"]
    numbers = {(one.producer_id, one.sequence) for one in desk.sent}
    assert numbers == {("p.0", 0), ("p.1", 1), ("p.2", 2)}
    assert desk.slept == [0.1, 0.1] if fault == "answered 1" else [0.1, 0.2]


def test_a_broker_that_crashed_remembers_what_it_has(desk: Desk) -> None:
    desk.faults = ["lost 2"]
    with pytest.raises(NotReachable):
        desk.sender(retry_seconds=0).send(round_of(0, "a", "b", "c"))
    desk.house = desk.house.crash()
    desk.sender().send(round_of(0, "a", "b", "c"))
    assert sorted(desk.values("orders")) == [b"a", b"b", b"c"]


def test_a_batch_that_the_broker_calls_older_is_stored(desk: Desk) -> None:
    """Because its lane went on only when it was stored. The broker remembers five sequences."""
    sender = desk.sender()
    for number in range(10):
        sender.send(round_of(number, f"v{number}"))
    sender.send(round_of(0, "v0"))
    assert len(desk.values("orders")) == 10


def test_a_refused_batch_is_sent_again_while_the_others_go_on(desk: Desk) -> None:
    """For a full disk the broker refuses what does not fit, and takes smaller ones behind it."""
    desk.faults = ["full 1", "full 0"]
    desk.sender().send(round_of(0, "a", "b", "c"))
    assert sorted(desk.values("orders")) == [b"a", b"b", b"c"]
    assert desk.slept == [0.1, 0.2]


def test_a_refusal_that_stays_ends_the_write_at_once(desk: Desk) -> None:
    blocks = [Numbered(0, 0, block("orders", "a"))]
    message = blocks[0].block.messages[0]._replace(partition=7)
    blocks[0] = Numbered(0, 0, blocks[0].block._replace(messages=(message,)))
    with pytest.raises(Refused, match=r"refused rows for the topic 'orders': .*has no partition 7"):
        desk.sender().send(blocks)
    assert desk.slept == []


def test_a_broker_that_stays_away_is_said_with_the_last_problem(desk: Desk) -> None:
    """After ``retrySeconds`` without a confirmation."""
    desk.faults = ["refused"] * 100
    with pytest.raises(NotReachable, match=r"no rows for 1[0-9] s .*Connection refused"):
        desk.sender(retry_seconds=10).send(round_of(0, "a"))
    assert 10 <= desk.now < 14
    assert max(desk.slept) == 3.0


@pytest.mark.parametrize("error", [OutOfStep("no"), ssl.SSLCertVerificationError("no")])
def test_a_server_that_is_another_one_is_not_tried_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(requests: Sequence[Any]) -> list[Any]:
        raise error

    monkeypatch.setattr(desk, "send_many", fail)
    with pytest.raises(Refused, match="is not the broker that the sink expects"):
        desk.sender().send(round_of(0, "a"))
    assert desk.slept == []


def test_a_sequence_of_another_stream_is_noticed(desk: Desk) -> None:
    """By the number of records, which is all that the broker tells."""
    desk.sender().send([Numbered(0, 5, block("orders", "a", "b"))])
    with pytest.raises(SequenceTaken, match=r"has stored 2 records .* and the sink sends 1"):
        desk.sender().send(round_of(5, "c"))


def test_asking_for_a_sequence_stores_nothing(desk: Desk) -> None:
    """Nor does it make the topic."""
    sender = desk.sender()
    assert not sender.has_sequence("orders", 0, 0)
    assert desk.house.broker.topics.find("orders") is None
    for number in range(10):
        sender.send(round_of(number, "v"))
    assert [sender.has_sequence("orders", 0, number) for number in (0, 9, 10)] == [
        True,
        True,
        False,
    ]
    assert not sender.has_sequence("orders", 1, 0)
    assert len(desk.values("orders")) == 10


def test_a_forgotten_producer_has_no_sequence() -> None:
    desk = Desk(House(settings=BrokerSettings(max_producers=2)))
    desk.sender().send(round_of(0, "a"))
    assert desk.sender().has_sequence("orders", 0, 0)
    for producer in ("x", "y"):
        desk.sender(producer).send(round_of(0, "b"))
    assert not desk.sender().has_sequence("orders", 0, 0)
