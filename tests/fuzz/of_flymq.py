"""FlyMQ for the fuzzer, in the document's layouts and the SDKs'."""

from __future__ import annotations

import zlib
from random import Random
from typing import Literal

from brokerd.broker import Broker, Clock
from brokerd.codecs import flymq as fm
from brokerd.protocols.base.connection import Limits
from brokerd.protocols.flymq.connection import FlymqFactory, FlymqSettings
from tests.fuzz.wire import Ask, Framing, FuzzedFormat, Split

TOPICS = ("test", "t", "orders", "é", "", "../x", "__brokerd.x", "n" * 255, "n" * 256)
GROUPS = ("g", "h", "", "é" * 128)
PARTITIONS = (-1, 0, 0, 0, 1, 2, 3, -(1 << 31), (1 << 31) - 1)
OFFSETS = (0, 0, 1, 2, 3, 100, (1 << 31), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
MODES = ("earliest", "latest", "commit", "", "offset", "x")
FILTERS = ("", "", "a", "$.n", "$.a.b", "^k.*y$", "(", "(a+)+$", "(a|b|ab)*c{5}", "[", "$.", "É")
VALUES = (b"", b"hello", b'{"n":1,"a":{"b":null}}', b"{" * 40, b"a" * 300, b"\xff\x00" * 9)
NUMBERS = (0, 1, -1, 5, 1_000, 86_400_001, 1 << 40, (1 << 63) - 1, -(1 << 63))
MESSAGES = (0, 1, (1 << 40) | 1, 6 << 48, (1 << 64) - 1, "0", "delayed-1", "", "000000", "9" * 30)
SCHEMAS = ("order", "order", "audit", "", "\x1b[0m", "n" * 256)
TYPES = ("json", "json", "json", "xml", "")
DEFINITIONS = (
    b"{}",
    b'{"required":["n"]}',
    b'{"$ref":"#"}',
    b'{"$ref":"http://[::1]:1/"}',
    b"[" * 999,
)
TRANSACTIONS = (*(f"txn-1700000000000000-{number}" for number in (1, 1, 2, 3)), "", "x")
USERS = ("ann", "bob", "", "n" * 256, "\x1b[0m")
ENVELOPES = (
    b'{"id":"m-1","payload":"aGk=","original_topic":"test","retry_count":3}',
    b'{"id":"m-1","payload":null,"original_topic":"../x"}',
    b'{"id":"7","payload":"aGk=","retry_count":99999999999,"reason":"expired"}',
    b'{"id":"","payload":"?"}',
    b'{"id":"m-1","x":' + b"[" * 5_000,
)
FETCHES = (fm.Opcode.FETCH, fm.Opcode.FETCH, fm.Opcode.FETCH_BINARY)
CONSUMES = (fm.Opcode.CONSUME, fm.Opcode.CONSUME_ZERO_COPY)
_HEADER_BYTES = 8
_BEGIN = b"\xaf\x01"
MAGIC_AND_VERSION = Framing(length_at=4, uncounted=_HEADER_BYTES, length_min=0)


def requests(rng: Random) -> list[bytes]:
    """Return requests of all kinds, on few topics, some compressed."""
    topics = rng.choice((TOPICS[:2], TOPICS))
    return [
        fm.encode_request(_request(rng, rng.choice(topics)), gzip=rng.random() < 0.1)
        for _ in range(rng.randrange(1, 24))
    ]


def _request(rng: Random, topic: str) -> fm.Request:
    group, partition = rng.choice(GROUPS), rng.choice(PARTITIONS)
    offset, mode, sdk = rng.choice(OFFSETS), rng.choice(MODES), rng.random() < 0.5
    kind = rng.randrange(31)
    if kind <= 3:
        value = rng.choice((*VALUES, rng.randbytes(rng.choice((1, 70, 4_000)))))
        return fm.Produce(topic, rng.choice((None, None, b"k", b"key")), value, partition)
    if kind <= 5:
        return fm.Consume(topic, partition, offset, rng.choice(CONSUMES))
    if kind <= 9:
        about = rng.choice(FILTERS) if sdk else ""
        most = rng.choice((0, -1, 1, 10, 500, (1 << 31) - 1))
        return fm.Fetch(topic, partition, offset, most, about, sdk, rng.choice(FETCHES))
    if kind == 10:
        return fm.Subscribe(topic, group, partition, mode, sdk)
    if kind == 11:
        return fm.Commit(topic, group, partition, min(offset, fm.MAX_OFFSET))
    if kind == 12:
        number = min(offset, fm.MAX_OFFSET) if mode == "offset" else None
        return fm.ResetOffset(topic, group, partition, mode, number, sdk and bool(mode))
    if kind >= 27:
        return _groups_and_letters(rng, topic, group, partition, offset)
    if kind >= 24:
        return _schemas(rng, topic)
    if kind >= 18:
        return _later(rng, topic)
    if kind >= 16:
        return _administration(rng, topic)
    return rng.choice(
        (
            fm.CreateTopic(topic, rng.choice((0, 1, 3, -1, 1 << 20, (1 << 31) - 1))),
            fm.Metadata(topic),
            fm.ListTopics(),
            fm.DeleteTopic(topic),
            fm.ClusterMetadata(topic),
            fm.GetOffset(topic, group, partition),
            fm.GetLag(topic, group, partition),
        )
    )


def _schemas(rng: Random, topic: str) -> fm.Request:
    """Draw a request about schemas, or records that should fit them."""
    name, version, value = (
        rng.choice(SCHEMAS),
        rng.choice((0, 0, 1, 2, 1 << 31)),
        rng.choice(VALUES),
    )
    kind, text, flag = rng.choice(TYPES), rng.choice(DEFINITIONS), rng.random() < 0.5
    return rng.choice(
        (
            fm.RegisterSchema(name, kind, text, flag),
            fm.RegisterSchema(name, kind, text, flag),
            fm.GetSchema(name, version),
            fm.ListSchemas(name if flag else ""),
            fm.ValidateSchema(name, value),
            fm.ProduceWithSchema(topic, value, name, flag),
            fm.ProduceWithSchema(topic, value, name, flag),
            fm.DeleteSchema(name, version),
        )
    )


def _later(rng: Random, topic: str) -> fm.Request:
    """Draw a request with a delayed record, an expiring record, or a transaction."""
    value, number = rng.choice(VALUES), rng.choice(NUMBERS)
    message, transaction = rng.choice(MESSAGES), rng.choice(TRANSACTIONS)
    with_topic = rng.random() < 0.7 or not isinstance(message, str)
    return rng.choice(
        (
            fm.ProduceDelayed(topic, value, number),
            fm.ProduceWithTtl(topic, value, number),
            fm.CancelDelayed(message, topic if with_topic else None),
            fm.BeginTransaction(),
            fm.ProduceInTransaction(transaction, topic, value),
            fm.ProduceInTransaction(transaction, topic, value),
            fm.CommitTransaction(transaction),
            fm.RollBackTransaction(transaction),
        )
    )


def _groups_and_letters(
    rng: Random, topic: str, group: str, partition: int, offset: int
) -> fm.Request:
    """Draw a request about dead letters, groups as administrators see them, or the cluster."""
    of = rng.choice((topic, "", None))
    return rng.choice(
        (
            fm.FetchDlq(topic, rng.choice((0, -1, 3, (1 << 31) - 1))),
            fm.ReplayDlq(topic, rng.choice(("m-1", "0:0:g", "0:9:", "7", "::", "1" * 30))),
            fm.ReplayDlq(topic, offset),
            fm.PurgeDlq(topic),
            fm.Produce(f"{topic[:200]}.dlq", None, rng.choice(ENVELOPES)),
            fm.ListGroups(),
            fm.DescribeGroup(group, of),
            fm.DeleteGroup(group, of),
            fm.SeekToTimestamp(topic, partition, rng.choice(NUMBERS), rng.choice((None, group))),
            fm.JoinCluster(rng.choice(("host:9093", "\x1b[0m", "not leader", "n" * 9_000))),
            fm.LeaveCluster(),
            fm.ClusterStatus(),
        )
    )


def _administration(rng: Random, topic: str) -> fm.Request:
    """Draw a login, or a request about users, access lists or the audit trail."""
    user, roles = rng.choice(USERS), rng.choice(((), ("admin",), ("", "x" * 300)))
    number = rng.choice((0, 1, -1, 1 << 40, (1 << 63) - 1, -(1 << 63)))
    page = rng.choice((0, 1, -1, 5_000, (1 << 31) - 1))
    java = rng.random() < 0.5
    query = fm.QueryAudit(number, number, roles, user, topic, user, user, page, page, java)
    return rng.choice(
        (
            fm.Auth(user, topic),
            fm.WhoAmI(),
            fm.CreateUser(user, topic, roles),
            fm.DeleteUser(user),
            fm.UpdateUser(user, roles, java),
            fm.ListUsers(),
            fm.GetUser(user),
            fm.ChangePassword(user, topic, user),
            fm.SetAcl(topic, java, (user,), roles),
            fm.GetAcl(topic),
            fm.DeleteAcl(topic),
            fm.ListAcls(),
            fm.ListRoles(),
            query,
            fm.ExportAudit(query, rng.choice(("csv", "json", ""))),
        )
    )


def huge(rng: Random) -> list[bytes]:
    """Return a large value and requests that search in it, or a payload that inflates."""
    if rng.random() < 0.3:
        return [fm.frame(fm.Opcode.PRODUCE, _inflating(rng), flags=0x03)]
    value = rng.choice((b"{" + b'"n":1,' * 100_000 + b'"a":2}', b"a" * 700_000, bytes(300_000)))
    sent: list[fm.Request] = [fm.Produce("t", None, value, 0)]
    sent += [fm.Fetch("t", 0, 0, 10, about, True) for about in rng.sample(FILTERS, 3)]
    sent += [fm.Consume("t", 0, 0, opcode) for opcode in CONSUMES]
    return [fm.encode_request(request, gzip=rng.random() < 0.3) for request in sent]


def _inflating(rng: Random) -> bytes:
    """Return some kilobytes that inflate to tens of megabytes; the trailer may claim less."""
    size = rng.choice((100 << 10, fm.MAX_LENGTH - 40, fm.MAX_LENGTH + 1, 3 * fm.MAX_LENGTH))
    topic_and_key = b"\x00\x01t" + bytes(4)
    value_bytes = max(0, size - len(topic_and_key) - 8)
    deflate = zlib.compressobj(wbits=31)
    parts = [deflate.compress(topic_and_key + value_bytes.to_bytes(4, "big"))]
    piece = bytes(1 << 20)
    parts += [deflate.compress(piece) for _ in range(value_bytes >> 20)]
    parts.append(deflate.compress(bytes((value_bytes & 0xFFFFF) + 4)))
    data = b"".join(parts) + deflate.flush()
    return data if rng.random() < 0.5 else data[:-4] + bytes(4)


def split(stream: bytes, length_max: int) -> Split:
    """Return the frames before the first one with a wrong begin."""
    frames, is_wrong = MAGIC_AND_VERSION.split(stream, length_max)
    for index, frame in enumerate(frames):
        if not frame.startswith(_BEGIN):
            return frames[:index], True
    rest = stream[sum(map(len, frames)) :]
    return frames, is_wrong or not _BEGIN.startswith(rest[:2])


def _request_of(asked: bytes, opcode: int) -> fm.Request:
    """Return the executed request; a refused one need not be decoded or decompressed."""
    if opcode == fm.Opcode.ERROR:
        return fm.ListTopics()
    try:
        return fm.decode_request(asked[2], asked[3], asked[_HEADER_BYTES:])
    except fm.RequestError as problem:
        raise AssertionError("a request that cannot be read was carried out") from problem


def read_answers(data: bytes, requests: list[bytes]) -> int:
    """Decode each answer by its request and return the number; invalid ones must be refused."""
    reader = fm.FrameReader()
    frames = reader.feed(data)
    assert reader.error is None, reader.error
    assert not reader.partial_bytes, "the last answer is cut off"
    for number, (opcode, _, payload) in enumerate(frames):
        if number < len(requests):
            fm.decode_answer(_request_of(requests[number], opcode), opcode, payload)
        else:
            assert opcode == fm.Opcode.ERROR, "more than was asked for"
        if opcode == fm.Opcode.ERROR:
            text = fm.error_text(payload).lower()
            assert "not leader" not in text, "SDKs take it for a redirect"
    return len(frames)


class FlymqWitness:
    """Produces with keys to a topic of its own, consumes, fetches in both layouts, commits."""

    TOPIC, GROUP = "the witness of FlyMQ", "its group"

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._records: list[fm.FetchedRecord] = []

    def step(self, ask: Ask) -> None:
        topic, offset = self.TOPIC, len(self._records)
        key = self._rng.choice((None, b"k"))
        value = self._rng.randbytes(self._rng.choice((0, 1, 20, 300)))
        record = fm.FetchedRecord(offset, key, value)
        self._records.append(record)
        produced, *rest = _answers(
            ask,
            fm.Produce(topic, key, value, 0),
            fm.Consume(topic, 0, offset),
            fm.Fetch(topic, 0, offset, 10),
            fm.Fetch(topic, 0, offset, 10, "", True),
            fm.Commit(topic, self.GROUP, 0, offset + 1),
            fm.GetLag(topic, self.GROUP, 0),
        )
        assert isinstance(produced, fm.Produced), produced
        size = -1 if key is None else len(key)
        stored = produced._replace(timestamp_ms=0)
        assert stored == (topic, 0, offset, 0, size, len(value)), produced
        fetched = fm.Fetched((record,), offset + 1)
        lag = fm.Lag(offset + 1, offset + 1, offset + 1, 0)
        assert rest == [fm.Consumed(key, value), fetched, fetched, fm.Done(), lag], rest

    def read_back(self, ask: Ask) -> None:
        if not self._records:
            return
        committed, *fetches = _answers(
            ask,
            fm.GetOffset(self.TOPIC, self.GROUP, 0),
            *(fm.Fetch(self.TOPIC, 0, offset, 1) for offset in range(len(self._records))),
        )
        assert committed == fm.Position(len(self._records)), committed
        expected = [fm.Fetched((record,), record.offset + 1) for record in self._records]
        assert fetches == expected, "records are not what they were"


def _answers(ask: Ask, *sent: fm.Request) -> list[fm.Answer]:
    frames = fm.FrameReader().feed(ask(b"".join(map(fm.encode_request, sent)), len(sent)))
    return [
        fm.decode_answer(request, opcode, payload)
        for request, (opcode, _, payload) in zip(sent, frames, strict=True)
    ]


def _factory(broker: Broker, clock: Clock, limits: Limits, other: bool) -> FlymqFactory:
    layout: Literal["auto", "sdk"] = "sdk" if other else "auto"
    settings = FlymqSettings(1 if other else 3, layout, advertised="a:1" if other else "")
    return FlymqFactory(broker, clock, limits, settings)


FORMAT = FuzzedFormat(
    name="flymq",
    factory=_factory,
    topics=("test", "orders", "t"),
    requests=requests,
    huge=huge,
    greeting=(),
    witness=FlymqWitness,
    read_answers=read_answers,
    framing=MAGIC_AND_VERSION,
    split=split,
    frame_bytes_max=fm.MAX_LENGTH,
    owes=lambda request: True,
    closes_upon=lambda request: False,
    inflates=True,
    tokens=(
        b"\xaf\x01",
        b"\x03",
        b"\x05",
        b"\x09",
        b"\x0f",
        b"\x10",
        b"\x70",
        b"\xff\xff",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\x80\x00\x00\x00",
        b"\xff" * 8,
        b"\x00\x08earliest",
        b"\x08earliest",
        b"\x06offset",
        b"\x00\x05(a+)+",
        b"\x00\x0b(x{1000}){9}",
        b"\x00\x03$..",
        b"\xed\xa0\x80",
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff",
        b"\x0anot leader",
        b"[" * 300,
        b'{"n":' * 200,
    ),
)
