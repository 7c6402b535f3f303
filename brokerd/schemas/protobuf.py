# Tests: tests/schemas/test_protobuf.py
"""Protocol Buffers (https://protobuf.dev/), compiled by grpcio-tools.

The compiler turns a ``.proto`` text into descriptors, without code. The text may import the files
under ``google/protobuf/``. A message has the first message type of the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc_tools
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from brokerd.schemas.values import FAULTS_MAX, InvalidDefinition, fault_text

FILE = "schema.proto"

_SAME_ENCODING = (
    {"int32", "int64", "uint32", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
    {"string", "bytes"},
)
"""Types with the same encoding, which may replace each other (protobuf.dev, Language Guide,
"Updating A Message Type")."""


class ProtobufSchema:
    """A parsed definition; see `brokerd.schemas.values.Schema`."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._message_class = GetMessageClass(root)

    def faults(self, message: bytes) -> list[str]:
        """Return the faults of a message."""
        if not message:
            return ["empty message"]
        try:
            read_message = self._message_class.FromString(message)
        except DecodeError as error:
            return [fault_text(f"invalid Protobuf wire format: {error}")]
        missing = read_message.FindInitializationErrors()[:FAULTS_MAX]
        return [fault_text(f"missing required field: {path}") for path in missing]

    def incompatibility(self, old: ProtobufSchema) -> str | None:
        """Return why data of ``old`` cannot be read (docs/schemas.rst, Compatibility)."""
        return _incompatibility(self.root, old.root)


def read(text: bytes) -> ProtobufSchema:
    """Parse a definition. Raises `InvalidDefinition`."""
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(_compile(text)).file:
            pool.Add(file)
        messages = pool.FindFileByName(FILE).message_types_by_name.values()
    except (TypeError, KeyError) as error:  # the pool refuses some files of the compiler
        raise InvalidDefinition(fault_text(f"invalid Protobuf schema: {error}")) from None
    for root in messages:
        return ProtobufSchema(root)
    raise InvalidDefinition("invalid Protobuf schema: it has no message")


def _compile(text: bytes) -> bytes:
    """Return the descriptors of a text and its imports. Raises `InvalidDefinition`."""
    with tempfile.TemporaryDirectory(prefix="brokerd-schema-") as directory:
        source, descriptors = Path(directory, FILE), Path(directory, "descriptors")
        source.write_bytes(text)
        with _redirect_stderr(Path(directory, "errors")) as errors:
            status = protoc.main(
                [
                    "protoc",
                    f"-I{directory}",
                    f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
                    "--include_imports",
                    f"--descriptor_set_out={descriptors}",
                    FILE,
                ]
            )
        if status:
            output = errors.read_text(errors="replace").replace(directory + "/", "")
            lines = output.splitlines()
            own = [line[len(FILE) + 1 :] for line in lines if line.startswith(f"{FILE}:")]
            raise InvalidDefinition(
                fault_text(f"invalid Protobuf schema: {'; '.join(own or lines)}")
            )
        return descriptors.read_bytes()


@contextmanager
def _redirect_stderr(path: Path) -> Iterator[Path]:
    """Redirect standard error to a file, because the compiler reports errors only there."""
    saved = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield path
    finally:
        os.dup2(saved, 2)
        os.close(saved)


# -- compatibility ------------------------------------------------------------------------------


def _incompatibility(new: Any, old: Any) -> str | None:
    """Return why messages of the old type cannot be read as the new type; None if they can."""
    seen: set[tuple[str, str]] = set()
    waiting = [(new, old)]
    while waiting:
        new, old = waiting.pop()
        if (new.full_name, old.full_name) in seen:
            continue
        seen.add((new.full_name, old.full_name))
        for field in new.fields:
            before = old.fields_by_number.get(field.number)
            reason = _field_incompatibility(field, before)
            if reason is not None:
                return f"{new.name}.{field.name} (number {field.number}) {reason}"
            if before is not None and field.message_type is not None:
                waiting.append((field.message_type, before.message_type))
    return None


def _field_incompatibility(new: Any, old: Any) -> str | None:
    if new.is_required and (old is None or not old.is_required):
        return "is required, and was not in the old schema"
    if old is None:
        return None
    new_type, old_type = type_of(new), type_of(old)
    if new_type != old_type and not any({new_type, old_type} <= alike for alike in _SAME_ENCODING):
        return f"was {old_type} in the old schema, and is {new_type}"
    if new.is_repeated != old.is_repeated:
        return "was repeated in the old schema" if old.is_repeated else "is repeated now"
    return None


def type_of(field: Any) -> str:
    """Return the name of a field's type."""
    return _TYPE_NAMES[field.type]


_TYPE_NAMES = {
    1: "double",
    2: "float",
    3: "int64",
    4: "uint64",
    5: "int32",
    6: "fixed64",
    7: "fixed32",
    8: "bool",
    9: "string",
    10: "group",
    11: "message",
    12: "bytes",
    13: "uint32",
    14: "enum",
    15: "sfixed32",
    16: "sfixed64",
    17: "sint32",
    18: "sint64",
}
"""Number of FieldDescriptorProto.Type (google/protobuf/descriptor.proto) -> name."""
