"""Derendering of whole replies and of stream chunks.

1. Text: seeded with the prompt or not; several replies run on in one list of choices.
2. How it ended: the reported id, else EOS or the request's stop ids, has no text; the reported stop string, else the
   request's own past min_tokens, cuts text, ids and logprobs.
3. Logprobs: cut as each OpenAI endpoint cuts, packed ones too, hidden with the reasoning.
4. What came in passes through: prompt scores, experts, masks, weight versions, transfer params where they agree.
5. A stream gives what the whole gives, at every cut, with and without parser, stop strings and logprobs.
6. The state is small and of constant size; what is not a state of ours or of vLLM's is a 400, never a crash.
7. A state of vLLM's is taken over: its decode window, or its whole output, is run through once.
8. Bodies have bounds, each refused with a sentence that names field, value and limit.
9. The original request says as much of reading the answer as a parse_context does.
"""

from __future__ import annotations

import base64
import copy
import random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.derender.sources import ByteTokens, metaspace
from tests.support.tokenizers import tokenizer
from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import find_format
from tokenwire.derender.vocabulary import TokenSource, Vocabulary
from tokenwire.errors import BodyValidationError, InvalidRequestError, InvalidStateError, ModelNotFoundError
from tokenwire.service.answer_reading import parse_context
from tokenwire.service.chat_prompt import own_variables
from tokenwire.service.derender import DerenderService, DerenderSetup
from tokenwire.service.derender_chat import chat_facts
from tokenwire.service.derender_input import DerenderLimits
from tokenwire.service.models import ModelRegistry
from tokenwire.wire import codec
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.derender import (
    DerenderChatStreamRequest,
    DerenderCompletionStreamRequest,
    decode_chat,
    decode_completion,
)

Json = Any
QWEN = ParserSetup(format=find_format("hermes", "qwen3"))
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def service(
    source: TokenSource, *, parser: ParserSetup | None = None, eos: int = 499, max_model_len: int = 4096
) -> DerenderService:
    return DerenderService(
        DerenderSetup(
            models=ModelRegistry(["m"], root="m"),
            vocabulary=Vocabulary(source),
            limits=DerenderLimits(max_model_len=max_model_len),
            eos_token_ids=frozenset({eos}),
            parser=parser,
        )
    )


async def chat(svc: DerenderService, body: Json) -> Json:
    request, _ = decode_chat(msgspec.json.encode(body))
    if isinstance(request, DerenderChatStreamRequest):
        return msgspec.json.decode(codec.encode(await svc.chat_stream(request)))
    return msgspec.json.decode(codec.encode(await svc.chat(request)))


async def completion(svc: DerenderService, body: Json) -> Json:
    request, _ = decode_completion(msgspec.json.encode(body))
    if isinstance(request, DerenderCompletionStreamRequest):
        return msgspec.json.decode(codec.encode(await svc.completion_stream(request)))
    return msgspec.json.decode(codec.encode(await svc.completion(request)))


def reply(*choices: Json, **fields: Any) -> Json:
    return {"request_id": "r", "choices": [{"index": i, **choice} for i, choice in enumerate(choices)], **fields}


def scores(ids: list[int], *candidates: int) -> Json:
    """Logprobs of these ids, with the sampled id before the candidates."""
    return {
        "content": [
            {
                "token_id": token_id,
                "logprob": -0.5 * i,
                "rank": 1,
                "top_logprobs": [{"token_id": c, "logprob": -1.0, "rank": 1} for c in (token_id, *candidates)],
            }
            for i, token_id in enumerate(ids)
        ]
    }


EMOJI = "😀".encode()
WORDS = ByteTokens(["Hel", "lo", EMOJI[:2], EMOJI[2:], " END", " b", "<eos>"], special=[6])


# --- 1. text


