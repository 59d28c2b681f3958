"""Anthropic's `/v1/messages` over a scripted engine.

1. A whole message: blocks of thinking, text and tool use; ids; usage.
2. A stream's events: one start, blocks that open, grow and close in order, the stop with its usage; it adds up to
   the whole message.
3. Stop reasons: end_turn, max_tokens, stop_sequence, tool_use (forced calls too), none for an abort.
4. Arguments that are no JSON object are kept, whole and streamed.
5. Errors in Anthropic's shape on these paths only, streamed as the event `error`; keys are read from x-api-key.
6. Counting tokens, also on a front end without an engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.openai.scripted import CALL, CHAT, HI, MESSAGES, SMOL, front, ids_of, named_events, post, says, whole
from tests.support.http import settings_of
from tests.support.scripted_engine import Step, sequence
from tokenwire.errors import EngineUnavailableError
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server

PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
TOOL = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
BODY: dict[str, Any] = {"model": "m", "max_tokens": 300, "messages": HI}
WITH_TOOLS: dict[str, Any] = {**BODY, "tools": [TOOL]}
ANSWER = f"<think>Hm.</think>Let me look.\n{CALL}\n{CALL}"


def add_up(events: list[Any]) -> dict[str, Any]:
    """A stream's message, as a client puts it together."""
    assert events[0]["type"] == "message_start"
    message: dict[str, Any] = {**events[0]["message"], "content": []}
    is_open = False
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append({**event["content_block"], "json": ""})
                is_open = True
            case "content_block_delta":
                assert is_open
                block, delta = message["content"][event["index"]], dict(event["delta"])
                kind = delta.pop("type")
                name, value = next(iter(delta.items()))
                if kind == "input_json_delta":
                    block["json"] += value
                else:
                    assert kind == f"{name}_delta"
                    block[name] += value
            case "content_block_stop":
                is_open = False
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    for block in message["content"]:
        text = block.pop("json")
        if block["type"] == "tool_use" and text:
            block["input"] = json.loads(text)
    return message


def comparable(message: dict[str, Any]) -> dict[str, Any]:
    """Without what is made anew for each request."""
    blocks = [{k: v for k, v in block.items() if k not in ("id", "signature")} for block in message["content"]]
    return {**message, "id": None, "content": blocks}


# --- 1. whole messages, 2. streams


async def test_a_message_has_thinking_text_and_calls_as_blocks() -> None:
    app, _ = front(says(ANSWER), **PARSERS)
    message = await whole(app, MESSAGES, WITH_TOOLS, x_request_id="me")
    assert (message["id"], message["type"], message["role"]) == ("msg_me", "message", "assistant")
    thinking, text, *calls = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Hm.")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Let me look.\n"}
    assert [(c["type"], c["name"], c["input"]) for c in calls] == [("tool_use", "get_weather", {"city": "Tōkyō"})] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens"] == len(ids_of(ANSWER)) + 1


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
@pytest.mark.parametrize("text", [ANSWER, "Just words", "", "<think>only", CALL])
async def test_a_stream_adds_up_to_the_whole_message(text: str, step: int) -> None:
    app, _ = front(says(text, step=step), **PARSERS)
    given = await whole(app, MESSAGES, WITH_TOOLS)
    assert comparable(add_up(await named_events(app, MESSAGES, WITH_TOOLS))) == comparable(given)


async def test_a_stream_names_the_prompt_s_tokens_at_once() -> None:
    app, _ = front(says("Hello"))
    start = (await named_events(app, MESSAGES, BODY))[0]["message"]
    usage = (await whole(app, MESSAGES, BODY))["usage"]
    assert start["usage"]["input_tokens"] == usage["input_tokens"] > 0
    assert (start["content"], start["stop_reason"]) == ([], None)


async def test_cached_tokens_are_counted_apart() -> None:
    app, _ = front(says("Hello"), enable_prompt_tokens_details=True)
    told = (await whole(app, MESSAGES, BODY))["usage"]
    quiet, _ = front(says("Hello"))
    assert told["cache_read_input_tokens"] == 2
    assert told["input_tokens"] + 2 == (await whole(quiet, MESSAGES, BODY))["usage"]["input_tokens"]


async def test_an_empty_answer_is_one_empty_text() -> None:
    app, _ = front(says(""))
    assert (await whole(app, MESSAGES, BODY))["content"] == [{"type": "text", "text": ""}]


