"""AUTH and WHOAMI, read as each kind of client reads them."""

from __future__ import annotations

import struct
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.codecs import flymq as fm
from brokerd.codecs.flymq import Opcode
from brokerd.codecs.flymq.logins import NEUTRAL, PADDED_BYTES_MAX
from tests.codecs.test_flymq_answers import read
from tests.strategies.flymq import identities, names, texts

AUTH = fm.Auth("bob", "pw")


class Seen(NamedTuple):
    success: bool
    user: str
    roles: list[str]
    error: str


class Bytes:
    """Reads as a client does that stops when the bytes do."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    def take(self, count: int) -> bytes:
        taken = self._payload[self._position : self._position + count]
        self._position += count
        if len(taken) < count:
            raise IndexError(f"{count} bytes wanted")
        return taken

    def number(self, form: str) -> int:
        value: int = struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0]
        return value

    def text(self, length: str = "H") -> str:
        return self.take(self.number(length)).decode("utf-8", "replace")

    def texts(self, length: str = "H") -> list[str]:
        return [self.text(length) for _ in range(self.number("I"))]


def document(payload: bytes) -> Seen:
    """The document's reader, which ignores what follows."""
    fields = Bytes(payload)
    success, error = fields.number("?"), fields.text()
    return Seen(bool(success), fields.text(), fields.texts(), error)


def go(payload: bytes) -> Seen:
    """pyflymq and the Go client."""
    fields = Bytes(payload)
    return Seen(bool(fields.number("?")), fields.text(), fields.texts("B"), fields.text())


def java(payload: bytes) -> Seen:
    fields = Bytes(payload)
    success, user, roles = fields.number("?"), fields.text(), fields.texts()
    fields.texts()
    return Seen(bool(success), user, roles, "")


CLIENTS = {"document": document, "go": go, "java": java}


def payload_of(data: bytes, opcode: int = Opcode.AUTH_RESPONSE) -> bytes:
    ((answered, flags, payload),) = fm.FrameReader().feed(data)
    assert (answered, flags) == (opcode, 1)
    return payload


@given(texts, names)
def test_each_layout_is_right_for_those_it_is_meant_for(user, roles):
    seed = document(payload_of(fm.logged_in(user, roles, "seed")))
    assert seed == Seen(True, user, list(roles), "")
    sdk = go(payload_of(fm.logged_in(user, roles, "sdk")))
    assert sdk == Seen(True, user, list(roles), "")


@given(texts, names)
def test_everybody_sees_a_neutral_success(user, roles):
    payload = payload_of(fm.logged_in(user, roles, "neutral"))
    for client in CLIENTS.values():
        assert client(payload) == Seen(True, "", [], "")


@pytest.mark.parametrize(
    ("user", "roles"),
    [
        ("", ()),
        pytest.param("b", ("admin",), marks=pytest.mark.slow),
        pytest.param("bob", ("consumer", "producer", ""), marks=pytest.mark.slow),
        ("é", ("admin",)),
        pytest.param("a name", (), marks=pytest.mark.slow),
    ],
)
def test_everybody_sees_a_padded_success_and_the_document_the_names_too(user, roles):
    """And it is no longer than it must be."""
    payload = payload_of(fm.logged_in(user, roles, "padded"))
    assert document(payload) == Seen(True, user, list(roles), "")
    for client in (go, java):
        assert client(payload).success
    if payload[-1:] == b"\0" and len(payload) > len(fm.logged_in(user, roles, "seed")) - 8:
        with pytest.raises(IndexError):
            [client(payload[:-1]) for client in (go, java)]


def test_padding_takes_what_the_payload_facts_measured():
    assert len(payload_of(fm.logged_in("admin", ["admin"], "padded"))) == 733_244