async def test_the_leading_space_stays_with_a_prompt_whole_and_streamed() -> None:
    source = metaspace()
    ids, prompt = source.ids("▁Hello", "▁world"), source.ids("▁world", "▁world")
    for given_prompt, text in ((prompt, " Hello world"), (prompt[-1:], " Hello world"), (None, "Hello world")):
        svc = service(source)
        body: Json = {"generate_responses": [reply({"token_ids": ids})]}
        if given_prompt is not None:
            body["prompt_token_ids"] = [given_prompt]
        assert (await completion(svc, body))["choices"][0]["text"] == text
        state, parts = None, []
        for token_id in ids:
            answer = await completion(
                svc,
                {
                    "stream": True,
                    "generate_chunk": reply({"token_ids": [token_id]}),
                    "stream_state": state,
                    "prompt_token_ids": given_prompt,
                },
            )
            state = answer["stream_state"]
            parts.append(answer["chunk"]["choices"][0]["text"])
        assert "".join(parts) == text
        assert parts[1] == " world"


async def test_the_prompt_in_the_reply_seeds_decoding_too() -> None:
    source = metaspace()
    body = {"generate_response": reply({"token_ids": source.ids("▁Hello")}, prompt_token_ids=source.ids("▁world"))}
    assert (await chat(service(source), body))["choices"][0]["message"]["content"] == " Hello"


@pytest.mark.parametrize(("choice", "content"), [("auto", None), ("required", "")])
async def test_content_that_is_not_there_is_empty_where_a_call_was_forced(choice: str, content: str | None) -> None:
    svc = service(ByteTokens(["</think>", '<tool_call>{"name": "f", "arguments": {}}</tool_call>']), parser=QWEN)
    body = {
        "generate_response": reply({"token_ids": [0, 1]}),
        "chat_request": {**CHAT, "tools": TOOLS, "tool_choice": choice},
    }
    assert (await chat(svc, body))["choices"][0]["message"]["content"] == content


async def test_choices_of_several_replies_run_on() -> None:
    body = {
        "generate_responses": [reply({"token_ids": [0]}, {"token_ids": [1]}), reply({"token_ids": [0, 1]})],
        "prompt_tokens": [3, 4],
    }
    answer = await completion(service(WORDS), body)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "Hel"), (1, "lo"), (2, "Hello")]
    assert answer["usage"]["prompt_tokens"] == 7
    assert answer["usage"]["completion_tokens"] == 4


# --- 2. how it ended


@pytest.mark.parametrize(
    ("choice", "request_fields", "text"),
    [
        ({"finish_reason": "stop", "stop_reason": 5}, {}, "Hello"),
        ({"finish_reason": "stop", "stop_reason": 5}, {"include_stop_str_in_output": True}, "Hello b"),
        ({"finish_reason": "stop"}, {"stop_token_ids": [5]}, "Hello"),
        ({"finish_reason": "stop"}, {}, "Hello b"),
        ({"finish_reason": "length"}, {"stop_token_ids": [5]}, "Hello b"),
    ],
)
async def test_the_token_that_ended_it_has_no_text(choice: Json, request_fields: Json, text: str) -> None:
    ids = [0, 1, 5]
    body = {
        "generate_response": reply({"token_ids": ids, "logprobs": scores(ids), **choice}),
        "chat_request": {**CHAT, **request_fields, "return_token_ids": True},
    }
    shown = (await chat(service(WORDS), body))["choices"][0]
    assert shown["message"]["content"] == text
    assert shown["token_ids"] == ids
    assert len(shown["logprobs"]["content"]) == 3
    parts = await streamed(service(WORDS), body, [1] * 3)
    assert "".join(part["delta"]["content"] or "" for part in parts) == text


async def test_the_eos_token_is_dropped_where_the_token_server_reports_nothing() -> None:
    body = {
        "generate_response": reply({"token_ids": [0, 1, 6], "finish_reason": "stop"}),
        "chat_request": {**CHAT, "skip_special_tokens": False},
    }
    assert (await chat(service(WORDS, eos=6), body))["choices"][0]["message"]["content"] == "Hello"
    assert (await chat(service(WORDS, eos=5), body))["choices"][0]["message"]["content"] == "Hello<eos>"


