"""Which records a FETCH with a filter shows: the three rules, their corners, and their cost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.protocols.flymq.filter import (
    PROGRAM_MAX,
    REGEX_LETTERS_MAX,
    WINDOW_BYTES,
    Filter,
    compile_filter,
)
from brokerd.values import Record

KIB = 1024


def passes(text: str, value: bytes, key: bytes | None = None) -> bool:
    return any(compile_filter(text).steps(Record(0, value, key)))


def packed(value: Any) -> bytes:
    return json.dumps(value).encode()


# -- paths ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "found"),
    [
        ("$.a", b'{"a":1}', True),
        ("$.a", b'{"a":null}', True),
        ("$.a", b'{"a":""}', True),
        ("$.a", b'{"b":{"a":1}}', False),
        ("$.a.b", b'{"a":{"b":[]}}', True),
        ("$.a.b", b'{"a":{"c":1},"b":1}', False),
        ("$.a.b", b'{"a":[{"b":1}]}', False),
        ("$.a.b", b'{"a":"b"}', False),
        ("$.a.b", b'{"x":[1,{"y":2}],"a":{"x":0,"b":false}}', True),
        ("$.a.0", b'{"a":[1]}', False),
        ("$.", b'{"":1}', True),
        ("$.a.", b'{"a":{"":1}}', True),
        ("$.\u00e9", '{"\u00e9":1}'.encode(), True),
        ("$.\u00e9", b'{"\\u00e9":1}', True),
        ('$.a"b', b'{"a\\"b":1}', False),
        ("$.a", b' {"a":1}', False),
        ("$.a", b'[{"a":1}]', False),
        ("$.a", b'{"a":1', False),
        ("$.a", b'{"a":1}}', False),
        ("$.a", b'{"a":1,}', False),
        ("$.a", b"{a:1}", False),
        ("$.a", b"", False),
        ("$.a", b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", False),
        ("$." + "a." * 200 + "a", b'{"a":' * 201 + b"1" + b"}" * 201, False),
        ("$." + "a." * 98 + "a", b'{"a":' * 99 + b"1" + b"}" * 99, True),
    ],
)
def test_a_path_leads_through_objects_to_something(text: str, value: bytes, found: bool) -> None:
    """Existence only: null is something. A value that is not a JSON object has no paths."""
    assert passes(text, value) is found


def test_a_path_is_not_looked_for_in_keys() -> None:
    assert not passes("$.a", b"x", b'{"a":1}')


def test_a_path_is_a_text_too() -> None:
    """Rule 2 holds for every filter; rule 3 does not hold for paths."""
    assert passes("$.A", b"price in $.a")
    assert passes("$.a", b"x", b"cost$.A")
    assert not passes("$.*", b"$xy")


def existing_paths(value: Any) -> set[str]:
    """All paths in a JSON object, by walking it."""
    found = set()
    for name, member in value.items():
        found.add(name)
        if isinstance(member, dict):
            found |= {f"{name}.{rest}" for rest in existing_paths(member)}
    return found


NAMES = st.sampled_from(["a", "b", "c\u00e9", ""])
VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text("xyz\u00e9", max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


@given(OBJECTS, st.lists(NAMES, min_size=1, max_size=4))
def test_paths_are_those_that_a_walk_finds(value: Any, names: list[str]) -> None:
    path = ".".join(names)
    assert passes(f"$.{path}", packed(value)) is (path in existing_paths(value))


# -- texts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "key", "found"),
    [
        ("error", b"an ERROR here", None, True),
        ("ErRoR", b"an eRRor here", None, True),
        ("error", b"nothing", b"Error", True),
        ("error", b"err or", b"", False),
        ("\u00c9T\u00c9", "l'\u00e9t\u00e9".encode(), None, True),
        ("\u00e9", b"\xc3\x89", None, True),
        ("\u00e9", b"\xff\xfe", None, False),
        ("a b", b"A B", None, True),
        ("x", b"", None, False),
        ("[", b"a[b", None, True),
        ("(", b"f(x)", None, True),
        ("a.c", b"A.C", None, True),
        ("\x00", b"a\x00b", None, True),
    ],
)
def test_a_text_occurs_in_value_or_key_whatever_its_case(
    text: str, value: bytes, key: bytes | None, found: bool
) -> None:
    assert passes(text, value, key) is found


@given(st.binary(max_size=20), st.text("aBc\u00e9\u00c9$.{", min_size=1, max_size=4), st.binary())
def test_a_text_is_found_wherever_it_is(before: bytes, text: str, behind: bytes) -> None:
    for written in (text, text.lower(), text.upper()):
        assert passes(text, before + b" " + written.encode() + b" " + behind)


# -- regular expressions ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "key", "found"),
    [
        ("er+or", b"an errrror", None, True),
        ("er+or", b"an ERRROR", None, False),
        ("(?i)er+or", b"an ERRROR", None, True),
        ("^a", b"ba", None, False),
        ("^a", b"b\na", None, False),
        ("(?m)^a", b"b\na", None, True),
        ("a$", b"ba", None, True),
        ("a$", b"ab", None, False),
        ("^k-[0-9]+$", b"value", b"k-12", True),
        (r"\d{3}-\d{4}", b"call 555-1234", None, True),
        ("^$", b"", b"k", True),
        ("^$", b"v", None, False),
        (".", "\u00e9".encode(), None, True),
        (r"(a)\1", b"aa", None, False),
        ("[", b"x", None, False),
        ("*", b"x", None, False),
        ("a{1001}", b"a" * 2000, None, False),
        (r"\pL+\d", "\u00e9\u00e81".encode(), None, True),
    ],
)
def test_a_regular_expression_matches_somewhere_in_value_or_key(
    text: str, value: bytes, key: bytes | None, found: bool
) -> None:
    """RE2's syntax; one that RE2 cannot read is no error and matches nothing."""
    assert passes(text, value, key) is found


