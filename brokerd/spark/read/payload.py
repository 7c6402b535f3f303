# Tests: tests/spark/test_payload.py
"""Converts values and metadata to the format of a query: docs/spark.rst, section "Payloads".

MessagePack becomes JSON only if JSON can express it without loss, as in the admin API
(docs/admin-api.rst): no binary, no extensions, no NaN, and only text as keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from brokerd.spark.options import Payload
from brokerd.values import Encoding

VALUE = "value"
METADATA = "metadata"
ENCODING = "encoding"

JSON_BYTES_MAX = 1 << 20
"""Longer MessagePack becomes null, because one byte may take 64 bytes of memory as an object."""

_to_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_HEADER_BYTES_MAX = 5
_BIN = ((1 << 8, 0xC4, 1), (1 << 16, 0xC5, 2), (1 << 32, 0xC6, 4))
_STR = ((1 << 8, 0xD9, 1), (1 << 16, 0xDA, 2), (1 << 32, 0xDB, 4))
"""Length limit, first byte and bytes of the length, for bin and for str over 31 bytes: MessagePack
specification, "bin format family" and "str format family"."""
_FIXSTR_END, _FIXSTR = 32, 0xA0


def columns_to_read(columns: tuple[str, ...], payload: Payload) -> tuple[str, ...]:
    """Return the columns to read for the conversion of some columns."""
    needs_encoding = payload != "bytes" and VALUE in columns and ENCODING not in columns
    return (*columns, ENCODING) if needs_encoding else columns


def convert_columns(
    batch: pa.RecordBatch, columns: tuple[str, ...], payload: Payload
) -> list[pa.Array]:
    """Return columns of a batch, with values and metadata in the format of the query.

    :param batch: has the columns of `columns_to_read`.
    """
    found = {name: batch.column(name) for name in columns}
    if payload != "bytes" and VALUE in found:
        found[VALUE] = _VALUES[payload](found[VALUE], batch.column(ENCODING))
    if payload == "json" and METADATA in found:
        found[METADATA] = msgpack_as_json(found[METADATA])
    return list(found.values())


# -- JSON ----------------------------------------------------------------------------------------


def _as_json(values: pa.Array, encodings: pa.Array) -> pa.Array:
    packed = pc.equal(encodings, pa.scalar(int(Encoding.MSGPACK), pa.int8()))
    if not packed.true_count:
        return _as_text(values)
    if packed.true_count == len(values):
        return pa.array(map(_msgpack_to_json, values.to_pylist()), pa.string())
    texts = _as_text(pc.if_else(packed, pa.scalar(None, pa.binary()), values))
    objects = map(_msgpack_to_json, values.filter(packed).to_pylist())
    return pc.replace_with_mask(texts, packed, pa.array(objects, pa.string()))


def _as_text(values: pa.Array) -> pa.Array:
    """Return UTF-8 values as text, and other values as null."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(map(_text_of, values.to_pylist()), pa.string())


def _text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def msgpack_as_json(packed: pa.Array) -> pa.Array:
    """Convert MessagePack to JSON, each distinct object once: many records have equal metadata.

    Null stays null, and so does an object that JSON cannot express.
    """
    coded = packed.dictionary_encode()
    texts = pa.array(map(_msgpack_to_json, coded.dictionary.to_pylist()), pa.string())
    return texts.take(coded.indices)


def _msgpack_to_json(packed: bytes) -> str | None:
    """Convert a MessagePack object to JSON. Return None if JSON cannot express it."""
    if len(packed) > JSON_BYTES_MAX:
        return None
    try:
        return _to_json(msgpack.unpackb(packed))
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return None


# -- MessagePack ---------------------------------------------------------------------------------


def value_as_msgpack(values: pa.Array, encodings: pa.Array) -> pa.Array:
    """Return each value as one MessagePack object. Bytes get the header of bin, text of str."""
    lengths = pc.binary_length(values).to_numpy(zero_copy_only=False)
    headers = _headers(lengths.astype(np.uint32), encodings.to_numpy(zero_copy_only=False))
    return pc.binary_join_element_wise(headers, values, pa.scalar(b"", pa.binary()))


def _headers(lengths: npt.NDArray[np.uint32], encodings: npt.NDArray[np.int8]) -> pa.Array:
    """Return the header of each value; b"" for a value in MessagePack."""
    rows = np.zeros((len(lengths), _HEADER_BYTES_MAX), np.uint8)
    sizes = np.zeros(len(lengths), np.int32)
    big_endian = lengths.astype(">u4").view(np.uint8).reshape(-1, 4)
    for encoding, families in ((Encoding.BYTES, _BIN), (Encoding.TEXT, _STR)):
        left = encodings == encoding
        if encoding == Encoding.TEXT:
            short = left & (lengths < _FIXSTR_END)
            rows[short, 0] = _FIXSTR | lengths[short]
            sizes[short] = 1
            left &= ~short
        for end, first_byte, width in families:
            here = left & (lengths < end)
            rows[here, 0] = first_byte
            rows[here, 1 : 1 + width] = big_endian[here, 4 - width :]
            sizes[here] = 1 + width
            left &= ~here
    flat = rows[np.arange(_HEADER_BYTES_MAX) < sizes[:, None]]
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(flat)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


_VALUES: Mapping[Payload, Any] = {"json": _as_json, "msgpack": value_as_msgpack}
