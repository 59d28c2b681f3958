"""Plain objects shaped towards a wire type the way lenient servers do, collecting every problem with its path.

Accepted beyond the strict types: a number in a string, a whole float or a bool for an int, an int or bool for a
float, 0/1 and "true"/"false" for a bool, int32 bytes for a list of ints, base64 without its padding for bytes,
unknown fields (passed over, and named).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect as mi

from tokenwire.wire.arrays import unpack_ids

Problem = tuple[str, str]
"""(dotted path from "body", sentence)"""

INT64_MIN, UINT64_MAX = -(2**63), 2**64 - 1


class _Walk:
    __slots__ = ("problems", "unknown")

    def __init__(self, problems: list[Problem], unknown: list[str]) -> None:
        self.problems = problems
        self.unknown = unknown

    def fail(self, path: str, sentence: str, value: Any = msgspec.UNSET) -> Any:
        shown = "" if value is msgspec.UNSET else f", got {_show(value)}"
        self.problems.append((path, sentence + shown))
        return value

    def visit(self, info: mi.Type, value: Any, path: str) -> Any:
        handler = _HANDLERS.get(type(info))
        return value if handler is None else handler(self, info, value, path)


def coerce(kind: type[Any], value: Any, problems: list[Problem], unknown: list[str]) -> Any:
    """A plain object that `msgspec.convert` takes for `kind`, as far as possible; fills both lists."""
    if value is None:
        problems.append(("body", "Field required, got null"))
        return None
    return _Walk(problems, unknown).visit(_type_info(kind), value, "body")


_TYPE_INFO: dict[Any, mi.Type] = {}


def _type_info(kind: Any) -> mi.Type:
    info = _TYPE_INFO.get(kind)
    if info is None:
        info = _TYPE_INFO[kind] = mi.type_info(kind)
    return info


def _show(value: Any) -> str:
    if isinstance(value, dict | list):
        noun = "object" if isinstance(value, dict) else "list"
        return f"<{noun} of {len(value)} items>"
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _struct(walk: _Walk, info: mi.StructType, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        return walk.fail(path, "Input should be a valid dictionary or object", value)
    fields = {f.encode_name: f for f in info.fields}
    tag_field = info.tag_field
    out: dict[str, Any] = {}
    for key, item in value.items():
        field = fields.get(key)
        if field is not None:
            out[key] = walk.visit(field.type, item, f"{path}.{key}")
        elif key == tag_field:
            out[key] = item
        elif getattr(info.cls, "REFUSE_UNKNOWN", False):
            walk.fail(f"{path}.{key}", "Extra inputs are not permitted", item)
        elif info.forbid_unknown_fields:
            walk.unknown.append(f"{path}.{key}".removeprefix("body."))
    for name, field in fields.items():
        if field.required and name not in value:
            walk.fail(f"{path}.{name}", "Field required")
    return out


def _union(walk: _Walk, info: mi.UnionType, value: Any, path: str) -> Any:
    if value is None and any(isinstance(t, mi.NoneType) for t in info.types):
        return None
    options = [t for t in info.types if not isinstance(t, mi.NoneType)]
    if len(options) == 1:
        return walk.visit(options[0], value, path)
    attempts: list[_Walk] = []
    for option in sorted(options, key=lambda t: not _same_kind(t, value)):
        attempt = _Walk([], [])
        out = attempt.visit(option, value, path)
        if not attempt.problems:
            walk.unknown.extend(attempt.unknown)
            return out
        attempts.append(attempt)
    walk.problems.extend(attempts[0].problems if attempts else [(path, "Input is not valid here")])
    return value


_NATURAL: dict[type, tuple[type[mi.Type], ...]] = {
    bool: (mi.BoolType,),
    int: (mi.IntType, mi.FloatType),
    float: (mi.FloatType, mi.IntType),
    str: (mi.StrType, mi.LiteralType, mi.BytesType),
    list: (mi.ListType, mi.TupleType),
    dict: (mi.StructType, mi.DictType),
    bytes: (mi.BytesType, mi.ListType),
}


def _same_kind(info: mi.Type, value: Any) -> bool:
    return isinstance(info, _NATURAL.get(type(value), ()))


def _int(walk: _Walk, info: mi.IntType, value: Any, path: str) -> Any:
    out = value
    if isinstance(value, bool):
        out = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return walk.fail(path, "Input should be a valid integer, got a number with a fractional part", value)
        out = int(value)
    elif isinstance(value, str):
        try:
            out = int(value)
        except ValueError:
            return walk.fail(path, "Input should be a valid integer, unable to parse string as an integer", value)
    elif not isinstance(value, int):
        return walk.fail(path, "Input should be a valid integer", value)
    if not INT64_MIN <= out <= UINT64_MAX:
        return walk.fail(path, "integers must fit in 64 bits (>= -2**63 and <= 2**64 - 1)", value)
    return _bounded(walk, info, out, path)


def _float(walk: _Walk, info: mi.FloatType, value: Any, path: str) -> Any:
    if not isinstance(value, int | float | str):
        return walk.fail(path, "Input should be a valid number", value)
    try:
        out = float(value)
    except ValueError:
        return walk.fail(path, "Input should be a valid number, unable to parse string as a number", value)
    except OverflowError:
        return walk.fail(path, "Input should be a finite number", value)
    return _bounded(walk, info, out, path)


def _bounded(walk: _Walk, info: mi.IntType | mi.FloatType, value: Any, path: str) -> Any:
    if info.ge is not None and not value >= info.ge:
        return walk.fail(path, f"Input should be greater than or equal to {info.ge}", value)
    if info.gt is not None and not value > info.gt:
        return walk.fail(path, f"Input should be greater than {info.gt}", value)
    if info.le is not None and not value <= info.le:
        return walk.fail(path, f"Input should be less than or equal to {info.le}", value)
    if info.lt is not None and not value < info.lt:
        return walk.fail(path, f"Input should be less than {info.lt}", value)
    return value


_BOOLS = {"true": True, "false": False, "1": True, "0": False, 1: True, 0: False}


def _bool(walk: _Walk, info: mi.BoolType, value: Any, path: str) -> Any:
    key = value.lower() if isinstance(value, str) else value
    if isinstance(key, str | int | float) and key in _BOOLS:
        return _BOOLS[key]
    return walk.fail(path, "Input should be a valid boolean", value)


def _str(walk: _Walk, info: mi.StrType, value: Any, path: str) -> Any:
    if not isinstance(value, str):
        return walk.fail(path, "Input should be a valid string", value)
    return _sized(walk, info, value, path, "String", "character")


def _sized(walk: _Walk, info: Any, value: Any, path: str, noun: str, item: str) -> Any:
    if info.min_length is not None and len(value) < info.min_length:
        return walk.fail(
            path, f"{noun} should have at least {info.min_length} {item} after validation, not {len(value)}"
        )
    if info.max_length is not None and len(value) > info.max_length:
        return walk.fail(
            path, f"{noun} should have at most {info.max_length} {item}s after validation, not {len(value)}"
        )
    return value


def _list(walk: _Walk, info: mi.ListType, value: Any, path: str) -> Any:
    if isinstance(value, bytes) and isinstance(info.item_type, mi.IntType):
        try:
            value = unpack_ids(value)
        except ValueError as exc:
            return walk.fail(path, f"Input should be a list, or int32 bytes: {exc}")
        if _all_within(info.item_type, value):
            return _sized(walk, info, value, path, "List", "item")
    if not isinstance(value, list):
        return walk.fail(path, "Input should be a valid list", value)
    out = [walk.visit(info.item_type, item, f"{path}.{i}") for i, item in enumerate(value)]
    return _sized(walk, info, out, path, "List", "item")


def _all_within(info: mi.IntType, ids: list[int]) -> bool:
    """No bound is broken, told without a look at each."""
    low, high = info.ge, info.le
    return not ids or ((low is None or min(ids) >= low) and (high is None or max(ids) <= high))


def _bytes(walk: _Walk, info: mi.BytesType, value: Any, path: str) -> Any:
    if isinstance(value, str):
        try:
            value = base64.b64decode(value + "==")  # as other readers do, what is no base64 is passed over
        except ValueError as exc:
            return walk.fail(path, f"Input should be base64: {exc}", value)
    if not isinstance(value, bytes):
        return walk.fail(path, "Input should be bytes, or base64 text", value)
    return _sized(walk, info, value, path, "Data", "byte")


def _tuple(walk: _Walk, info: mi.TupleType, value: Any, path: str) -> Any:
    if not isinstance(value, list | tuple):
        return walk.fail(path, "Input should be a valid list", value)
    if len(value) != len(info.item_types):
        return walk.fail(path, f"List should have {len(info.item_types)} items, not {len(value)}")
    return [walk.visit(t, item, f"{path}.{i}") for i, (t, item) in enumerate(zip(info.item_types, value, strict=True))]


def _dict(walk: _Walk, info: mi.DictType, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        return walk.fail(path, "Input should be a valid dictionary", value)
    return {
        walk.visit(info.key_type, key, f"{path}.{key}"): walk.visit(info.value_type, item, f"{path}.{key}")
        for key, item in value.items()
    }


def _literal(walk: _Walk, info: mi.LiteralType, value: Any, path: str) -> Any:
    if isinstance(value, list | dict) or value not in info.values:
        shown = [repr(v) for v in info.values]
        words = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
        return walk.fail(path, f"Input should be {words}", value)
    return value


def _none(walk: _Walk, info: mi.NoneType, value: Any, path: str) -> Any:
    return value if value is None else walk.fail(path, "Input should be null", value)


_HANDLERS: dict[type[mi.Type], Callable[[_Walk, Any, Any, str], Any]] = {
    mi.StructType: _struct,
    mi.UnionType: _union,
    mi.IntType: _int,
    mi.FloatType: _float,
    mi.BoolType: _bool,
    mi.StrType: _str,
    mi.BytesType: _bytes,
    mi.ListType: _list,
    mi.TupleType: _tuple,
    mi.DictType: _dict,
    mi.LiteralType: _literal,
    mi.NoneType: _none,
}
