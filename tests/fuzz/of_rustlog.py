"""RustLog for the fuzzer, in both dialects."""

from __future__ import annotations

from random import Random

from brokerd.broker import Broker, Clock
from brokerd.codecs import rustlog as rl
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.rustlog.connection import RustlogFactory, RustlogSettings
from tests.fuzz.wire import Ask, Framing, FuzzedFormat

TOPICS = ("demo", "orders", "t", "é", "", "n" * 255, "n" * 256, "__brokerd.x")
GROUPS = ("g1", "p", "", "é" * 128)
PARTITIONS = (0, 0, 0, 0, 1, 2, 9, (1 << 32) - 1)
OFFSETS = (0, 0, 1, 2, 3, 100, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
DIALECTS = tuple(rl.Dialect)
WRITTEN_OTHERWISE = (
    b' {"Fetch" : ["demo",0,0,100,null]}\n',
    b'{"Fetch":["demo",0,0,100]}',
    b'{"Produce":["demo",0,[[1,2],[],[255]]]}',
    b'{"Produce":{"records":[[1],[2]],"partition":0,"topic":"demo"}}',
    b'{"Produce":{"topic":"demo","partition":0,"records":[ [1 , 2] , [\t] ],"more":[[1]]}}',
    b'{"Produce":{"topic":"demo","partition":0,"records":[["1"]]}}',
    b'{"Produce":{"topic":"demo","partition":0,"records":{}}}',
    b'{"OffsetFetch":{"topic":"d\\u0065mo","partition":0,"group_id":"\\ud83d\\ude00"}}',
    b'{"OffsetCommit":{"offset":1,"offset":2,"topic":"demo","partition":0,"group_id":"g1"}}',
    b'{"Ping":null}',
    b'{"Ping":{}}',
    b'{"ListTopics":[]}',
    b'"Fetch"',
    b'{"Ping":null,"ListTopics":null}',
    b"{}",
    b'\t{"Ping":null}',
)
"""JSON that serde reads or refuses, in forms that no client writes."""
_FRAMING = Framing(length_at=0, uncounted=4, length_min=1)


def requests(rng: Random) -> list[bytes]:
    """Return requests in one dialect or in both, some of them creations of topics."""
    dialects = rng.choice((DIALECTS[:1], DIALECTS[1:], DIALECTS))
    topics = rng.choice((TOPICS[:2], TOPICS))
    made = [
        rl.CODECS[rng.choice(dialects)].encode_request(_request(rng, rng.choice(topics)))
        for _ in range(rng.randrange(1, 24))
    ]
    if dialects[0] is rl.Dialect.JSON and rng.random() < 0.3:
        made.insert(rng.randrange(len(made)), rl.frame(rng.choice(WRITTEN_OTHERWISE)))
    return made


def _request(rng: Random, topic: str) -> rl.Request:
    group, partition, offset = rng.choice(GROUPS), rng.choice(PARTITIONS), rng.choice(OFFSETS)
    kind = rng.randrange(14)
    if kind <= 3:
        records = [rng.randbytes(rng.choice((0, 1, 5, 60, 900))) for _ in range(rng.randrange(7))]
        return rl.Produce(topic, partition, records)
    if kind <= 6:
        most = rng.choice((0, 1, 100, 1 << 20, (1 << 32) - 1))
        return rl.Fetch(topic, partition, offset, most, rng.choice((None, group)))
    if kind == 7:
        return rl.OffsetCommit(topic, partition, group, offset)
    if kind == 8:
        return rl.OffsetFetch(topic, partition, group)
    if kind <= 10:
        return rl.CreateTopic(topic, rng.choice((1, 1, 3, 0, 1 << 20, (1 << 32) - 1)))
    return rng.choice(
        (
            rl.ListTopics(),
            rl.DescribeTopic(topic),
            rl.DescribePartition(topic, partition),
            rl.MetricsFetch(),
            rl.Ping(),
        )
    )


def huge(rng: Random) -> list[bytes]:
    """Return a batch of megabytes, of few records or of many, and a fetch of it."""
    codec = rl.CODECS[rng.choice((rl.Dialect.JSON, rl.Dialect.JSON, rl.Dialect.BINARY))]
    batch = rng.choice(
        (
            [bytes(range(256)) * 4_000],
            [bytes(200)] * 4_000,
            [b""] * 70_000,
            [rng.randbytes(600_000)] * 2,
        )
    )
    sent = (
        rl.CreateTopic("demo", 1),
        rl.Produce("demo", 0, batch),
        rl.Fetch("demo", 0, 0, 1 << 21),
        rl.Fetch("demo", 0, rng.randrange(9), 100, "p"),
    )
    return [codec.encode_request(request) for request in sent]


def read_answers(data: bytes, requests: list[bytes]) -> int:
    """Decode each answer in the dialect of its request; return the number."""
    reader = rl.FrameReader()
    payloads = reader.feed(data)
    assert reader.error is None, reader.error
    assert not reader.partial_bytes, "the last answer is cut off"
    for number, payload in enumerate(payloads):
        dialect = rl.dialect_of(payload)
        answer = rl.CODECS[dialect].decode_answer(payload)
        if number < len(requests):
            asked = rl.dialect_of(requests[number][4:])
            assert dialect is asked, f"{answer} in the other dialect"
        else:
            assert isinstance(answer, rl.Failed), "more than was asked for"
    return len(payloads)


class RustlogWitness:
    """Creates a topic of its own, produces batches and fetches, in both dialects."""

    TOPIC, GROUP = "the witness of RustLog", "its group"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._records: list[bytes] = []

    def step(self, ask: Ask) -> None:
        topic, group, start = self.TOPIC, self.GROUP, len(self._records)
        if not start:
            created = _answers(ask, rl.Dialect.BINARY, rl.CreateTopic(topic, 1))
            assert created == [rl.TopicCreated()], created
        dialect = self._rng.choice(DIALECTS)
        batch = [self._rng.randbytes(self._rng.choice((0, 1, 20, 300))) for _ in range(3)]
        self._records += batch
        end = start + len(batch)
        produced, fetched, committed, last = _answers(
            ask,
            dialect,
            rl.Produce(topic, 0, batch),
            rl.Fetch(topic, 0, start, 1 << 20),
            rl.OffsetCommit(topic, 0, group, end),
            rl.OffsetFetch(topic, 0, group),
        )
        assert produced == rl.Produced(start, len(batch)), produced
        assert isinstance(fetched, rl.Fetched), fetched
        assert list(fetched.offsets) == list(range(start, end)), fetched
        assert list(fetched.records) == batch, fetched
        assert fetched.next_offset == end, fetched
        assert committed == rl.OffsetCommitted(True), committed
        assert last == rl.OffsetFetched(end), last

    def read_back(self, ask: Ask) -> None:
        for dialect in DIALECTS if self._records else ():
            records: list[bytes] = []
            while len(records) < len(self._records):
                ask_for = rl.Fetch(self.TOPIC, 0, len(records), 2_000)
                (fetched,) = _answers(ask, dialect, ask_for)
                assert isinstance(fetched, rl.Fetched), fetched
                assert list(fetched.offsets)[:1] == [len(records)], fetched
                records += fetched.records
            assert records == self._records, "records are not what they were"
            (last,) = _answers(ask, dialect, rl.OffsetFetch(self.TOPIC, 0, self.GROUP))
            assert last == rl.OffsetFetched(len(records)), last


def _answers(ask: Ask, dialect: rl.Dialect, *sent: rl.Request) -> list[rl.Answer]:
    codec = rl.CODECS[dialect]
    payloads = rl.FrameReader().feed(ask(b"".join(map(codec.encode_request, sent)), len(sent)))
    return [codec.decode_answer(payload) for payload in payloads]


def _factory(broker: Broker, clock: Clock, limits: Limits, other: bool) -> RustlogFactory:
    settings = RustlogSettings("reference" if other else "seed")
    return RustlogFactory(broker, clock, limits, settings)


FORMAT = FuzzedFormat(
    name="rustlog",
    factory=_factory,
    topics=TOPICS[:2],
    requests=requests,
    huge=huge,
    greeting=(),
    witness=RustlogWitness,
    read_answers=read_answers,
    framing=_FRAMING,
    split=_FRAMING.split,
    frame_bytes_max=rl.MAX_PAYLOAD,
    owes=lambda request: True,
    closes_upon=lambda request: False,
    tokens=(
        b"\xff",
        b"\x09",
        b"\x09{",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\xff\xff",
        b"\xff" * 8,
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b'{"Ping":null}',
        b'"Ping"',
        b'{"Produce":',
        b'"records":',
        b'"records":[[1,2],[3]],',
        b"[[]]",
        b"[" * 2_000,
        b'{"a":' * 1_500,
        b"[" * 90_000,
        b'"\\ud800"',
        b'"\\u0000"',
        b'\\"',
        b"\\",
        b"NaN",
        b"-0",
        b"1e400",
        b"null",
        b"/*",
        b"\x00",
        b",",
        b"]}",
        b'"topic":"t",',
    ),
    text=True,
)
