"""Large bodies of JSON, in pieces: counts of values, and lists."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from brokerd.admin.http import bodies
from brokerd.admin.http.bodies import ListBody, most_values, read_pieces, value_counts
from brokerd.admin.shapes.topics import NewRecord, NewRecords


def pieces_of(body: bytes, size: int) -> list[bytes]:
    return [body[begin : begin + size] for begin in range(0, len(body), size)]


def test_a_body_is_read_in_pieces_up_to_a_limit() -> None:
    body = bytes(range(256)) * 1_000
    pieces = list(read_pieces(io.BytesIO(body), 200_000))
    assert b"".join(pieces) == body[:200_000]
    assert max(map(len, pieces)) == bodies.PIECE_BYTES
    assert list(read_pieces(io.BytesIO(b"abc"), 10)) == [b"abc"]
    assert list(read_pieces(io.BytesIO(b""), 10)) == []


@pytest.mark.parametrize("size", range(1, 12))
def test_values_are_counted_in_pieces_of_any_size(size: int) -> None:
    """Pieces may end within strings, and between a backslash and its character."""
    values = ["a,[{", '"', "\\", '\\",[', "\\" * 7 + '"', {"b,": [1, 2]}, "", [[]], "\\" * 30]
    pieces = pieces_of(json.dumps(values).encode(), size)
    counts = list(value_counts(pieces))
    assert counts[-1] == 8 + 1 + 2 + 1 + 2
    assert counts == sorted(counts)
    assert sum(map(most_values, pieces)) >= counts[-1]
    assert not any(True for _ in value_counts([]))


class Item(Struct):
    value: str


class Items(Struct):
    items: list[Item]


# -- Lists -----------------------------------------------------------------------------------------


def decoded(body: bytes, size: int) -> Any:
    """Return the body that `ListBody` decodes in pieces of this size, or its error."""
    steps: Iterator[Any] = ListBody(NewRecords, "records", NewRecord).steps(pieces_of(body, size))
    try:
        *before, last = steps
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{type(error).__name__}: {error}"
    assert before == [None] * len(before)
    return last


def whole(body: bytes) -> Any:
    """Return the same, decoded at once."""
    try:
        return msgspec.json.decode(body, type=NewRecords)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{type(error).__name__}: {error}"


_TRICKY = ["},", '"},{"', "}]}", '\\"},', "\\", "]", '{"records":[', "é},"]
_VALUES = st.recursive(
    st.integers(-9, 9) | st.none() | st.sampled_from(_TRICKY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)
_RECORDS = st.fixed_dictionaries(
    {"value": _VALUES}, optional={"key": st.sampled_from(_TRICKY), "partition": st.integers(-1, 2)}
)
_BODIES = st.builds(
    lambda records, indent, more: json.dumps({"records": records, **more}, indent=indent).encode(),
    st.lists(_RECORDS | st.just(7), max_size=12),
    st.sampled_from([None, None, 1]),
    st.sampled_from([{}, {}, {}, {"records ": []}]),
)


@given(_BODIES, st.integers(1, 60), st.integers(1, 90), st.integers(0, 200))
def test_a_list_in_pieces_is_the_list_at_once(
    body: bytes, piece_bytes: int, size: int, cut: int
) -> None:
    """Also for a body that is wrong, or ends early: value and error are the same."""
    before, bodies.PIECE_BYTES = bodies.PIECE_BYTES, piece_bytes
    try:
        for one in (body, body[: len(body) - cut], body[:cut] + b"," + body[cut:]):
            assert decoded(one, size) == whole(one)
    finally:
        bodies.PIECE_BYTES = before


@pytest.mark.parametrize(
    "body",
    [
        b'{"records":[{"value":1}],"records":[{"value":2},{"value":3}]}',
        b'{"records":[{"value":1},{"value":2}],"records":[{"value":3}]}',
        b'{"records":[{"value":1},]}',
        b'{"records":[{"value":1},{"value":2}]}}',
        b'{"records":[{"value":1},{"value":2}]}]}',
        b'{"records":[{"value":1},{"value":"\xff"},{"value":2}]}',
        b'{"records":[]}',
        b'{"records":{}}',
        b'[{"records":[]}]',
        b'{"records":[' + b'{"value":1},' * 10_000 + b'{"value":1}]}',
        b'{"records":[{"value":1},{"value":' + b"[" * 2_000 + b"]" * 2_000 + b"}]}",
        b"",
    ],
)
def test_odd_bodies_have_the_answer_of_the_decoder(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PIECE_BYTES", 8)
    for size in (1, 5, 20, 1_000):
        try:
            expected = whole(body)
        except RecursionError:
            with pytest.raises(RecursionError):
                decoded(body, size)
        else:
            assert decoded(body, size) == expected


def test_a_large_list_is_decoded_in_pieces() -> None:
    """No step gets much more than a piece, also if strings hold the end of an object."""
    texts = ["x" * 1_500, '},{"value":"' * 100]
    body = json.dumps({"items": [{"value": one} for one in texts * 500]}).encode()
    lists = ListBody(Items, "items", Item)
    sizes, decode = [], lists._decode

    def record(text: bytes) -> list[Item]:
        sizes.append(len(text))
        return decode(text)

    lists._decode = record
    pieces = pieces_of(body, bodies.PIECE_BYTES)
    *_, last = lists.steps(pieces)
    assert last == Items([Item(one) for one in texts * 500])
    assert sum(sizes) < 3 * len(body)
    assert max(sizes) <= 8 * bodies.PIECE_BYTES