@pytest.mark.parametrize("length", [31, 32, 64, 255, 65_535])
def test_a_long_name_does_not_pad_without_end(length):
    payload = payload_of(fm.logged_in("n" * length, ["admin"], "padded"))
    assert len(payload) <= PADDED_BYTES_MAX
    assert (payload == NEUTRAL) == (length > 31)


def test_a_role_that_an_sdk_cannot_say_is_left_out():
    payload = payload_of(fm.logged_in("bob", ["r" * 256, "admin"], "sdk"))
    assert go(payload) == Seen(True, "bob", ["admin"], "")


@given(texts.filter(bool))
def test_everybody_sees_a_refusal_and_the_document_its_reason(why):
    payload = payload_of(fm.login_refused(why))
    assert document(payload) == Seen(False, "", [], why)
    for client in (go, java):
        assert not client(payload).success


def test_a_reason_of_any_length_is_sent():
    payload = payload_of(fm.login_refused("é" * 40_000))
    assert document(payload).error == "é" * 4_000


# -- WHOAMI -----------------------------------------------------------------------------------


def whoami(payload: bytes) -> fm.Identity:
    """pyflymq and the Java SDK."""
    fields = Bytes(payload)
    known, user = bool(fields.number("?")), fields.text()
    return fm.Identity(known, user, tuple(fields.texts()), tuple(fields.texts()))


@given(identities)
def test_pyflymq_and_java_read_who_they_are_and_go_reads_something(identity):
    payload = payload_of(fm.identity(identity), Opcode.WHOAMI)
    assert whoami(payload) == identity
    assert go(payload)[:2] == (True, identity.user)
    assert read(fm.WhoAmI(), fm.identity(identity)) == identity


def test_nobody_is_nobody_to_all_of_them():
    payload = payload_of(fm.identity(fm.Identity(False)), Opcode.WHOAMI)
    assert payload == bytes(11)
    assert whoami(payload) == fm.Identity(False)
    assert not go(payload).success


# -- our client -------------------------------------------------------------------------------


@given(texts, names, st.sampled_from(["seed", "sdk"]))
def test_our_client_reads_a_success_in_both_layouts(user, roles, layout):
    answer = read(AUTH, fm.logged_in(user, roles, layout))
    assert isinstance(answer, fm.LoggedIn)
    if layout == "seed" or user:
        assert answer == fm.LoggedIn(user, roles)


def test_our_client_reads_what_everybody_reads():
    assert read(AUTH, fm.logged_in("admin", ["a"], "neutral")) == fm.LoggedIn("")
    padded = fm.logged_in("bob", ["admin"], "padded")
    assert read(AUTH, padded) == fm.LoggedIn("bob", ("admin",))


@given(texts.filter(bool))
def test_our_client_tells_why_a_login_was_refused(why):
    assert read(AUTH, fm.login_refused(why)) == fm.Failed(why)
    text = why.encode()
    of_the_reference = bytes(1 + 2 + 4) + len(text).to_bytes(2, "big") + text
    assert read(AUTH, fm.frame(Opcode.AUTH_RESPONSE, of_the_reference)) == fm.Failed(why)


@pytest.mark.parametrize(
    "payload", [b"", b"\1", b"\2" + bytes(10), b"\1\0\3bob" + bytes(5), NEUTRAL + b"\1"]
)
def test_what_has_no_layout_is_not_believed(payload):
    with pytest.raises(fm.AnswerError, match="AUTH cannot be read"):
        fm.decode_answer(AUTH, Opcode.AUTH_RESPONSE, payload)


def test_an_answer_to_auth_has_an_opcode_of_its_own():
    with pytest.raises(fm.AnswerError, match="opcode 112 was answered"):
        fm.decode_answer(AUTH, Opcode.AUTH, NEUTRAL)


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_an_answer_or_a_named_error(payload, asks_who):
    request, opcode = (fm.WhoAmI(), 0x72) if asks_who else (AUTH, 0x71)
    try:
        fm.decode_answer(request, opcode, payload)
    except fm.AnswerError as error:
        assert str(error)
