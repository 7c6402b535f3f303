# Tests: tests/codecs/test_flymq_logins.py
"""Answers to AUTH and WHOAMI, whose layout differs by client (page, AUTH and WHOAMI).

The document's reader, pyflymq and the Go client, and the Java SDK each have a layout of AUTH. With
zeros after one layout, the other clients accept it too. The number of zeros is found by a walk of
the bytes as these clients do it, with zeros past the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Literal

from brokerd.codecs.flymq.account_values import Identity, LoggedIn
from brokerd.codecs.flymq.fields import Fields, pack_text, pack_text8, pack_texts
from brokerd.codecs.flymq.frames import frame
from brokerd.codecs.flymq.values import Failed, FieldError, Opcode

AuthLayout = Literal["seed", "sdk", "neutral", "padded"]

NEUTRAL = b"\x01" + bytes(10)
"""A success without names, which every client accepts."""
NOBODY = bytes(11)
"""WHOAMI of a connection without an account, which every client accepts."""
PADDED_BYTES_MAX = 4 * 1024 * 1024
"""Longest padded payload. A name of 31 letters or more takes more and gets the neutral answer."""
REFUSAL_BYTES_MAX = 8_000
"""Longest text of a refused login."""

_U32 = Struct(">I")


def logged_in(user: str, roles: Sequence[str], layout: AuthLayout) -> bytes:
    """Return the successful answer to AUTH in a configured layout."""
    return frame(Opcode.AUTH_RESPONSE, _logged_in(user, roles, layout))


def _logged_in(user: str, roles: Sequence[str], layout: AuthLayout) -> bytes:
    if layout == "neutral":
        return NEUTRAL
    if layout == "sdk":
        names = [pack_text8(role) for role in roles if len(role.encode()) <= 255]
        return b"\x01" + pack_text(user) + _U32.pack(len(names)) + b"".join(names) + b"\0\0"
    payload = b"\x01\0\0" + pack_text(user) + pack_texts(roles)
    if layout == "seed":
        return payload
    size = max(_end_for_go(payload), _end_for_java(payload))
    return payload.ljust(size, b"\0") if size <= PADDED_BYTES_MAX else NEUTRAL


def login_refused(text: str) -> bytes:
    """Return the refusal of AUTH: the document's layout, and zeros for the other clients."""
    data = text.encode("utf-8", "replace")[:REFUSAL_BYTES_MAX].decode("utf-8", "ignore")
    return frame(Opcode.AUTH_RESPONSE, b"\0" + pack_text(data) + bytes(8))


def identity(one: Identity) -> bytes:
    """Return the answer to WHOAMI: the layout of pyflymq and the Java SDK, zeros for Go's."""
    if not one.is_known:
        return frame(Opcode.WHOAMI, NOBODY)
    names = pack_text(one.user) + pack_texts(one.roles) + pack_texts(one.permissions)
    payload = b"\x01" + names
    return frame(Opcode.WHOAMI, payload.ljust(_end_for_go(payload), b"\0"))


# -- where clients stop reading ---------------------------------------------------------------


def _end_for_go(payload: bytes) -> int:
    """Return the end of the layout of pyflymq and Go: bool, str, list<str8>, str."""
    position = 1 + 2 + _number(payload, 1, 2)
    position = _past_texts(payload, position, 1)
    return position + 2 + _number(payload, position, 2)


def _end_for_java(payload: bytes) -> int:
    """Return the end of the layout of the Java SDK: bool, str, list<str>, list<str>."""
    position = 1 + 2 + _number(payload, 1, 2)
    position = _past_texts(payload, position, 2)
    return _past_texts(payload, position, 2)


def _past_texts(payload: bytes, position: int, length_bytes: int) -> int:
    """Return the end of a list of texts whose lengths have ``length_bytes`` bytes."""
    count = _number(payload, position, 4)
    position += 4
    while count and position < len(payload):
        position += length_bytes + _number(payload, position, length_bytes)
        count -= 1
    return position + count * length_bytes  # the rest are zeros, each an empty text


def _number(payload: bytes, position: int, size: int) -> int:
    """Return a number of ``size`` bytes; bytes past the end are zeros."""
    return int.from_bytes(payload[position : position + size].ljust(size, b"\0"), "big")


# -- the client's half ------------------------------------------------------------------------


def login_of(fields: Fields) -> LoggedIn | Failed:
    """Decode an answer to AUTH in any layout.

    :raises FieldError: it has no known layout.
    """
    payload = fields.rest()
    for read in (_document_login, _sdk_login):
        try:
            answer = read(Fields(payload))
        except FieldError:
            continue
        if answer is not None:
            return answer
    raise FieldError("invalid binary format: it has neither the document's layout nor the SDKs'")


def _document_login(fields: Fields) -> LoggedIn | Failed | None:
    success = fields.u8("success")
    error = fields.text("error")
    user = fields.text("user")
    roles = fields.texts("roles")
    if success > 1 or any(fields.rest()) or bool(error) == bool(success):
        return None
    return LoggedIn(user, roles) if success else Failed(error)


def _sdk_login(fields: Fields) -> LoggedIn | Failed | None:
    success = fields.u8("success")
    user = fields.text("user")
    roles = tuple([fields.text8("role") for _ in range(fields.count("roles", 1))])
    error = fields.text("error")
    if success > 1 or any(fields.rest()):
        return None
    return LoggedIn(user, roles) if success else Failed(error)


def identity_of(fields: Fields) -> Identity:
    """Decode an answer to WHOAMI. Raises `FieldError`."""
    known = fields.flag("logged in")
    user, roles = fields.text("user"), fields.texts("roles")
    permissions = fields.texts("permissions")
    if any(fields.rest()):
        raise FieldError("invalid binary format: what follows the permissions are not zeros")
    return Identity(known, user, roles, permissions)