async def test_a_reported_stop_string_is_cut_at() -> None:
    ids = [0, 1, 4]
    body = {
        "generate_response": reply({"token_ids": ids, "finish_reason": "stop", "stop_reason": "END"}),
        "chat_request": {**CHAT, "return_token_ids": True},
    }
    shown = (await chat(service(WORDS), body))["choices"][0]
    assert (shown["message"]["content"], shown["token_ids"], shown["stop_reason"]) == ("Hello ", ids, "END")


async def test_the_request_s_stop_string_is_searched_past_min_tokens() -> None:
    ids = [0, 4, 1, 4, 5]
    body = {
        "generate_response": reply({"token_ids": ids, "finish_reason": "length", "logprobs": scores(ids)}),
        "chat_request": {**CHAT, "stop": "END", "min_tokens": 3, "return_token_ids": True},
    }
    shown = (await chat(service(WORDS), body))["choices"][0]
    assert shown["message"]["content"] == "Hel ENDlo "
    assert shown["token_ids"] == ids[:4]
    assert len(shown["logprobs"]["content"]) == 4
    assert (shown["finish_reason"], shown["stop_reason"]) == ("stop", "END")


# --- 3. logprobs


@pytest.mark.parametrize(
    ("fields", "count"), [({}, 3), ({"logprobs": True, "top_logprobs": 2}, 2), ({"logprobs": True}, 0)]
)
async def test_chat_shows_the_first_top_logprobs(fields: Json, count: int) -> None:
    body = {
        "generate_response": reply({"token_ids": [0], "logprobs": scores([0], 1, 5)}),
        "chat_request": CHAT | fields,
    }
    entry = (await chat(service(WORDS), body))["choices"][0]["logprobs"]["content"][0]
    assert [c["token"] for c in entry["top_logprobs"]] == ["Hel", "lo", " b"][:count]


@pytest.mark.parametrize(("logprobs", "count"), [(0, 1), (1, 2), (2, 3), (None, 3)])
async def test_completions_show_the_sampled_token_and_logprobs_more(logprobs: int | None, count: int) -> None:
    body = {
        "generate_responses": [reply({"token_ids": [0], "logprobs": scores([0], 1, 5)})],
        "completion_request": {"prompt": "x", "logprobs": logprobs},
    }
    lists = (await completion(service(WORDS), body))["choices"][0]["logprobs"]
    assert list(lists["top_logprobs"][0]) == ["Hel", "lo", " b"][:count]


async def test_packed_logprobs_are_read() -> None:
    ids = np.asarray([[0, 1], [1, -1]], "<i4")
    packed = {
        "format": "packed",
        "k": 2,
        "token_ids": base64.b64encode(ids.tobytes()).decode(),
        "logprobs": base64.b64encode(np.asarray([[-0.5, -1.0], [-np.inf, 0]], "<f4").tobytes()).decode(),
        "ranks": base64.b64encode(np.asarray([1, 0], "<i4").tobytes()).decode(),
    }
    body = {"generate_response": reply({"token_ids": [0, 1], "logprobs": packed})}
    content = (await chat(service(WORDS), body))["choices"][0]["logprobs"]["content"]
    assert [(e["token"], e["logprob"], len(e["top_logprobs"])) for e in content] == [
        ("Hel", -0.5, 2),
        ("lo", -9999.0, 1),
    ]
    for broken in ({"k": 3}, {"k": 0}, {"token_ids": "!"}, {"token_ids": 5}, {"logprobs": None}):
        wrong = {"generate_response": reply({"token_ids": [0, 1], "logprobs": packed | broken})}
        with pytest.raises(InvalidRequestError):
            await chat(service(WORDS), wrong)


async def test_token_ids_as_strings_when_the_request_asks() -> None:
    body = {
        "generate_response": reply({"token_ids": [1], "logprobs": scores([1])}),
        "chat_request": {**CHAT, "return_tokens_as_token_ids": True},
    }
    entry = (await chat(service(WORDS), body))["choices"][0]["logprobs"]["content"][0]
    assert (entry["token"], entry["bytes"]) == ("token_id:1", None)


# --- 4. what passes through


