"""The generate service over a scripted engine.

1. What the engine is asked: exact ids, resolved max_tokens, adapters, transfer params.
2. What is refused, in which order, and with which class.
3. Whole replies and streams say the same: ids, logprobs, usage, finish reasons, weight versions.
4. Leaving a stream aborts once; abort by id finds prefixed and bare ids; two live requests may share an id.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.scripted_engine import ScriptedEngine, Step, interleave, logprobs_of, one_sequence, sequence
from tokenwire.engine.base import Capabilities, EngineOutput, EngineStatus, Logprobs, PromptOutput, WeightSpan
from tokenwire.engine.queue import RequestQueue
from tokenwire.errors import (
    CacheAbsentError,
    EngineDeadError,
    EngineUnavailableError,
    GenerationError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PromptTooLongError,
    TokenwireError,
    UnsupportedFeatureError,
)
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.generate import GenerateService
from tokenwire.service.models import Adapter, ModelRegistry
from tokenwire.wire import codec
from tokenwire.wire.generate import GenerateRequest, GenerateResponse


def service(engine: ScriptedEngine, **options: Any) -> GenerateService:
    models = ModelRegistry(["base"], root="scripted")
    models.add(Adapter("ad1", "/adapters/ad1", "base"))
    return GenerateService(engine, models, ServiceOptions(**options))


def body(
    token_ids: list[int] | None = None, /, *, sampling: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    return {"token_ids": token_ids or [10, 11], "sampling_params": sampling or {"max_tokens": 3}, **fields}


async def prepare(svc: GenerateService, request: dict[str, Any], **context: Any) -> Any:
    decoded, unknown = codec.convert(GenerateRequest, request)
    return await svc.prepare(decoded, RequestContext(**context), unknown)


async def full(svc: GenerateService, request: dict[str, Any], **context: Any) -> Any:
    reply = await svc.full(await prepare(svc, request, **context))
    assert isinstance(reply, GenerateResponse)
    return msgspec.json.decode(codec.encode(reply))


async def stream(svc: GenerateService, request: dict[str, Any], **context: Any) -> list[Any]:
    prepared = await prepare(svc, request | {"stream": True}, **context)
    return [msgspec.json.decode(codec.encode(c)) async for chunks in svc.stream(prepared) for c in chunks]


# --- 1. what the engine is asked


async def test_the_engine_receives_exactly_the_ids_and_the_reply_repeats_them() -> None:
    engine = ScriptedEngine(one_sequence([7]))
    reply = await full(service(engine), body([10, 1, 2, 11], sampling={"max_tokens": 1}, return_token_ids=True))
    assert engine.requests[0].prompt_token_ids == [10, 1, 2, 11]
    assert reply["prompt_token_ids"] == [10, 1, 2, 11]
    assert reply["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize(
    ("sampling", "default", "expected"),
    [({}, None, 90), ({"max_tokens": None}, None, 90), ({"max_tokens": 16}, None, 16), ({"max_tokens": 1000}, None, 90)]
    + [({}, 50, 50), ({"max_tokens": None}, 50, 90), ({"max_tokens": 60}, 50, 60)],
)
async def test_a_missing_max_tokens_is_the_smallest_default_and_never_sixteen(
    sampling: dict[str, Any], default: int | None, expected: int
) -> None:
    engine = ScriptedEngine(max_model_len=100)
    defaults = {} if default is None else {"max_tokens": default}
    reply = await full(
        service(engine, default_sampling_params=defaults), body(list(range(10)), sampling=sampling or {"n": 1})
    )
    assert engine.requests[0].sampling.max_tokens == expected
    assert reply["usage"]["completion_tokens"] == expected


@pytest.mark.parametrize(
    ("model", "name", "adapter"), [("ad1", "ad1", "ad1"), ("base", "base", None), (None, "base", None)]
)
async def test_the_reply_names_the_model_that_ran(model: str | None, name: str, adapter: str | None) -> None:
    engine = ScriptedEngine()
    reply = await full(service(engine), body(model=model))
    assert (reply["model"], engine.requests[0].adapter) == (name, adapter)


async def test_a_default_adapter_is_matched_by_the_media_of_the_prompt() -> None:
    engine = ScriptedEngine()
    svc = service(engine)
    svc.models.add(Adapter("ears", "/adapters/ears", "base", modality="audio"))
    reply = await full(svc, body(content_parts=[{"type": "audio_url", "url": "data:,"}]))
    assert (reply["model"], engine.requests[0].adapter) == ("ears", "ears")


async def test_transfer_params_reach_the_engine_and_come_back() -> None:
    engine = ScriptedEngine(one_sequence([5], kv_transfer_params={"blk": [1, 2]}, finish_reason="stop"))
    request = body(
        kv_transfer_params={"do_remote_decode": True, "id": "z"},
        ec_transfer_params={"e": 1},
        sampling={"max_tokens": 1, "extra_args": {"keep": 1}},
    )
    reply = await full(service(engine), request)
    asked = engine.requests[0]
    assert (asked.kv_transfer_params, asked.ec_transfer_params) == ({"do_remote_decode": True, "id": "z"}, {"e": 1})
    assert asked.sampling.extra_args == {"keep": 1}
    assert reply["kv_transfer_params"] == {"blk": [1, 2]}
    last = (await stream(service(ScriptedEngine(engine.script)), request))[-1]
    assert last["kv_transfer_params"] == {"blk": [1, 2]}


async def test_the_request_id_is_prefixed_and_the_header_wins() -> None:
    svc = service(ScriptedEngine())
    assert (await full(svc, body(request_id="mine")))["request_id"] == "generate-tokens-mine"
    reply = await full(svc, body(request_id="mine"), request_id_header="head")
    assert reply["request_id"] == "generate-tokens-head"


# --- 2. what is refused

BAD_SALTS = ["", "a" * 129, "a@b", "a/b", "a\\b", "a\0"]


@pytest.mark.parametrize(
    ("request_body", "error", "words"),
    [
        (body(model="nope"), ModelNotFoundError, "Valid aliases: base, ad1"),
        (body(sampling={"n": 9, "temperature": 1.0}), InvalidRequestError, "max_num_seqs (8), got 9"),
        (body([10, 50000]), InvalidRequestError, "Token id 50000 is out of vocabulary"),
        (body(list(range(4096))), PromptTooLongError, "4096"),
        (body(list(range(5000))), PromptTooLongError, "Input length (5000) exceeds"),
        (body(sampling={"stop": ["x"]}), InvalidRequestError, "stop_token_ids"),
        (body(sampling={"stop": ["x"], "detokenize": False}), InvalidRequestError, "detokenize"),
        (body(output_mode="text"), InvalidRequestError, "tokenizer"),
        (body(output_mode="derender"), InvalidRequestError, "tokenizer"),
        (body(output_mode="text", sampling={"detokenize": False}), InvalidRequestError, "detokenize=true"),
        (body(sampling={"logprobs": 21}), InvalidRequestError, "max allowed: 20"),
        (body(sampling={"seed": 2**64}), InvalidRequestError, "64 bits"),
        (body(sampling={"extra_args": {"x": 2**70}}), InvalidRequestError, "encodable"),
        (body(sampling={"temperature": math.nan}), InvalidRequestError, "finite"),
        (body(sampling={"logit_bias": {"5": math.inf}}), InvalidRequestError, "finite"),
        (body(stream=True, sampling={"prompt_logprob_token_ids": [[1]]}), InvalidRequestError, "stream=true"),
        *((body(cache_salt=salt), InvalidRequestError, "cache_salt") for salt in BAD_SALTS),
        (body(features={"mm_hashes": {"image": ["h"]}, "mm_placeholders": {"image": [{"offset": 1, "length": 4}]}}),
         InvalidRequestError, "runs past"),
    ],
)  # fmt: skip
async def test_a_bad_request_is_refused_before_the_engine_hears_of_it(
    request_body: dict[str, Any], error: type[TokenwireError], words: str
) -> None:
    engine = ScriptedEngine()
    with pytest.raises(error) as caught:
        await prepare(service(engine), request_body)
    assert words in caught.value.message
    assert engine.requests == []


async def test_a_salt_of_128_characters_passes() -> None:
    await full(service(ScriptedEngine()), body(cache_salt="a" * 128))


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": {"bad_words": ["x"]}},
        {"sampling": {"prompt_logprobs": 1}},
        {"sampling": {"structured_outputs": {"regex": "a"}}},
        {"sampling": {"watermarking": {"k": 1}}},
        {"sampling": {"routed_experts_prompt_start": 3}},
        {"sampling": {"thinking_token_budget": 3}},
        {"sampling": {"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2}}},
        {"cache_salt": "s"},
        {"priority": -1},
        {"kv_transfer_params": {"a": 1}},
        {"routed_experts_format": "object"},
    ],
)
async def test_what_the_engine_did_not_declare_is_refused_by_name(fields: dict[str, Any]) -> None:
    engine = ScriptedEngine(capabilities=Capabilities())
    with pytest.raises(UnsupportedFeatureError) as caught:
        await prepare(service(engine), body(**fields))
    name = next(iter(fields.get("sampling", fields)))
    assert name in caught.value.message
    assert "scripted engine" in caught.value.message


async def test_the_unknown_model_wins_over_every_later_fault() -> None:
    with pytest.raises(ModelNotFoundError):
        await prepare(service(ScriptedEngine(), max_num_queued_reqs=0), body([99999], model="nope"))


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"sampling_params": {"n": 20000, "temperature": 1.0, "max_tokens": 3}}, "n must be at most 16384"),
    ({"model": "nope"}, "does not exist"),
    ({"sampling_params": {"n": 9, "temperature": 1.0, "max_tokens": 3}}, "max_num_seqs"),
    ({"sampling_params": {"stop": ["x"], "max_tokens": 3}}, "stop strings are not supported"),
    ({"output_mode": "text"}, "requires a tokenizer"),
    ({"kv_transfer_params": {"n": 2**70}}, "kv_transfer_params"),
    ({"token_ids": [10, 50000]}, "out of vocabulary"),
]
"""Faults in the order in which callers see them: an earlier one hides a later one."""


@pytest.mark.parametrize("first", range(len(FAULTS) - 1))
async def test_of_two_faults_the_one_that_is_checked_first_is_told(first: int) -> None:
    for later, _ in FAULTS[first + 1 :]:
        fields, words = FAULTS[first]
        if set(fields) & set(later):
            continue
        with pytest.raises(TokenwireError, match=words):
            await prepare(service(ScriptedEngine()), body() | later | fields)


async def test_admission_counts_sequences_and_waiting_prompt_tokens() -> None:
    engine = ScriptedEngine(gate=True)
    svc = service(engine, max_num_queued_reqs=3, max_num_queued_tokens=4)
    running = asyncio.create_task(full(svc, body([1, 2, 3, 4], sampling={"n": 2, "max_tokens": 1})))
    await asyncio.sleep(0.01)
    with pytest.raises(OverloadedError, match="needs 2"):
        await prepare(svc, body(sampling={"n": 2}))
    with pytest.raises(OverloadedError, match="4 prompt tokens"):
        await prepare(svc, body())
    engine.open_gate()
    await running
    await full(svc, body())
    assert (svc.admission.num_seqs, svc.admission.num_prefill_tokens, svc.live_ids()) == (0, 0, [])


@pytest.mark.parametrize(
    ("status", "error"),
    [(EngineStatus.DEAD, EngineDeadError), (EngineStatus.PAUSED, EngineUnavailableError)]
    + [(EngineStatus.RESTARTING, EngineUnavailableError)],
)
async def test_an_engine_that_is_not_up_refuses(status: EngineStatus, error: type[TokenwireError]) -> None:
    engine = ScriptedEngine()
    engine.die(status=status)
    with pytest.raises(error):
        await prepare(service(engine), body())


async def test_prefer_if_available_is_refused_unless_the_prompt_is_cached() -> None:
    with pytest.raises(CacheAbsentError):
        await prepare(service(ScriptedEngine(cached_prefix_len=2)), body([1, 2, 3, 4]), prefer_cached=True)
    await prepare(service(ScriptedEngine(cached_prefix_len=3)), body([1, 2, 3, 4]), prefer_cached=True)


async def test_unknown_fields_are_counted_or_refused() -> None:
    svc = service(ScriptedEngine())
    await full(svc, body(foo=1, sampling={"max_tokens": 1, "best_of": 2}))
    assert svc.preparer.fields.counts == {"foo": 1, "sampling_params.best_of": 1}
    with pytest.raises(InvalidRequestError, match=r"foo: Extra inputs"):
        await prepare(service(ScriptedEngine(), strict_fields=True), body(foo=1))


async def test_extra_args_that_no_engine_reads_count_as_unknown_fields() -> None:
    deaf = Capabilities()
    svc = service(ScriptedEngine(capabilities=deaf))
    request = body(sampling={"max_tokens": 1, "extra_args": {"speed": 2}})
    await full(svc, request)
    assert svc.preparer.fields.counts == {"sampling_params.extra_args.speed": 1}
    with pytest.raises(InvalidRequestError, match=r"extra_args\.speed: Extra inputs"):
        await prepare(service(ScriptedEngine(capabilities=deaf), strict_fields=True), request)
    read = service(ScriptedEngine(), strict_fields=True)
    await prepare(read, request)


# --- 3. replies

PACKED = {"token_ids": "<i4", "logprobs": "<f4", "ranks": "<i4"}


async def test_a_non_finite_logprob_is_a_floor_and_rank_zero_is_null() -> None:
    scores = logprobs_of([[(5, math.nan), (8, -0.5)], [(6, -1.0), (9, -math.inf)]], ranks=[0, 2])
    engine = ScriptedEngine(one_sequence([5, 6], logprobs=scores))
    request = body(sampling={"max_tokens": 2, "logprobs": 1})
    content = (await full(service(engine), request))["choices"][0]["logprobs"]["content"]
    assert [(e["token_id"], e["logprob"], e["rank"]) for e in content] == [(5, -9999.0, None), (6, -1.0, 2)]
    assert content[0]["top_logprobs"][1] == {"token_id": 8, "logprob": -0.5, "rank": 1}
    assert content[1]["top_logprobs"][1]["logprob"] == -9999.0
    events = await stream(service(ScriptedEngine(one_sequence([5, 6], logprobs=scores))), request)
    assert [e["choices"][0]["logprobs"]["content"][0] for e in events] == content


async def test_the_sampled_token_stands_first_and_only_once() -> None:
    outside = logprobs_of([[(9, -3.0), (3, -0.1), (4, -0.2)]], ranks=[5])
    inside = logprobs_of([[(3, -0.1), (3, -0.1), (4, -0.2)]], ranks=[1])
    for scores, sampled, expected in [(outside, 9, [(9, 5), (3, 1), (4, 2)]), (inside, 3, [(3, 1), (4, 2)])]:
        engine = ScriptedEngine(one_sequence([sampled], logprobs=scores))
        reply = await full(service(engine), body(sampling={"max_tokens": 1, "logprobs": 2}))
        top = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        assert [(c["token_id"], c["rank"]) for c in top] == expected


async def test_a_sampled_token_without_score_gets_the_floor() -> None:
    engine = ScriptedEngine(one_sequence([9], logprobs=logprobs_of([[(3, -0.1)]])))
    reply = await full(service(engine), body(sampling={"max_tokens": 1, "logprobs": 1}))
    entry = reply["choices"][0]["logprobs"]["content"][0]
    assert entry == {"token_id": 9, "logprob": -9999.0, "rank": None, "top_logprobs": []}


async def test_packed_logprobs_are_the_arrays_themselves() -> None:
    import base64

    scores = logprobs_of([[(3, -0.1), (3, -0.1), (4, math.nan)]], ranks=[1])
    engine = ScriptedEngine(one_sequence([3], logprobs=scores))
    request = body(sampling={"max_tokens": 1, "logprobs": 2}, logprobs_format="packed")
    packed = (await full(service(engine), request))["choices"][0]["logprobs"]
    assert (packed["format"], packed["k"]) == ("packed", 3)
    ids = np.frombuffer(base64.b64decode(packed["token_ids"]), "<i4")
    values = np.frombuffer(base64.b64decode(packed["logprobs"]), "<f4")
    assert ids.tolist() == [3, -1, 4]
    assert math.isnan(values[2])


async def test_a_packed_row_without_the_sampled_tokens_score_is_that_token_alone() -> None:
    import base64

    engine = ScriptedEngine(one_sequence([9], logprobs=logprobs_of([[(3, -0.1), (4, -0.2)]])))
    request = body(sampling={"max_tokens": 1, "logprobs": 1}, logprobs_format="packed")
    packed = (await full(service(engine), request))["choices"][0]["logprobs"]
    rows = [np.frombuffer(base64.b64decode(packed[name]), dtype).tolist() for name, dtype in PACKED.items()]
    assert rows == [[9, -1], [-math.inf, -math.inf], [0]]


async def test_packed_logprobs_of_no_tokens_are_packed_too() -> None:
    engine = ScriptedEngine([Step([EngineOutput(0, [], finish_reason="abort")])])
    request = body(sampling={"max_tokens": 1, "logprobs": 1}, logprobs_format="packed")
    packed = (await full(service(engine), request))["choices"][0]["logprobs"]
    assert (packed["format"], packed["token_ids"], packed["ranks"]) == ("packed", "", "")


async def test_the_token_field_dialect_names_each_id() -> None:
    engine = ScriptedEngine(one_sequence([3], logprobs=logprobs_of([[(3, -0.1), (4, -0.2)]])))
    request = body(sampling={"max_tokens": 1, "logprobs": 1}, logprob_token_field=True)
    entry = (await full(service(engine), request))["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == "token_id:3"
    assert [c["token"] for c in entry["top_logprobs"]] == ["token_id:3", "token_id:4"]


async def test_prompt_logprobs_come_whole_and_on_the_first_chunk() -> None:
    scores = Logprobs(np.array([[11, 5]], np.int32), np.array([[-2.0, -np.inf]], np.float32), np.array([7], np.int32))
    steps = one_sequence([1, 2])
    steps[0].outputs[0].prompt = PromptOutput(num_cached_tokens=0, logprobs=scores)
    request = body(sampling={"max_tokens": 2, "prompt_logprobs": 1})
    expected = [None, {"11": {"logprob": -2.0, "rank": 7, "decoded_token": None},
                       "5": {"logprob": -9999.0, "rank": 1, "decoded_token": None}}]  # fmt: skip
    assert (await full(service(ScriptedEngine(steps)), request))["prompt_logprobs"] == expected
    events = await stream(service(ScriptedEngine(steps)), request)
    assert events[0]["prompt_logprobs"] == expected
    assert "prompt_logprobs" not in events[1]


async def test_prompt_logprobs_are_packed_too() -> None:
    import base64

    scores = Logprobs(np.array([[11, 5]], np.int32), np.array([[-2.0, -np.inf]], np.float32), np.array([7], np.int32))
    steps = one_sequence([1])
    steps[0].outputs[0].prompt = PromptOutput(num_cached_tokens=0, logprobs=scores)
    request = body(sampling={"max_tokens": 1, "prompt_logprobs": 1}, logprobs_format="packed")
    packed = (await full(service(ScriptedEngine(steps)), request))["prompt_logprobs"]
    rows = [np.frombuffer(base64.b64decode(packed[name]), dtype).tolist() for name, dtype in PACKED.items()]
    assert rows == [[11, 5], [-2.0, -math.inf], [7]]


TWO = interleave(sequence([1, 2, 3], index=0), sequence([4, 5], index=1))


async def test_usage_counts_the_prompt_once_and_every_choice() -> None:
    request = body(list(range(5)), sampling={"n": 2, "max_tokens": 3})
    assert (await full(service(ScriptedEngine(TWO)), request))["usage"]["completion_tokens"] == 5
    events = await stream(service(ScriptedEngine(TWO)), request | {"stream_options": {"include_usage": True}})
    assert events[-1] == {
        "request_id": events[0]["request_id"],
        "usage": {"prompt_tokens": 5, "total_tokens": 10, "completion_tokens": 5},
        "output_mode": "tokens",
        "choices": [],
    }
    assert all(event["usage"] is None for event in events[:-1])


async def test_continuous_usage_counts_each_choice_alone_and_needs_include_usage() -> None:
    request = body(list(range(5)), sampling={"n": 2, "max_tokens": 3})
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await stream(service(ScriptedEngine(TWO)), request | {"stream_options": options})
    running = [(e["choices"][0]["index"], e["usage"]["completion_tokens"]) for e in events[:-1]]
    assert running == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]
    only = await stream(service(ScriptedEngine(TWO)), request | {"stream_options": {"continuous_usage_stats": True}})
    assert all(event["usage"] is None for event in only)


async def test_cached_tokens_are_told_only_when_the_server_is_asked_to() -> None:
    steps = interleave(sequence([1]), num_cached_tokens=32)
    reply = await full(service(ScriptedEngine(steps), enable_prompt_tokens_details=True), body())
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 32
    assert (await full(service(ScriptedEngine(steps)), body()))["usage"]["prompt_tokens_details"] is None


def _labelled() -> list[Step]:
    outputs = [EngineOutput(0, [i], weight_version="s1" if i < 3 else "s2") for i in range(5)]
    outputs[-1].finish_reason = "length"
    return [Step([output]) for output in outputs]


async def test_weight_versions_name_what_made_each_token() -> None:
    spans = [{"version": "s1", "start": 0, "end": 3}, {"version": "s2", "start": 3, "end": 5}]
    reply = await full(service(ScriptedEngine(_labelled())), body(sampling={"max_tokens": 5}))
    assert reply["choices"][0]["weight_versions"] == spans
    events = await stream(service(ScriptedEngine(_labelled())), body(sampling={"max_tokens": 5}))
    assert [e["choices"][0]["weight_versions"] for e in events] == [None] * 4 + [spans]


async def test_an_abort_without_tokens_has_no_spans_and_an_unlabelled_engine_says_null() -> None:
    aborted = [Step([EngineOutput(0, [], finish_reason="abort", weight_versions=[])])]
    assert (await full(service(ScriptedEngine(aborted)), body()))["choices"][0]["weight_versions"] == []
    assert (await full(service(ScriptedEngine(one_sequence([1]))), body()))["choices"][0]["weight_versions"] is None
    spans = [WeightSpan("v", 0, 2)]
    given = one_sequence([1, 2], weight_versions=spans)
    assert (await full(service(ScriptedEngine(given)), body()))["choices"][0]["weight_versions"][0]["end"] == 2


async def test_stream_chunks_leave_out_what_upstream_leaves_out() -> None:
    events = await stream(service(ScriptedEngine(one_sequence([1, 2]))), body(return_token_ids=True))
    assert list(events[0]) == ["request_id", "usage", "prompt_token_ids", "output_mode", "choices"]
    assert list(events[1]) == ["request_id", "usage", "output_mode", "choices"]
    assert list(events[1]["choices"][0]) == [
        "index", "finish_reason", "stop_reason", "token_ids", "routed_experts", "sampling_mask", "weight_versions",
        "logprobs",
    ]  # fmt: skip


async def until_failure(svc: GenerateService) -> list[Any]:
    """The chunks of a stream that ends with a `GenerationError`."""
    prepared = await prepare(svc, body(stream=True))
    seen: list[Any] = []

    async def read() -> None:
        async for chunks in svc.stream(prepared):
            seen.extend(chunks)

    with pytest.raises(GenerationError, match="boom"):
        await read()
    return seen


@pytest.mark.parametrize("before", [0, 2])
async def test_an_engine_error_is_an_error_and_never_a_finish_reason(before: int) -> None:
    steps = [Step([EngineOutput(0, [i])]) for i in range(before)]
    steps.append(Step([EngineOutput(0, [], finish_reason="error", error="boom")]))
    with pytest.raises(GenerationError, match="boom"):
        await full(service(ScriptedEngine(steps)), body())
    assert len(await until_failure(service(ScriptedEngine(steps)))) == before


async def test_tokens_that_come_together_with_a_failure_are_shown_before_it() -> None:
    failed = EngineOutput(0, [], finish_reason="error", error="boom")
    seen = await until_failure(service(ScriptedEngine([Step([EngineOutput(0, [1]), EngineOutput(0, [2]), failed])])))
    assert [chunk.choices[0].token_ids for chunk in seen] == [[1], [2]]


async def test_a_failure_is_not_merged_into_the_tokens_that_a_slow_reader_has_not_taken() -> None:
    queue = RequestQueue(1, lambda: None, lambda index: None, max_pending=1)
    queue.put(EngineOutput(0, [1]))
    queue.put(EngineOutput(0, [2]))
    queue.put(EngineOutput(0, [], finish_reason="error"))
    assert [(output.token_ids, output.finish_reason) for output in await anext(queue)] == [
        ([1, 2], None),
        ([], "error"),
    ]


# --- 4. leaving and aborting


@pytest.mark.parametrize("n", [1, 2])
async def test_leaving_a_stream_aborts_the_request_once(n: int) -> None:
    engine = ScriptedEngine(lambda r: interleave(*(sequence([1] * 500, index=i) for i in range(n)), delay_s=0.001))
    svc = service(engine)
    events = svc.stream(await prepare(svc, body(stream=True, sampling={"n": n, "max_tokens": 500})))
    async for _ in events:
        break
    await events.aclose()
    assert engine.aborted == [engine.requests[0].request_id]
    assert svc.live_ids() == []


async def test_cancelling_a_whole_reply_before_its_first_token_aborts_it() -> None:
    engine = ScriptedEngine(gate=True)
    svc = service(engine)
    task = asyncio.create_task(full(svc, body()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(engine.aborted) == 1
    assert svc.live_ids() == []


@pytest.mark.parametrize("given", ["mine", "generate-tokens-mine"])
async def test_abort_finds_bare_and_prefixed_ids_and_returns_what_there_was(given: str) -> None:
    engine = ScriptedEngine(lambda r: [Step([EngineOutput(0, [1, 2])]), Step([EngineOutput(0, [3])], delay_s=5)])
    svc = service(engine)
    task = asyncio.create_task(full(svc, body(request_id="mine")))
    await asyncio.sleep(0.01)
    assert await svc.abort([given, "other"]) == ([given], ["other"])
    choice = (await task)["choices"][0]
    assert (choice["finish_reason"], choice["token_ids"]) == ("abort", [1, 2])
    assert await svc.abort([given]) == ([], [given])


async def test_what_an_abort_ended_is_named_though_its_reply_is_out_before_the_abort_returns() -> None:
    class Slow(ScriptedEngine):
        async def abort(self, request_ids: Iterable[str]) -> list[str]:
            found = await super().abort(request_ids)
            await task
            return found

    svc = service(Slow([Step([EngineOutput(0, [1])]), Step(delay_s=5)]))
    task = asyncio.create_task(full(svc, body(request_id="mine")))
    await asyncio.sleep(0.01)
    assert await svc.abort(["mine"]) == (["mine"], [])


async def test_two_live_requests_may_share_an_id() -> None:
    svc = service(ScriptedEngine())
    first, second = await asyncio.gather(
        full(svc, body([1] * 10, request_id="same")), full(svc, body([1] * 20, request_id="same"))
    )
    assert first["request_id"] == second["request_id"] == "generate-tokens-same"
    assert first["choices"][0]["token_ids"] == [1010, 1011, 1012]
    assert second["choices"][0]["token_ids"] == [1020, 1021, 1022]
