# Tests: tests/archive/test_typed_values.py
"""The decoder of the values of one version of a schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from brokerd.errors import BrokerdError, install_text

FIELDS_MAX = 2_000
"""The largest number of columns of a version, nested ones included."""
CELLS_MAX = 4 << 20
"""The largest number of fields inside arrays and maps of a value, absent ones included. Each takes
memory, and an empty Protobuf message with any number of fields is two bytes."""
TOO_MANY_CELLS = f"arrays and maps have more than {CELLS_MAX} fields"


class NoColumns(Exception):
    """A version of a schema has no columns. The message has the reason."""


class LibraryMissing(BrokerdError):
    """This installation cannot decode a type of schema: a library is missing, or brokerd is old."""

    @classmethod
    def of(cls, missing: ModuleNotFoundError) -> LibraryMissing:
        """Return the error of an import."""
        return cls(f"{missing.name} is not installed: {install_text('schemas')}")


class FieldBudget:
    """Counts the fields of a schema. References could multiply them without end."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def take(self) -> None:
        """Count a field. Raises `NoColumns` beyond `FIELDS_MAX`."""
        self._left -= 1
        if self._left < 0:
            raise NoColumns(f"it has more than {FIELDS_MAX} columns")


class Decoder(NamedTuple):
    """Decodes the values of one version."""

    kind: pa.StructType
    """The columns of the version."""
    decode: Callable[[bytes, int], dict[str, Any]]
    """Decodes a value of an `Encoding` to a value for each column. Raises `Misfit`."""
