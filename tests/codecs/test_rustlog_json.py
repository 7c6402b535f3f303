"""The JSON dialect: what is read, what is written, and what is said of what is wrong."""

from __future__ import annotations

import json
import os
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brokerd.codecs import rustlog as rl
from brokerd.codecs.rustlog import json_records
from tests.codecs.test_rustlog_golden import same
from tests.strategies import rustlog as strategies

CODEC = rl.CODECS[rl.Dialect.JSON]
PREFIX = "failed to parse request: "


def payload_of(data: bytes) -> bytes:
    (one,) = rl.FrameReader().feed(data)
    return one


def decode(text: str | bytes) -> rl.Request | rl.LongProduce:
    return CODEC.decode_request(text.encode() if isinstance(text, str) else text)


def refusal(text: str | bytes) -> str:
    with pytest.raises(rl.RequestError) as refused:
        decode(text)
    assert str(refused.value).startswith(PREFIX)
    return str(refused.value).removeprefix(PREFIX)


def produce(records: str, topic: str = '"t"', partition: str = "0") -> str:
    return f'{{"Produce":{{"topic":{topic},"partition":{partition},"records":{records}}}}}'


def finished(request: rl.Request | rl.LongProduce) -> rl.Request:
    """A request, its records parsed to the end."""
    if isinstance(request, rl.LongProduce):
        while not request.parser.step():
            pass
        return rl.Produce(request.topic, request.partition, request.parser.records)
    return request


@given(strategies.requests)
def test_a_request_that_is_written_is_read_as_it_was(request):
    assert same(decode(payload_of(CODEC.encode_request(request))), request)


@given(strategies.answers)
def test_an_answer_that_is_written_is_read_as_it_was(answer):
    assert same(CODEC.decode_answer(payload_of(CODEC.encode_answer(answer))), answer)


@given(strategies.names)
def test_an_error_is_a_message_alone(message):
    data = CODEC.encode_answer(rl.Failed(404, message))
    assert CODEC.decode_answer(payload_of(data)) == rl.Failed(0, message)


@given(strategies.payloads | st.text(min_size=1).map(str.encode))
def test_any_bytes_are_an_answer_or_refused(payload):
    try:
        CODEC.decode_answer(payload)
    except rl.AnswerError as problem:
        assert str(problem)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
KEYS = ["topic", "partition", "records", "offset", "max_bytes", "group_id", "other"]
VARIANTS = ["Produce", "Fetch", "OffsetCommit", "Ping", "DescribeTopic", "Nonsense"]
near_requests = st.dictionaries(
    st.sampled_from(VARIANTS),
    st.dictionaries(st.sampled_from(KEYS), json_values) | json_values,
    max_size=2,
)


@given(near_requests.map(json.dumps) | json_values.map(json.dumps) | st.text(min_size=1))
def test_any_text_is_a_request_or_refused(text):
    try:
        decode(text.encode("utf-8", "surrogatepass"))
    except rl.RequestError as problem:
        assert str(problem)