async def test_what_came_in_passes_through() -> None:
    spans = [{"version": "s1", "start": 0, "end": 1}]
    prompt_scores = [None, {"5": {"logprob": -1.0, "rank": 1, "decoded_token": None}}]
    choice = {"token_ids": [0], "routed_experts": "AAA=", "sampling_mask": [[0, 1]], "weight_versions": spans}
    fields = {
        "prompt_logprobs": prompt_scores,
        "kv_transfer_params": {"blk": [1, 2]},
        "ec_transfer_params": {"e": 1},
        "metrics": {"queue_time_ms": 1.5},
    }
    answer = await chat(service(WORDS), {"generate_response": reply(choice, **fields)})
    assert answer["prompt_logprobs"] == prompt_scores
    assert answer["kv_transfer_params"] == {"blk": [1, 2]}
    assert answer["ec_transfer_params"] == {"e": 1}
    assert answer["metrics"]["queue_time_ms"] == 1.5
    shown = answer["choices"][0]
    assert (shown["routed_experts"], shown["sampling_mask"], shown["weight_versions"]) == ("AAA=", [[0, 1]], spans)
    chunk = (await chat(service(WORDS), {"stream": True, "generate_chunk": reply(choice, **fields)}))["chunk"]
    assert chunk["prompt_logprobs"] == prompt_scores
    assert chunk["kv_transfer_params"] == {"blk": [1, 2]}
    assert chunk["choices"][0]["weight_versions"] == spans
    text = await completion(service(WORDS), {"generate_responses": [reply(choice, **fields)]})
    assert text["choices"][0]["prompt_logprobs"] == prompt_scores


@pytest.mark.parametrize(("others", "kept"), [([{"a": 1}], {"a": 1}), ([{"a": 2}], None), ([None], None)])
async def test_transfer_params_are_kept_where_all_replies_agree(others: list[Json], kept: Json) -> None:
    replies = [reply({"token_ids": [0]}, kv_transfer_params=p) for p in [{"a": 1}, *others]]
    assert (await completion(service(WORDS), {"generate_responses": replies}))["kv_transfer_params"] == kept


# --- 5. streams


async def streamed(svc: DerenderService, body: Json, sizes: list[int]) -> list[Json]:
    """The choices of a chat reply derendered in chunks of these sizes; the last one brings the finish reason."""
    whole = body["generate_response"]
    source = whole["choices"][0]
    shared = {key: value for key, value in body.items() if key != "generate_response"}
    state, shown, start = None, [], 0
    for number, size in enumerate(sizes):
        ids = source["token_ids"][start : start + size]
        choice = {"index": 0, "token_ids": ids}
        if source.get("logprobs"):
            choice["logprobs"] = {"content": source["logprobs"]["content"][start : start + size]}
        if number == len(sizes) - 1:
            choice |= {key: source[key] for key in ("finish_reason", "stop_reason") if key in source}
        start += size
        answer = await chat(
            svc,
            {
                **shared,
                "stream": True,
                "generate_chunk": {"request_id": "r", "choices": [choice]},
                "stream_state": state,
            },
        )
        state = answer["stream_state"]
        shown += answer["chunk"]["choices"]
    assert start == len(source["token_ids"])
    return shown


def joined_message(chunks: list[Json]) -> Json:
    calls: list[Json] = []
    for chunk in chunks:
        for call in chunk["delta"].get("tool_calls") or ():
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"].get("arguments", "")
    assert len({call["id"] for call in calls}) == len(calls)
    return {
        "content": "".join(chunk["delta"]["content"] or "" for chunk in chunks) or None,
        "reasoning": "".join(chunk["delta"]["reasoning"] or "" for chunk in chunks) or None,
        "tool_calls": [(call["name"], call["arguments"]) for call in calls],
    }


def whole_message(choice: Json) -> Json:
    message = choice["message"]
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()]
    return {"content": message["content"] or None, "reasoning": message["reasoning"], "tool_calls": calls}


