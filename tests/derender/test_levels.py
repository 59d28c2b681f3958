"""The levels `text` and `derender` of the generate service, whole and streamed, over a scripted engine.

1. Text: joined deltas are the whole text; a character is never split; every token's id and logprobs arrive.
2. Stop strings: ids, text and logprobs are cut alike at every level, and the engine is stopped.
3. A stop id or EOS keeps its id and logprobs and has no text unless asked.
4. Logprobs: token strings and bytes, finite values, null ranks; candidates by level; `token_id:N` by server flag.
5. Derender: stream and whole give one message at every cut; role once; logprobs are never lost.
6. finish_reason: "tool_calls" as the calls, the engine's reason and tool_choice say, streamed and whole.
7. Hidden reasoning hides ids, logprobs and sampling mask, and nothing else.
8. The split road, tokens and then derender, gives the same choice.
9. parse_context is needed where there is a parser, and must name a tool that exists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.derender.sources import ByteTokens
from tests.support.scripted_engine import ScriptedEngine, interleave, logprobs_of, sequence
from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import find_format
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.engine.base import PromptOutput
from tokenwire.errors import InvalidRequestError
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.derender import DerenderService, DerenderSetup
from tokenwire.service.derender_input import DerenderLimits
from tokenwire.service.generate import GenerateService
from tokenwire.service.models import ModelRegistry
from tokenwire.service.text import TokenizerText
from tokenwire.wire import codec
from tokenwire.wire.derender import DerenderChatRequest, DerenderChatStreamRequest, decode_chat
from tokenwire.wire.generate import GenerateRequest

Json = Any
QWEN = ParserSetup(format=find_format("hermes", "qwen3"))
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def service(
    tokens: Sequence[bytes | str],
    *,
    special: Sequence[int] = (),
    parser: ParserSetup | None = None,
    as_token_ids: bool = False,
    step_size: int = 1,
    ids: Sequence[int] | None = None,
    scored: bool = True,
    **last: Any,
) -> tuple[GenerateService, ScriptedEngine]:
    """A service whose engine gives the tokens in order (or `ids`), each with a logprob of minus its position."""
    given = list(range(len(tokens))) if ids is None else list(ids)
    rows = [[(token_id, -1.0 - i), (0, -0.25)] for i, token_id in enumerate(given)]
    scores = logprobs_of(rows) if scored else None
    outputs = sequence(given, step_size=step_size, logprobs=scores, **{"finish_reason": "length", **last})
    engine = ScriptedEngine(interleave(outputs), eos_token_ids=(499,), vocab_size=500)
    text = TokenizerText(ByteTokens(tokens, special), parser=parser, return_tokens_as_token_ids=as_token_ids)
    return GenerateService(engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=text), engine


async def ask(svc: GenerateService, *, stream: bool, prompt: Sequence[int] = (0,), **fields: Any) -> Json:
    sampling = {"max_tokens": 400, **fields.pop("sampling", {})}
    request, unknown = codec.convert(
        GenerateRequest, {"token_ids": list(prompt), "sampling_params": sampling, "stream": stream, **fields}
    )
    prepared = await svc.prepare(request, RequestContext(), unknown)
    if not stream:
        return msgspec.json.decode(codec.encode(await svc.full(prepared)))["choices"][0]
    return [
        msgspec.json.decode(codec.encode(event))["choices"][0] async for some in svc.stream(prepared) for event in some
    ]


def joined(chunks: list[Json]) -> Json:
    """A stream's choices as one whole text choice."""
    return {
        "text": "".join(chunk["text"] for chunk in chunks),
        "token_ids": [token_id for chunk in chunks for token_id in chunk["token_ids"]],
        "entries": [entry for chunk in chunks if chunk["logprobs"] for entry in chunk["logprobs"]["content"]],
        "finish_reason": chunks[-1]["finish_reason"],
        "stop_reason": chunks[-1]["stop_reason"],
    }


EMOJI = "😀".encode()


# --- 1. text