# --- 3. stop reasons


@pytest.mark.parametrize(
    ("text", "end", "change", "reason", "sequence_"),
    [
        ("Hello", "stop", {}, "end_turn", None),
        ("Hello", "length", {}, "max_tokens", None),
        ("Hello", "repetition", {}, "end_turn", None),
        ("Hello", "abort", {}, None, None),
        ("Hello END x", "length", {"stop_sequences": ["END"]}, "stop_sequence", "END"),
        (CALL, "stop", {"tools": [TOOL]}, "tool_use", None),
        (CALL, "stop", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}}, "tool_use", None),
        (CALL, "stop", {"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_use", None),
        (CALL, "length", {"tools": [TOOL]}, "max_tokens", None),
    ],
)
async def test_the_stop_reason_is_anthropic_s(
    text: str, end: str, change: Any, reason: str | None, sequence_: str | None
) -> None:
    app, _ = front(says(text, end=end), tool_call_parser="hermes")
    body = {**BODY, **change}
    for message in (await whole(app, MESSAGES, body), add_up(await named_events(app, MESSAGES, body))):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence_)


# --- 4. arguments


async def test_arguments_that_were_cut_off_are_kept() -> None:
    cut = CALL.partition("kyō")[0]
    app, _ = front(says(cut, end="length"), tool_call_parser="hermes")
    call = (await whole(app, MESSAGES, WITH_TOOLS))["content"][-1]
    assert call["input"] == {"raw_arguments": '{"city": "Tō'}
    events = await named_events(app, MESSAGES, WITH_TOOLS)
    parts = [e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"]
    assert "".join(parts) == '{"city": "Tō'


# --- 5. errors


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"model": "nope"}, 404, "not_found_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "nonsense"}]}]}, 400, "invalid_request_error"),
        ({"temperature": 9}, 400, "invalid_request_error"),
    ],
)
async def test_errors_have_anthropic_s_shape(change: Any, status: int, kind: str) -> None:
    app, engine = front(says("x"))
    answer = await post(app, MESSAGES, {**BODY, **change})
    assert answer.status_code == status
    assert answer.json() == {"type": "error", "error": {"type": kind, "message": answer.json()["error"]["message"]}}
    assert answer.json()["error"]["message"]
    assert engine.requests == []


async def test_other_paths_keep_the_standard_shape() -> None:
    app, _ = front(says("x"))
    for path in (f"{MESSAGES}/render", CHAT):
        assert "code" in (await post(app, path, {"model": "m"})).json()["error"]


async def test_a_failure_in_a_stream_is_the_event_error() -> None:
    steps = [Step(sequence(ids_of("Hello"), finish_reason=None)), Step(error=EngineUnavailableError("gone"))]
    app, _ = front(steps)
    events = await named_events(app, MESSAGES, BODY)
    assert events[-1] == {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}
    assert [event["type"] for event in events].count("error") == 1


async def test_a_key_may_come_as_anthropic_s_clients_send_it() -> None:
    app, _ = front(says("Hello"), api_key=["k"])
    assert (await post(app, MESSAGES, BODY, x_api_key="k")).status_code == 200
    refused = await post(app, MESSAGES, BODY, x_api_key="wrong")
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert (await post(app, MESSAGES, BODY)).status_code == 401
    assert (await post(app, MESSAGES, BODY, authorization="Bearer wrong", x_api_key="k")).status_code == 401


# --- 6. counting


async def test_counting_gives_the_prompt_s_length() -> None:
    app, engine = front(says("Hello"), **PARSERS)
    counted = await whole(app, f"{MESSAGES}/count_tokens", {k: v for k, v in WITH_TOOLS.items() if k != "max_tokens"})
    await whole(app, MESSAGES, WITH_TOOLS)
    assert counted == {"input_tokens": len(engine.requests[0].prompt_token_ids)}
    assert (await post(app, f"{MESSAGES}/count_tokens", {"model": "m"})).json()["type"] == "error"


async def test_a_front_end_without_an_engine_counts() -> None:
    app = create_app(build_server(settings_of(), None, tokenizer=SMOL))
    body = {"model": "m", "messages": HI}
    assert (await whole(app, f"{MESSAGES}/count_tokens", body))["input_tokens"] > 5
    assert (await post(app, MESSAGES, BODY)).status_code == 404
