"""`/v1/completions` over a scripted engine.

1. One prompt or several, as text or ids; choice i of prompt p has index p * n + i; whole and streamed agree.
2. Logprobs as parallel lists with offsets; token ids; logprob_token_ids.
3. echo: the prompt's text, its logprobs, max_tokens 0, whole and streamed.
4. Ids, usage over all prompts, transfer params, abort of all prompts by one id, errors of one prompt.
5. `/invocations` takes a chat or a completion.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.openai.scripted import (
    COMPLETION,
    EOS,
    HI,
    SMOL,
    front,
    ids_of,
    of_choice,
    post,
    prompt_scores,
    rows_of,
    says,
    streamed,
    whole,
)
from tests.support.http import client_of, until
from tests.support.scripted_engine import Step, interleave, logprobs_of, one_sequence, sequence
from tokenwire.errors import GenerationError

BODY: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 50}


def by_prompt(request: Any) -> Any:
    """Continues every prompt with its own text in brackets, and the choice's number."""
    prompt = SMOL.decode(request.prompt_token_ids)
    return says(*[f" [{prompt}] {i}" for i in range(request.sampling.n)])(request)


def text_of(events: list[Any], index: int = 0) -> str:
    return "".join(choice["text"] for choice in of_choice(events, index))


# --- 1. prompts


async def test_a_completion_is_the_text_that_was_made() -> None:
    app, engine = front(says(" there was"))
    reply = await whole(app, COMPLETION, BODY)
    assert engine.requests[0].prompt_token_ids == ids_of("Once upon a time")
    assert reply["object"] == "text_completion"
    assert reply["choices"][0]["text"] == " there was"
    assert (reply["choices"][0]["finish_reason"], reply["choices"][0]["stop_reason"]) == ("stop", None)
    events = await streamed(app, COMPLETION, BODY)
    assert text_of(events) == " there was"
    assert {event["object"] for event in events} == {"text_completion"}
    assert of_choice(events)[-1]["finish_reason"] == "stop"


async def test_max_tokens_is_openai_s_sixteen() -> None:
    app, engine = front(says("x"))
    await whole(app, COMPLETION, {"prompt": "a"})
    assert engine.requests[0].sampling.max_tokens == 16


@pytest.mark.parametrize("prompt", [["one", "two", "three"], [ids_of("one"), ids_of("two"), ids_of("three")]])
async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt(prompt: Any) -> None:
    app, _ = front(by_prompt)
    body = {**BODY, "prompt": prompt, "n": 2, "temperature": 1}
    expected = [f" [{word}] {i}" for word in ("one", "two", "three") for i in range(2)]
    reply = await whole(app, COMPLETION, body)
    assert [(c["index"], c["text"]) for c in reply["choices"]] == list(enumerate(expected))
    events = await streamed(app, COMPLETION, {**body, "stream_options": {"include_usage": True}})
    assert [text_of(events, index) for index in range(6)] == expected
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], reply["usage"])
    assert reply["usage"]["prompt_tokens"] == 3
    assert len({event["id"] for event in events}) == 1


async def test_prompts_run_side_by_side() -> None:
    app, engine = front(by_prompt)
    gated, engine = front(one_sequence(ids_of("x"), delay_s=0.2))
    asking = asyncio.create_task(whole(gated, COMPLETION, {**BODY, "prompt": ["a", "b", "c"]}))
    await until(lambda: len(engine.requests) == 3)
    assert engine.num_live == 3
    await asking
    assert app is not gated


async def test_a_prompt_of_ids_is_taken_as_it_is() -> None:
    app, engine = front(says("x"))
    await whole(app, COMPLETION, {**BODY, "prompt": [5, 6, 7]})
    assert engine.requests[0].prompt_token_ids == [5, 6, 7]


# --- 2. logprobs


async def test_logprobs_are_parallel_lists_with_offsets() -> None:
    app, _ = front(says("Hello there"))
    body = {**BODY, "logprobs": 2}
    scores = (await whole(app, COMPLETION, body))["choices"][0]["logprobs"]
    assert scores["tokens"] == ["Hello", " there", "<|im_end|>"]
    assert scores["text_offset"] == [0, 5, 11]
    assert scores["token_logprobs"] == [-0.25, -1.25, -2.25]
    assert scores["top_logprobs"][0]["Hello"] == -0.25
    assert [len(top) for top in scores["top_logprobs"]] == [2, 2, 2]
    chunks = of_choice(await streamed(app, COMPLETION, body))
    for name, values in scores.items():
        assert [v for c in chunks if c["logprobs"] for v in c["logprobs"][name]] == values


async def test_logprobs_zero_are_those_of_the_sampled_tokens() -> None:
    app, _ = front(says("Hello"))
    scores = (await whole(app, COMPLETION, {**BODY, "logprobs": 0}))["choices"][0]["logprobs"]
    assert scores["top_logprobs"][0] == {"Hello": -0.25}


