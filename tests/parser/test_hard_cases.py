"""Faults that servers of this kind have had, as small inputs with the right outcome.

10. Arguments are sent once, however the stream's end falls.
11. Empty arguments are `{}`, and the next call keeps its own.
12. Parallel calls have their own index and id; with parallel calls off there is only the first.
13. XML parameters are typed by the schema and by nothing else.
14. A call that is opened while still thinking is a call.
15. Sequential call ids go on from the conversation's count.
16. Thinking cut off by length is thinking.
17. Whether calls were made is the same streamed and whole, and for every tool choice.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenwire.derender.parser import (
    Message,
    MessageDelta,
    MessageParser,
    ParserOptions,
    assemble,
    find_format,
    reasoning_state_of_prompt,
)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def feed(parser: MessageParser, pieces: list[str], finish: str = "stop") -> list[MessageDelta]:
    return [*(parser.feed(piece) for piece in pieces), parser.finish(finish)]


def parsed(
    names: tuple[str | None, str | None], text: str, options: ParserOptions, finish: str = "stop"
) -> tuple[Message, MessageParser]:
    whole = MessageParser(find_format(*names), options)
    message = assemble(feed(whole, [text], finish))
    streamed = assemble(feed(MessageParser(find_format(*names), options), list(text), finish))
    assert (streamed.content, streamed.reasoning) == (message.content, message.reasoning)
    assert [c.arguments for c in streamed.tool_calls] == [c.arguments for c in message.tool_calls]
    return message, whole


SEATTLE = {"city": "Seattle", "unit": "c"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f'<tool_call>\n{{"name": "w", "arguments": {json.dumps(SEATTLE)}}}\n</tool_call>'),
        ("xlam", f'[{{"name": "w", "arguments": {json.dumps(SEATTLE)}}}]'),
    ],
)
def test_10_arguments_are_one_object_at_every_cut(name: str, text: str) -> None:
    for place in range(len(text) + 1):
        parser = MessageParser(find_format(name, None), ParserOptions(tools=[tool("w")], tool_choice="auto"))
        message = assemble(feed(parser, [text[:place], text[place:]]))
        assert [json.loads(call.arguments) for call in message.tool_calls] == [SEATTLE]


def test_11_empty_arguments_are_braces_and_take_nothing_from_the_next_call() -> None:
    text = (
        '<tool_call>{"name":"ping","arguments":{}}</tool_call><tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
    )
    message, _ = parsed(("hermes", None), text, ParserOptions(tools=[tool("ping"), tool("add")]))
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("ping", "{}"), ("add", '{"a":1}')]


TWO_CALLS = "".join(f'<tool_call>{{"name":"f","arguments":{{"a":{n}}}}}</tool_call>\n' for n in (1, 2))


def test_12_parallel_calls_have_their_own_index_and_id() -> None:
    parser = MessageParser(find_format("hermes", None), ParserOptions(tools=[tool("f")]))
    pieces = [call for delta in feed(parser, list(TWO_CALLS)) for call in delta.tool_calls]
    heads = [call for call in pieces if call.id is not None]
    assert [call.index for call in heads] == [0, 1]
    assert len({call.id for call in heads}) == 2
    assert all(call.name is None for call in pieces if call.id is None)


def test_12_with_parallel_calls_off_only_the_first_is_given() -> None:
    options = ParserOptions(tools=[tool("f")], parallel_tool_calls=False)
    message, parser = parsed(("hermes", None), TWO_CALLS, options)
    assert [call.arguments for call in message.tool_calls] == ['{"a":1}']
    assert parser.num_calls == 1


def test_13_xml_parameters_are_typed_by_the_schema() -> None:
    schema = {
        "zip": {"type": "string"},
        "n": {"type": "integer"},
        "r": {"type": "number"},
        "ok": {"type": "boolean"},
        "o": {"type": ["string", "null"]},
        "big": {"type": "number"},
        "s": {"type": "string"},
        "nil": {"type": "string"},
    }
    values = {
        "zip": "02134",
        "n": "5",
        "r": "5.0",
        "ok": "true",
        "o": "null",
        "big": "1e999",
        "s": "\n  a\n\n".removeprefix("\n").removesuffix("\n"),
        "nil": "null",
    }
    body = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items())
    text = f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    message, _ = parsed(("qwen3_xml", None), text, ParserOptions(tools=[tool("f", **schema)]))
    assert json.loads(message.tool_calls[0].arguments) == {
        "zip": "02134",
        "n": 5,
        "r": 5,
        "ok": True,
        "o": None,
        "big": "1e999",
        "s": "  a\n",
        "nil": "null",
    }


def test_14_a_call_opened_while_thinking_is_a_call() -> None:
    text = "plan A<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
    options = ParserOptions(tools=[tool("f", x={"type": "integer"})], prompt_reasoning="open")
    message, parser = parsed(("qwen3_coder", "qwen3"), text, options)
    assert message.reasoning == "plan A"
    assert message.content is None
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("f", '{"x": 1}')]
    assert parser.saw_tool_calls


@pytest.mark.parametrize(("name", "changes"), [("kimi_k2", {"forced": "json"}), ("granite", {"call_ids": "functions"})])
def test_15_sequential_ids_go_on_from_the_history(name: str, changes: dict[str, Any]) -> None:
    text = '[{"name": "get", "parameters": {}}, {"name": "get", "parameters": {}}]'
    options = ParserOptions(tools=[tool("get")], tool_choice="required", history_tool_call_cnt=2, **changes)
    message, _ = parsed((name, None), text, options)
    assert [call.id for call in message.tool_calls] == ["functions.get:2", "functions.get:3"]


def test_15_other_ids_are_random_and_distinct() -> None:
    messages = [parsed(("hermes", None), TWO_CALLS, ParserOptions(tools=[tool("f")]))[0] for _ in range(2)]
    ids = [call.id for message in messages for call in message.tool_calls]
    assert len(set(ids)) == 4
    assert all(id_.startswith("chatcmpl-tool-") for id_ in ids)


@pytest.mark.parametrize("text", ["I think", "<think>I think"])
def test_16_thinking_cut_off_is_thinking(text: str) -> None:
    message, _ = parsed((None, "qwen3"), text, ParserOptions(), "length")
    assert (message.reasoning, message.content) == ("I think", None)


NATIVE = '<|tool_call|>[{"name": "f", "arguments": {}}]'


@pytest.mark.parametrize(
    ("choice", "text", "calls"),
    [
        ("auto", NATIVE, 1),
        ("required", '[{"name": "f", "parameters": {}}]', 1),
        ("f", "{}", 1),
        ("auto", "no call", 0),
        ("required", "no call", 0),
        ("f", " \n", 0),
        ("none", NATIVE, 0),
    ],
)
def test_17_calls_are_seen_alike_for_every_choice(choice: str, text: str, calls: int) -> None:
    message, parser = parsed(("granite", None), text, ParserOptions(tools=[tool("f")], tool_choice=choice))
    assert len(message.tool_calls) == parser.num_calls == calls
    assert parser.saw_tool_calls is bool(calls)


def test_17_no_tools_and_choice_none_is_no_error() -> None:
    message, _ = parsed(("hermes", None), "hello", ParserOptions(tool_choice="none"))
    assert message.content == "hello"


def test_the_prompt_says_whether_reasoning_is_open() -> None:
    format = find_format("hermes", "qwen3")
    assert reasoning_state_of_prompt(format, "<|im_start|>assistant\n<think>\n") == "open"
    assert reasoning_state_of_prompt(format, ["<think>", "\n\n", "</think>", "\n\n"]) == "closed"
    assert reasoning_state_of_prompt(format, "<|im_start|>assistant\n") == "undecided"
    earlier = "<|im_start|>assistant\n<think>a</think>b<|im_end|>\n<|im_start|>assistant\n"
    assert reasoning_state_of_prompt(format, earlier) == "undecided"
    assert reasoning_state_of_prompt(format, "<think>", {"enable_thinking": False}) == "closed"
    assert reasoning_state_of_prompt(find_format("hermes", None), "<think>") == "closed"


def test_forced_content_holds_reasoning_until_it_is_known_what_follows() -> None:
    kept = ParserOptions(chat_template_kwargs={"force_nonempty_content": True})
    alone, _ = parsed((None, "nemotron_v3"), "<think>All I have.</think>\n", kept)
    assert (alone.reasoning, alone.content) == (None, "All I have.")
    both, _ = parsed((None, "nemotron_v3"), "<think>Hm.</think>\nYes.", kept)
    assert (both.reasoning, both.content) == ("Hm.", "\nYes.")