async def test_a_split_character_comes_whole_and_every_delta_has_its_ids_and_logprobs() -> None:
    svc, _ = service([EMOJI[:2], EMOJI[2:], "!"])
    chunks = await ask(svc, stream=True, prompt=[2], output_mode="text", sampling={"logprobs": 1})
    assert [chunk["text"] for chunk in chunks] == ["", "😀", "!"]
    assert [chunk["token_ids"] for chunk in chunks] == [[0], [1], [2]]
    entries = [chunk["logprobs"]["content"][0] for chunk in chunks]
    assert [(e["token"], e["bytes"]) for e in entries] == [("", []), ("😀", list(EMOJI)), ("!", [33])]


async def test_whole_and_stream_say_the_same() -> None:
    for step_size in (1, 2, 5):
        tokens = ["He", "llo", EMOJI[:2], EMOJI[2:], " END"]
        options = {"prompt": [0], "output_mode": "text", "sampling": {"logprobs": 1}}
        whole = await ask(service(tokens, step_size=step_size)[0], stream=False, **options)
        parts = joined(await ask(service(tokens, step_size=step_size)[0], stream=True, **options))
        assert whole["text"] == parts["text"] == "Hello😀 END"
        assert whole["token_ids"] == parts["token_ids"]
        assert whole["logprobs"]["content"] == parts["entries"]
        assert whole["finish_reason"] == parts["finish_reason"] == "length"
        assert "text_token_count" not in whole


async def test_special_tokens_show_only_when_asked() -> None:
    for skip, text in ((True, "ab"), (False, "a<s>b")):
        svc, _ = service(["a", "<s>", "b"], special=[1])
        whole = await ask(svc, stream=False, output_mode="text", sampling={"skip_special_tokens": skip})
        assert whole["text"] == text


# --- 2. stop strings


@pytest.mark.parametrize("step_size", [1, 2, 4])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["tokens", "text", "derender"])
async def test_a_stop_string_cuts_ids_text_and_logprobs_and_stops_the_engine(
    mode: str, stream: bool, step_size: int
) -> None:
    svc, engine = service(["He", "llo E", "N", "D!", "x", "y"], step_size=step_size)
    sampling = {"stop": ["END"], "logprobs": 0}
    got = await ask(svc, stream=stream, output_mode=mode, sampling=sampling)
    chunks = got if stream else [got]
    assert [token_id for chunk in chunks for token_id in chunk["token_ids"]] == [0, 1, 2, 3]
    assert sum(len(chunk["logprobs"]["content"]) for chunk in chunks) == 4
    assert (chunks[-1]["finish_reason"], chunks[-1]["stop_reason"]) == ("stop", "END")
    assert [index for _, index in engine.stopped] == [0]
    if mode == "text":
        assert "".join(chunk["text"] for chunk in chunks) == "Hello "
        assert chunks[-1]["text_token_count"] == 2
    if mode == "derender":
        key = "delta" if stream else "message"
        assert "".join(chunk[key].get("content") or "" for chunk in chunks) == "Hello "


async def test_ids_alone_do_not_wait_for_a_stop_string() -> None:
    svc, _ = service(["He", "llo E", "N", "D!"])
    chunks = await ask(svc, stream=True, sampling={"stop": ["END"]})
    assert [chunk["token_ids"] for chunk in chunks] == [[0], [1], [2], [3]]


async def test_a_held_token_comes_with_its_logprobs_and_sampling_mask() -> None:
    masks = [np.asarray([i], np.int32) for i in range(3)]
    outputs = sequence([0, 1, 2], logprobs=logprobs_of([[(i, -1.0)] for i in range(3)]))
    for output, mask in zip(outputs, masks, strict=True):
        output.sampling_mask = [mask]
    engine = ScriptedEngine(interleave(outputs))
    text = TokenizerText(ByteTokens(["a", "E", "x"]))
    svc = GenerateService(engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=text)
    chunks = await ask(svc, stream=True, output_mode="text", sampling={"stop": ["END"], "logprobs": 0})
    assert [chunk["token_ids"] for chunk in chunks] == [[0], [1, 2]]
    assert [chunk["sampling_mask"] for chunk in chunks] == [[[0]], [[1], [2]]]
    assert [len(chunk["logprobs"]["content"]) for chunk in chunks] == [1, 2]


