"""JSON Schema keywords that xgrammar takes without a word and does not enforce.

A schema that uses one of them is compiled by llguidance instead, which enforces it or says that it cannot. The list
follows vLLM's `auto` backend, so that both choose the same engine for the same schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenwire.engine.local.grammar.source import subschemas

_FORMATS = frozenset(
    ("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference")
    + ("uri-template", "json-pointer", "relative-json-pointer")
)

Schema = dict[str, Any]


def _types(schema: Schema) -> set[str]:
    kind = schema.get("type")
    return (
        {kind}
        if isinstance(kind, str)
        else {t for t in kind if isinstance(t, str)}
        if isinstance(kind, list)
        else set()
    )


def _bounds_on_pattern(schema: Any) -> bool:
    return (
        isinstance(schema, dict)
        and bool({"pattern", "format"} & schema.keys())
        and bool({"minLength", "maxLength"} & schema.keys())
    )


def _number(schema: Schema) -> bool:
    return "multipleOf" in schema


def _array(schema: Schema) -> bool:
    return bool({"uniqueItems", "contains", "minContains", "maxContains"} & schema.keys())


def _string(schema: Schema) -> bool:
    unknown_format = "format" in schema and schema["format"] not in _FORMATS
    return unknown_format or _bounds_on_pattern(schema)


def _object(schema: Schema) -> bool:
    patterns = schema.get("patternProperties")
    if isinstance(patterns, dict) and ("properties" in schema or len(patterns) > 1):
        return True
    if "propertyNames" not in schema:
        return False
    return (
        _bounds_on_pattern(schema["propertyNames"])
        or bool({"patternProperties", "properties"} & schema.keys())
        or schema.get("unevaluatedProperties", True) is not True
    )


_RULES: dict[str, Callable[[Schema], bool]] = {
    "integer": _number,
    "number": _number,
    "array": _array,
    "string": _string,
    "object": _object,
}


def needs_llguidance(schema: Any) -> bool:
    """True if xgrammar would not enforce some keyword of `schema`."""
    for node in subschemas(schema):
        branches = node.get("allOf")
        if isinstance(branches, list) and len(branches) > 1:
            return True
        if any(_RULES[kind](node) for kind in _types(node) if kind in _RULES):
            return True
    return False