async def test_logprobs_of_named_tokens_are_shown() -> None:
    app, engine = front(says("Hello"))
    reply = await whole(app, COMPLETION, {**BODY, "logprobs": 2, "logprob_token_ids": [1, 2]})
    assert engine.requests[0].sampling.logprobs is None
    assert len(reply["choices"][0]["logprobs"]["top_logprobs"][0]) == 2


async def test_ids_come_when_asked() -> None:
    app, _ = front(says("Hello there"))
    body = {**BODY, "return_token_ids": True}
    choice = (await whole(app, COMPLETION, body))["choices"][0]
    assert choice["token_ids"] == [*ids_of("Hello there"), EOS]
    assert choice["prompt_token_ids"] == ids_of("Once upon a time")
    chunks = of_choice(await streamed(app, COMPLETION, body))
    assert [t for c in chunks for t in c["token_ids"]] == choice["token_ids"]
    assert [c["prompt_token_ids"] for c in chunks] == [choice["prompt_token_ids"], *[None] * (len(chunks) - 1)]
    assert (await whole(app, COMPLETION, BODY))["choices"][0]["token_ids"] is None


# --- 3. echo


@pytest.mark.parametrize("prompt", ["Once upon", ids_of("Once upon")])
async def test_echo_is_the_prompt_then_the_text(prompt: Any) -> None:
    app, _ = front(says(" a time"))
    body = {**BODY, "prompt": prompt, "echo": True}
    choice = (await whole(app, COMPLETION, body))["choices"][0]
    assert (choice["text"], choice["logprobs"]) == ("Once upon a time", None)
    assert text_of(await streamed(app, COMPLETION, body)) == "Once upon a time"


async def test_echo_with_logprobs_has_those_of_the_prompt_first() -> None:
    app, engine = front(says(" a"))
    body = {**BODY, "prompt": "Once upon", "echo": True, "logprobs": 1}
    scores = (await whole(app, COMPLETION, body))["choices"][0]["logprobs"]
    assert engine.requests[0].sampling.prompt_logprobs == 1
    assert scores["tokens"] == ["Once", " upon", " a", "<|im_end|>"]
    assert scores["token_logprobs"] == [None, -0.25, -0.25, -1.25]
    assert scores["text_offset"] == [0, 4, 9, 11]
    assert scores["top_logprobs"][0] is None
    assert scores["top_logprobs"][1] == {" upon": -0.25}
    chunks = of_choice(await streamed(app, COMPLETION, body))
    for name, values in scores.items():
        assert [v for c in chunks if c["logprobs"] for v in c["logprobs"][name]] == values


async def test_every_choice_of_a_stream_has_its_echo() -> None:
    app, _ = front(says(" x", " y"))
    body = {**BODY, "prompt": ["a", "b"], "n": 2, "temperature": 1, "echo": True, "logprobs": 0}
    reply = await whole(app, COMPLETION, body)
    assert [c["text"] for c in reply["choices"]] == ["a x", "a y", "b x", "b y"]
    events = await streamed(app, COMPLETION, body)
    for choice in reply["choices"]:
        chunks = of_choice(events, choice["index"])
        assert "".join(c["text"] for c in chunks) == choice["text"]
        assert [t for c in chunks if c["logprobs"] for t in c["logprobs"]["tokens"]] == choice["logprobs"]["tokens"]


async def test_echo_with_no_tokens_is_the_prompt_alone() -> None:
    app, engine = front(says(" never", end="length"))
    body = {**BODY, "prompt": "Once upon", "echo": True, "max_tokens": 0, "logprobs": 1, "return_token_ids": True}
    reply = await whole(app, COMPLETION, body)
    choice = reply["choices"][0]
    assert engine.requests[0].sampling.max_tokens == 1, "an engine makes at least one"
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("Once upon", "length", [])
    assert choice["logprobs"]["tokens"] == ["Once", " upon"]
    assert reply["usage"] == {**reply["usage"], "completion_tokens": 0, "total_tokens": 2}
    events = await streamed(app, COMPLETION, {**body, "stream_options": {"include_usage": True}})
    assert text_of(events) == "Once upon"
    assert [c["finish_reason"] for c in of_choice(events)] == ["length"]
    assert events[-1]["usage"] == reply["usage"]


async def test_a_special_token_that_the_tokenizer_added_is_not_echoed_twice() -> None:
    """The echoed text is what was sent, to the letter; a truncated prompt is what is left of it."""
    app, _ = front(says("!"))
    body = {**BODY, "prompt": "Once  upon", "echo": True}
    assert (await whole(app, COMPLETION, body))["choices"][0]["text"] == "Once  upon!"
    body["truncate_prompt_tokens"] = 1
    assert (await whole(app, COMPLETION, body))["choices"][0]["text"] == " upon!"