async def test_a_stop_string_in_a_step_that_also_ends_the_sequence_wins() -> None:
    svc, _ = service(["a", "wor", "x"], step_size=3, finish_reason="stop", stop_reason=2)
    whole = await ask(svc, stream=False, output_mode="text", sampling={"stop": ["wor"]})
    assert (whole["text"], whole["token_ids"], whole["stop_reason"]) == ("a", [0, 1], "wor")


async def test_min_tokens_guards_stop_strings_here_too() -> None:
    svc, _ = service(["a", ".", "b", "c"], ids=[0, 1, 2, 1, 3, 1])
    whole = await ask(svc, stream=False, output_mode="text", sampling={"stop": ["."], "min_tokens": 4})
    assert (whole["text"], len(whole["token_ids"]), whole["stop_reason"]) == ("a.b.c", 6, ".")


# --- 3. stop ids


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("include", "text"), [(False, "AB"), (True, "ABX")])
@pytest.mark.parametrize("stop_reason", [2, None])
async def test_the_token_that_ended_it_has_an_id_and_no_text(
    stream: bool, include: bool, text: str, stop_reason: int | None
) -> None:
    svc, _ = service(["A", "B", "X"], finish_reason="stop", stop_reason=stop_reason)
    sampling = {"stop_token_ids": [2], "logprobs": 0, "include_stop_str_in_output": include}
    got = await ask(svc, stream=stream, output_mode="text", sampling=sampling)
    whole = joined(got) if stream else joined([got])
    assert (whole["text"], whole["token_ids"], len(whole["entries"])) == (text, [0, 1, 2], 3)
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop_reason)


# --- 4. logprobs


@pytest.mark.parametrize("mode", ["text", "derender"])
@pytest.mark.parametrize("stream", [False, True])
async def test_values_that_are_not_finite_are_clamped(mode: str, stream: bool) -> None:
    scores = logprobs_of([[(0, math.nan), (1, -math.inf)], [(1, -0.5), (0, -0.25)]], ranks=[0, 1])
    engine = ScriptedEngine(interleave(sequence([0, 1], logprobs=scores)))
    text = TokenizerText(ByteTokens(["a", "b"]))
    svc = GenerateService(engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=text)
    got = await ask(svc, stream=stream, output_mode=mode, sampling={"logprobs": 2})
    entries = [e for chunk in (got if stream else [got]) for e in chunk["logprobs"]["content"]]
    assert entries[0]["logprob"] == -9999.0
    assert [c["logprob"] for c in entries[0]["top_logprobs"]] == [-9999.0, -9999.0]
    assert [c["logprob"] for c in entries[1]["top_logprobs"]] == [-0.5, -0.25]


@pytest.mark.parametrize(
    ("mode", "logprobs", "candidates"),
    [("text", 0, ["b"]), ("text", 2, ["b", "a", "c"]), ("derender", 2, ["b", "a"]), ("derender", 0, [])],
)
async def test_candidates_are_cut_by_level(mode: str, logprobs: int, candidates: list[str]) -> None:
    rows = [[(1, -3.0), (0, -0.25), (2, -0.5)][: logprobs + 1]]
    engine = ScriptedEngine(interleave(sequence([1], logprobs=logprobs_of(rows, ranks=[5]))))
    text = TokenizerText(ByteTokens(["a", "b", "c"]))
    svc = GenerateService(engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=text)
    whole = await ask(svc, stream=False, output_mode=mode, sampling={"logprobs": logprobs})
    entry = whole["logprobs"]["content"][0]
    assert (entry["token"], entry["logprob"]) == ("b", -3.0)
    assert [c["token"] for c in entry["top_logprobs"]] == candidates


async def test_a_sampled_token_without_a_score_gets_the_floor_and_no_candidates() -> None:
    engine = ScriptedEngine(interleave(sequence([1], logprobs=logprobs_of([[(0, -0.5)]]))))
    text = TokenizerText(ByteTokens(["a", "b"]))
    svc = GenerateService(engine, ModelRegistry(["m"], root="m"), ServiceOptions(), text=text)
    whole = await ask(svc, stream=False, output_mode="text", sampling={"logprobs": 1})
    assert whole["logprobs"]["content"] == [{"token": "b", "logprob": -9999.0, "bytes": [98], "top_logprobs": []}]


