"""The page's worked examples, byte for byte, in both directions."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from brokerd.codecs import mamamia as mm
from tests.golden import golden

FORTY_TWO = mm.pack_payload({"n": 1})[0]
TS = mm.pack_metadata({"ts": 1.5})
ERROR = "Client does not own the lease for this message"
ORDERS_BIN = mm.Message(1, "orders", b"\x00\xff", {"ts": 1.5})
SECOND = (1 << 48) + 5


class Example(NamedTuple):
    request: mm.Request
    answer: bytes
    answer_value: mm.Answer


EXAMPLES = {
    "seed-01-produce": Example(mm.Produce("orders", FORTY_TWO, 2), mm.produced(0), mm.Produced(0)),
    "seed-02-produce-bin-metadata": Example(
        mm.Produce("orders", b"\x00\xff", 0, TS), mm.produced(1), mm.Produced(1)
    ),
    "seed-03-acquire": Example(
        mm.Acquire("orders", "g", "c1", 30.0),
        mm.acquired(0, "orders", FORTY_TWO, 2, None),
        mm.Acquired(mm.Message(0, "orders", {"n": 1}, None)),
    ),
    "seed-04-acquire-bin": Example(
        mm.Acquire("orders", "g", "c1", 10.0),
        mm.acquired(1, "orders", b"\x00\xff", 0, TS),
        mm.Acquired(ORDERS_BIN),
    ),
    "seed-05-acquire-nothing": Example(
        mm.Acquire("orders", "g", "c2"), mm.acquired_nothing(), mm.Acquired(None)
    ),
    "seed-06-settle-not-owner": Example(
        mm.Settle("orders", "g", 0, "c2", True), mm.error(3, ERROR), mm.Failed(ERROR)
    ),
    "seed-07-settle": Example(mm.Settle("orders", "g", 0, "c1", True), mm.settled(), mm.Settled()),
    "seed-08-settle-failed": Example(
        mm.Settle("orders", "g", 1, "c1", False), mm.settled(), mm.Settled()
    ),
    "seed-08-acquire-again": Example(
        mm.Acquire("orders", "g", "c2"),
        mm.acquired(1, "orders", b"\x00\xff", 0, TS),
        mm.Acquired(ORDERS_BIN),
    ),
    "seed-12-pipelined-1": Example(mm.Produce("p", b"a", 1), mm.produced(0), mm.Produced(0)),
    "seed-12-pipelined-2": Example(mm.Produce("p", b"b", 1), mm.produced(1), mm.Produced(1)),
    "seed-12-pipelined-3": Example(
        mm.Acquire("p", "g", "c", 1.0),
        mm.acquired(0, "p", b"a", 1, None),
        mm.Acquired(mm.Message(0, "p", "a", None)),
    ),
    "seed-11-any-version": Example(mm.Produce("v", b"\x07", 2), mm.produced(0), mm.Produced(0)),
    "ours-produce-key": Example(
        mm.Produce("orders", b"hi", 0, None, b"k", 0), mm.produced(2), mm.Produced(2)
    ),
    "ours-acquire-wait": Example(
        mm.Acquire("orders", "g", "c1", 30.0, 5.0),
        mm.acquired(2, "orders", b"hi", 0, None),
        mm.Acquired(mm.Message(2, "orders", b"hi", None)),
    ),
    "ours-settle-delay": Example(
        mm.Settle("orders", "g", 2, "c1", False, 1.5), mm.settled(), mm.Settled()
    ),
    "ours-settle-dead": Example(
        mm.Settle("orders", "g", 2, "c1", False, reason="no such customer", dead=True),
        mm.settled(),
        mm.Settled(),
    ),
    "ours-extend": Example(
        mm.Extend("orders", "g", "c1", 2, 60.0), mm.extended(60.0), mm.Extended(60.0)
    ),
    "ours-produce-batch": Example(
        mm.ProduceBatch(
            "orders",
            (
                mm.BatchMessage(b"a"),
                mm.BatchMessage(b"b", 1, mm.pack_metadata({"n": 1}), b"k"),
            ),
        ),
        mm.produced_batch([3, 4]),
        mm.ProducedBatch((3, 4)),
    ),
    "ours-acquire-batch": Example(
        mm.AcquireBatch("orders", "g", "c1", 2),
        mm.acquired_batch(
            [
                mm.batch_item(3, b"a", 0, None, None, 7, 1, 30.0),
                mm.batch_item(4, b"b", 1, mm.pack_metadata({"n": 1}), b"k", 8, 1, 30.0),
            ]
        ),
        mm.AcquiredBatch(
            (
                mm.LeasedMessage(3, b"a", None, None, 7, 1, 30.0),
                mm.LeasedMessage(4, "b", {"n": 1}, b"k", 8, 1, 30.0),
            )
        ),
    ),
    "ours-settle-batch": Example(
        mm.SettleBatch(
            "orders",
            "g",
            "c1",
            (
                mm.BatchSettle(3, True, 7),
                mm.BatchSettle(4, False, 9, 0.5),
            ),
        ),
        mm.settled_batch(["settled", "The lease is over"]),
        mm.SettledBatch(("settled", "The lease is over")),
    ),
    "ours-group-info": Example(
        mm.GroupInfo("orders", "g"),
        mm.group_info(mm.GroupState(2, 5, 3, 1, 1, 1, 0, None, 1.5, 3, 1)),
        mm.GroupState(2, 5, 3, 1, 1, 1, 0, None, 1.5, 3, 1),
    ),
    "ours-settle-batch-reason": Example(
        mm.SettleBatch("orders", "g", "c1", (mm.BatchSettle(3, False, 7, None, "timed out"),)),
        mm.settled_batch(["settled"]),
        mm.SettledBatch(("settled",)),
    ),
    "ours-produce-ttl": Example(
        mm.Produce("orders", b"hi", ttl=60.0), mm.produced(5), mm.Produced(5)
    ),
    "ours-produce-delay": Example(
        mm.Produce("orders", b"hi", 0, None, b"k", delay=2.5), mm.scheduled(0), mm.Scheduled(0)
    ),
    "ours-produce-batch-delay": Example(
        mm.ProduceBatch(
            "orders", (mm.BatchMessage(b"a", ttl=1.5), mm.BatchMessage(b"b", delay=60.0))
        ),
        mm.produced_batch([6, None], [None, 1]),
        mm.ProducedBatch((6, None), (None, 1)),
    ),
    "ours-produce-batch-again": Example(
        mm.ProduceBatch("orders", (mm.BatchMessage(b"a"),), "billing-7", 41),
        mm.produced_batch([7]),
        mm.ProducedBatch((7,)),
    ),
    "ours-acquire-duration-of-group": Example(
        mm.Acquire("orders", "g", "c1", None), mm.acquired_nothing(), mm.Acquired(None)
    ),
    "ours-release": Example(
        mm.Release("orders", "g", "c1", (3, 4)), mm.released(1), mm.Released(1)
    ),
    "ours-release-all": Example(
        mm.Release("orders", "g", "c1"), mm.released(300), mm.Released(300)
    ),
    "ours-cancel": Example(mm.Cancel("orders", 1), mm.cancelled(True), mm.Cancelled(True)),
    "ours-second-partition": Example(
        mm.Settle("orders", "g", SECOND, "c1", True), mm.settled(), mm.Settled()
    ),
}
REFUSED = {
    "seed-09-missing-key": (1, "'payload'"),
    "seed-10-unknown-command": (9, "Unknown command: 9"),
}
CLOSED = ("seed-13-length", "seed-13-int-key")
NOT_AS_OUR_CLIENT_SENDS = ("seed-11-any-version", "seed-12-pipelined-3")
"""A version byte of 2 and no metadata; an integer duration."""


BYTES = golden("mamamia")


def only_frame(data: bytes) -> tuple[int, bytes]:
    (one,) = mm.FrameReader().feed(data)
    return one


def test_every_golden_line_is_used():
    used = {(name, way) for name in [*EXAMPLES, *REFUSED] for way in "><"}
    assert used | {(name, ">") for name in CLOSED} == set(BYTES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_read_as_they_stand(name):
    assert mm.Decoder().decode(*only_frame(BYTES[name, ">"])) == EXAMPLES[name].request


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in NOT_AS_OUR_CLIENT_SENDS])
def test_requests_are_written_as_they_stand(name):
    assert mm.encode_request(EXAMPLES[name].request) == BYTES[name, ">"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_answers_are_written_and_read_as_they_stand(name):
    example = EXAMPLES[name]
    assert example.answer == BYTES[name, "<"]
    assert mm.decode_response(*only_frame(BYTES[name, "<"])) == example.answer_value


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_answered_as_they_stand(name):
    command, text = REFUSED[name]
    with pytest.raises(mm.RequestError) as refusal:
        mm.Decoder().decode(*only_frame(BYTES[name, ">"]))
    assert str(refusal.value) == text
    assert mm.error(command, text) == BYTES[name, "<"]
    assert mm.decode_response(*only_frame(BYTES[name, "<"])) == mm.Failed(text)


def test_a_long_length_closes():
    reader = mm.FrameReader()
    assert reader.feed(BYTES["seed-13-length", ">"]) == []
    assert reader.error is not None


def test_an_integer_key_closes():
    with pytest.raises(mm.BodyError):
        mm.Decoder().decode(*only_frame(BYTES["seed-13-int-key", ">"]))