OUTPUT = [
    "<think>", "plan", " ", EMOJI[:2], EMOJI[2:], "</think>", "\n\n", "Hi", " E", "N", "D", " you",
    "<tool_call>", '\n{"name": "f", "arg', 'uments": {"x": "', "é".encode()[:1], "é".encode()[1:], '"}}\n',
    "</tool_call>", "\n", "<tool_call>", '{"name": "f", "arguments": {}}', "</tool_call>", "<eos>",
]  # fmt: skip
SOURCE = ByteTokens(OUTPUT, special=[0, 5, 12, 18, 20, 22, 23])


@settings(deadline=None, max_examples=60)
@given(st.data())
async def test_a_stream_gives_what_the_whole_gives_at_every_cut(data: st.DataObject) -> None:
    ids = list(range(len(OUTPUT)))
    length = data.draw(st.integers(1, len(ids)))
    ids = ids[:length]
    parser = data.draw(st.sampled_from([QWEN, None]))
    finish = data.draw(st.sampled_from(["stop", "length"]))
    stop = data.draw(st.sampled_from([None, ["END"], ["Hi", "never"], ["é"]]))
    request = {**CHAT, "tools": TOOLS, "stop": stop, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    body = {
        "generate_response": reply({"token_ids": ids, "logprobs": scores(ids, 1), "finish_reason": finish}),
        "chat_request": request,
        "prompt_token_ids": [7],
    }
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=8)))
    bounds = [0, *(cut for cut in cuts if cut < length), length]
    sizes = [end - start for start, end in zip(bounds, bounds[1:], strict=False)]
    svc = service(SOURCE, parser=parser, eos=23)
    whole = (await chat(svc, body))["choices"][0]
    chunks = await streamed(svc, body, sizes)
    assert joined_message(chunks) == whole_message(whole)
    assert chunks[-1]["finish_reason"] == whole["finish_reason"]
    assert chunks[-1]["stop_reason"] == whole["stop_reason"]
    assert [i for chunk in chunks for i in chunk["token_ids"]] == whole["token_ids"]
    entries = [e for chunk in chunks for e in (chunk["logprobs"] or {"content": []})["content"]]
    assert entries == whole["logprobs"]["content"]
    assert [chunk["delta"]["role"] for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]


async def test_completion_streams_add_up_with_absolute_offsets() -> None:
    ids = [0, 1, 2, 3, 4]
    svc = service(WORDS)
    request = {"prompt": "x", "stop": ["END"], "logprobs": 0}
    whole_body = {
        "generate_responses": [reply({"token_ids": ids, "logprobs": scores(ids)})],
        "completion_request": request,
    }
    whole = (await completion(svc, whole_body))["choices"][0]
    state, choices = None, []
    for token_id in [*ids, 5]:
        chunk = reply({"token_ids": [token_id], "logprobs": scores([token_id])})
        body = {"stream": True, "generate_chunk": chunk, "stream_state": state, "completion_request": request}
        answer = await completion(svc, body)
        state, choices = answer["stream_state"], choices + answer["chunk"]["choices"]
    assert len(choices) == len(ids), "nothing after the stop string"
    assert "".join(c["text"] for c in choices) == whole["text"] == "Hello😀 "
    for key in ("tokens", "text_offset"):
        assert [v for c in choices for v in (c["logprobs"] or {key: []})[key]] == whole["logprobs"][key]
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", "END")


async def test_hidden_reasoning_hides_logprobs_and_ids_in_streams_too() -> None:
    ids = list(range(8))
    body = {
        "generate_response": reply({"token_ids": ids, "logprobs": scores(ids), "finish_reason": "length"}),
        "chat_request": {**CHAT, "include_reasoning": False, "return_token_ids": True},
        "prompt_token_ids": [7],
    }
    svc = service(SOURCE, parser=QWEN)
    whole = (await chat(svc, body))["choices"][0]
    for choice in (whole, *await streamed(svc, body, [3, 5])):
        assert choice["logprobs"] is choice["token_ids"] is None
        assert "plan" not in msgspec.json.encode(choice).decode()


# --- 6. the state


