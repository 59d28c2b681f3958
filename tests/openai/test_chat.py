"""`/v1/chat/completions` over a scripted engine.

1. A stream: role first, deltas with nothing but news, a finish chunk, usage when asked, [DONE]; it adds up to the
   whole message.
2. n, logprobs and top_logprobs, return_tokens_as_token_ids, token ids, prompt ids and prompt logprobs.
3. Tools: auto, required, named and none, parallel calls, hidden reasoning.
4. response_format reaches the engine as structured outputs.
5. echo, prompt text, stop strings and stop reasons, transfer params.
6. Ids, session, priority, fingerprint, usage details, timings, forced usage.
7. Errors: those of generate, before the first byte; an error event and [DONE] after it. Abort by the reply's id.
8. Leaving aborts the request.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.openai.scripted import (
    CALL,
    CHAT,
    EOS,
    HI,
    SMOL,
    WEATHER,
    add_up,
    front,
    ids_of,
    of_choice,
    plain,
    post,
    says,
    streamed,
    whole,
    without_ids,
)
from tests.support.http import RawClient, app_of, client_of, events_of, serving, until
from tests.support.scripted_engine import ScriptedEngine, Step, one_sequence, sequence
from tokenwire.engine.base import PromptOutput
from tokenwire.errors import EngineUnavailableError

PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
ANSWER = f"<think>Hm.</think>Let me look.\n{CALL}"
BODY: dict[str, Any] = {"messages": HI, "max_tokens": 300}
WITH_TOOLS: dict[str, Any] = {**BODY, "tools": [WEATHER]}


# --- 1. streams


async def test_a_stream_begins_with_the_role_and_ends_with_a_reason_and_done() -> None:
    app, _ = front(says("Hello there"))
    events = await streamed(app, CHAT, BODY)
    choices = of_choice(events)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [choice["delta"] for choice in choices[1:-1]] == [{"content": "Hello"}, {"content": " there"}]
    assert (choices[-1]["delta"], choices[-1]["finish_reason"]) == ({}, "stop")
    assert all(choice["finish_reason"] is None for choice in choices[:-1])
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert not any("usage" in event for event in events)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
async def test_a_stream_adds_up_to_the_whole_message(step: int) -> None:
    app, _ = front(says(ANSWER, step=step), **PARSERS)
    given = (await whole(app, CHAT, WITH_TOOLS))["choices"][0]
    choices = of_choice(await streamed(app, CHAT, WITH_TOOLS))
    assert without_ids(add_up(choice["delta"] for choice in choices)) == without_ids(plain(given["message"]))
    assert choices[-1]["finish_reason"] == given["finish_reason"] == "tool_calls"
    assert plain(given["message"])["reasoning"] == "Hm."
    assert plain(given["message"])["tool_calls"][0]["arguments"] == '{"city": "Tōkyō"}'
    for choice in choices[1:]:
        assert set(choice["delta"]) <= {"content", "reasoning", "tool_calls"}
        assert None not in choice["delta"].values()
    heads = [call for choice in choices for call in choice["delta"].get("tool_calls", ()) if "id" in call]
    assert [(call["type"], call["function"]["name"]) for call in heads] == [("function", "get_weather")]


async def test_usage_comes_last_when_asked_and_counts_are_those_of_the_whole_reply() -> None:
    app, _ = front(says("Hello there"))
    usage = (await whole(app, CHAT, BODY))["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["prompt_tokens_details"] is None
    events = await streamed(app, CHAT, {**BODY, "stream_options": {"include_usage": True}})
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], usage)
    assert not any("usage" in event for event in events[:-1])


async def test_continuous_usage_counts_up() -> None:
    app, _ = front(says("Hello there"))
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await streamed(app, CHAT, {**BODY, "stream_options": options})
    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]
    assert len({event["usage"]["prompt_tokens"] for event in events}) == 1


async def test_the_operator_may_want_usage_in_every_stream() -> None:
    app, _ = front(says("Hello"), enable_force_include_usage=True)
    events = await streamed(app, CHAT, BODY)
    assert (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]) == ([], 2)


async def test_a_token_that_shows_nothing_makes_no_chunk() -> None:
    app, _ = front(says("<think>Hm.</think>Hi"), **PARSERS)
    body = {**BODY, "include_reasoning": False}
    choices = of_choice(await streamed(app, CHAT, body))
    assert [choice["delta"] for choice in choices] == [{"role": "assistant", "content": ""}, {"content": "Hi"}, {}]
    assert all(choice.get("token_ids") is None for choice in choices)


# --- 2. n, logprobs, ids


async def test_every_choice_of_n_has_its_own_role_message_and_end() -> None:
    app, _ = front(says("One", "Two", "Three more"))
    body = {**BODY, "n": 3, "temperature": 1}
    reply = await whole(app, CHAT, body)
    assert [c["message"]["content"] for c in reply["choices"]] == ["One", "Two", "Three more"]
    assert [c["index"] for c in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["completion_tokens"] == 2 + 2 + 3
    events = await streamed(app, CHAT, {**body, "stream_options": {"include_usage": True}})
    for index, text in enumerate(["One", "Two", "Three more"]):
        choices = of_choice(events, index)
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert add_up(c["delta"] for c in choices)["content"] == text
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert events[-1]["usage"] == reply["usage"]


@pytest.mark.parametrize(("top", "expected"), [(0, 0), (2, 2)])
async def test_logprobs_are_cut_to_top_logprobs(top: int, expected: int) -> None:
    app, _ = front(says("Hello there"))
    body = {**BODY, "logprobs": True, "top_logprobs": top}
    content = (await whole(app, CHAT, body))["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["Hello", " there", "<|im_end|>"]
    assert content[0]["bytes"] == list(b"Hello")
    assert {len(entry["top_logprobs"]) for entry in content} == {expected}
    chunks = of_choice(await streamed(app, CHAT, body))
    assert [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]] == content


async def test_without_logprobs_there_are_none() -> None:
    app, engine = front(says("Hello"))
    assert (await whole(app, CHAT, BODY))["choices"][0]["logprobs"] is None
    assert engine.requests[0].sampling.logprobs is None


@pytest.mark.parametrize(("server", "asked", "shown"), [(False, True, True), (True, None, True), (True, False, False)])
async def test_tokens_are_shown_as_ids_by_request_or_server(server: bool, asked: bool | None, shown: bool) -> None:
    app, _ = front(says("Hello"), return_tokens_as_token_ids=server)
    body = {**BODY, "logprobs": True, "return_tokens_as_token_ids": asked}
    entry = (await whole(app, CHAT, body))["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == (f"token_id:{ids_of('Hello')[0]}" if shown else "Hello")


async def test_ids_come_when_asked_and_are_those_of_the_engine() -> None:
    app, engine = front(says("Hello there"))
    body = {**BODY, "return_token_ids": True}
    reply = await whole(app, CHAT, body)
    ids = [*ids_of("Hello there"), EOS]
    assert reply["choices"][0]["token_ids"] == ids
    assert reply["prompt_token_ids"] == engine.requests[0].prompt_token_ids
    events = await streamed(app, CHAT, body)
    assert events[0]["prompt_token_ids"] == reply["prompt_token_ids"]
    assert [t for c in of_choice(events) for t in c.get("token_ids", ())] == ids
    bare = await whole(app, CHAT, BODY)
    assert bare["choices"][0]["token_ids"] is bare["prompt_token_ids"] is None


async def test_prompt_logprobs_come_with_the_reply() -> None:
    app, engine = front(says("Hello"))
    reply = await whole(app, CHAT, {**BODY, "prompt_logprobs": 1})
    prompt = engine.requests[0].prompt_token_ids
    assert reply["prompt_logprobs"][0] is None
    assert len(reply["prompt_logprobs"]) == len(prompt)
    assert reply["prompt_logprobs"][1][str(prompt[1])]["logprob"] == -0.25


# --- 3. tools


@pytest.mark.parametrize(
    ("choice", "text", "reason", "num_calls"),
    [
        ("auto", CALL, "tool_calls", 1),
        ("required", CALL, "tool_calls", 1),
        ({"type": "function", "function": {"name": "get_weather"}}, CALL, "stop", 1),
        ("none", "Just words", "stop", 0),
    ],
)
async def test_tool_choice_decides_how_the_answer_is_read(choice: Any, text: str, reason: str, num_calls: int) -> None:
    app, engine = front(says(text), tool_call_parser="hermes")
    body = {**WITH_TOOLS, "tool_choice": choice}
    given = (await whole(app, CHAT, body))["choices"][0]
    if choice not in ("auto", "none"):
        assert engine.requests[0].sampling.structured_outputs is not None
    choices = of_choice(await streamed(app, CHAT, body))
    for message in (plain(given["message"]), add_up(c["delta"] for c in choices)):
        assert len(message["tool_calls"]) == num_calls
        for call in message["tool_calls"]:
            assert msgspec.json.decode(call["arguments"]) == {"city": "Tōkyō"}
    assert given["finish_reason"] == choices[-1]["finish_reason"] == reason


async def test_parallel_tool_calls_false_keeps_the_first() -> None:
    app, _ = front(says(f"{CALL}\n{CALL}"), **PARSERS)
    for parallel, count in ((True, 2), (False, 1)):
        body = {**WITH_TOOLS, "parallel_tool_calls": parallel}
        assert len((await whole(app, CHAT, body))["choices"][0]["message"]["tool_calls"]) == count
        assert len(add_up(c["delta"] for c in of_choice(await streamed(app, CHAT, body)))["tool_calls"]) == count


async def test_a_tool_choice_that_nobody_reads_is_refused() -> None:
    app, engine = front(says("x"))
    answer = await post(app, CHAT, {**WITH_TOOLS, "tool_choice": "auto"})
    assert answer.status_code == 400
    assert "--tool-call-parser" in answer.json()["error"]["message"]
    assert engine.requests == []


async def test_hidden_reasoning_is_nowhere_in_the_reply() -> None:
    app, _ = front(says("<think>secret</think>Hi"), **PARSERS)
    body = {**BODY, "include_reasoning": False, "logprobs": True, "return_token_ids": True}
    answer = await post(app, CHAT, body)
    assert answer.json()["choices"][0]["message"]["content"] == "Hi"
    assert "secret" not in answer.text
    assert answer.json()["choices"][0]["logprobs"] is answer.json()["choices"][0]["token_ids"] is None


# --- 4. structured outputs


@pytest.mark.parametrize(
    ("format", "field"),
    [
        ({"type": "json_object"}, "json_object"),
        ({"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}, "json"),
    ],
)
async def test_response_format_constrains_the_engine(format: dict[str, Any], field: str) -> None:
    app, engine = front(says("{}"))
    reply = await whole(app, CHAT, {**BODY, "response_format": format})
    assert reply["choices"][0]["message"]["content"] == "{}"
    structured = engine.requests[0].sampling.structured_outputs
    assert structured is not None
    assert getattr(structured, field)


# --- 5. echo, stop, transfer params


async def test_echo_puts_the_last_assistant_message_before_the_answer() -> None:
    app, _ = front(says(" there"))
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}]
    for content, text in (("Hello", "Hello"), (parts, "Hello\nyou")):
        messages = [*HI, {"role": "assistant", "content": content}]
        body = {**BODY, "messages": messages, "echo": True, "continue_final_message": True}
        body["add_generation_prompt"] = False
        assert (await whole(app, CHAT, body))["choices"][0]["message"]["content"] == f"{text} there"
        deltas = [c["delta"] for c in of_choice(await streamed(app, CHAT, body))]
        assert deltas[:2] == [{"role": "assistant", "content": ""}, {"content": text}]
        assert add_up(deltas)["content"] == f"{text} there"


async def test_echo_of_a_user_s_turn_adds_nothing() -> None:
    app, _ = front(says("Hello"))
    assert (await whole(app, CHAT, {**BODY, "echo": True}))["choices"][0]["message"]["content"] == "Hello"


async def test_the_prompt_s_text_comes_when_asked() -> None:
    app, engine = front(says("Hello"))
    reply = await whole(app, CHAT, {**BODY, "return_prompt_text": True})
    assert reply["prompt_text"] == SMOL.decode(engine.requests[0].prompt_token_ids)
    events = await streamed(app, CHAT, {**BODY, "return_prompt_text": True})
    assert events[0]["prompt_text"] == reply["prompt_text"]
    assert not any("prompt_text" in event for event in events[1:])


async def test_a_stop_string_ends_the_message_and_is_the_stop_reason() -> None:
    app, engine = front(says("Hello END more", end="length"))
    body = {**BODY, "stop": ["END"]}
    given = (await whole(app, CHAT, body))["choices"][0]
    assert (given["message"]["content"], given["finish_reason"], given["stop_reason"]) == ("Hello ", "stop", "END")
    choices = of_choice(await streamed(app, CHAT, body))
    assert add_up(c["delta"] for c in choices)["content"] == "Hello "
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "END")
    assert all("stop_reason" not in c for c in choices[:-1])
    assert len(engine.stopped) == 2


async def test_transfer_params_go_in_and_come_out() -> None:
    app, engine = front(says("Hello", kv_transfer_params={"block": 1}))
    body = {**BODY, "kv_transfer_params": {"do_remote_decode": True}}
    assert (await whole(app, CHAT, body))["kv_transfer_params"] == {"block": 1}
    assert engine.requests[0].kv_transfer_params == {"do_remote_decode": True}
    assert (await streamed(app, CHAT, body))[-1]["kv_transfer_params"] == {"block": 1}


# --- 6. ids, headers, settings


async def test_the_id_is_the_header_s_else_the_body_s_and_has_no_generate_prefix() -> None:
    app, engine = front(says("Hello"))
    assert (await whole(app, CHAT, BODY, x_request_id="abc"))["id"] == "chatcmpl-abc"
    assert (await whole(app, CHAT, {**BODY, "request_id": "xyz"}))["id"] == "chatcmpl-xyz"
    assert engine.requests[0].request_id.startswith("chatcmpl-abc")


async def test_the_session_of_the_body_wins() -> None:
    app, engine = front(says("Hello"))
    await whole(app, CHAT, {**BODY, "session_id": "body"}, x_session_id="header")
    await whole(app, CHAT, BODY, x_session_id="header")
    await whole(app, CHAT, {**BODY, "vllm_xargs": {"session_id": "extra"}})
    assert [request.session_id for request in engine.requests] == ["body", "header", "extra"]


@pytest.mark.parametrize(("header", "priority"), [("7", 7), ("-3", -3), ("high", 1)])
async def test_the_priority_header_wins_if_it_is_a_number(header: str, priority: int) -> None:
    app, engine = front(says("Hello"))
    await whole(app, CHAT, {**BODY, "priority": 1}, x_vllm_priority=header)
    assert engine.requests[0].priority == priority


async def test_a_priority_beyond_64_bits_is_refused() -> None:
    app, _ = front(says("Hello"))
    assert (await post(app, CHAT, BODY, x_vllm_priority=str(2**70))).status_code == 400


async def test_the_fingerprint_is_stable_and_everywhere() -> None:
    app, _ = front(says("Hello"))
    other, _ = front(says("Other"))
    print_ = (await whole(app, CHAT, BODY))["system_fingerprint"]
    assert print_.startswith("tokenwire-")
    assert (await whole(other, CHAT, BODY))["system_fingerprint"] == print_
    assert {event["system_fingerprint"] for event in await streamed(app, CHAT, BODY)} == {print_}
    shorter, _ = front(says("Hello"), tool_call_parser="hermes", chat_template="{{ messages[0].content }}")
    assert (await whole(shorter, CHAT, BODY))["system_fingerprint"] != print_


async def test_cached_tokens_are_told_when_the_operator_says_so() -> None:
    app, _ = front(says("Hello"), enable_prompt_tokens_details=True)
    assert (await whole(app, CHAT, BODY))["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    events = await streamed(app, CHAT, {**BODY, "stream_options": {"include_usage": True}})
    assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


async def test_timings_are_told_when_the_operator_says_so() -> None:
    script = one_sequence(ids_of("a b c"), delay_s=0.02, finish_reason="length")
    app, engine = front(script, enable_per_request_metrics=True)
    metrics = (await whole(app, CHAT, BODY))["metrics"]
    assert metrics["time_to_first_token_ms"] >= 15
    assert metrics["generation_time_ms"] >= 25
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 2)
    assert 0 < metrics["tokens_per_second"] < 3 / 0.05
    assert engine.requests[0].stream, "a first token is only seen by who watches"
    events = await streamed(app, CHAT, {**BODY, "stream_options": {"include_usage": True}})
    assert events[-1]["metrics"]["time_to_first_token_ms"] >= 15
    engine.script = says("a", "b")
    assert (await whole(app, CHAT, {**BODY, "n": 2, "temperature": 1}))["metrics"] is None, "they would be nobody's"


async def test_messagepack_goes_in_and_comes_out() -> None:
    app, _ = front(says("Hello"))
    headers = {"content-type": "application/msgpack", "accept": "application/msgpack"}
    async with client_of(app) as client:
        answer = await client.post(CHAT, content=msgspec.msgpack.encode(BODY), headers=headers)
    assert msgspec.msgpack.decode(answer.content)["choices"][0]["message"]["content"] == "Hello"


# --- 7. errors


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"model": "nope"}, 404, "NotFoundError"),
        ({"messages": "x"}, 400, "Bad Request"),
        ({"messages": [{"content": "x"}]}, 400, "Bad Request"),
        ({"temperature": 3}, 400, "BadRequestError"),
        ({"n": 2, "temperature": 0}, 400, "BadRequestError"),
        ({"top_logprobs": 2}, 400, "BadRequestError"),
        ({"stream": True, "prompt_logprobs": 1}, 400, "BadRequestError"),
        ({"max_tokens": 10**6}, 400, "BadRequestError"),
    ],
)
async def test_what_can_be_refused_is_refused_before_the_first_byte(change: Any, status: int, kind: str) -> None:
    app, engine = front(says("x"))
    answer = await post(app, CHAT, {**BODY, **change})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (status, status, kind)
    assert engine.requests == []


async def test_a_server_without_a_tokenizer_says_so() -> None:
    answer = await post(app_of(tokens_only=True), CHAT, BODY)
    assert answer.status_code == 400
    assert "/inference/v1/generate" in answer.json()["error"]["message"]


async def test_a_failure_in_a_stream_is_one_error_event_and_done() -> None:
    steps = [Step(sequence(ids_of("Hello"), finish_reason=None)), Step(error=EngineUnavailableError("gone"))]
    app, _ = front(steps)
    events = await streamed(app, CHAT, BODY)
    assert add_up(c["delta"] for c in of_choice(events[:-1]))["content"] == "Hello"
    assert events[-1]["error"]["code"] == 503
    answer = await post(app, CHAT, BODY)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_is_aborted_by_its_id(stream: bool) -> None:
    outputs = sequence(ids_of("Hello"), finish_reason=None)
    outputs[0].prompt = PromptOutput(num_cached_tokens=0)
    app, engine = front([Step(outputs), Step(delay_s=30)])
    async with client_of(app) as client:
        asking = asyncio.create_task(client.post(CHAT, json={**BODY, "stream": stream}, headers={"x-request-id": "me"}))
        await until(lambda: engine.requests)
        await asyncio.sleep(0.02)
        answer = await client.post("/inference/v1/abort_requests", json={"request_ids": ["chatcmpl-me", "chatcmpl-no"]})
        assert answer.json() == {"aborted": ["chatcmpl-me"], "unknown": ["chatcmpl-no"]}
        reply = await asking
    last = of_choice(events_of(reply.text))[-1] if stream else reply.json()["choices"][0]
    assert last["finish_reason"] == "abort"


# --- 8. leaving


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_aborts_the_request_once(stream: bool) -> None:
    app, engine = front(one_sequence(ids_of("word " * 100), delay_s=0.01))
    async with serving(app) as port:
        client = await RawClient.open(port)
        await client.post({**BODY, "stream": stream}, CHAT)
        await until(lambda: engine.requests)
        await asyncio.sleep(0.05)
        client.drop()
        await until(lambda: engine.aborted and engine.num_live == 0)
    assert engine.aborted == [engine.requests[0].request_id]
    assert isinstance(engine, ScriptedEngine)
