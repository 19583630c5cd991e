"""The part of JSON Schema (2020-12) that the schema of records uses; enough to check with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

KNOWN = {
    "$schema", "title", "description", "type", "enum", "required", "properties",
    "additionalProperties", "items", "minItems", "minLength", "pattern", "minimum", "maximum",
    "exclusiveMinimum", "maxItems", "if", "then", "else", "$ref", "$defs",
}  # fmt: skip
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def is_of(value: object, kind: str) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "number":
        return number
    if kind == "integer":
        return number and float(value) == int(value)  # type: ignore[arg-type]
    return isinstance(value, TYPES[kind])


def faults(
    value: Any, schema: Any, where: str = "$", root: dict[str, Any] | None = None
) -> Iterator[str]:
    """Every place where a value breaks the schema; ``root`` holds the definitions."""
    root = schema if root is None else root
    if schema is False:
        yield f"{where}: may not be there"
        return
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    assert schema.keys() <= KNOWN, f"{where}: the checker does not know {schema.keys() - KNOWN}"
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(is_of(value, kind) for kind in kinds):
        yield f"{where}: not of type {kinds}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: not one of {schema['enum']}"
    yield from _scalar_faults(value, schema, where)
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{where}: too few"
        for number, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{where}[{number}]", root)
        if len(value) > schema.get("maxItems", len(value)):
            yield f"{where}: too many"
    if isinstance(value, dict):
        yield from _object_faults(value, schema, where, root)
    if "if" in schema:
        holds = not list(faults(value, schema["if"], where, root))
        yield from faults(value, schema["then" if holds else "else"], where, root)


def _scalar_faults(value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield f"{where}: too short"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where}: does not match"
    if is_of(value, "number"):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{where}: out of bounds"
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            yield f"{where}: out of bounds"


def _object_faults(
    value: dict[str, Any], schema: dict[str, Any], where: str, root: dict[str, Any]
) -> Iterator[str]:
    known = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield f"{where}: {name} is missing"
    for name, item in value.items():
        other = schema.get("additionalProperties", {})
        if name in known:
            yield from faults(item, known[name], f"{where}.{name}", root)
        elif other is False:
            yield f"{where}: {name} is unknown"
        else:
            yield from faults(item, other, f"{where}.{name}", root)
