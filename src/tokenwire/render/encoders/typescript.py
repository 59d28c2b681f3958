"""Function tools as the TypeScript that Harmony prompts show: JSON schema in, type declarations out.

The shapes and their quirks (what is indented, where a description or default goes, which keywords are not known) are
those of openai/harmony's renderer, because the models were trained on its output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

SCALARS = {"number": "number", "integer": "number", "boolean": "boolean"}
STEP = "    "


def tools_section(functions: Sequence[Mapping[str, Any]]) -> str:
    """The `# Tools` part of a developer message, all functions in the one namespace `functions`."""
    declarations = "\n\n".join(_declaration(function) for function in functions)
    return f"# Tools\n\n## functions\n\nnamespace functions {{\n\n{declarations}\n\n}} // namespace functions"


def _declaration(function: Mapping[str, Any]) -> str:
    comments = "".join(f"// {line}\n" for line in (function.get("description") or "").splitlines())
    parameters = function.get("parameters")
    argument = "" if parameters is None else f"_: {type_of(parameters, '')}"
    return f"{comments}type {function['name']} = ({argument}) => any;"


def type_of(schema: Any, indent: str) -> str:
    """The type expression of a schema whose lines begin at `indent`."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(variants := schema.get("oneOf"), list):
        return "".join(f"\n{indent} | {_variant(v, indent, _notes(v, v.get('description')))}" for v in variants)
    kind = schema.get("type")
    if isinstance(kind, list):
        names = ["number" if name == "integer" else name for name in kind if isinstance(name, str)]
        return " | ".join(names) or "any"
    if kind == "object":
        return _object(schema, indent)
    if kind == "string":
        return " | ".join(f'"{v}"' for v in _enum(schema) if isinstance(v, str)) or "string"
    if kind == "array":
        return f"{type_of(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    return SCALARS.get(kind, "any") if isinstance(kind, str) else "any"


def _object(schema: Schema, indent: str) -> str:
    required = schema.get("required") or ()
    properties = schema.get("properties")
    head = f"{indent}// {schema['description']}\n" if isinstance(schema.get("description"), str) else ""
    lines = [
        _property(name, value if isinstance(value, Mapping) else {}, name in required, indent)
        for name, value in (properties.items() if isinstance(properties, Mapping) else ())
    ]
    return f"{head}{{\n{''.join(lines)}{indent}}}"


def _property(name: str, schema: Schema, is_required: bool, indent: str) -> str:
    title = schema.get("title")
    variants = schema.get("oneOf")
    description = schema.get("description") if isinstance(schema.get("description"), str) else None
    out = f"{indent}// {title}\n{indent}//\n" if isinstance(title, str) else ""
    if description is not None and "oneOf" not in schema:
        out += f"{indent}// {description}\n"
    out += _examples(schema, indent)
    label = f"{indent}{name}{'' if is_required else '?'}:"
    if isinstance(variants, list):
        return out + _union_property(label, schema, variants, description, indent)
    default = f" // {_default(schema)}" if "default" in schema and "oneOf" not in schema else ""
    return f"{out}{label} {_nullable(type_of(schema, indent + STEP), schema)},{default}\n"


def _union_property(label: str, schema: Schema, variants: list[Any], description: str | None, indent: str) -> str:
    """Each variant on a line. A description the first variant repeats is left out above, and beside every variant."""
    repeated = bool(variants) and isinstance(variants[0], Mapping) and variants[0].get("description") == description
    is_above = description is not None and not repeated
    out = f"{indent}// {description}\n" if is_above else ""
    if "default" in schema:
        out += f"{indent}// {_default(schema)}\n"
    out += f"{label}\n"
    for i, variant in enumerate(variants):
        own = variant.get("description") if isinstance(variant, Mapping) else None
        shown = None if own == description or (i == 0 and is_above) else own
        out += f"{indent} | {_variant(variant, indent, _notes(variant, shown))}\n"
    return f"{out}{indent},\n"


def _variant(schema: Any, indent: str, notes: list[str]) -> str:
    comment = f" // {' '.join(notes)}" if notes else ""
    return _nullable(type_of(schema, indent + "   "), schema) + comment


def _notes(schema: Any, description: Any) -> list[str]:
    notes = [description] if isinstance(description, str) else []
    return [*notes, _default(schema)] if isinstance(schema, Mapping) and "default" in schema else notes


def _nullable(text: str, schema: Any) -> str:
    is_nullable = isinstance(schema, Mapping) and schema.get("nullable") is True
    return f"{text} | null" if is_nullable and "null" not in text else text


def _default(schema: Schema) -> str:
    value = schema["default"]
    if isinstance(value, str):
        return f"default: {value}" if _enum(schema) else f'default: "{value}"'
    return f"default: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"


def _enum(schema: Schema) -> list[Any]:
    values = schema.get("enum")
    return values if isinstance(values, list) else []


def _examples(schema: Schema, indent: str) -> str:
    examples = schema.get("examples")
    if not isinstance(examples, list) or not examples:
        return ""
    return f"{indent}// Examples:\n" + "".join(f'{indent}// - "{e}"\n' for e in examples if isinstance(e, str))
