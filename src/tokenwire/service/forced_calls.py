"""The grammar that makes a model call a tool, where the request forces a call.

A format whose parser reads forced calls as plain JSON gets a JSON schema: the list of calls for "required", the bare
arguments for a named function. A format that is parsed as the model writes it gets a structural tag that spells its
markers, with each function's schema in the place of the arguments.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.derender.parser import ToolFormat
from tokenwire.derender.parser.format import HarmonyCalls
from tokenwire.wire.chat import ChatTool
from tokenwire.wire.sampling import StructuredOutputs

Schema = dict[str, Any]


def forced_call_grammar(
    format: ToolFormat,
    tools: Sequence[ChatTool],
    named: str | None,
    *,
    parallel: bool,
    has_token: Callable[[str], bool],
) -> StructuredOutputs | None:
    """The constraint for a forced call to `named`, or to any of `tools`. None for a syntax that no grammar here spells;
    the template and the parser are then all there is."""
    chosen = [tool for tool in tools if named is None or tool.function.name == named]
    if format.forced == "json":
        return StructuredOutputs(
            json=_arguments(chosen[0]) if named is not None else call_list(chosen, parallel=parallel)
        )
    single = named is not None or not parallel
    if isinstance(format.syntax, HarmonyCalls):
        return _tagged(_harmony_calls(chosen))
    shape = next((shape for shape in SHAPES.get(format.name, ()) if all(map(has_token, shape.tokens))), None)
    return None if shape is None else _tagged(shape.tag(chosen, single=single))


def _tagged(tag: Schema) -> StructuredOutputs:
    return StructuredOutputs(structural_tag=json.dumps(tag, ensure_ascii=False))


def call_list(tools: Sequence[ChatTool], *, parallel: bool) -> Schema:
    """The JSON list of one or more calls, each with the name and the parameters of one tool."""
    definitions: Schema = {}
    for tool in tools:
        definitions |= (tool.function.parameters or {}).get("$defs", {})
    schema: Schema = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": [_call(t) for t in tools]}}
    if not parallel:
        schema["maxItems"] = 1
    return schema | ({"$defs": definitions} if definitions else {})


def _call(tool: ChatTool) -> Schema:
    parameters = {k: v for k, v in _arguments(tool).items() if k != "$defs"}
    return {
        "properties": {"name": {"type": "string", "enum": [tool.function.name]}, "parameters": parameters},
        "required": ["name", "parameters"],
    }


def _arguments(tool: ChatTool) -> Schema:
    return dict(tool.function.parameters) if tool.function.parameters else {"type": "object", "properties": {}}


# --- structural tags ----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True, kw_only=True)
class CallShape:
    """How calls are spelled: `before`, one or more of `begin` arguments `end`, `after`. `%s` is the function's name."""

    begin: tuple[str, ...]
    """Several: spellings of the same."""
    end: str
    before: str = ""
    after: str = ""
    separator: str = ""
    style: str = "json"
    """How arguments are written down, in xgrammar's words."""
    tokens: tuple[str, ...] = ()
    """Tokens the vocabulary must have for the model to know this spelling."""

    def tag(self, tools: Sequence[ChatTool], *, single: bool) -> Schema:
        tags = [
            {"type": "tag", "begin": begin % tool.function.name, "content": self._content(tool), "end": self.end}
            for tool in tools
            for begin in self.begin
        ]
        calls: Schema = {"type": "tags_with_separator", "tags": tags, "separator": self.separator}
        calls |= {"at_least_one": True, "stop_after_first": single}
        ends = [{"type": "const_string", "value": text} for text in (self.before, self.after)]
        elements = [ends[0], calls, ends[1]] if self.before else [calls]
        return _structural({"type": "sequence", "elements": elements} if self.before else calls)

    def _content(self, tool: ChatTool) -> Schema:
        style = {} if self.style == "json" else {"style": self.style}
        return {"type": "json_schema", "json_schema": _arguments(tool), **style}


_JSON = '{"name": "%s", "arguments": '
_DSML = CallShape(
    before="\n\n<｜DSML｜function_calls>\n",
    begin=('<｜DSML｜invoke name="%s">\n',),
    end="</｜DSML｜invoke>\n",
    after="</｜DSML｜function_calls>",
    style="deepseek_xml",
)