# --- 4. ids, usage, errors


async def test_several_prompts_share_the_reply_s_id() -> None:
    app, engine = front(says("x"))
    reply = await whole(app, COMPLETION, {**BODY, "prompt": ["a", "b"]}, x_request_id="me")
    assert reply["id"] == "cmpl-me"
    assert all(request.request_id.startswith("cmpl-me-") for request in engine.requests)
    assert len({request.request_id for request in engine.requests}) == 2


async def test_one_id_aborts_all_prompts() -> None:
    app, engine = front([Step(delay_s=30)])
    async with client_of(app) as client:
        body = {**BODY, "prompt": ["a", "b"]}
        asking = asyncio.create_task(client.post(COMPLETION, json=body, headers={"x-request-id": "me"}))
        await until(lambda: engine.num_live == 2)
        await client.post("/inference/v1/abort_requests", json={"request_ids": ["cmpl-me"]})
        reply = (await asking).json()
    assert [c["finish_reason"] for c in reply["choices"]] == ["abort", "abort"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_fails_ends_all(stream: bool) -> None:
    def script(request: Any) -> list[Step]:
        if request.prompt_token_ids == ids_of("bad"):
            return [Step(delay_s=0.05, error=GenerationError("broken"))]
        return [Step(sequence(ids_of("Hello"), finish_reason=None)), Step(delay_s=30)]

    app, engine = front(script)
    body = {**BODY, "prompt": ["good", "bad", "good"]}
    if stream:
        events = await streamed(app, COMPLETION, body)
        assert events[-1]["error"]["code"] == 500
        assert all("error" not in event for event in events[:-1])
    else:
        answer = await post(app, COMPLETION, body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "broken")
    await until(lambda: engine.num_live == 0)
    assert len(engine.aborted) == 2


async def test_what_one_prompt_breaks_is_refused_for_all_before_any_runs() -> None:
    app, engine = front(says("x"))
    answer = await post(app, COMPLETION, {**BODY, "prompt": [[1, 2], [10**6]]})
    assert answer.status_code == 400
    assert engine.requests == []


async def test_prompts_that_do_not_fit_together_are_told_to_come_back_before_any_runs() -> None:
    app, engine = front([Step(delay_s=30)], max_num_queued_reqs=3)
    async with client_of(app) as client:
        running = asyncio.create_task(client.post(COMPLETION, json={**BODY, "prompt": ["a", "b"]}))
        await until(lambda: engine.num_live == 2)
        answer = await client.post(COMPLETION, json={**BODY, "prompt": ["c", "d"]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Service Unavailable")
        assert len(engine.requests) == 2
        running.cancel()


async def test_transfer_params_of_one_prompt_come_out() -> None:
    app, _ = front(says("x", kv_transfer_params={"block": 1}))
    body = {**BODY, "kv_transfer_params": {"a": 1}}
    assert (await whole(app, COMPLETION, body))["kv_transfer_params"] == {"block": 1}
    assert (await streamed(app, COMPLETION, body))[-1]["kv_transfer_params"] == {"block": 1}


async def test_a_stop_string_cuts_text_but_not_ids() -> None:
    app, _ = front(says("Hello END more", end="length"))
    body = {**BODY, "stop": "END", "return_token_ids": True}
    choice = (await whole(app, COMPLETION, body))["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hello ", "stop", "END")
    assert SMOL.decode(choice["token_ids"]).startswith("Hello END")
    chunks = of_choice(await streamed(app, COMPLETION, body))
    assert "".join(c["text"] for c in chunks) == "Hello "
    assert [t for c in chunks for t in c["token_ids"]] == choice["token_ids"]


async def test_prompt_logprobs_come_with_each_choice() -> None:
    def script(request: Any) -> list[Step]:
        steps = interleave(sequence(ids_of("x"), logprobs=logprobs_of(rows_of(ids_of("x"), 0))))
        steps[0].outputs[0].prompt = prompt_scores(request)
        return steps

    app, _ = front(script)
    reply = await whole(app, COMPLETION, {**BODY, "prompt_logprobs": 1})
    assert len(reply["choices"][0]["prompt_logprobs"]) == 4


# --- 5. invocations


async def test_invocations_tell_chats_from_completions() -> None:
    app, _ = front(says("Hello"))
    assert (await whole(app, "/invocations", BODY))["object"] == "text_completion"
    chat = {"messages": HI, "max_tokens": 5}
    assert (await whole(app, "/invocations", chat))["object"] == "chat.completion"
    assert text_of(await streamed(app, "/invocations", BODY)) == "Hello"
    assert (await post(app, "/invocations", {"input": "x"})).status_code == 400
    guarded, _ = front(says("Hello"), api_key=["k"])
    assert (await post(guarded, "/invocations", BODY)).status_code == 401
