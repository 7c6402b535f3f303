# Tests: tests/archive/test_writer.py, tests/archive/test_skipping.py
"""Counts the nulls of columns, and finds the smallest and the largest text of a column.

Other programs need both to skip files of a Delta table. The order of texts is that of their UTF-8
bytes. `text_of` tells whether all values are text: Spark then converts none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.values import Encoding


class Text(IntEnum):
    """What all values of some records are. A larger number says more."""

    UNKNOWN = 0
    """Some values may be MessagePack."""
    NO_MSGPACK = 1
    """No value is MessagePack."""
    UTF8 = 2
    """No value is MessagePack, and all are valid UTF-8."""


def text_of(values: pa.Array, encodings: pa.Array) -> Text:
    """Return what all of these values are."""
    if np.any(encodings.to_numpy() == int(Encoding.MSGPACK)):
        return Text.UNKNOWN
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return Text.NO_MSGPACK
    return Text.UTF8


class ColumnFacts:
    """The facts of the rows of one file."""

    def __init__(self, names: Iterable[str], texts: Iterable[str]) -> None:
        self.nulls = dict.fromkeys(names, 0)
        """The number of nulls by column."""
        self.texts: dict[str, tuple[str, str]] = {}
        """The smallest and the largest value of each of ``texts`` with a value."""
        self._texts = tuple(texts)

    def update(self, rows: pa.Table) -> None:
        """Add rows with these columns."""
        for name in self.nulls:
            self.nulls[name] += rows[name].null_count
        for name in self._texts:
            found = pc.min_max(rows[name]).as_py()
            if found["min"] is None:
                continue
            low, high = self.texts.get(name, (found["min"], found["max"]))
            self.texts[name] = min(low, found["min"]), max(high, found["max"])