async def test_token_ids_as_strings_by_server_flag() -> None:
    svc, _ = service(["a", "b"], as_token_ids=True)
    whole = await ask(svc, stream=False, output_mode="text", sampling={"logprobs": 1})
    entry = whole["logprobs"]["content"][1]
    assert (entry["token"], entry["bytes"]) == ("token_id:1", None)
    assert entry["top_logprobs"][1]["token"] == "token_id:0"


@pytest.mark.parametrize("mode", ["tokens", "text"])
async def test_prompt_logprobs_have_token_strings_in_the_context_of_the_prompt(mode: str) -> None:
    steps = interleave(sequence([2]))
    steps[0].outputs[0].prompt = PromptOutput(logprobs=logprobs_of([[(0, -0.5), (2, -1.0)], [(1, -0.5), (0, -2.0)]]))
    text = TokenizerText(ByteTokens([EMOJI[:2], EMOJI[2:], "!"]))
    svc = GenerateService(ScriptedEngine(steps), ModelRegistry(["m"], root="m"), ServiceOptions(), text=text)
    body = {"token_ids": [2, 0, 1], "sampling_params": {"max_tokens": 1, "prompt_logprobs": 1}, "output_mode": mode}
    request, _ = codec.convert(GenerateRequest, body)
    reply = msgspec.json.decode(codec.encode(await svc.full(await svc.prepare(request, RequestContext()))))
    strings = [{key: value["decoded_token"] for key, value in (row or {}).items()} for row in reply["prompt_logprobs"]]
    assert strings == [{}, {"0": "", "2": "!"}, {"1": "😀", "0": ""}]


async def test_no_logprobs_where_none_were_asked_for() -> None:
    svc, _ = service(["a"])
    assert (await ask(svc, stream=False, output_mode="text"))["logprobs"] is None


async def test_packed_logprobs_work_at_the_text_levels() -> None:
    svc, _ = service(["a", "b"])
    whole = await ask(svc, stream=False, output_mode="text", sampling={"logprobs": 1}, logprobs_format="packed")
    assert (whole["logprobs"]["format"], whole["logprobs"]["k"]) == ("packed", 2)


# --- 5. derender

REASONED = [
    "<think>", "plan", " A", "</think>", "Hi", " there", "<tool_call>", '{"name": "f", "arg', 'uments": {"x":', " 1}}",
    "</tool_call>",
]  # fmt: skip
CONTEXT: dict[str, Any] = {"tools": TOOLS, "tool_choice": "auto"}


def message_of(chunks: list[Json]) -> Json:
    calls: dict[int, Json] = {}
    for chunk in chunks:
        for call in chunk["delta"].get("tool_calls", ()):
            if call["index"] not in calls:
                assert call["id"], "the first delta of a call has its id"
                assert call["type"] == "function"
                calls[call["index"]] = {"name": call["function"]["name"], "arguments": ""}
            else:
                assert "id" not in call
                assert "name" not in call["function"]
            calls[call["index"]]["arguments"] += call["function"].get("arguments", "")
    return {
        "content": "".join(chunk["delta"].get("content") or "" for chunk in chunks) or None,
        "reasoning": "".join(chunk["delta"].get("reasoning") or "" for chunk in chunks) or None,
        "tool_calls": list(calls.values()),
    }


def whole_message(choice: Json) -> Json:
    message = choice["message"]
    calls = [dict(call["function"]) for call in message.get("tool_calls", ())]
    return {"content": message["content"], "reasoning": message["reasoning"], "tool_calls": calls}


