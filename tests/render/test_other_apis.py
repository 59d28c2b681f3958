"""Anthropic messages and OpenAI responses as chat requests.

1. Messages: roles, tool results, thinking, system texts, images, tools that come and go, choices, effort. 2. Responses:
items into messages, flat tools, unfinished answers, text formats. 3. What needs stored state, or is no request, is
refused. 4. Both render to the ids of the chat they stand for.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.render import render_service
from tokenwire.errors import BodyValidationError, InvalidRequestError
from tokenwire.service.messages_to_chat import messages_to_chat
from tokenwire.service.responses_to_chat import responses_to_chat
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.codec import convert
from tokenwire.wire.generate import NamedToolChoice
from tokenwire.wire.messages import CountTokensRequest, MessagesRequest
from tokenwire.wire.responses import ResponsesRequest

TOOL = {"name": "f", "description": "d", "input_schema": {"properties": {}}}


def _messages(merge_system: bool = False, **fields: Any) -> ChatCompletionRequest:
    body = {"model": "smol", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}], **fields}
    request, _ = convert(MessagesRequest, body)
    return messages_to_chat(request, merge_system=merge_system)


def _responses(**fields: Any) -> ChatCompletionRequest:
    request, _ = convert(ResponsesRequest, {"input": "Hi", **fields})
    return responses_to_chat(request)


# --- messages -------------------------------------------------------------------------------------------------------


def test_a_tool_turn_becomes_calls_and_results() -> None:
    turns = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "20"}]},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    assert _messages(messages=turns).messages == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning": "hm",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "20"},
        {"role": "user", "content": "So?"},
    ]


def test_results_may_bring_images_and_references() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "QQ=="}
    content = [{"type": "image", "source": source}, {"type": "tool_reference", "tool_name": "g"}]
    turn = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}
    assert _messages(messages=[turn]).messages == [
        {"role": "tool", "tool_call_id": "t", "content": ""},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}]},
        {"role": "tool", "tool_call_id": "t", "content": [{"type": "tool_reference", "name": "g"}]},
    ]


def test_an_image_by_url_keeps_its_url() -> None:
    content = [{"type": "image", "source": {"type": "url", "url": "http://x"}}, {"type": "text", "text": "t"}]
    (message,) = _messages(messages=[{"role": "user", "content": content}]).messages
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "http://x"}},
        {"type": "text", "text": "t"},
    ]


@pytest.mark.parametrize("merge", [False, True])
def test_system_texts_stay_in_place_or_are_merged_in_front(merge: bool) -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: 1"}
    system = [header, {"type": "text", "text": "A"}]
    turns = [{"role": "user", "content": "u"}, {"role": "system", "content": "B"}, {"role": "user", "content": "v"}]
    roles = [(m["role"], m["content"]) for m in _messages(merge, system=system, messages=turns).messages]
    if merge:
        assert roles == [("system", "AB"), ("user", "u"), ("user", "v")]
    else:
        assert roles == [("system", "A"), ("user", "u"), ("system", "B"), ("user", "v")]


def test_tools_come_and_go_by_system_messages() -> None:
    added = {"type": "tool_definition", "definition": {"name": "g", "input_schema": {"type": "object"}}}
    changes = [
        {"type": "tool_addition", "tool": added},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}},
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "later"}},
    ]
    later = {**TOOL, "name": "later", "defer_loading": True}
    turns = [{"role": "user", "content": "u"}, {"role": "system", "content": changes}]
    tools = _messages(messages=turns, tools=[TOOL, later]).tools
    assert tools is not None
    assert [(tool.function.name, tool.function.defer_loading) for tool in tools] == [("later", None), ("g", None)]
    assert tools[0].function.parameters == {"properties": {}, "type": "object"}


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
    ],
)
def test_a_choice_has_another_name(choice: Any, expected: str, parallel: bool) -> None:
    request = _messages(tools=[TOOL], tool_choice=choice)
    assert (request.tool_choice, request.parallel_tool_calls) == (expected, parallel)
    assert _messages(tools=[TOOL], tool_choice={"type": "tool", "name": "f"}).named_tool == "f"


def test_thinking_effort_and_format_are_carried_over() -> None:
    schema = {"type": "object"}
    config = {"effort": "high", "format": {"type": "json_schema", "schema": schema}}
    request = _messages(output_config=config, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=2000)
    assert (request.reasoning_effort, request.thinking_token_budget) == ("high", 1024)
    assert request.response_format is not None
    assert request.response_format.json_schema is not None
    assert request.response_format.json_schema.schema == schema
    assert _messages(thinking={"type": "disabled"}, output_config=config).reasoning_effort == "none"


def test_a_stream_reports_usage_all_along() -> None:
    options = _messages(stream=True).stream_options
    assert options is not None
    assert (options.include_usage, options.continuous_usage_stats) == (True, True)
    assert _messages().stream_options is None


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tool_choice": {"type": "tool"}},
        {"messages": [{"role": "user", "content": [{"type": "tool_addition"}]}]},
        {"messages": [{"role": "system", "content": [{"type": "tool_addition"}]}]},
        {
            "messages": [
                {
                    "role": "system",
                    "content": [{"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}}],
                }
            ]
        },
    ],
)
def test_messages_that_do_not_hold_together_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        _messages(**fields)


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"model": ""}, {"messages": [{"role": "tool", "content": "x"}]}])
def test_messages_of_another_shape_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BodyValidationError):
        _messages(**fields)


# --- responses ------------------------------------------------------------------------------------------------------


def test_items_become_messages_and_parts_of_the_assistants() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "free text"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "reasoning", "id": "r2", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "message", "role": "assistant", "content": "b"},
    ]
    assert _responses(input=items, instructions="Be kind.").messages == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {
            "role": "assistant",
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": '{"input": "free text"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "input_text", "text": "2"}]},
        {"role": "assistant", "content": "a", "reasoning": "so"},
        {"role": "assistant", "content": "b"},
    ]


def test_flat_tools_and_choices_are_nested() -> None:
    tools = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True},
        {"type": "custom", "name": "g", "description": "free"},
    ]
    request = _responses(tools=tools, tool_choice={"type": "function", "name": "f"})
    assert request.tools is not None
    assert [tool.function.name for tool in request.tools] == ["f", "g"]
    assert request.tools[0].function.strict is True
    assert isinstance(request.tool_choice, NamedToolChoice)
    assert _responses(tools=tools, tool_choice="required").tool_choice == "required"
    assert _responses().effective_tool_choice == "none"


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
def test_an_unfinished_answer_is_gone_on_with(status: str) -> None:
    items = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Well", "status": status}]
    request = _responses(input=items)
    assert (request.continue_final_message, request.wants_generation_prompt) == (True, False)


def test_format_logprobs_effort_and_truncation_are_carried_over() -> None:
    request = _responses(
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "string"}}},
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        reasoning={"effort": "low"},
        truncation="auto",
        max_output_tokens=9,
    )
    assert request.response_format is not None
    assert (request.logprobs, request.top_logprobs, request.reasoning_effort) == (True, 2, "low")
    assert (request.truncate_prompt_tokens, request.requested_max_tokens) == (-1, 9)
    assert _responses(top_logprobs=2).top_logprobs == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"previous_input_messages": [{}]}, "previous_input_messages"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "name": "f"}], "tool_choice": "sometimes"}, "tool_choice"),
        ({"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "text"}}}, "structured_outputs"),
    ],
)
def test_responses_that_need_more_than_this_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        _responses(**fields)
    assert caught.value.param == param


# --- the same ids ---------------------------------------------------------------------------------------------------


async def test_all_three_apis_render_a_conversation_to_the_same_ids() -> None:
    service = render_service("smol")
    chat, _ = convert(
        ChatCompletionRequest,
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}], "max_tokens": 5},
    )
    messages, _ = convert(
        MessagesRequest,
        {"model": "smol", "system": "S", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
    )
    responses, _ = convert(ResponsesRequest, {"instructions": "S", "input": "Hi", "max_output_tokens": 5})
    expected = await service.chat(chat)
    by_messages, by_responses = await service.messages(messages), await service.responses(responses)
    assert by_messages.token_ids == by_responses.token_ids == expected.token_ids
    assert by_messages.sampling_params == by_responses.sampling_params == expected.sampling_params
    assert by_messages.request_id is not None
    assert by_messages.request_id.startswith("chatcmpl-")
    assert by_responses.request_id is not None
    assert by_responses.request_id.startswith("resp_")
    assert by_responses.parse_context is by_responses.reasoning_ended is by_responses.stream_options is None


async def test_counting_counts_the_prompt_that_would_be_rendered() -> None:
    service = render_service("smol")
    body = {"model": "smol", "system": "S", "messages": [{"role": "user", "content": "Hi"}]}
    count, _ = convert(CountTokensRequest, body)
    messages, _ = convert(MessagesRequest, {**body, "max_tokens": 5})
    assert await service.count_tokens(count) == len((await service.messages(messages)).token_ids)
