"""The page's worked examples, byte for byte, in both directions."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from brokerd.codecs import rustlog as rl
from tests.golden import golden

MIB = 1 << 20
WORDS = (b"hello", b"from", b"rustlog")
PAIR = (b"\x0a\x14", b"\x1e\x28")
NO_RECORDS = (range(3, 3), (), 3)


class Example(NamedTuple):
    request: rl.Request
    answer: rl.Answer


def fetched(first: int, records: tuple[bytes, ...]) -> rl.Fetched:
    end = first + len(records)
    return rl.Fetched(range(first, end), records, end)


EXAMPLES = {
    "seed-01-ping": Example(rl.Ping(), rl.Pong()),
    "seed-02-create-topic": Example(rl.CreateTopic("demo", 1), rl.TopicCreated()),
    "seed-02-create-topic-again": Example(
        rl.CreateTopic("demo", 1), rl.Failed(11, "Topic 'demo' already exists")
    ),
    "seed-03-produce": Example(rl.Produce("demo", 0, WORDS), rl.Produced(0, 3)),
    "seed-04-fetch": Example(rl.Fetch("demo", 0, 0, MIB), fetched(0, WORDS)),
    "seed-05-fetch-end": Example(rl.Fetch("demo", 0, 3, MIB), fetched(3, ())),
    "seed-06-offset-fetch-none": Example(rl.OffsetFetch("demo", 0, "g1"), rl.OffsetFetched(None)),
    "seed-06-offset-commit": Example(rl.OffsetCommit("demo", 0, "g1", 3), rl.OffsetCommitted(True)),
    "seed-06-offset-fetch": Example(rl.OffsetFetch("demo", 0, "g1"), rl.OffsetFetched(3)),
    "seed-07-produce-unknown": Example(
        rl.Produce("orders", 9, (b"x",)),
        rl.Failed(10, "Topic or partition does not exist: topic=orders, partition=9"),
    ),
    "seed-08-list-topics": Example(rl.ListTopics(), rl.TopicList((rl.TopicSummary("demo", 1),))),
    "seed-09-describe-topic": Example(rl.DescribeTopic("demo"), rl.TopicDescription("demo", (3,))),
    "seed-10-describe-partition": Example(
        rl.DescribePartition("demo", 0), rl.PartitionDescription("demo", 0, 3)
    ),
    "seed-10-describe-partition-unknown": Example(
        rl.DescribePartition("demo", 5),
        rl.Failed(14, "DescribePartition failed: Partition 5 not found in topic 'demo'"),
    ),
    "ours-empty-batch": Example(rl.Produce("demo", 0, ()), rl.Produced(0, 0)),
    "ours-fetch-beyond": Example(rl.Fetch("demo", 0, 99, 0), fetched(3, ())),
    "ours-fetch-group": Example(rl.Fetch("demo", 0, 0, MIB, "g1"), fetched(3, ())),
    "ours-fetch-one": Example(rl.Fetch("demo", 0, 1, 0), fetched(1, (b"from",))),
    "ours-commit-unknown": Example(rl.OffsetCommit("demo", 7, "g1", 0), rl.OffsetCommitted(False)),
    "ours-create-none": Example(
        rl.CreateTopic("empty", 0), rl.Failed(12, "Invalid partition count: 0")
    ),
    "ours-describe-unknown": Example(
        rl.DescribeTopic("nope"), rl.Failed(13, "DescribeTopic failed: Topic 'nope' not found")
    ),
    "ours-metrics": Example(rl.MetricsFetch(), rl.Metrics("messages_produced_total 5\n")),
    "ours-json-create-topic": Example(rl.CreateTopic("orders", 1), rl.TopicCreated()),
    "seed-13-json-produce": Example(rl.Produce("orders", 0, PAIR), rl.Produced(0, 2)),
    "seed-14-json-fetch": Example(rl.Fetch("orders", 0, 0, MIB), fetched(0, PAIR)),
    "seed-15-json-fetch-past-end": Example(rl.Fetch("orders", 0, 9, MIB), fetched(2, ())),
    "seed-16-json-offset-commit": Example(
        rl.OffsetCommit("orders", 0, "p", 2), rl.OffsetCommitted(True)
    ),
    "seed-16-json-offset-fetch": Example(rl.OffsetFetch("orders", 0, "p"), rl.OffsetFetched(2)),
    "seed-16-json-offset-fetch-none": Example(
        rl.OffsetFetch("orders", 0, "q"), rl.OffsetFetched(None)
    ),
    "seed-17-json-unknown": Example(
        rl.Fetch("nonexistent", 0, 0, MIB),
        rl.Failed(0, "partition not found: topic=nonexistent, partition=0"),
    ),
    "ours-json-empty-batch": Example(rl.Produce("orders", 0, ()), rl.Produced(0, 0)),
    "ours-json-fetch-group": Example(rl.Fetch("orders", 0, 0, MIB, "p"), fetched(2, ())),
    "ours-json-commit-unknown": Example(
        rl.OffsetCommit("orders", 7, "p", 1), rl.OffsetCommitted(False)
    ),
    "ours-json-create-topic-again": Example(
        rl.CreateTopic("orders", 1), rl.Failed(0, "topic already exists: orders")
    ),
    "ours-json-list-topics": Example(
        rl.ListTopics(),
        rl.TopicList((rl.TopicSummary("demo", 1), rl.TopicSummary("orders", 1))),
    ),
    "ours-json-describe-topic": Example(
        rl.DescribeTopic("orders"), rl.TopicDescription("orders", (2,))
    ),
    "ours-json-describe-partition": Example(
        rl.DescribePartition("orders", 0), rl.PartitionDescription("orders", 0, 2)
    ),
    "ours-json-ping": Example(rl.Ping(), rl.Pong()),
    "ours-json-metrics": Example(rl.MetricsFetch(), rl.Metrics("messages_produced_total 5\n")),
}
REFUSED = {
    "seed-11-unknown-type": rl.Failed(2, "Decode error: unknown request type: 127"),
    "seed-11-truncated": rl.Failed(2, "Decode error: decode error: missing topic length"),
    "ours-json-parse-error": rl.Failed(0, "failed to parse request: missing field `partition`"),
    "ours-json-unknown-request": rl.Failed(
        0,
        "failed to parse request: unknown variant `Fetsch`, expected one of `Produce`, `Fetch`, "
        "`OffsetCommit`, `OffsetFetch`, `CreateTopic`, `DescribeTopic`, `DescribePartition`, "
        "`ListTopics`, `MetricsFetch`, `Ping`",
    ),
}
CLOSED = {
    "seed-12-zero-length": (
        rl.Dialect.BINARY,
        rl.Failed(1, "Frame error: invalid protocol: zero-length frame"),
    ),
    "seed-12-too-long": (
        rl.Dialect.BINARY,
        rl.Failed(1, "Frame error: frame too large: 10485761 bytes (max: 10485760)"),
    ),
    "ours-json-zero-length": (rl.Dialect.JSON, rl.Failed(0, "zero-length frame")),
    "ours-json-too-long": (
        rl.Dialect.JSON,
        rl.Failed(0, "max frame size exceeded: 10485761 bytes (max: 10485760)"),
    ),
}
NOT_AS_OUR_CLIENT_SENDS = ("seed-15-json-fetch-past-end",)
"""It leaves out group_id; our client writes null."""


BYTES = golden("rustlog")


def only_payload(data: bytes) -> bytes:
    (one,) = rl.FrameReader().feed(data)
    return one


def codec_of(name: str) -> rl.Codec:
    return rl.CODECS[rl.dialect_of(only_payload(BYTES[name, ">"]))]


def plain(value: object) -> object:
    """A value with lists for sequences of any kind."""
    if isinstance(value, list | tuple | range):
        return [plain(part) for part in value]
    return value


def same(found: object, expected: object) -> bool:
    """Equal, whatever kind of sequence holds records and offsets."""
    return type(found) is type(expected) and plain(found) == plain(expected)


def test_every_golden_line_is_used():
    assert {(name, way) for name in [*EXAMPLES, *REFUSED, *CLOSED] for way in "><"} == set(BYTES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_requests_are_read_as_they_stand(name):
    found = codec_of(name).decode_request(only_payload(BYTES[name, ">"]))
    assert same(found, EXAMPLES[name].request)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in NOT_AS_OUR_CLIENT_SENDS])
def test_requests_are_written_as_they_stand(name):
    assert codec_of(name).encode_request(EXAMPLES[name].request) == BYTES[name, ">"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_answers_are_written_and_read_as_they_stand(name):
    answer, codec = EXAMPLES[name].answer, codec_of(name)
    assert codec.encode_answer(answer) == BYTES[name, "<"]
    assert same(codec.decode_answer(only_payload(BYTES[name, "<"])), answer)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_answered_as_they_stand(name):
    codec = codec_of(name)
    with pytest.raises(rl.RequestError) as refusal:
        codec.decode_request(only_payload(BYTES[name, ">"]))
    assert str(refusal.value) == REFUSED[name].message
    assert codec.encode_answer(REFUSED[name]) == BYTES[name, "<"]
    assert codec.decode_answer(only_payload(BYTES[name, "<"])) == REFUSED[name]


@pytest.mark.parametrize("name", CLOSED)
def test_wrong_lengths_are_answered_as_they_stand(name):
    dialect, answer = CLOSED[name]
    reader = rl.FrameReader()
    assert reader.feed(BYTES[name, ">"]) == []
    assert reader.error is not None
    assert rl.CODECS[dialect].encode_answer(answer) == BYTES[name, "<"]
    assert rl.CODECS[dialect].decode_answer(only_payload(BYTES[name, "<"])) == answer
