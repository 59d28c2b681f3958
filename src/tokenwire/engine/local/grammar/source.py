"""A constraint in canonical form: one kind, one text, and the options that change its meaning."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tokenwire.errors import InvalidRequestError
from tokenwire.wire.sampling import StructuredOutputs


@dataclass(slots=True, frozen=True)
class GrammarSource:
    """What to compile. Equal sources give equal grammars, so it is the key of the cache."""

    kind: str
    """json, regex, choice, grammar, json_object or structural_tag."""
    text: str
    """The schema, choices or tag as JSON text; the regex or grammar as it came."""
    compact: bool = False
    """No whitespace between JSON elements (`disable_any_whitespace`)."""
    whitespace_pattern: str | None = None
    """A regex for the whitespace between JSON elements."""

    @property
    def is_json(self) -> bool:
        return self.kind in ("json", "json_object")

    @property
    def schema(self) -> Any:
        """The JSON schema of a json or json_object constraint."""
        return json.loads(self.text)

    @property
    def is_lark(self) -> bool:
        """A `grammar` without any `::=` is taken as Lark; comments do not count (vLLM's rule)."""
        lines = (re.sub(r"(#|//).*$", "", line) for line in self.text.split("\n"))
        return not any("::=" in line for line in lines)


def read_source(
    spec: StructuredOutputs, *, compact: bool = False, closed_objects: bool = False, request_options: bool = True
) -> GrammarSource:
    """The canonical form of a request's constraint; exactly one kind must be set.

    `compact` and `closed_objects` are the server's defaults for `disable_any_whitespace` and
    `disable_additional_properties`; the request can turn them on too, unless `request_options` is false. Raises
    `InvalidRequestError` where JSON is asked for and something else came.
    """
    if request_options:
        compact = compact or spec.disable_any_whitespace
        closed_objects = closed_objects or spec.disable_additional_properties
    whitespace = spec.whitespace_pattern if request_options else None
    (kind,) = spec.kinds
    if kind == "json_object":
        return GrammarSource(kind, '{"type": "object"}', compact, whitespace)
    if kind == "json":
        schema = _parse(kind, spec.json)
        if not isinstance(schema, dict | bool):
            raise invalid(
                f"structured_outputs.json must be a JSON schema (an object or a boolean), got {schema!r:.80}."
            )
        if schema is False:
            raise invalid("structured_outputs.json is the schema `false`, which no value meets.")
        if closed_objects:
            schema = close_objects(schema)
        return GrammarSource(kind, json.dumps({} if schema is True else schema), compact, whitespace)
    if kind == "structural_tag":
        tag = _parse(kind, spec.structural_tag)
        if not isinstance(tag, dict):
            raise invalid(f"structured_outputs.structural_tag must be a JSON object, got {tag!r:.80}.")
        return GrammarSource(kind, json.dumps(tag), compact)
    if kind == "choice":
        return GrammarSource(kind, json.dumps(spec.choice))
    return GrammarSource(kind, getattr(spec, kind))


def _parse(kind: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise invalid("Invalid JSON grammar specification." if kind == "json" else f"{kind} is not JSON.") from exc


def invalid(sentence: str) -> InvalidRequestError:
    return InvalidRequestError(sentence, param="structured_outputs")


# --- walking JSON schemas ---------------------------------------------------------------------------------------

_SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SCHEMAS = (
    "additionalProperties",
    "unevaluatedProperties",
    "propertyNames",
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "contentSchema",
    "not",
    "if",
    "then",
    "else",
)


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """`schema` and every schema inside it, where JSON Schema says schemas stand; booleans are left out."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield node
        for name in _SCHEMA_MAPS:
            value = node.get(name)
            stack += value.values() if isinstance(value, dict) else ()
        for name in _SCHEMA_LISTS:
            value = node.get(name)
            stack += value if isinstance(value, list) else ()
        stack += (node[name] for name in _SCHEMAS if name in node)


def close_objects(schema: Any) -> Any:
    """A copy in which every object that lists its properties, and says nothing of others, allows no others."""
    schema = copy.deepcopy(schema)
    for node in list(subschemas(schema)):
        lists_properties = isinstance(node.get("properties"), dict) or isinstance(node.get("patternProperties"), dict)
        if lists_properties and "additionalProperties" not in node:
            node["additionalProperties"] = False
    return schema