async def run_long(svc: DerenderService, total: int, chat_request: Json) -> list[int]:
    """State sizes in bytes after each token of a long answer."""
    state, sizes = None, []
    for number in range(total):
        chunk = reply({"token_ids": [number % 5]})
        body = {
            "stream": True,
            "generate_chunk": chunk,
            "stream_state": state,
            "chat_request": chat_request,
            "prompt_token_ids": [0],
        }
        state = (await chat(svc, body))["stream_state"]
        sizes.append(len(msgspec.json.encode(state)))
    return sizes


@pytest.mark.parametrize("parser", [None, QWEN], ids=["plain", "parsed"])
async def test_the_state_does_not_grow(parser: ParserSetup | None) -> None:
    sizes = await run_long(service(WORDS, parser=parser), 300, {**CHAT, "tools": TOOLS, "stop": ["END."]})
    assert max(sizes[200:]) <= 1.2 * max(sizes[:20])
    assert max(sizes) < 1500


def mutations(state: Json, rng: random.Random) -> Json:
    """The state with one value somewhere in it replaced by something of another kind or size."""
    state = copy.deepcopy(state)
    spots: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            spots.append((value, key))
            walk(inner)

    walk(state)
    holder, key = rng.choice(spots)
    holder[key] = rng.choice([None, -1, 2**40, "x", "é" * 50, [], [1], {}, {"a": 1}, True, 1.5, "<tool_call>", 7])
    return state


@pytest.mark.parametrize("parser", [None, QWEN], ids=["plain", "parsed"])
async def test_a_tampered_state_is_refused_or_read_but_never_crashes(parser: ParserSetup | None) -> None:
    svc = service(SOURCE, parser=parser)
    request = {**CHAT, "tools": TOOLS, "stop": ["END", "you"]}
    states: list[Json] = []
    state = None
    for token_id in range(len(OUTPUT) - 1):
        body = {
            "stream": True,
            "generate_chunk": reply({"token_ids": [token_id], "logprobs": scores([token_id])}),
            "stream_state": state,
            "chat_request": request,
            "prompt_token_ids": [7],
        }
        state = (await chat(svc, body))["stream_state"]
        states.append(state)
    rng = random.Random(7)
    outcomes = {"refused": 0, "read": 0}
    for number in range(1500):
        body["stream_state"] = mutations(states[number % len(states)], rng)
        try:
            await chat(svc, body)
            outcomes["read"] += 1
        except (InvalidStateError, BodyValidationError, InvalidRequestError):
            outcomes["refused"] += 1
    assert outcomes["refused"] > 500


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"version": 2},
        {"version": "1"},
        {"version": 1, "parser": [1]},
        {"version": 1, "ids": [1]},
        {"version": 1, "sequence": {"detokenizer": {"waiting": "!!"}}},
        {"version": 1, "sequence": {"tail": "x"}},
    ],
)
async def test_a_part_that_is_not_ours_is_a_state_error(own: Json) -> None:
    body = {"stream": True, "generate_chunk": reply({"token_ids": [0]}), "stream_state": {"tokenwire": own}}
    with pytest.raises(InvalidStateError) as caught:
        await chat(service(WORDS), body)
    assert caught.value.param == "stream_state"


async def test_a_state_of_a_server_with_a_parser_does_not_fit_one_without() -> None:
    body: Json = {
        "stream": True,
        "generate_chunk": reply({"token_ids": [0]}),
        "chat_request": CHAT,
        "prompt_token_ids": [1],
    }
    body["stream_state"] = (await chat(service(WORDS, parser=QWEN), body))["stream_state"]
    with pytest.raises(InvalidStateError):
        await chat(service(WORDS), body)


# --- 7. states of vLLM's