# -- the document's own examples --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """{
  "Produce": {
    "topic": "orders",
    "partition": 0,
    "records": [
      [98, 121, 116, 101, 115],
      [109, 111, 114, 101]
    ]
  }
}""",
            rl.Produce("orders", 0, [b"bytes", b"more"]),
        ),
        (
            """{
  "Fetch": {
    "topic": "orders",
    "partition": 0,
    "offset": 1000,
    "max_bytes": 1048576,
    "group_id": "order-processor"
  }
}""",
            rl.Fetch("orders", 0, 1000, 1_048_576, "order-processor"),
        ),
        (
            """{
  "OffsetCommit": {
    "topic": "orders",
    "partition": 0,
    "group_id": "order-processor",
    "offset": 1500
  }
}""",
            rl.OffsetCommit("orders", 0, "order-processor", 1500),
        ),
        (
            """{
  "OffsetFetch": {
    "topic": "orders",
    "partition": 0,
    "group_id": "order-processor"
  }
}""",
            rl.OffsetFetch("orders", 0, "order-processor"),
        ),
    ],
)
def test_the_documents_requests_are_read(text, expected):
    assert same(decode(text), expected)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (rl.Produced(1000, 3), '{"Produce":{"offsets":[1000,1001,1002]}}'),
        (
            rl.Fetched([1000, 1001], [b"bytes", b"more"], 1002),
            '{"Fetch":{"records":[{"offset":1000,"payload":[98,121,116,101,115]},'
            '{"offset":1001,"payload":[109,111,114,101]}],"next_offset":1002}}',
        ),
        (rl.OffsetCommitted(True), '{"OffsetCommit":{"success":true}}'),
        (rl.OffsetFetched(1500), '{"OffsetFetch":{"offset":1500}}'),
        (rl.OffsetFetched(None), '{"OffsetFetch":{"offset":null}}'),
        (
            rl.Failed(10, "partition not found: topic=orders, partition=99"),
            '{"Error":{"message":"partition not found: topic=orders, partition=99"}}',
        ),
        (
            rl.Failed(10, 'partition not found: topic=é"\\, partition=0'),
            '{"Error":{"message":"partition not found: topic=é\\"\\\\, partition=0"}}',
        ),
    ],
)
def test_the_documents_answers_are_written_compactly(answer, text):
    assert payload_of(CODEC.encode_answer(answer)).decode() == text


# -- tolerant ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' \t\r\n{ "Ping" : null } \n', rl.Ping()),
        ('"Ping"', rl.Ping()),
        ('{"ListTopics":null}', rl.ListTopics()),
        ('"MetricsFetch"', rl.MetricsFetch()),
        ('{"DescribeTopic":["t"]}', rl.DescribeTopic("t")),
        ('{"Fetch":["t",1,2,3,null]}', rl.Fetch("t", 1, 2, 3)),
        ('{"Produce":["t",1,[[1,2],[]]]}', rl.Produce("t", 1, [b"\x01\x02", b""])),
        (
            '{"OffsetFetch":{"group_id":"g","other":1.5,"partition":1,"topic":"t"}}',
            rl.OffsetFetch("t", 1, "g"),
        ),
        (
            '{"Fetch":{"topic":"t","partition":0,"offset":1,"max_bytes":2}}',
            rl.Fetch("t", 0, 1, 2, None),
        ),
        (
            '{"Fetch":{"topic":"t","partition":0,"offset":1,"max_bytes":2,"group_id":""}}',
            rl.Fetch("t", 0, 1, 2, None),
        ),
        (
            '{"OffsetFetch":{"topic":"\\u00e9\\ud83d\\ude00\\n","partition":0,"group_id":"g"}}',
            rl.OffsetFetch("é\N{GRINNING FACE}\n", 0, "g"),
        ),
        (
            '{"OffsetCommit":{"topic":"t","partition":4294967295,"group_id":"g",'
            '"offset":18446744073709551615}}',
            rl.OffsetCommit("t", (1 << 32) - 1, "g", (1 << 64) - 1),
        ),
        (
            '{"DescribeTopic":{"topic":"t","x":{"a":1,"a":[{}]},"x":2}}',
            rl.DescribeTopic("t"),
        ),
        (
            '{"Produce":{"records":[[1]],"partition":0,"topic":"t"}}',
            rl.Produce("t", 0, [b"\x01"]),
        ),
        (
            '{"Produce":{"rec\\u006frds":[[7]],"partition":0,"topic":"t"}}',
            rl.Produce("t", 0, [b"\x07"]),
        ),
        (
            '{"Produce":{"x":{"records":[[1]]},"records":[[2]],"partition":0,"topic":"t"}}',
            rl.Produce("t", 0, [b"\x02"]),
        ),
        (
            '{"Produce":{"a\\"records":[[1]],"records":[[2]],"partition":0,"topic":"t"}}',
            rl.Produce("t", 0, [b"\x02"]),
        ),
        (
            '{"DescribeTopic":{"records":[[1]],"topic":"t"}}',
            rl.DescribeTopic("t"),
        ),
        (produce("[]"), rl.Produce("t", 0, [])),
        (produce(" [ [ ] , [ 0 , 255 ] ] "), rl.Produce("t", 0, [b"", b"\x00\xff"])),
        (produce("[[1]]", topic='"records"'), rl.Produce("records", 0, [b"\x01"])),
        (produce("[[1]]", topic='"NaN"'), rl.Produce("NaN", 0, [b"\x01"])),
        (
            produce("[[1]]", topic='"\\"records\\":[[9]]"'),
            rl.Produce('"records":[[9]]', 0, [b"\1"]),
        ),
    ],
)
def test_what_serde_accepts_is_accepted(text, expected):
    """Blanks, order, unknown members, arrays for objects, absent options."""
    assert same(decode(text), expected)


# -- strict -----------------------------------------------------------------------------------

FETCH = '{{"Fetch":{{"topic":"t","partition":{},"offset":{},"max_bytes":{},"group_id":null}}}}'
COMMIT = '{{"OffsetCommit":{{"topic":"t","partition":0,"group_id":{},"offset":{}}}}}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "expected an object with the name of one request"),
        ("[]", "expected an object with the name of one request"),
        ('{"Ping":null,"ListTopics":null}', "expected an object with the name of one request"),
        ('{"Ping":null,"Ping":null}', "expected an object with the name of one request"),
        ('{"type":"Ping"}', "unknown variant `type`"),
        ('"Pong"', "unknown variant `Pong`"),
        ('"\\ud800"', "half a surrogate pair in `request`"),
        ('{"\\ud800":null}', "half a surrogate pair in `request`"),
        ('{"ping":null}', "unknown variant `ping`"),
        ('"Fetch"', "unit variant, expected struct variant Fetch"),
        ('{"Ping":{}}', "a map, expected unit"),
        ('{"Ping":1}', "an integer, expected unit"),
        ('{"DescribeTopic":null}', "null, expected struct variant DescribeTopic"),
        ('{"DescribeTopic":"t"}', "a string, expected struct variant"),
        ('{"DescribeTopic":[]}', "invalid length 0"),
        ('{"DescribeTopic":["t",1]}', "invalid length 2"),
        ('{"DescribeTopic":{}}', "missing field `topic`"),
        ('{"DescribeTopic":{"topic":"t","topic":"t"}}', "duplicate field `topic`"),
        ('{"DescribeTopic":{"topic":null}}', "null, expected a string for `topic`"),
        ('{"DescribeTopic":{"topic":1}}', "an integer, expected a string for `topic`"),
        ('{"DescribeTopic":{"topic":"\\ud800"}}', "half a surrogate pair in `topic`"),
        ('{"DescribeTopic":{"topic":"a\nb"}}', "control character"),
        (FETCH.format("1.0", 0, 0), "a floating point, expected u32 for `partition`"),
        (FETCH.format("1e0", 0, 0), "a floating point, expected u32"),
        (FETCH.format("-0", 0, 0), "a floating point, expected u32"),
        (FETCH.format("-1", 0, 0), "invalid value: -1, expected u32"),
        (FETCH.format("true", 0, 0), "a boolean, expected u32"),
        (FETCH.format('"1"', 0, 0), "a string, expected u32"),
        (FETCH.format("01", 0, 0), ""),
        (FETCH.format("+1", 0, 0), ""),
        (FETCH.format(".5", 0, 0), ""),
        (FETCH.format(1 << 32, 0, 0), "invalid value: 4294967296, expected u32"),
        (FETCH.format(0, 1 << 64, 0), "expected u64 for `offset`"),
        (FETCH.format(0, "9" * 6_000, 0), "a floating point, expected u64 for `offset`"),
        (FETCH.format(0, 0, 1 << 64), "expected u64 for `max_bytes`"),
        (FETCH.format(0, 0, "NaN"), "NaN is not JSON"),
        (FETCH.format(0, "Infinity", 0), "Infinity is not JSON"),
        (COMMIT.format("null", 0), "null, expected a string for `group_id`"),
        ('{"Fetch":{"topic":"t","partition":0,"offset":1}}', "missing field `max_bytes`"),
        ('{"OffsetFetch":{"topic":"t","partition":0}}', "missing field `group_id`"),
        ('"Ping"x', "Extra data"),
        ('"Ping"\x00', "Extra data"),
        ('"Ping""Ping"', "Extra data"),
        ('\ufeff"Ping"', ""),
        (b'{"DescribeTopic":{"topic":"\xff"}}', "invalid UTF-8 at byte 27"),
        ("{'Ping':null}", ""),
        ('{"Ping":null,}', ""),
        ("[" * 60_000, "nested too deep"),
        ('{"Ping":nul', ""),
    ],
)
def test_what_serde_refuses_is_refused(text, said):
    assert said in refusal(text)


@pytest.mark.parametrize(
    "records",
    [
        "",
        "1",
        "null",
        '"aGk="',
        '["aGk="]',
        "{}",
        "[{}]",
        "[[{}]]",
        "[1]",
        "[[256]]",
        "[[-1]]",
        "[[1.0]]",
        "[[1e1]]",
        "[[true]]",
        "[[null]]",
        "[[NaN]]",
        "NaN",
        "[NaN]",
        "[[[1]]]",
        "[[1,]]",
        "[[,1]]",
        "[[1],]",
        "[,[1]]",
        "[[1][2]]",
        "[[1 2]]",
        "[[01]]",
        "[[1]",
        "[[1]]]",
        "[[99999999999999999999999]]",
        "[[1\x0b]]",
        "[[1]],[[2]]",
        "]",
        "1]",
        "[1]]",
        "[[1]]1]",
    ],
)
def test_records_that_are_no_arrays_of_bytes_are_refused(records):
    assert refusal(produce(records))


@pytest.mark.parametrize("other", ["[[1]", "[[1]]]", "[NaN]", "[01]", "[1,]"])
def test_what_stands_in_an_unknown_member_must_be_json_too(other):
    """Even where it is named records and looks like them."""
    assert refusal(f'{{"DescribeTopic":{{"topic":"t","records":{other}}}}}')


def test_members_that_are_there_twice_are_refused_in_a_produce():
    assert "duplicate field `records`" in refusal(
        '{"Produce":{"topic":"t","partition":0,"records":[[1]],"records":[[2]]}}'
    )


def test_many_records_are_refused_with_their_limit():
    with pytest.raises(rl.TooManyRecords, match="65536"):
        decode(produce("[" + ",".join(["[]"] * 65_537) + "]"))


@pytest.mark.parametrize(
    "text",
    [
        '{"DescribeTopic":{"topic":"t","x":[' + ",".join(["{}"] * 3_000_000) + "]}}",
        '{"DescribeTopic":{"topic":"t","x":"' + "a" * 9_000_000 + '"}}',
        produce("[[1.5" + ",1" * 4_000_000 + "]]"),
        "[" * 10_000_000,
    ],
    ids=["objects", "string", "fraction", "nested"],
)
def test_what_is_not_plain_records_must_be_short(text):
    """So that no frame makes many objects of few bytes."""
    payload = text.encode()
    tracemalloc.start()
    try:
        assert "65536" in refusal(payload)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(payload) + 10_000
    finally:
        tracemalloc.stop()


# -- large ------------------------------------------------------------------------------------


def written(records: list[bytes], comma: str = ",") -> bytes:
    arrays = (comma.join(map(str, record)) for record in records)
    return produce("[" + comma.join(f"[{array}]" for array in arrays) + "]").encode()


@given(strategies.record_lists, st.integers(1, 30), st.sampled_from([",", " , ", ",\n"]))
def test_records_are_the_same_however_they_are_sliced(records, size, comma):
    text = written(records, comma)
    whole = finished(decode(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_records, "SLICE_BYTES", size)
        sliced = finished(decode(text))
    assert same(sliced, whole)
    assert list(whole.records) == list(records)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "records",
    ["[[1,]]", "[[,1]]", "[[1],]", "[,[1]]", "[[1][2]]", "[[1 2]]", "[[1,,2]]", "[[1]", "[[1],[2"]
    + ["[[1,2,3, ]]", "[[ ,2,3]]", "[[1],[256]]", "[[1,2,3,4,256]]", "[[1,2,3,4,5],[[6]]]", "[1]"]
    + ["[[1,2,3] [4]]", "[[1,2,3]4,[5]]", "[1,2,3,[4]]", "[[1,2,3,4,5]", "[[01,2,3]]"],
)
def test_records_that_are_wrong_are_refused_however_they_are_sliced(records, size, monkeypatch):
    monkeypatch.setattr(json_records, "SLICE_BYTES", size)
    with pytest.raises(rl.RequestError):
        finished(decode(produce(records)))


@pytest.mark.parametrize("sizes", [[1_400_000, 0, 1_400_000], [2_500], [100] * 25_000])
def test_a_long_produce_is_read_in_steps_that_hold_little(sizes):
    records = [os.urandom(size) for size in sizes]
    text = written(records)
    tracemalloc.start()
    try:
        request = decode(text)
        assert isinstance(request, rl.LongProduce) == (len(text) > rl.SLICE_BYTES)
        done = finished(request)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert list(done.records) == records
    assert peak < 2 * len(text) + sum(sizes) + 200 * len(sizes) + 12_000_000


@pytest.mark.parametrize("size", [10, 70_000, 700_000])
def test_members_may_come_in_any_order_however_long_the_records_are(size):
    record = os.urandom(size)
    text = ",".join(map(str, record))
    request = finished(
        decode(f'{{"Produce":{{"x":[1],"records":[[{text}]],"y":[2],"topic":"t","partition":3}}}}')
    )
    assert same(request, rl.Produce("t", 3, [record]))


def test_one_long_record_takes_as_many_steps_as_it_has_slices():
    request = decode(written([bytes(5_000_000)]))
    assert isinstance(request, rl.LongProduce)
    steps = 1
    while not request.parser.step():
        steps += 1
    assert steps >= 10_000_000 // rl.SLICE_BYTES


@given(st.integers(0, (1 << 63) - 1), st.binary(max_size=400))
@example(8, b"")
@example(9, b"\x09\x0a\x63\x64")
def test_the_length_of_an_answer_is_known_before_it_is_made(offset, record):
    data = CODEC.encode_answer(rl.Fetched([offset], [record], offset + 1))
    assert rl.fetched_length(offset, record) == len(data) - 4


def test_an_answer_whose_offsets_do_not_follow_one_another_is_refused():
    """A batch is contiguous; the caller is told its first offset and may count on that."""
    with pytest.raises(rl.AnswerError, match="follow one another"):
        CODEC.decode_answer(b'{"Produce":{"offsets":[1,3]}}')
