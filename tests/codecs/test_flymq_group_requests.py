"""FlyMQ's lists and descriptions of groups, their deletion, and seeks by time, on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import groups, java_groups

MANY = b"\xff" * 4


@given(st.lists(groups, max_size=3).map(tuple))
def test_a_list_of_groups_comes_as_it_is(found):
    assert read(fm.ListGroups(), fm.listed_groups(found)) == fm.Groups(found)


@given(groups)
def test_a_group_comes_as_it_is_to_who_named_a_topic(group):
    for topic in ("t", ""):
        assert read(fm.DescribeGroup("g", topic), fm.described_group(group)) == group


@given(java_groups)
def test_a_group_comes_in_javas_layout_to_who_named_none(group):
    assert read(fm.DescribeGroup("g", None), fm.described_group(group)) == group


@pytest.mark.parametrize(
    ("opcode", "sent", "request_"),
    [
        (Opcode.DESCRIBE_GROUP, "0001 67", fm.DescribeGroup("g", None)),
        (Opcode.DESCRIBE_GROUP, "0000 0001 67", fm.DescribeGroup("g", "")),
        (Opcode.DESCRIBE_GROUP, "0001 74 0001 67", fm.DescribeGroup("g", "t")),
        (Opcode.DELETE_GROUP, "0001 67", fm.DeleteGroup("g", None)),
        (Opcode.DELETE_GROUP, "0000 0001 67", fm.DeleteGroup("g", "")),
        (Opcode.DELETE_GROUP, "0001 74 0001 67 ff", fm.DeleteGroup("g", "t")),
        (
            Opcode.SEEK_TO_TIMESTAMP,
            "0001 74 00000002 0000000000000005",
            fm.SeekToTimestamp("t", 2, 5),
        ),
        (
            Opcode.SEEK_TO_TIMESTAMP,
            "0001 74 0000 00000002 ffffffffffffffff",
            fm.SeekToTimestamp("t", 2, -1, ""),
        ),
        (
            Opcode.SEEK_TO_TIMESTAMP,
            "0001 74 0001 67 00000002 0000000000000005 00",
            fm.SeekToTimestamp("t", 2, 5, "g"),
        ),
    ],
)
def test_what_is_named_tells_the_layouts_apart(opcode, sent, request_):
    """The SDKs lay these requests out in different ways."""
    assert fm.decode_request(opcode, 1, bytes.fromhex(sent)) == request_


@pytest.mark.parametrize(
    ("request_", "payload"),
    [
        (fm.ListGroups(), MANY),
        (fm.DescribeGroup("g", "t"), b"\0\1t\0\1g\0\0\0\1" + MANY),
        (fm.DescribeGroup("g", None), b"\0\1g\0\6Stable" + MANY),
    ],
)
def test_a_count_past_the_answer_is_not_believed(request_, payload):
    with pytest.raises(fm.AnswerError, match="says 4294967295 items"):
        fm.decode_answer(request_, fm.opcode_of(request_), payload)
