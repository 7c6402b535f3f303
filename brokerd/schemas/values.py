# Tests: tests/schemas/test_checks.py
"""What is said of a schema: its type, the modes of compatibility, limits and texts."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from brokerd.errors import InvalidRequest, InvalidSchema, escaped

DEFINITION_BYTES_MAX: Final = 262_144
"""Most bytes of one definition."""

FAULTS_MAX: Final = 20
"""Most faults of one message that are told."""

FAULT_CHARS_MAX: Final = 300
"""Most letters of one that is told."""

INSTALL: Final = "pip install brokerd[schemas]"


class SchemaType(StrEnum):
    """What a definition is written in."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Mode(StrEnum):
    """With which versions a new one is compared, and in which direction."""

    NONE = "none"
    BACKWARD = "backward"
    FORWARD = "forward"
    FULL = "full"
    BACKWARD_TRANSITIVE = "backward_transitive"
    FORWARD_TRANSITIVE = "forward_transitive"
    FULL_TRANSITIVE = "full_transitive"

    @property
    def transitive(self) -> bool:
        """Whether all versions count, and not the latest alone."""
        return self.endswith("_transitive")

    @property
    def direction(self) -> str:
        """``none``, ``backward``, ``forward`` or ``full``."""
        return self.removesuffix("_transitive")


class Definition(NamedTuple):
    """One version of a schema, as far as it is compared."""

    version: int
    type: SchemaType
    text: bytes


class InvalidDefinition(Exception):
    """A text is no definition of its type; the message says why."""


S = TypeVar("S", contravariant=True)


class Schema(Protocol[S]):
    """A definition that was read."""

    def faults(self, message: bytes) -> list[str]:
        """Why a message does not fit, empty if it does; at most `FAULTS_MAX`."""

    def why_not_reads(self, old: S) -> str | None:
        """Why one cannot read with this schema what was written with an old one; None: one can."""


def type_named(name: str) -> SchemaType:
    """The type of this name; ``proto`` is another name of ``protobuf``. Raises `InvalidSchema`."""
    try:
        return SchemaType("protobuf" if name == "proto" else name)
    except ValueError:
        raise InvalidSchema(f"unsupported schema type: {escaped(name[:100])}") from None


def mode_named(name: str) -> Mode:
    """The mode of this name. Raises `InvalidRequest`."""
    try:
        return Mode(name)
    except ValueError:
        known = ", ".join(Mode)
        raise InvalidRequest(
            f"unknown compatibility mode {escaped(name[:100])!r}; there are {known}"
        ) from None


def fault_text(text: str) -> str:
    """A text as it may be shown: without control characters and lone surrogates, not too long."""
    shown = escaped(text[:FAULT_CHARS_MAX]).encode("utf-8", "backslashreplace").decode()
    if len(text) > FAULT_CHARS_MAX or len(shown) > FAULT_CHARS_MAX:
        return shown[: FAULT_CHARS_MAX - 1] + "\u2026"
    return shown
