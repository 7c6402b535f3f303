"""What users of the source write, and what they are told when it means nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.spark.options import (
    NAMES,
    BadOption,
    batch_request,
    parse_options,
    stream_request,
)
from brokerd.spark.request import COLUMNS, Request

NOVEMBER_US = 1_793_491_200_000_000
"""2026-11-01T00:00:00Z."""


def batch(**given: str) -> Request:
    return batch_request(parse_options(given))


def test_without_options_everything_is_read() -> None:
    options = parse_options({"path": "/data"})
    assert (options.path, options.archive, options.payload) == ("/data", None, "bytes")
    assert batch_request(options) == Request()
    assert stream_request(options) == Request(unknown_topics=True)


def test_names_of_options_and_columns_are_known_in_any_case() -> None:
    """As Spark has it."""
    options = parse_options({"PAYLOAD": "JSON", "partitionbytes": "1MiB", "Columns": "OFFSET, key"})
    assert options.payload == "json"
    assert options.request.partition_bytes == 1 << 20
    assert options.request.columns == ("offset", "key")


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("orders", ("orders",)),
        (" a , b*,a", ("a", "b*")),
        ('["a,b", " c"]', ("a,b", " c")),
        ("müller/1", ("müller/1",)),
    ],
)
def test_topics_are_names_with_commas_or_a_json_array(text: str, topics: tuple[str, ...]) -> None:
    assert batch(topics=text).topics == topics


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("2026-11-01", NOVEMBER_US),
        ("2026-11-01T00:00:00.000001", NOVEMBER_US + 1),
        ("2026-11-01T00:00:00Z", NOVEMBER_US),
        (" 2026-11-01 01:30:00+01:30 ", NOVEMBER_US),
        ("1969-12-31T23:59:59.999999Z", -1),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, time_us: int) -> None:
    assert batch(**{"from": text}).from_time_us == time_us
    assert batch(to=text).to_time_us == time_us


def test_archive_or_journal_can_be_read_alone() -> None:
    """By a batch; a stream reads both."""
    found = [batch(), batch(only="Archive"), batch(only="journal")]
    assert [one.archived for one in found] == [True, True, False]
    assert [one.unarchived for one in found] == [True, False, True]
    with pytest.raises(BadOption, match="only='both' is unknown: give archive or journal"):
        batch(only="both")
    for only in ("archive", "journal"):
        with pytest.raises(BadOption, match="only is for batches"):
            stream_request(parse_options({"only": only}))
    with pytest.raises(BadOption, match="only is for the table records, not for hourly"):
        parse_options({"only": "archive", "table": "hourly"})


@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
def test_whole_numbers_are_offsets_in_every_partition(first: int, end: int) -> None:
    request = batch(**{"from": str(first), "to": str(end)})
    assert (request.from_offset, request.to_offset) == (first, end)
    assert (request.from_time_us, request.to_time_us) == (None, None)


def test_offsets_by_topic_and_partition_are_json() -> None:
    said = {"orders": {"0": 1200, "31": 0}, "a b": {}}
    request = batch(**{"from": json.dumps(said), "to": json.dumps({"x": {"7": 1}})})
    assert request.from_offsets == {"orders": {0: 1200, 31: 0}, "a b": {}}
    assert request.to_offsets == {"x": {7: 1}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "a"}, "unknown option 'topic'; the options are topics, columns, from, to, "),
        ({"subscribe": "a"}, "unknown option 'subscribe'; topics names the topics"),
        ({"kafka.bootstrap.servers": "a"}, "load() takes the broker's data directory"),
        ({"paths": '["/a", "/b"]'}, "one path"),
        ({"topics": ""}, "topics='' lacks a name"),
        ({"topics": "a,,b"}, "lacks a name"),
        ({"topics": "[]"}, "lacks a name"),
        ({"topics": "[1]"}, "must be a string"),
        ({"topics": '["a"'}, "is not JSON"),
        ({"columns": ""}, "'' is not a column; the columns are topic, topic_id, "),
        ({"columns": "key,bucket"}, "'bucket' is not a column"),
        ({"columns": "key, Key"}, "'Key' is given twice"),
        ({"from": "yesterday"}, "from='yesterday' is not a position: give a time"),
        ({"to": "earliest"}, "to='earliest' is not a position"),
        ({"from": "-1"}, "'-1' is not an offset: give a whole number, 0 or more"),
        ({"from": str(1 << 63)}, "is not an offset"),
        ({"from": "9" * 5_000}, "… is not a position: give a time"),
        ({"from": '{"a": {"0": ' + "9" * 5_000 + "}}"}, "is not JSON"),
        ({"from": '{"a": 5}'}, "topic 'a' has the value 5: give an object"),
        ({"from": '{"a": {"x": 5}}'}, "a, partition x: this is not a partition number"),
        ({"from": '{"a": {"0": true}}'}, "a, partition 0: True is not an offset"),
        ({"from": '{"a": {"0": 1.5}}'}, "a, partition 0: 1.5 is not an offset"),
        ({"from": '{"a'}, "is not JSON"),
        ({"from": "{" + '"a":{' * 100_000}, "is not JSON"),
        ({"payload": "xml"}, "payload='xml' is unknown: give bytes, json, msgpack"),
        ({"archive": " "}, "archive is empty"),
        ({"partitionBytes": "0"}, "partitionBytes='0' is not a size: give bytes, as 67108864"),
        ({"partitionBytes": "64m"}, "is not a size"),
        ({"partitionBytes": "9" * 19 + "GiB"}, "is not a size"),
        ({"partitionBytes": "9" * 10_000}, "…"),
        ({"maxBytesPerTrigger": "-5"}, "is not a size"),
        ({"maxBytesPerTrigger": "1023"}, "maxBytesPerTrigger=1023 is too small: give 1024 or more"),
        ({"tail": "yes"}, "tail='yes' is neither true nor false"),
    ],
)
def test_what_means_nothing_is_refused_with_its_name_and_what_may_stand_there(
    options: dict[str, str], said: str
) -> None:
    with pytest.raises(BadOption) as refused:
        parse_options(options)
    assert said in str(refused.value)
    assert len(str(refused.value)) < 400


def test_what_is_for_streams_or_batches_alone_is_refused_by_the_other() -> None:
    with pytest.raises(BadOption, match="maxBytesPerTrigger is for streams"):
        batch(maxBytesPerTrigger="1KiB")
    with pytest.raises(BadOption, match="from=latest is for streams"):
        batch(**{"from": "latest"})
    with pytest.raises(BadOption, match="to is for batches"):
        stream_request(parse_options({"to": "5"}))
    assert batch(**{"from": "earliest"}) == Request()


def test_properties_that_spark_reserves_are_no_options() -> None:
    """Spark passes them, and each option twice, when a table of its catalog is created."""
    given = {"owner": "x", "provider": "brokerd", "external": "true", "location": "file:/data"}
    options = parse_options({**given, "topics": "a", "option.topics": "a"})
    assert (options.path, options.request.topics) == ("file:/data", ("a",))
    assert parse_options({**given, "path": "/data"}).path == "/data"


WORDS: Any = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["latest", "[", "{}", "1e5", "٣", "0x1", "2026-13-01", '{"a": {"0": null}}']),
)


@given(st.dictionaries(st.sampled_from([*NAMES, "path", "TAIL"]), WORDS))
def test_any_words_are_understood_or_refused(options: dict[str, str]) -> None:
    """Never anything but a `BadOption`, and what is understood names columns that there are."""
    try:
        request = parse_options(options).request
    except BadOption:
        return
    assert set(request.columns) <= set(COLUMNS)