def test_an_expression_that_is_too_large_is_a_text_only() -> None:
    """Its program would make every byte cost microseconds."""
    text = "(a?b?c?){600}x"
    assert PROGRAM_MAX < 3 * 600
    assert not passes(text, b"abcx")
    assert passes(text, b"see " + text.upper().encode())


def test_an_expression_that_is_too_long_is_a_text_only() -> None:
    for letters, found in ((REGEX_LETTERS_MAX, True), (REGEX_LETTERS_MAX + 1, False)):
        text = "[a]" + "b" * (letters - 3)
        assert passes(text, b"a" + b"b" * (letters - 3)) is found
        assert passes(text, text.upper().encode())


@pytest.mark.parametrize(
    "text", [r"\pL" * 166, r"(?i)[^\pL\pN]" * 38, "((((a{100}){100}){10}){10})", "[a-z]" * 13_000]
)
def test_no_expression_takes_long_to_read(text: str) -> None:
    """Be it good for anything or not: its client may send another with every request."""
    seconds = []
    for _ in range(3):  # a busy machine adds to some of them
        began = time.thread_time()
        Filter(text)
        seconds.append(time.thread_time() - began)
    assert min(seconds) < 0.2


@given(st.text(min_size=1, max_size=30), st.binary(max_size=60), st.none() | st.binary(max_size=9))
def test_no_filter_and_no_value_are_errors(text: str, value: bytes, key: bytes | None) -> None:
    passes(text, value, key)
    passes("$." + text, b"{" + value, key)


# -- large values -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["needle", "N\u00c9edle", "ne+dle", "n[e]{2}dle"])
def test_in_a_large_value_a_match_is_found_wherever_windows_meet(text: str) -> None:
    needle = "n\u00e9edle".encode() if "\u00c9" in text else b"needle"
    for place in (0, 1023, 65_530, WINDOW_BYTES - 3, 2 * WINDOW_BYTES - 1, 3 * WINDOW_BYTES):
        value = bytearray(b"." * (3 * WINDOW_BYTES + len(needle)))
        value[place : place + len(needle)] = needle
        assert passes(text, bytes(value)), place
        value[place] = 0
        assert not passes(text, bytes(value))


def test_in_a_large_value_a_match_of_half_a_window_is_found() -> None:
    """Whatever its place: windows overlap by half."""
    for place in range(0, 200_000, 9_973):
        value = b"." * place + b"<" + b"x" * 20_000 + b">" + b"." * 100_000
        assert passes("<x+>", value), place


def test_in_a_large_value_the_ends_of_a_window_are_not_the_ends_of_the_value() -> None:
    value = b"abc" * WINDOW_BYTES  # windows begin and end with every letter
    for text in ("^b", "^c", "a$", "b$", r"\bb", r"a\b", r"\A[bc]", r"[ab]\z"):
        assert not passes(text, value), text
    assert passes(r"^a", value)
    assert passes(r"c\z", value)


NASTY = [
    ("(a|b)*a(a|b){12}c", b"ab"),
    ("(?s).*a.{200}c", b"ab"),
    ("(x+x+)+y", b"x"),
    ("((a?){20}){20}c", b"a"),
    (r"(\pL+\d)", "\u00e9".encode()),
    ("$.a.b", b'{"a":'),
    ("a" * 30_000, b"a"),
    ("\u00e9" * 15_000, "\u00c9".encode()),
]


@pytest.mark.parametrize(("text", "unit"), NASTY, ids=range(len(NASTY)))
def test_no_step_takes_long_however_nasty_the_filter_and_the_value(text: str, unit: bytes) -> None:
    """Milliseconds of work, so that others have their turn; measured in processor time."""
    chosen = compile_filter(text)
    record = Record(0, unit * (300_000 // len(unit)))
    runs = [chosen.steps(record) for _ in range(3)]  # a busy machine adds to some of them
    for _ in range(40):
        found: list[tuple[float, bool]] = []
        for run in runs:
            began = time.thread_time()
            passes = next(run, True)
            found.append((time.thread_time() - began, passes))
        least, passes = min(found)
        if passes:
            break
        assert least < 0.1
