# Tests: tests/schemas/test_json_schema.py
"""JSON Schema (https://json-schema.org/), read by the package jsonschema.

Texts of faults are those of the FlyMQ reference where it has some. References
lead into the schema itself or to a published meta-schema. The broker fetches no URL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from jsonschema import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, validator_for
from jsonschema_specifications import REGISTRY
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from brokerd.schemas.values import FAULTS_MAX, InvalidDefinition, fault_text

DEPTH_MAX = 50
"""Levels of nesting down to which two schemas are compared."""

_TYPES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


class JsonSchema:
    """A parsed definition; see `brokerd.schemas.values.Schema`."""

    def __init__(self, definition: Any, validator: Validator) -> None:
        self.definition = definition
        self._validator = validator

    def faults(self, message: bytes) -> list[str]:
        """Return the faults of a message. A hostile one may raise any exception."""
        try:
            value = _load(message)
        except (ValueError, RecursionError) as error:
            return [fault_text(f"invalid JSON message: {_reason(error)}")]
        try:
            found = _fault_texts(self._validator.iter_errors(value))
            return list(islice(dict.fromkeys(islice(found, 10 * FAULTS_MAX)), FAULTS_MAX))
        except RecursionError:
            return ["the schema recurses without end with this message"]
        except OverflowError as error:
            return [fault_text(f"a number is too large to be checked: {error}")]
        except Unresolvable as error:
            return [fault_text(f"the schema has an unresolvable reference: {error}")]

    def incompatibility(self, old: JsonSchema) -> str | None:
        """Return why messages of ``old`` may be invalid here (docs/schemas.rst, Compatibility)."""
        return _incompatibility(self.definition, old.definition, "", DEPTH_MAX)


def read(text: bytes) -> JsonSchema:
    """Parse a definition. Raises `InvalidDefinition`."""
    try:
        definition = _load(text)
        if not isinstance(definition, dict):
            raise ValueError(f"an object is expected, not {_type_of(definition)}")
        kind = validator_for(definition, default=Draft202012Validator)
        kind.check_schema(definition)
        resource = Resource.from_contents(definition, default_specification=DRAFT202012)
        _check_references(resource)
    except SchemaError as error:
        path = ".".join(map(str, error.path)) or "$"
        raise InvalidDefinition(
            fault_text(f"invalid JSON schema: {path}: {error.message}")
        ) from None
    except Unresolvable as error:
        raise InvalidDefinition(
            fault_text(
                "invalid JSON schema: a $ref leads out of the schema or nowhere, and nothing is "
                f"fetched: {error.ref}"
            )
        ) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise InvalidDefinition(fault_text(f"invalid JSON schema: {_reason(error)}")) from None
    return JsonSchema(definition, kind(definition, registry=REGISTRY))


def _check_references(root: Resource[Any]) -> None:
    """Resolve each reference. Raises `Unresolvable`."""
    registry: Registry[Any] = REGISTRY.with_resource(root.id() or "", root).crawl()
    waiting = [(root, registry.resolver(root.id() or ""))]
    while waiting:
        resource, resolver = waiting.pop()
        if isinstance(resource.contents, dict):
            for keyword in ("$ref", "$dynamicRef"):
                reference = resource.contents.get(keyword)
                if isinstance(reference, str):
                    resolver.lookup(reference)
        waiting += [(one, resolver.in_subresource(one)) for one in resource.subresources()]


def _load(text: bytes) -> Any:
    """Decode JSON. Raises ValueError and RecursionError."""
    return json.loads(text.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 at byte {error.start}"
    return str(error)


def _type_of(value: Any) -> str:
    return _TYPES[type(value)]


# -- faults -------------------------------------------------------------------------------------


def _fault_texts(errors: Iterable[Any]) -> Iterator[str]:
    """Yield the text of each error, in the words of the FlyMQ reference if it has some."""
    for error in errors:
        path = [str(step) for step in error.absolute_path]
        if error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            for name in missing:
                yield fault_text(f"missing required field: {'.'.join([*path, name])}")
        elif error.validator == "type":
            wanted = error.validator_value
            expected = wanted if isinstance(wanted, str) else " or ".join(wanted)
            got = _type_of(error.instance)
            yield fault_text(f"type mismatch at {_path(path)}: expected {expected}, got {got}")
        elif error.validator == "additionalProperties" and "patternProperties" not in error.schema:
            known = error.schema.get("properties", {})
            for name in islice((one for one in error.instance if one not in known), FAULTS_MAX):
                yield fault_text(f"unexpected field: {'.'.join([*path, name])}")
        else:
            yield fault_text(f"{_path(path)}: {error.message}")


def _path(path: list[str]) -> str:
    return ".".join(path) or "$"


# -- compatibility ------------------------------------------------------------------------------


def _incompatibility(new: Any, old: Any, path: str, depth: int) -> str | None:
    """Return why ``new`` may refuse values that ``old`` allows at a path; None if compatible."""
    if not isinstance(new, dict) or not isinstance(old, dict) or not depth:
        return None
    for check in (_required_incompatibility, _type_incompatibility, _enum_incompatibility):
        reason = check(new, old, path)
        if reason is not None:
            return reason
    new_properties, old_properties = _properties(new), _properties(old)
    if new.get("additionalProperties") is False and "patternProperties" not in new:
        for name in old_properties:
            if name not in new_properties:
                return f"field '{path}{name}' of the old schema is not allowed any more"
    for name, inner in new_properties.items():
        if name in old_properties:
            reason = _incompatibility(inner, old_properties[name], f"{path}{name}.", depth - 1)
            if reason is not None:
                return reason
    return _incompatibility(new.get("items"), old.get("items"), f"{path}items.", depth - 1)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = schema.get("properties", {})
    return properties


def _required_incompatibility(new: dict[str, Any], old: dict[str, Any], path: str) -> str | None:
    known = {*_properties(old), *_required_names(old)}
    for name in _required_names(new):
        if name not in known:
            return f"new required field '{path}{name}' not in old schema"
    return None


def _required_names(schema: dict[str, Any]) -> list[str]:
    names = schema.get("required", [])
    return names if isinstance(names, list) else []  # draft 3 has a boolean in the property


def _type_incompatibility(new: dict[str, Any], old: dict[str, Any], path: str) -> str | None:
    new_types, old_types = _types(new), _types(old)
    if new_types is None:
        return None
    at = f"field '{path.removesuffix('.')}'" if path else "the message"
    allowed = new_types | {"integer"} if "number" in new_types else new_types
    for name in sorted(old_types or ()):
        if name not in allowed:
            return f"{at} was {name} in the old schema, and may be {_join_types(new_types)} now"
    if old_types is None:
        return f"{at} was of any type in the old schema, and may be {_join_types(new_types)} now"
    return None


def _types(schema: dict[str, Any]) -> set[str] | None:
    """Return the allowed types; None: any."""
    value = schema.get("type")
    if isinstance(value, str):
        return {value}
    if isinstance(value, list):
        return {one for one in value if isinstance(one, str)}
    return None


def _join_types(types: set[str]) -> str:
    return " or ".join(sorted(types))


def _enum_incompatibility(new: dict[str, Any], old: dict[str, Any], path: str) -> str | None:
    if "enum" not in new:
        return None
    at = f"field '{path.removesuffix('.')}'" if path else "the message"
    if "enum" not in old:
        return f"{at} had no enum in the old schema, and has one now"
    for value in old["enum"]:
        if value not in new["enum"]:
            return fault_text(
                f"{at} might be {json.dumps(value)} in the old schema, and may not now"
            )
    return None