async def test_a_decode_window_of_vllm_s_goes_on_mid_character() -> None:
    source = tokenizer("smol")
    ids = source.encode("Hi 🫠 there")
    pieces = [source.id_to_piece(token_id) for token_id in ids]
    cut = next(i for i in range(1, len(ids)) if "\ufffd" in source.decode(ids[:i]))
    state = {
        "prev_tokens": pieces[cut - 2 : cut],
        "prefix_offset": 0,
        "read_offset": 1,
        "role_sent": True,
        "logprob_context_token_ids": ids[max(0, cut - 4) : cut],
    }
    chunk = reply({"token_ids": ids[cut:], "logprobs": scores(ids[cut:])})
    answer = await chat(service(source), {"stream": True, "generate_chunk": chunk, "stream_state": state})
    shown = answer["chunk"]["choices"][0]
    read = source.decode(ids[: cut - 1])
    assert read + shown["delta"]["content"] == "Hi 🫠 there"
    assert shown["delta"]["role"] is None
    assert "prev_tokens" not in answer["stream_state"], "from here on the state is ours"


async def test_offsets_beyond_a_window_mean_its_end() -> None:
    state = {"prev_tokens": ["lo"], "prefix_offset": 5, "read_offset": 9}
    body = {"stream": True, "generate_chunk": reply({"token_ids": [5]}), "stream_state": state}
    assert (await completion(service(WORDS), body))["chunk"]["choices"][0]["text"] == " b"


@pytest.mark.parametrize("cut", range(1, len(OUTPUT) - 1))
async def test_a_replay_buffer_of_vllm_s_is_run_through_once(cut: int) -> None:
    svc = service(SOURCE, parser=QWEN, eos=23)
    request = {**CHAT, "tools": TOOLS}
    ids = list(range(len(OUTPUT)))
    before: Json = {"stream": True, "chat_request": request, "prompt_token_ids": [7]}
    ours = None
    announced: list[str] = []
    for token_id in ids[:cut]:
        answer = await chat(svc, before | {"generate_chunk": reply({"token_ids": [token_id]}), "stream_state": ours})
        ours = answer["stream_state"]
        calls = answer["chunk"]["choices"][0]["delta"].get("tool_calls") or ()
        announced += [call["id"] for call in calls if call.get("id")]
    theirs = {
        "role_sent": True,
        "output_token_ids": ids[:cut],
        "output_chunk_lens": [1] * cut,
        "tools_streamed": bool(announced),
        "last_tool_call_ids": announced,
    }
    rest = before | {"generate_chunk": reply({"token_ids": ids[cut:], "finish_reason": "stop"})}
    from_ours = (await chat(svc, rest | {"stream_state": ours}))["chunk"]["choices"][0]
    from_theirs = (await chat(svc, rest | {"stream_state": theirs}))["chunk"]["choices"][0]
    for choice in (from_ours, from_theirs):
        for call in choice["delta"].get("tool_calls") or ():
            call.pop("id", None)
    if cut == 7:  # white space that we hold back and vLLM has sent
        from_ours["delta"]["content"] = from_ours["delta"]["content"].lstrip()
    assert from_theirs == from_ours


async def test_a_call_that_vllm_announced_earlier_is_not_announced_again() -> None:
    svc = service(SOURCE, parser=QWEN, eos=23)
    state = {
        "role_sent": True,
        "output_token_ids": list(range(13)),
        "output_chunk_lens": [13],
        "last_tool_call_ids": ["chatcmpl-tool-1"],
        "tools_streamed": True,
    }
    body: Json = {
        "stream": True,
        "chat_request": {**CHAT, "tools": TOOLS},
        "prompt_token_ids": [7],
        "stream_state": state,
    }
    chunk = reply({"token_ids": list(range(13, len(OUTPUT))), "finish_reason": "stop"})
    calls = (await chat(svc, body | {"generate_chunk": chunk}))["chunk"]["choices"][0]["delta"]["tool_calls"]
    assert [call.get("id") is None for call in calls] == [True, False]
    assert calls[0]["function"] == {"arguments": '{"x": "é"}'}


# --- 8. bounds


async def refused(body: Json, *, svc: DerenderService | None = None, kind: Any = InvalidRequestError) -> str:
    with pytest.raises(kind) as caught:
        await chat(svc or service(WORDS, max_model_len=10), body)
    return str(caught.value)


