# Tests: tests/schemas/test_checks.py
"""Types of schemas, modes of compatibility, limits, and texts of faults."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from brokerd.errors import InvalidRequest, InvalidSchema, escaped

DEFINITION_BYTES_MAX: Final = 262_144
"""Largest definition."""

FAULTS_MAX: Final = 20
"""Most faults of one message in an answer."""

FAULT_CHARS_MAX: Final = 300
"""Most characters of one fault in an answer."""

INSTALL: Final = "pip install brokerd[schemas]"


class SchemaType(StrEnum):
    """The language of a definition."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Mode(StrEnum):
    """The versions that a new version must be compatible with, and the direction."""

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL_TRANSITIVE = "full_transitive"

    @property
    def transitive(self) -> bool:
        """Whether all versions count; otherwise only the latest."""
        return self.endswith("_transitive")

    @property
    def direction(self) -> str:
        """The mode without its scope: ``none``, ``backward``, ``forward`` or ``full``."""
        return self.removesuffix("_transitive")


class Definition(NamedTuple):
    """One version of a schema."""

    version: int
    type: SchemaType
    text: bytes


class InvalidDefinition(Exception):
    """A text is not a valid definition of its type. The message has the reason."""


S = TypeVar("S", contravariant=True)


class Schema(Protocol[S]):
    """A parsed definition."""

    def faults(self, message: bytes) -> list[str]:
        """Return the faults of a message, at most `FAULTS_MAX`; none if it is valid."""

    def incompatibility(self, old: S) -> str | None:
        """Return why a reader with this schema cannot read data of ``old``; None if it can."""


def parse_type(name: str) -> SchemaType:
    """Return the type with this name. ``proto`` means ``protobuf``. Raises `InvalidSchema`."""
    try:
        return SchemaType("protobuf" if name == "proto" else name)
    except ValueError:
        raise InvalidSchema(f"unsupported schema type: {escaped(name[:100])}") from None


def parse_mode(name: str) -> Mode:
    """Return the mode with this name. Raises `InvalidRequest`."""
    try:
        return Mode(name)
    except ValueError:
        known = ", ".join(Mode)
        raise InvalidRequest(
            f"unknown compatibility mode {escaped(name[:100])!r}; there are {known}"
        ) from None


def fault_text(text: str) -> str:
    """Escape control characters and lone surrogates, and shorten to `FAULT_CHARS_MAX`."""
    shown = escaped(text[:FAULT_CHARS_MAX]).encode("utf-8", "backslashreplace").decode()
    if len(text) > FAULT_CHARS_MAX or len(shown) > FAULT_CHARS_MAX:
        return shown[: FAULT_CHARS_MAX - 1] + "\u2026"
    return shown