@pytest.mark.parametrize("step_size", [1, 2, 3, 11])
async def test_stream_and_whole_give_one_message_and_lose_no_logprobs(step_size: int) -> None:
    options: dict[str, Any] = {"output_mode": "derender", "parse_context": CONTEXT, "sampling": {"logprobs": 1}}
    specials = [0, 3, 6, 10]
    end = {"finish_reason": "stop", "stop_reason": None}
    tokens = [*REASONED, "<eos>"]
    whole = await ask(
        service(tokens, special=[*specials, 11], parser=QWEN, step_size=step_size, **end)[0], stream=False, **options
    )
    chunks = await ask(
        service(tokens, special=[*specials, 11], parser=QWEN, step_size=step_size, **end)[0], stream=True, **options
    )
    assert whole_message(whole) == {
        "content": "Hi there",
        "reasoning": "plan A",
        "tool_calls": [{"name": "f", "arguments": '{"x": 1}'}],
    }
    assert message_of(chunks) == whole_message(whole)
    entries = [e["token"] for chunk in chunks for e in chunk["logprobs"]["content"]]
    assert entries == tokens == [e["token"] for e in whole["logprobs"]["content"]]
    assert [i for chunk in chunks for i in chunk["token_ids"]] == whole["token_ids"] == list(range(12))
    assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "tool_calls"
    assert [chunk["delta"].get("role") for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]


async def test_without_a_parser_the_text_is_the_content() -> None:
    whole = await ask(service(["<think>", "a"])[0], stream=False, output_mode="derender")
    assert whole["message"]["content"] == "<think>a"
    assert "tool_calls" not in whole["message"]
    chunks = await ask(service(["<think>", "a"])[0], stream=True, output_mode="derender")
    assert [chunk["delta"] for chunk in chunks] == [{"role": "assistant", "content": "<think>"}, {"content": "a"}]


async def test_a_stop_string_inside_reasoning_leaves_no_content() -> None:
    for stream in (False, True):
        svc, _ = service(["So ", "Ques", "tion: 2", "x"], parser=QWEN)
        got = await ask(svc, stream=stream, output_mode="derender", parse_context={}, sampling={"stop": ["Question:"]})
        message = message_of(got) if stream else whole_message(got)
        last = got[-1] if stream else got
        assert (message["reasoning"], message["content"]) == ("So ", None)
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", "Question:")


async def test_thinking_cut_by_length_is_reasoning() -> None:
    for tokens in (["I ", "think"], ["<think>", "I ", "think"]):
        whole = await ask(service(tokens, parser=QWEN)[0], stream=False, output_mode="derender", parse_context={})
        chunks = await ask(service(tokens, parser=QWEN)[0], stream=True, output_mode="derender", parse_context={})
        assert whole_message(whole) == message_of(chunks)
        assert (whole["message"]["reasoning"], whole["message"]["content"]) == ("I think", None)
        assert whole["finish_reason"] == chunks[-1]["finish_reason"] == "length"


# --- 6. finish_reason

CALL = ["</think>", '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>']


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "tokens", "engine_reason", "expected"),
    [
        ("auto", CALL, "stop", "tool_calls"),
        ("auto", CALL, "length", "length"),
        ("auto", ["</think>", "Hi"], "stop", "stop"),
        ("required", CALL, "stop", "tool_calls"),
        ("required", ["</think>", "Hi"], "stop", "stop"),
        ({"type": "function", "function": {"name": "f"}}, CALL, "stop", "stop"),
        ("none", ["</think>", "Hi"], "stop", "stop"),
    ],
)
async def test_finish_reason_is_the_same_streamed_and_whole(
    stream: bool, choice: Json, tokens: list[str], engine_reason: str, expected: str
) -> None:
    svc, _ = service([*tokens, "<eos>"], parser=QWEN, finish_reason=engine_reason)
    context = {"tools": TOOLS, "tool_choice": choice}
    got = await ask(svc, stream=stream, output_mode="derender", parse_context=context)
    assert (got[-1] if stream else got)["finish_reason"] == expected


async def test_no_tools_and_tool_choice_none_is_no_error() -> None:
    svc, _ = service(["</think>", "Hi"], parser=QWEN)
    whole = await ask(svc, stream=False, output_mode="derender", parse_context={"tool_choice": "none"})
    assert whole["message"]["content"] == "Hi"


# --- 7. hidden reasoning


@pytest.mark.parametrize("stream", [False, True])
async def test_hidden_reasoning_hides_what_would_tell_it(stream: bool) -> None:
    svc, _ = service(["secret", "</think>", "Hi"], parser=QWEN, routed_experts=np.zeros((2, 1, 1), np.uint8))
    got = await ask(
        svc,
        stream=stream,
        output_mode="derender",
        parse_context={"include_reasoning": False},
        sampling={"logprobs": 1},
    )
    chunks = got if stream else [got]
    for chunk in chunks:
        assert chunk["logprobs"] is chunk["token_ids"] is chunk["sampling_mask"] is None
    assert chunks[-1]["routed_experts"] is not None
    assert "secret" not in msgspec.json.encode(chunks).decode()
    message = message_of(got) if stream else whole_message(got)
    assert (message["content"], message["reasoning"]) == ("Hi", None)
    if stream:
        assert len(chunks) == 1, "a chunk that would say nothing is not sent"


