"""Grammars of forced calls.

1. A format that reads forced calls as JSON gets a schema: the list of calls, or one function's arguments. 2. Every
other format's spelling compiles, accepts a call as the model writes it, and that call is read back by the parser.
3. Harmony's answers are constrained inside their channel.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import xgrammar
from jsonschema import Draft202012Validator

from tests.support.render import render_service
from tokenwire.derender.parser import MessageParser, ParserOptions, assemble, find_format
from tokenwire.derender.parser.formats import TOOL_FORMATS
from tokenwire.errors import InvalidRequestError
from tokenwire.service.forced_calls import SHAPES, call_list, forced_call_grammar, harmony_answer
from tokenwire.wire.chat import ChatCompletionRequest, ChatTool
from tokenwire.wire.codec import convert
from tokenwire.wire.sampling import StructuredOutputs

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
PING = {"type": "object", "properties": {}}


def _tool(name: str, parameters: Any) -> ChatTool:
    tool, _ = convert(ChatTool, {"type": "function", "function": {"name": name, "parameters": parameters}})
    return tool


TOOLS = [_tool("weather", SCHEMA), _tool("ping", None)]


def _grammar(
    name: str, named: str | None = None, *, parallel: bool = True, tokens: bool = True
) -> StructuredOutputs | None:
    format = TOOL_FORMATS[name]
    return forced_call_grammar(format, TOOLS, named, parallel=parallel, has_token=lambda piece: tokens)


JSON_FORMATS = [name for name, entry in TOOL_FORMATS.items() if entry.forced == "json"]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_a_format_read_as_json_gets_a_schema(name: str) -> None:
    listed, bare = _grammar(name), _grammar(name, "weather")
    assert listed is not None
    assert bare is not None
    assert listed.json == call_list(TOOLS, parallel=True)
    assert bare.json == SCHEMA


@pytest.mark.parametrize(
    ("calls", "valid"),
    [
        ([{"name": "weather", "parameters": {"city": "Rome"}}], True),
        ([{"name": "ping", "parameters": {}}, {"name": "ping", "parameters": {}}], True),
        ([], False),
        ([{"name": "weather", "parameters": {}}], False),
        ([{"name": "other", "parameters": {}}], False),
        ([{"name": "ping"}], False),
    ],
)
def test_the_list_holds_one_or_more_calls_of_the_tools(calls: Any, valid: bool) -> None:
    assert Draft202012Validator(call_list(TOOLS, parallel=True)).is_valid(calls) is valid
    assert Draft202012Validator(call_list(TOOLS, parallel=False)).is_valid(calls) is (valid and len(calls) == 1)


def test_shared_definitions_move_to_the_top() -> None:
    shared = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": "integer"}}}
    schema = call_list([_tool("f", shared)], parallel=True)
    check = Draft202012Validator(schema)
    assert check.is_valid([{"name": "f", "parameters": {"x": 1}}])
    assert not check.is_valid([{"name": "f", "parameters": {"x": "a"}}])


WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    "longcat": '<longcat_tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</longcat_tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {"city": "Rome"}}',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}',
    "deepseek_v3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
    '{"city": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek_v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Rome"}'
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "deepseek_v32": '\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter></｜DSML｜invoke>\n</｜DSML｜function_calls>',
    "deepseek_v4": '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter></｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
    "glm45": "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Rome</arg_value>\n</tool_call>",
    "minimax_m2": '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Rome</parameter></invoke>\n'
    "</minimax:tool_call>",
    "openai": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}',
}


def _accepts(tag: StructuredOutputs, text: str) -> bool:
    spec = tag.structural_tag
    grammar = xgrammar.Grammar.from_structural_tag(spec if isinstance(spec, str) else json.dumps(spec))
    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo([bytes([i]) for i in range(256)] + [b"<eos>"], stop_token_ids=[256])
    )
    matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(grammar))
    return matcher.accept_string(text) and matcher.accept_token(256)


@pytest.mark.parametrize("name", [*SHAPES, "openai"])
@pytest.mark.parametrize("named", [None, "weather"])
def test_a_native_spelling_accepts_what_the_model_writes_and_the_parser_reads(name: str, named: str | None) -> None:
    grammar = _grammar(name, named)
    assert grammar is not None
    text = WRITTEN[name]
    assert _accepts(grammar, text)
    assert not _accepts(grammar, "I would rather talk.")
    assert not _accepts(grammar, text.replace("city", "town"))
    options = ParserOptions(tools=[tool.as_template_data() for tool in TOOLS], tool_choice=named or "required")
    parser = MessageParser(find_format(name, None), options)
    message = assemble([parser.feed(text), parser.finish("stop")])
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [("weather", {"city": "Rome"})]


def test_mistral_without_the_newer_tokens_writes_a_list() -> None:
    grammar = _grammar("mistral", tokens=False)
    assert grammar is not None
    assert _accepts(grammar, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}]')


def test_a_format_without_a_spelling_has_no_grammar() -> None:
    assert _grammar("kimi_k2") is None


CONSTRAINTS = [
    (StructuredOutputs(json_object=True), '{"a": 1}', "x"),
    (StructuredOutputs(json={"type": "integer"}), "5", "x"),
    (StructuredOutputs(json='{"type": "integer"}'), "5", "x"),
    (StructuredOutputs(regex="[ab]+"), "abba", "x"),
    (StructuredOutputs(choice=["yes", "no"]), "yes", "maybe"),
    (StructuredOutputs(grammar='root ::= "ok"'), "ok", "x"),
]


@pytest.mark.parametrize(("given", "good", "bad"), CONSTRAINTS)
def test_harmony_constrains_the_final_message_after_any_reasoning(
    given: StructuredOutputs, good: str, bad: str
) -> None:
    tag = harmony_answer(given)
    thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    for before in ("", thought):
        assert _accepts(tag, f"{before}<|channel|>final<|message|>{good}")
        assert not _accepts(tag, f"{before}<|channel|>final<|message|>{bad}")
    kept = StructuredOutputs(structural_tag="{}")
    assert harmony_answer(kept) is kept


async def test_the_service_forces_by_the_servers_parser() -> None:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "granite4")
    tools = [tool.as_template_data() for tool in TOOLS]
    for choice, expected in (("required", call_list(TOOLS, parallel=True)), ("auto", None)):
        request, _ = convert(
            ChatCompletionRequest,
            {"messages": [{"role": "user", "content": "Hi"}], "tools": tools, "tool_choice": choice},
        )
        structured = (await render_service("smol", flags).chat(request)).sampling_params.structured_outputs
        assert (structured.json if structured is not None else None) == expected


async def test_calls_that_nobody_reads_are_refused() -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [TOOLS[1].as_template_data()],
        "tool_choice": "auto",
    }
    request, _ = convert(ChatCompletionRequest, body)
    with pytest.raises(InvalidRequestError, match="--tool-call-parser"):
        await render_service("smol").chat(request)
