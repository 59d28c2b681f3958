"""Values of arguments: from the text a model wrote to JSON text.

The border it guards: formats without JSON arguments (XML parameters, key/value tags, Python calls) hand their raw
text over here, and what comes back is always valid JSON. Typing follows the tool's schema and never guesses: a
string parameter stays a string whatever it looks like, and a number that JSON cannot hold stays a string.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "long", "short", "unsigned", "uint", "uint32", "uint64"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    "bool": "boolean",
    "dict": "object",
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
}
_BY_PYTHON_TYPE: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def dumps(value: Any) -> str:
    """JSON as Python writes it by default, but with characters as they are; lone surrogates stay escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not _has_surrogate(text) else json.dumps(value)


def escape(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return dumps(text)[1:-1]


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def schema_types(schema: Any) -> set[str]:
    """All JSON types a schema allows; `{"string"}` where it does not say."""
    types = _schema_types(schema)
    return {_ALIASES.get(name, name) for name in types} if types else {"string"}


def _schema_types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    types: set[str] = set()
    declared = schema.get("type")
    if isinstance(declared, str):
        types.add(declared.strip().lower())
    elif isinstance(declared, list):
        types.update(name.strip().lower() for name in declared if isinstance(name, str))
    values = schema.get("enum")
    if isinstance(values, list):
        for value in values:
            if value is None:
                types.add("null")
            types.update(next(([name] for kind, name in _BY_PYTHON_TYPE if isinstance(value, kind)), []))
    for branch in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(branch) or ():
            types |= _schema_types(choice) or {"string"}
    return types


def is_text(schema: Any) -> bool:
    """Whether a parameter can only be a string, so that its text may be sent while it is being written."""
    return schema_types(schema) == {"string"}


def typed(text: str, schema: Any) -> Any:
    """`text` as the first of null, integer, number, boolean, object, array that the schema allows and it fits."""
    types = schema_types(schema)
    if "null" in types and text.lower() == "null":
        return None
    for name, read in (
        ("integer", _integer),
        ("number", _number),
        ("boolean", _boolean),
        ("object", loads_finite),
        ("array", loads_finite),
    ):
        if name in types:
            try:
                return read(text)
            except (ValueError, OverflowError, RecursionError):
                continue
    if "string" in types:
        return text
    return json_or_text(text)


def json_or_text(text: str) -> Any:
    """The JSON value of `text` if it is one that can be written back, else the text."""
    try:
        return loads_finite(text)
    except (ValueError, RecursionError):
        return text


def loads_finite(text: str) -> Any:
    """`json.loads`, but a number out of range or NaN is a `ValueError`: JSON could not carry it on."""
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


def _integer(text: str) -> int:
    if len(text) > 4000:
        raise ValueError("too long for an integer")
    return int(text)


def _number(text: str) -> int | float:
    value = _finite(text)
    return int(value) if value == int(value) else value


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in ("true", "1"):
        return True
    if word in ("false", "0"):
        return False
    raise ValueError("not a boolean")
