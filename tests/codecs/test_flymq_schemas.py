"""FlyMQ's schemas on the wire."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import i64, is_short, schema_requests, texts, u32, values

short = texts.filter(is_short)
infos = st.builds(fm.SchemaInfo, texts, short, u32)
REGISTER = fm.RegisterSchema("order", "json", b"{}")


def payload(request: fm.Request) -> bytes:
    return fm.encode_request(request)[8:]


@given(schema_requests)
def test_a_request_comes_as_it_was_sent(request_):
    assert fm.decode_request(fm.opcode_of(request_), 1, payload(request_)) == request_


@given(infos)
def test_what_was_registered_is_told(info):
    assert read(REGISTER, fm.schema_registered(info)) == info


@given(st.builds(fm.SchemaText, infos, values, short, i64))
def test_a_schema_is_told_with_its_text(found):
    answer = fm.schema_text(found)
    assert read(fm.GetSchema("order"), answer) == found


@given(infos, values)
def test_a_client_that_reads_a_list_reads_a_schema_too(info, definition):
    """pyflymq does, and ignores what follows."""
    answer = fm.schema_text(fm.SchemaText(info, definition, "backward", 1))[8:]
    assert answer.startswith(fm.schemas([info])[8:])


@given(st.lists(infos, max_size=5))
def test_schemas_are_listed(found):
    assert read(fm.ListSchemas(), fm.schemas(found)) == fm.SchemaList(tuple(found))


@given(st.lists(texts, max_size=5))
def test_what_is_wrong_with_a_message_is_told(errors):
    told = fm.Validity(not errors, tuple(errors))
    assert read(fm.ValidateSchema("order", b""), fm.validity(errors)) == told


ORDERS = b"\0\x06orders"


@pytest.mark.parametrize(
    ("rest", "request_"),
    [
        (b"\0\0\0\x02hi\0\x05order", ("hi", "order", False)),
        (b"\0\x05order\0\0\0\x02hi", ("hi", "order", True)),
        (b"\0\0\0\0\0\x05order", ("", "order", False)),  # Go's too, without a name
        (b"\0\0\0\0\0\0", ("", "", False)),
        (b"\0\x05order\0\0\0\0", ("", "order", True)),
    ],
)
def test_the_two_orders_are_told_apart_by_what_fits(rest, request_):
    value, schema, schema_first = request_
    expected = fm.ProduceWithSchema("orders", value.encode(), schema, schema_first)
    assert fm.decode_request(Opcode.PRODUCE_WITH_SCHEMA, 1, ORDERS + rest) == expected


def test_of_two_orders_that_fit_with_names_it_is_gos():
    """By accident, of more than 64 KiB: the first bytes of one order's length are the other's."""
    size = 0x016100  # of the value where it comes first
    rest = b"\0\x01a" + (4 + size + 2 + 3 - 7).to_bytes(4, "big")
    rest += bytes(4 + size - len(rest)) + b"\0\x03abc"
    found = fm.decode_request(Opcode.PRODUCE_WITH_SCHEMA, 1, ORDERS + rest)
    assert found == fm.ProduceWithSchema("orders", rest[7:], "a", True)
    assert fm.encode_request(fm.ProduceWithSchema("orders", rest[4:-5], "abc"))[8:] == ORDERS + rest


@pytest.mark.parametrize("rest", [b"", b"\0\0\0\x02hi\0\x05orde", b"\0\0\0\x02hi\0\x05order!"])
def test_what_fits_in_no_order_is_refused(rest):
    with pytest.raises(fm.RequestError, match="must be all that follows the topic"):
        fm.decode_request(Opcode.PRODUCE_WITH_SCHEMA, 1, ORDERS + rest)


def test_a_count_past_the_answer_makes_nothing():
    many = b"\xff\xff\xff\xff"
    for request_, answer in ((fm.ListSchemas(), many), (fm.ValidateSchema("s", b""), b"\0" + many)):
        with pytest.raises(fm.AnswerError, match="4294967295 items"):
            fm.decode_answer(request_, fm.opcode_of(request_), answer)
    with pytest.raises(fm.AnswerError, match="2 schemas in place of one"):
        fm.decode_answer(fm.GetSchema("s"), 0x11, b"\0\0\0\2")


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (REGISTER, fm.schema_registered(fm.SchemaInfo("order", "json", 1))),
        (
            fm.GetSchema("order"),
            fm.schema_text(fm.SchemaText(fm.SchemaInfo("order", "json", 1), b"{}", "full", 1)),
        ),
        (fm.ListSchemas(), fm.schemas([fm.SchemaInfo("order", "json", 1)])),
        (fm.ValidateSchema("order", b""), fm.validity(["no"])),
    ],
)
def test_an_answer_that_is_cut_or_too_long_is_not_believed(request_, answer):
    opcode, sent = answer[2], answer[8:]
    for end in range(len(sent)):
        with pytest.raises(fm.AnswerError, match="cannot be read"):
            fm.decode_answer(request_, opcode, sent[:end])
    with pytest.raises(fm.AnswerError, match="1 bytes left over"):
        fm.decode_answer(request_, opcode, sent + b"\0")
