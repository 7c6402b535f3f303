# Tests: tests/spark/test_split_text.py
"""Encodes splits as the text of an option. No pyspark.

`brokerd.spark.log` plans in the process of the script. An option is the only value that Spark hands
to a Python source. The text has no pickled objects, because SQL may also set an option.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

import msgspec

from brokerd.archive.contract.topic_names import TopicNames
from brokerd.errors import BrokerdError
from brokerd.spark.plan.query_plan import Split

BYTES_MAX = 1 << 30
"""The largest size of splits that are decoded."""


class BadSplits(BrokerdError):
    """A text holds no splits, or those of another version of brokerd."""


def encode_splits(splits: Sequence[Split]) -> str:
    """Return splits as text."""
    data = msgspec.msgpack.encode(splits, enc_hook=_names_of)
    return b64encode(zlib.compress(data, 1)).decode()


def decode_splits(text: str) -> list[Split]:
    """Return the splits of a text. Raises BadSplits."""
    try:
        decompressor = zlib.decompressobj()
        data = decompressor.decompress(b64decode(text, validate=True), BYTES_MAX)
        return msgspec.msgpack.decode(data, type=list[Split], dec_hook=_decode_names)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise BadSplits(
            f"the option splits is for brokerd.spark.log alone, and its value is not that of this "
            f"brokerd ({error}): leave it out, or use the same brokerd in the script and in the "
            "Python of Spark (PYSPARK_PYTHON)"
        ) from None


def _names_of(value: Any) -> Any:
    if isinstance(value, TopicNames):
        return value.names
    raise NotImplementedError(f"{type(value)}")


def _decode_names(kind: type, value: Any) -> Any:
    if kind is TopicNames and (
        value is None or (isinstance(value, list) and all(isinstance(name, str) for name in value))
    ):
        return TopicNames(value)
    raise ValueError(f"{kind.__name__} is not {type(value).__name__}")
