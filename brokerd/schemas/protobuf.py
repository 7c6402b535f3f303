# Tests: tests/schemas/test_protobuf.py
"""Protocol Buffers (https://protobuf.dev/), compiled by grpcio-tools.

The compiler makes descriptors of a ``.proto`` text, and no code. It sees that text and the files
under ``google/protobuf/``. A message is one of the first message type of the file.
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

_ALIKE = (
    {"int32", "int64", "uint32", "uint64", "bool", "enum"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
    {"string", "bytes"},
)
"""Types that are encoded alike, so that one may take the place of the other (protobuf.dev, Language
Guide, "Updating A Message Type")."""


class ProtobufSchema:
    """A definition that was read; see `brokerd.schemas.values.Schema`."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._message_class = GetMessageClass(root)

    def faults(self, message: bytes) -> list[str]:
        """Why a message does not fit."""
        if not message:
            return ["empty message"]
        try:
            read_message = self._message_class.FromString(message)
        except DecodeError as error:
            return [fault_text(f"invalid Protobuf wire format: {error}")]
        missing = read_message.FindInitializationErrors()[:FAULTS_MAX]
        return [fault_text(f"missing required field: {path}") for path in missing]

    def why_not_reads(self, old: ProtobufSchema) -> str | None:
        """Why this cannot read what the old one wrote (docs/schemas.rst, Compatibility)."""
        return _why_not(self.root, old.root)


def read(text: bytes) -> ProtobufSchema:
    """Raises `InvalidDefinition`."""
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(_compiled(text)).file:
            pool.Add(file)
        messages = pool.FindFileByName(FILE).message_types_by_name.values()
    except (TypeError, KeyError) as error:  # the pool is stricter than the compiler here and there
        raise InvalidDefinition(fault_text(f"invalid Protobuf schema: {error}")) from None
    for root in messages:
        return ProtobufSchema(root)
    raise InvalidDefinition("invalid Protobuf schema: it has no message")


def _compiled(text: bytes) -> bytes:
    """The descriptors of a text and of what it imports. Raises `InvalidDefinition`."""
    with tempfile.TemporaryDirectory(prefix="brokerd-schema-") as directory:
        source, made = Path(directory, FILE), Path(directory, "descriptors")
        source.write_bytes(text)
        with _errors_in(Path(directory, "errors")) as errors:
            status = protoc.main(
                [
                    "protoc",
                    f"-I{directory}",
                    f"-I{Path(grpc_tools.__file__).parent / '_proto'}",
                    "--include_imports",
                    f"--descriptor_set_out={made}",
                    FILE,
                ]
            )
        if status:
            said = errors.read_text(errors="replace").replace(directory + "/", "")
            lines = said.splitlines()
            own = [line[len(FILE) + 1 :] for line in lines if line.startswith(f"{FILE}:")]
            raise InvalidDefinition(
                fault_text(f"invalid Protobuf schema: {'; '.join(own or lines)}")
            )
        return made.read_bytes()


@contextmanager
def _errors_in(path: Path) -> Iterator[Path]:
    """Have what goes to standard error meanwhile in a file: the compiler has no other way."""
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield path
    finally:
        os.dup2(kept, 2)
        os.close(kept)


# -- compatibility ------------------------------------------------------------------------------


def _why_not(new: Any, old: Any) -> str | None:
    """Why messages of an old type cannot be read as those of a new one."""
    seen: set[tuple[str, str]] = set()
    waiting = [(new, old)]
    while waiting:
        new, old = waiting.pop()
        if (new.full_name, old.full_name) in seen:
            continue
        seen.add((new.full_name, old.full_name))
        for field in new.fields:
            before = old.fields_by_number.get(field.number)
            why = _field_why_not(field, before)
            if why is not None:
                return f"{new.name}.{field.name} (number {field.number}) {why}"
            if before is not None and field.message_type is not None:
                waiting.append((field.message_type, before.message_type))
    return None


def _field_why_not(new: Any, old: Any) -> str | None:
    if new.is_required and (old is None or not old.is_required):
        return "is required, and was not in the old schema"
    if old is None:
        return None
    new_type, old_type = _type_of(new), _type_of(old)
    if new_type != old_type and not any({new_type, old_type} <= alike for alike in _ALIKE):
        return f"was {old_type} in the old schema, and is {new_type}"
    if new.is_repeated != old.is_repeated:
        return "was repeated in the old schema" if old.is_repeated else "is repeated now"
    return None


def _type_of(field: Any) -> str:
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
"""By the numbers of FieldDescriptorProto.Type (google/protobuf/descriptor.proto)."""