async def test_bodies_have_bounds() -> None:
    many = [0] * 11
    assert "token_ids length (11) in choice 0 exceeds max_model_len (10)" in await refused(
        {"generate_response": reply({"token_ids": many})}
    )
    assert "logprobs.content length (11)" in await refused(
        {"generate_response": reply({"token_ids": [0], "logprobs": scores(many)})}
    )
    assert "top_logprobs count (31)" in await refused(
        {"generate_response": reply({"token_ids": [0], "logprobs": scores([0], *[1] * 30)})}
    )
    assert "prompt_logprobs length (11)" in await refused(
        {"generate_response": reply({"token_ids": [0]}, prompt_logprobs=[None] * 11)}
    )
    assert "prompt_token_ids length (11) exceeds" in await refused(
        {"generate_response": reply({"token_ids": [0]}), "prompt_token_ids": many}
    )
    assert "choice 0 has empty or null token_ids" in await refused({"generate_response": reply({"token_ids": []})})
    assert "exceeds max_model_len (10)" in await refused(
        {"stream": True, "generate_chunk": reply({"token_ids": [0] * 6}), "prompt_token_ids": [0] * 5}
    )
    assert "at most one choice per chunk (got 2)" in await refused(
        {"stream": True, "generate_chunk": reply({"token_ids": [0]}, {"token_ids": [1]})}
    )
    assert "empty string" in await refused(
        {"generate_response": reply({"token_ids": [0]}), "chat_request": {**CHAT, "stop": [""]}}
    )
    with pytest.raises(InvalidRequestError, match="must not be empty"):
        await completion(service(WORDS), {"generate_responses": []})


async def test_a_parser_needs_the_request_and_the_prompt() -> None:
    svc = service(WORDS, parser=QWEN)
    assert "chat_request is required" in await refused({"generate_response": reply({"token_ids": [0]})}, svc=svc)
    stream = {"stream": True, "generate_chunk": reply({"token_ids": [0]})}
    assert "chat_request is required" in await refused(stream, svc=svc)
    assert "prompt_token_ids is required" in await refused(stream | {"chat_request": CHAT}, svc=svc)


async def test_only_token_replies_of_the_declared_shape_are_taken() -> None:
    for broken in (
        {"generate_response": reply({"token_ids": [-1]})},
        {"generate_response": {"choices": [], "output_mode": "text"}},
        {"generate_response": reply({"token_ids": [0]}), "chat_request": {"messages": "x"}},
        {"stream": True},
        {"stream": True, "generate_chunk": reply(), "stream_state": {"output_token_ids": [1], "output_chunk_lens": []}},
        {"stream": True, "generate_chunk": reply(), "stream_state": {"read_offset": -1}},
    ):
        await refused(broken, kind=BodyValidationError)
    with pytest.raises(BodyValidationError, match="must equal generate_responses length"):
        await completion(service(WORDS), {"generate_responses": [reply()], "prompt_tokens": [1, 2]})


async def test_an_unknown_model_is_not_found() -> None:
    await refused({"model": "nope", "generate_response": reply()}, kind=ModelNotFoundError)


async def test_fields_that_a_newer_token_server_sends_are_passed_over() -> None:
    body = {"generate_response": {**reply({"token_ids": [0], "news": 1}), "later": {}}}
    assert (await chat(service(WORDS), body))["choices"][0]["message"]["content"] == "Hel"


# --- 9. what the original request says


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": True, "reasoning_effort": "auto"}, "include_reasoning": False},
        {"messages": [{"role": "assistant", "tool_calls": 7}, {"role": "user", "content": "q"}]},
    ],
)
def test_the_original_request_says_what_its_parse_context_says(fields: dict[str, Any]) -> None:
    chat, _ = codec.convert(ChatCompletionRequest, {"messages": [{"role": "user", "content": "q"}], **fields})
    facts, context = chat_facts(chat), parse_context(chat, own_variables(chat))
    assert facts.chat_template_kwargs == context.chat_template_kwargs
    assert facts.include_reasoning == context.include_reasoning
    assert facts.history_tool_call_cnt == context.history_tool_call_cnt == 0
    if fields.get("reasoning_effort") == "none":
        assert facts.chat_template_kwargs["enable_thinking"] is False