SHAPES: dict[str, tuple[CallShape, ...]] = {
    "hermes": (CallShape(begin=(f"<tool_call>\n{_JSON}",), end="}\n</tool_call>", separator="\n"),),
    "longcat": (CallShape(begin=(f"<longcat_tool_call>{_JSON}",), end="}</longcat_tool_call>", separator="\n"),),
    "llama3_json": (CallShape(begin=('{"name": "%s", "parameters": ',), end="}", separator="; "),),
    "mistral": (
        CallShape(begin=("[TOOL_CALLS]%s[ARGS]",), end="", tokens=("[ARGS]",)),
        CallShape(before="[TOOL_CALLS][", begin=(_JSON,), end="}", separator=", ", after="]"),
    ),
    "deepseek_v3": (
        CallShape(
            before="<｜tool▁calls▁begin｜>",
            begin=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n",),
            end="\n```<｜tool▁call▁end｜>",
            after="<｜tool▁calls▁end｜>",
            separator="\n",
        ),
    ),
    "deepseek_v31": (
        CallShape(
            before="<｜tool▁calls▁begin｜>",
            begin=("<｜tool▁call▁begin｜>%s<｜tool▁sep｜>",),
            end="<｜tool▁call▁end｜>",
            after="<｜tool▁calls▁end｜>",
        ),
    ),
    "deepseek_v32": (_DSML,),
    "deepseek_v4": (dataclasses.replace(_DSML, before="\n\n<｜DSML｜tool_calls>\n", after="</｜DSML｜tool_calls>"),),
    "qwen3_coder": (
        CallShape(
            begin=("<tool_call>\n<function=%s>\n",), end="\n</function>\n</tool_call>", separator="\n", style="qwen_xml"
        ),
    ),
    "glm45": (CallShape(begin=("<tool_call>%s\n",), end="\n</tool_call>", separator="\n", style="glm_xml"),),
    "minimax_m2": (
        CallShape(
            before="<minimax:tool_call>\n",
            begin=('<invoke name="%s">\n',),
            end="</invoke>\n",
            after="</minimax:tool_call>",
            style="minimax_xml",
        ),
    ),
}
"""By the name of the tool format: spellings in order of preference. A format that is not here is left to the model."""


def _harmony_calls(tools: Sequence[ChatTool]) -> Schema:
    """A recipient in the header of a commentary message, after whatever reasoning and preamble come first."""
    calls = [
        _tag(f"{head}{tail}<|message|>", tool, "")
        for tool in tools
        for head, tail in (
            (f" to=functions.{tool.function.name}<|channel|>commentary", " json"),
            (f" to=functions.{tool.function.name}<|channel|>commentary", " <|constrain|>json"),
            (f"<|channel|>commentary to=functions.{tool.function.name}", " <|constrain|>json"),
            (f"<|channel|>commentary to=functions.{tool.function.name}", " json"),
        )
    ]
    return harmony_tag({"type": "or", "elements": calls}, preamble=True)


def harmony_tag(answer: Mapping[str, Any], *, preamble: bool = False) -> Schema:
    """`answer` after an optional analysis message (and an optional commentary preamble)."""
    channels = ("analysis", "commentary") if preamble else ("analysis",)
    return _structural({"type": "sequence", "elements": [*map(_optional_message, channels), answer]})


def harmony_answer(structured: StructuredOutputs) -> StructuredOutputs:
    """A constraint on the answer, moved to where Harmony has answers: its final message."""
    content = _content(structured)
    if content is None:
        return structured
    heads: tuple[str, ...] = ("<|channel|>final<|message|>",)
    if content["type"] == "json_schema":
        heads = (
            "<|channel|>final<|message|>",
            "<|channel|>final json<|message|>",
            "<|channel|>final <|constrain|>json<|message|>",
        )
    tags = [{"type": "tag", "begin": head, "content": content, "end": ["<|end|>", ""]} for head in heads]
    return StructuredOutputs(
        structural_tag=json.dumps(harmony_tag({"type": "or", "elements": tags}), ensure_ascii=False)
    )


def _content(structured: StructuredOutputs) -> Schema | None:
    """The constraint as the content of a tag; None for kinds that cannot be one."""
    if structured.json_object:
        return {"type": "json_schema", "json_schema": {"type": "object"}}
    if structured.json is not None:
        schema = json.loads(structured.json) if isinstance(structured.json, str) else structured.json
        return {"type": "json_schema", "json_schema": schema}
    if structured.regex is not None:
        return {"type": "regex", "pattern": structured.regex}
    if structured.choice is not None:
        return {"type": "or", "elements": [{"type": "const_string", "value": choice} for choice in structured.choice]}
    if structured.grammar is not None:
        return {"type": "grammar", "grammar": structured.grammar}
    return None


def _optional_message(channel: str) -> Schema:
    message = {
        "type": "tag",
        "begin": f"<|channel|>{channel}<|message|>",
        "content": {"type": "any_text"},
        "end": "<|end|>",
    }
    start = {"type": "const_string", "value": "<|start|>assistant"}
    return {"type": "optional", "content": {"type": "sequence", "elements": [message, start]}}


def _tag(begin: str, tool: ChatTool, end: str) -> Schema:
    content = {"type": "json_schema", "json_schema": _arguments(tool)}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _structural(format: Mapping[str, Any]) -> Schema:
    return {"type": "structural_tag", "format": dict(format)}
