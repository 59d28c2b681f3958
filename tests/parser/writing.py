"""The other way round: a message written the way a model of some format would write it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenwire.derender.parser import Format
from tokenwire.derender.parser.format import (
    HarmonyCalls,
    HeadedCalls,
    JsonCalls,
    ListedCalls,
    PythonCalls,
    TaggedCalls,
    ToolFormat,
    XmlCalls,
)

Call = tuple[str, Mapping[str, Any]]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}},
            },
        },
    },
    {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}},
]

# How a parameter's head goes on after its first marker: for text, and for other values.
_HEADS = {
    "<parameter=": ("{}>", "{}>"),
    "<parameter name=": ('"{}">', '"{}">'),
    "<param name=": ('"{}">', '"{}">'),
    "<steptml:parameter": (' name="{}">', ' name="{}">'),
    "<｜DSML｜parameter": (' name="{}" string="true">', ' name="{}" string="false">'),
    "<｜DSML｜ parameter": (' name="{}" string="true">', ' name="{}" string="false">'),
    "<arg_key>": ("{}</arg_key>\n<arg_value>", "{}</arg_key>\n<arg_value>"),
    "<ifm|arg_key>": (
        "{}</ifm|arg_key><ifm|arg_type>string</ifm|arg_type><ifm|arg_value>",
        "{}</ifm|arg_key><ifm|arg_value>",
    ),
    "<|open|>argument": (' key="{}" type="string"<|sep|>', ' key="{}" type="number"<|sep|>'),
}


def write_message(format: Format, *, reasoning: str = "", content: str = "", calls: Sequence[Call] = ()) -> str:
    """The output text of a message; the prompt is taken to end before any reasoning marker."""
    if _is_harmony(format):
        return _harmony(reasoning, content, calls)
    text = ""
    if format.reasoning is not None and reasoning:
        spec = format.reasoning
        text = (spec.start[0] if spec.start else "") + spec.prefix + reasoning + (spec.end[0] if spec.end else "")
    return text + content + (write_calls(format.tools, calls) if format.tools is not None and calls else "")


def _is_harmony(format: Format) -> bool:
    tools = format.tools is not None and isinstance(format.tools.syntax, HarmonyCalls)
    return tools or (format.reasoning is not None and format.reasoning.harmony)


def write_calls(tools: ToolFormat, calls: Sequence[Call]) -> str:
    syntax = tools.syntax
    match syntax:
        case JsonCalls():
            return _json(syntax, calls)
        case ListedCalls():
            objects = ", ".join(dumps({"name": name, "arguments": arguments}) for name, arguments in calls)
            return f"{syntax.open[0]}{objects}]"
        case HeadedCalls():
            return _headed(syntax, calls)
        case XmlCalls():
            return _xml(syntax, calls)
        case PythonCalls():
            return _python(syntax, calls)
        case TaggedCalls():
            return "".join(_tagged(syntax, call) for call in calls)
    raise AssertionError(syntax)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _first(texts: tuple[str, ...]) -> str:
    return texts[0] if texts else ""


def _json(syntax: JsonCalls, calls: Sequence[Call]) -> str:
    objects = [
        dumps({name: arguments})
        if syntax.name_is_key
        else dumps({syntax.name_key: name, syntax.argument_keys[0]: arguments})
        for name, arguments in calls
    ]
    opener, closer = ("", "") if syntax.bare == "start" else (_first(syntax.open), _first(syntax.close))
    if syntax.listed == "always":
        return f"{opener}[{', '.join(objects)}]{closer}"
    if syntax.separators:
        return opener + f"{syntax.separators[0]} ".join(objects)
    return "\n".join(f"{opener}{text}{closer}" for text in objects)


def _headed(syntax: HeadedCalls, calls: Sequence[Call]) -> str:
    text = _first(syntax.section)
    for index, (name, arguments) in enumerate(calls):
        header = f"functions.{name}:{index}" if syntax.id_in_header else name
        if syntax.name_after:
            header = f"function{syntax.name_after}{header}"
        close = "" if syntax.balanced else _first(syntax.close)
        newline = "\n" if close.startswith("```") else ""
        text += _first(syntax.open) + header + syntax.name_end[0] + dumps(arguments) + newline + close
    return text + _first(syntax.section_close)


def _xml(syntax: XmlCalls, calls: Sequence[Call]) -> str:
    between = "" if syntax.section_is_call else _first(syntax.section) + "\n"
    text = between if syntax.section else ""
    for name, arguments in calls:
        opener = _first(syntax.section) if syntax.section_is_call else _first(syntax.open)
        shown = f' tool="{name}" index="1"' if syntax.name_pattern else name
        text += opener + shown
        if syntax.name_end[0] != syntax.parameter:
            text += syntax.name_end[0]
        text += "\n" + "".join(_parameter(syntax, key, value) for key, value in arguments.items())
        text += syntax.call_close[0] + "\n"
    return text + _first(syntax.section_close)


def _parameter(syntax: XmlCalls, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    written = value if is_text else dumps(value)
    if syntax.trim == "newline":
        written = f"\n{written}\n"
    head = _HEADS[syntax.parameter][0 if is_text else 1].format(key)
    return f"{syntax.parameter}{head}{written}{syntax.parameter_close}\n"


def _python(syntax: PythonCalls, calls: Sequence[Call]) -> str:
    written = [f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in calls]
    body = f"[{', '.join(written)}]" if syntax.listed else "\n" + "\n".join(written) + "\n"
    return f"{_first(syntax.open)}{body}{_first(syntax.close)}"


def _tagged(syntax: TaggedCalls, call: Call) -> str:
    name, arguments = call
    members = ",".join(f"{key}:{_tagged_value(syntax, value)}" for key, value in arguments.items())
    return f"{syntax.open[0]}call:{name}{{{members}}}{syntax.close[0]}"


def _tagged_value(syntax: TaggedCalls, value: Any) -> str:
    if isinstance(value, str) or syntax.quoted_only:
        written = value if isinstance(value, str) else dumps(value)
        return f"{syntax.quote}{written}{syntax.quote}"
    return dumps(value)


def _harmony(reasoning: str, content: str, calls: Sequence[Call]) -> str:
    messages = []
    if reasoning:
        messages.append(f"<|channel|>analysis<|message|>{reasoning}<|end|>")
    if content:
        messages.append(f"<|channel|>final<|message|>{content}<|end|>")
    for name, arguments in calls:
        header = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        messages.append(f"{header}{dumps(arguments)}<|call|>")
    return "<|start|>assistant".join(messages)