# --- 8. the split


@pytest.mark.parametrize("stop", [None, ["there"], ["plan A"]])
@pytest.mark.parametrize("stream", [False, True])
async def test_derendering_the_token_level_s_answer_gives_the_same_choice(stream: bool, stop: list[str] | None) -> None:
    tokens, special = [*REASONED, "<eos>"], [0, 3, 6, 10, 11]
    end = {"finish_reason": "stop", "stop_reason": None}
    sampling = {"stop": stop, "logprobs": 1}
    svc, _ = service(tokens, special=special, parser=QWEN, **end)
    coupled = await ask(svc, stream=False, output_mode="derender", parse_context=CONTEXT, sampling=sampling)
    svc, _ = service(tokens, special=special, parser=QWEN, **end)
    given = await ask(svc, stream=stream, sampling=sampling)
    split = DerenderService(
        DerenderSetup(
            models=ModelRegistry(["m"], root="m"),
            vocabulary=Vocabulary(ByteTokens(tokens, special)),
            limits=DerenderLimits(max_model_len=400),
            eos_token_ids=frozenset({11}),
            parser=QWEN,
        )
    )
    chat = {"messages": [], "tools": TOOLS, "stop": stop, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    shared = {"chat_request": chat, "prompt_token_ids": [0]}
    if not stream:
        request, _ = decode_chat(msgspec.json.encode({**shared, "generate_response": {"choices": [given]}}))
        assert isinstance(request, DerenderChatRequest)
        choice = msgspec.json.decode(codec.encode(await split.chat(request)))["choices"][0]
        message, chunks = whole_message(choice), [choice]
    else:
        state, chunks = None, []
        for choice in given:
            body = {**shared, "stream": True, "generate_chunk": {"choices": [choice]}, "stream_state": state}
            request, _ = decode_chat(msgspec.json.encode(body))
            assert isinstance(request, DerenderChatStreamRequest)
            answer = msgspec.json.decode(codec.encode(await split.chat_stream(request)))
            state, chunks = answer["stream_state"], chunks + answer["chunk"]["choices"]
        for chunk in chunks:
            for call in chunk["delta"].get("tool_calls", ()):
                call["function"].setdefault("arguments", "")
        message = message_of(chunks)
    assert message == whole_message(coupled)
    assert [i for chunk in chunks for i in chunk["token_ids"]] == coupled["token_ids"]
    entries = [e for chunk in chunks if chunk["logprobs"] for e in chunk["logprobs"]["content"]]
    assert entries == coupled["logprobs"]["content"]
    assert chunks[-1]["finish_reason"] == coupled["finish_reason"]
    assert chunks[-1]["stop_reason"] == coupled["stop_reason"]


# --- 9. parse_context


async def test_a_missing_parse_context_is_told_before_an_id_out_of_the_vocabulary() -> None:
    svc, _ = service([b"a"], parser=QWEN)
    with pytest.raises(InvalidRequestError, match="parse_context"):
        await ask(svc, stream=False, output_mode="derender", prompt=[99999])


async def test_a_parser_needs_a_parse_context() -> None:
    svc, engine = service(["a"], parser=QWEN)
    with pytest.raises(InvalidRequestError, match="parse_context"):
        await ask(svc, stream=True, output_mode="derender")
    assert engine.requests == []
    assert (await ask(svc, stream=False, output_mode="text"))["text"] == "a", "other levels do not"


async def test_a_named_tool_must_be_among_the_tools() -> None:
    svc, engine = service(["a"], parser=QWEN)
    context = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}}
    with pytest.raises(InvalidRequestError) as caught:
        await ask(svc, stream=False, output_mode="derender", parse_context=context)
    assert caught.value.param == "tool_choice"
    assert engine.requests == []
