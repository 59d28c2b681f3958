"""OpenAI's `/v1/responses` over a scripted engine, without stored state.

1. A whole response: items of reasoning, message and call; usage; status and why it is incomplete.
2. A stream: numbered events, items opened and closed in order, deltas that add up; its last response is the whole one.
3. Logprobs, custom tools.
4. What needs stored state is refused, each with its reason.
5. An error in a stream is one numbered event.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.openai.scripted import CALL, HI, RESPONSES, WEATHER, front, ids_of, named_events, post, says, whole
from tests.support.http import client_of
from tests.support.scripted_engine import Step, sequence
from tokenwire.errors import EngineUnavailableError

PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
TOOL = {"type": "function", **WEATHER["function"]}  # type: ignore[dict-item]
BODY: dict[str, Any] = {"input": "hi"}
WITH_TOOLS: dict[str, Any] = {**BODY, "tools": [TOOL]}
ANSWER = f"<think>Hm.</think>Let me look.\n{CALL}\n{CALL}"


def comparable(response: dict[str, Any]) -> dict[str, Any]:
    """Without what is made anew for each request."""
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    return {**response, "id": None, "created_at": None, "output": items}


def deltas(events: list[Any], kind: str) -> str:
    return "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")


# --- 1. whole responses


async def test_a_response_has_reasoning_message_and_calls_as_items() -> None:
    app, _ = front(says(ANSWER), **PARSERS)
    response = await whole(app, RESPONSES, {**WITH_TOOLS, "metadata": {"a": "b"}, "instructions": "Be kind."})
    assert response["id"].startswith("resp_")
    assert (response["object"], response["status"], response["store"]) == ("response", "completed", False)
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be kind.")
    reasoning, message, *calls = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Let me look.\n"
    assert [(c["type"], c["name"], c["arguments"]) for c in calls] == [
        ("function_call", "get_weather", '{"city": "Tōkyō"}')
    ] * 2
    assert len({item["id"] for item in response["output"]}) == 4
    assert {item["status"] for item in response["output"]} == {"completed"}
    usage = response["usage"]
    assert usage["output_tokens"] == len(ids_of(ANSWER)) + 1
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


async def test_an_answer_that_was_cut_off_is_incomplete() -> None:
    app, _ = front(says("Hello", end="length"))
    response = await whole(app, RESPONSES, {**BODY, "max_output_tokens": 1})
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][-1]["status"] == "incomplete"
    events = await named_events(app, RESPONSES, BODY)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_earlier_calls_and_their_output_are_part_of_the_input() -> None:
    app, engine = front(says("Sunny"), **PARSERS)
    items = [
        *HI,
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
    ]
    response = await whole(app, RESPONSES, {**WITH_TOOLS, "input": items})
    assert response["output"][0]["content"][0]["text"] == "Sunny"
    assert len(engine.requests[0].prompt_token_ids) > len(ids_of("hi"))


# --- 2. streams


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("text", [ANSWER, "Just words", "", CALL])
async def test_a_stream_ends_with_the_whole_response(text: str, step: int) -> None:
    app, _ = front(says(text, step=step), **PARSERS)
    given = await whole(app, RESPONSES, WITH_TOOLS)
    events = await named_events(app, RESPONSES, WITH_TOOLS)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[-1]["type"] == "response.completed"
    assert comparable(events[-1]["response"]) == comparable(given)
    added = [event for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert [event["output_index"] for event in added] == list(range(len(done)))
    assert [event["item"]["id"] for event in added] == [item["id"] for item in done]


async def test_a_stream_s_deltas_are_its_texts_and_arguments() -> None:
    app, _ = front(says(ANSWER), **PARSERS)
    events = await named_events(app, RESPONSES, WITH_TOOLS)
    assert deltas(events, "reasoning_text") == "Hm."
    assert deltas(events, "output_text") == "Let me look.\n"
    assert deltas(events, "function_call_arguments") == '{"city": "Tōkyō"}' * 2
    finished = [e["arguments"] for e in events if e["type"] == "response.function_call_arguments.done"]
    assert finished == ['{"city": "Tōkyō"}'] * 2
    for event in events:
        if event["type"].endswith((".delta", ".done")) and "item_id" in event:
            assert event["item_id"] == events[-1]["response"]["output"][event["output_index"]]["id"]


async def test_transfer_params_and_timings_are_in_the_last_response() -> None:
    app, _ = front(says("Hello", kv_transfer_params={"block": 1}), enable_per_request_metrics=True)
    for response in (
        await whole(app, RESPONSES, BODY),
        (await named_events(app, RESPONSES, BODY))[-1]["response"],
    ):
        assert response["kv_transfer_params"] == {"block": 1}
        assert response["metrics"]["time_to_first_token_ms"] >= 0


# --- 3. logprobs, custom tools


async def test_logprobs_come_when_included_and_none_is_lost() -> None:
    app, _ = front(says("Hello there"))
    body = {**BODY, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    scores = (await whole(app, RESPONSES, body))["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in scores] == ["Hello", " there", "<|im_end|>"]
    assert len(scores[0]["top_logprobs"]) == 1
    events = await named_events(app, RESPONSES, body)
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == scores
    given = [e for event in events if event["type"] == "response.output_text.delta" for e in event["logprobs"]]
    assert given == scores[:2], "the end of the turn has no text to ride on"
    assert (await whole(app, RESPONSES, BODY))["output"][0]["content"][0]["logprobs"] is None


async def test_a_custom_tool_gets_its_text() -> None:
    call = '<tool_call>\n{"name": "shell", "arguments": {"input": "ls -l"}}\n</tool_call>'
    app, _ = front(says(call), tool_call_parser="hermes")
    body = {**BODY, "tools": [{"type": "custom", "name": "shell"}]}
    item = (await whole(app, RESPONSES, body))["output"][0]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "shell", "ls -l")
    events = await named_events(app, RESPONSES, body)
    assert deltas(events, "custom_tool_call_input") == "ls -l"
    assert deltas(events, "function_call_arguments") == ""


# --- 4. stored state


@pytest.mark.parametrize(
    ("change", "param"),
    [({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background")],
)
async def test_stored_state_is_refused_by_name(change: Any, param: str) -> None:
    app, engine = front(says("x"))
    answer = await post(app, RESPONSES, {**BODY, **change})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert "stores no responses" in answer.json()["error"]["message"]
    assert engine.requests == []


async def test_there_is_no_response_to_get_delete_or_cancel() -> None:
    app, _ = front(says("x"))
    async with client_of(app) as client:
        for answer in (
            await client.get(f"{RESPONSES}/resp_1"),
            await client.delete(f"{RESPONSES}/resp_1"),
            await client.post(f"{RESPONSES}/resp_1/cancel"),
        ):
            assert answer.status_code == 400
            assert "stores no responses" in answer.json()["error"]["message"]


# --- 5. errors


async def test_a_failure_in_a_stream_is_one_numbered_event() -> None:
    steps = [Step(sequence(ids_of("Hello"), finish_reason=None)), Step(error=EngineUnavailableError("gone"))]
    app, _ = front(steps)
    events = await named_events(app, RESPONSES, BODY)
    last = events[-1]
    assert (last["type"], last["message"], last["sequence_number"]) == ("error", "gone", len(events) - 1)
    assert last["error"]["code"] == 503
