"""`/inference/v1/generate` over HTTP: (1) whole replies have every field, nulls sent; (2) streams end with [DONE];
(3) usage as asked for; (4) ids and logprobs survive NaN and infinities; (5) request ids from header, body or chance;
(6) two live requests with one id do not mix; (7) headers reach the engine; (8) transfer params both ways; (9) a
failing engine is an error, streamed or whole; (10) MessagePack both ways; (11) weight versions on the last chunk."""

import asyncio
import json
import math

import msgspec
import numpy as np
import pytest

from tests.support.http import GENERATE, app_of, body, client_of, events_of, until
from tests.support.scripted_engine import (
    ScriptedEngine,
    Step,
    counting,
    interleave,
    logprobs_of,
    one_sequence,
    sequence,
)
from tokenwire.engine.base import EngineOutput, WeightSpan
from tokenwire.errors import EngineDeadError, GenerationError


async def post(app, payload, **headers):
    async with client_of(app) as client:
        return await client.post(GENERATE, json=payload, headers=headers)


async def stream(app, payload, **headers):
    reply = await post(app, {**payload, "stream": True}, **headers)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events_of(reply.text)


async def test_a_whole_reply_has_every_field():
    reply = await post(app_of(ScriptedEngine(one_sequence([5, 6, 7], finish_reason="stop", stop_reason=7))), body())
    assert reply.status_code == 200
    content = reply.json()
    created = content.pop("created")
    assert isinstance(created, int)
    assert content.pop("request_id").startswith("generate-tokens-")
    assert content == {
        "model": "m",
        "usage": {
            "prompt_tokens": 3,
            "total_tokens": 6,
            "completion_tokens": 3,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "stop_reason": 7,
                "token_ids": [5, 6, 7],
                "routed_experts": None,
                "sampling_mask": None,
                "weight_versions": None,
                "logprobs": None,
            }
        ],
    }


async def test_a_stream_gives_the_same_ids_and_ends_with_done():
    events = await stream(app_of(ScriptedEngine(one_sequence([5, 6, 7], finish_reason="stop", stop_reason=7))), body())
    assert [t for e in events for t in e["choices"][0]["token_ids"]] == [5, 6, 7]
    assert [e["choices"][0]["finish_reason"] for e in events] == [None, None, "stop"]
    assert events[-1]["choices"][0]["stop_reason"] == 7
    assert set(events[0]) == {"request_id", "usage", "output_mode", "choices"}
    assert set(events[0]["choices"][0]) == {
        "index",
        "finish_reason",
        "stop_reason",
        "token_ids",
        "routed_experts",
        "sampling_mask",
        "weight_versions",
        "logprobs",
    }


USAGE_SCRIPT = interleave(sequence([5, 6, 7], index=0), sequence([8, 9], index=1), num_cached_tokens=4)


@pytest.mark.parametrize(
    "options, details, continuous, final",
    [
        (None, False, False, None),
        ({"continuous_usage_stats": True}, False, False, None),
        ({"include_usage": True}, False, False, {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}),
        (
            {"include_usage": True, "continuous_usage_stats": True},
            False,
            True,
            {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10},
        ),
        (
            {"include_usage": True},
            True,
            False,
            {
                "prompt_tokens": 5,
                "completion_tokens": 5,
                "total_tokens": 10,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        ),
    ],
)
async def test_usage_is_sent_as_asked_for(options, details, continuous, final):
    app = app_of(ScriptedEngine(USAGE_SCRIPT), enable_prompt_tokens_details=details)
    request = body([1, 2, 3, 4, 5], n=2)
    events = await stream(app, {**request, "stream_options": options} if options else request)
    if final is not None:
        last = events.pop()
        assert last["choices"] == []
        assert {k: v for k, v in last["usage"].items() if v is not None} == final
    running = {
        i: [e["usage"] and e["usage"]["completion_tokens"] for e in events if e["choices"][0]["index"] == i]
        for i in (0, 1)
    }
    assert running == ({0: [1, 2, 3], 1: [1, 2]} if continuous else {0: [None] * 3, 1: [None] * 2})


@pytest.mark.parametrize("streamed", [False, True])
async def test_non_finite_logprobs_are_json(streamed):
    scores = logprobs_of([[(5, math.nan)], [(6, -0.25), (7, -0.25), (8, -math.inf)]], ranks=[0, 1])
    app = app_of(ScriptedEngine(one_sequence([5, 6], logprobs=scores)))
    if streamed:
        choices = [e["choices"][0] for e in await stream(app, body(logprobs=2))]
    else:
        choices = json.loads((await post(app, body(logprobs=2))).text, parse_constant=pytest.fail)["choices"]
    content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    assert (content[0]["logprob"], content[0]["rank"]) == (-9999.0, None)
    assert [top["logprob"] for top in content[1]["top_logprobs"]][-1] == -9999.0
    assert content[1]["logprob"] == -0.25


@pytest.mark.parametrize(
    "headers, field, expected",
    [
        ({"X-Request-Id": "from-header"}, "from-body", "generate-tokens-from-header"),
        ({}, "from-body", "generate-tokens-from-body"),
    ],
)
async def test_the_request_id_comes_from_header_then_body(headers, field, expected):
    reply = await post(app_of(), {**body(max_tokens=1), "request_id": field}, **headers)
    assert reply.json()["request_id"] == expected


async def test_two_live_requests_with_one_id_keep_their_own_tokens():
    engine = ScriptedEngine(gate=True)
    app = app_of(engine)
    first, second = body([1, 2, 3], max_tokens=4), body([1, 2, 3, 4, 5], max_tokens=4)
    async with client_of(app) as client:
        headers = {"X-Request-Id": "same"}
        tasks = [asyncio.create_task(client.post(GENERATE, json=p, headers=headers)) for p in (first, second)]
        await until(lambda: len(engine.requests) == 2)
        engine.open_gate()
        replies = [(await task).json() for task in tasks]
    assert [r["request_id"] for r in replies] == ["generate-tokens-same"] * 2
    assert [r["choices"][0]["token_ids"][0] for r in replies] == [1003, 1005]


async def test_an_id_may_be_used_again_right_after_its_abort():
    engine = ScriptedEngine(gate=True)
    app = app_of(engine)
    async with client_of(app) as client:
        payload = {**body(max_tokens=4), "request_id": "r"}
        first = asyncio.create_task(client.post(GENERATE, json=payload))
        await until(lambda: engine.requests)
        reply = await client.post("/inference/v1/abort_requests", json={"request_ids": ["r", "generate-tokens-no"]})
        assert reply.json() == {"aborted": ["r"], "unknown": ["generate-tokens-no"]}
        engine.open_gate()
        second = await client.post(GENERATE, json=payload)
        assert (await first).json()["choices"][0]["finish_reason"] == "abort"
    assert len(second.json()["choices"][0]["token_ids"]) == 4


async def test_headers_reach_the_engine():
    engine = ScriptedEngine()
    await post(
        app_of(engine),
        body(max_tokens=1),
        **{"X-data-parallel-rank": "0", "X-Session-ID": "s", "traceparent": "00-a", "tracestate": "b=1"},
    )
    request = engine.requests[0]
    assert (request.data_parallel_rank, request.session_id) == (0, "s")
    assert request.trace_headers == {"traceparent": "00-a", "tracestate": "b=1"}


async def test_a_rank_that_is_no_number_counts_as_absent():
    engine = ScriptedEngine()
    reply = await post(app_of(engine), body(max_tokens=1), **{"X-data-parallel-rank": "two"})
    assert reply.status_code == 200
    assert engine.requests[0].data_parallel_rank is None


async def running_requests(client, engine, *ids):
    tasks = [asyncio.create_task(client.post(GENERATE, json={**body(max_tokens=500), "request_id": i})) for i in ids]
    await until(lambda: engine.num_live == len(ids))
    return tasks


def reasons_of(replies):
    return [reply.json()["choices"][0]["finish_reason"] for reply in replies]


@pytest.mark.parametrize("content", ["", "{}", '{"request_ids": []}', '{"request_ids": null}'])
async def test_a_trainers_abort_without_ids_ends_everything(content):
    engine = ScriptedEngine(lambda asked: counting(asked, delay_s=0.02))
    async with client_of(app_of(engine, server_dev_mode=True)) as client:
        tasks = await running_requests(client, engine, "a", "b")
        reply = await client.post("/abort_requests", content=content)
        assert reply.json() == {"status": "aborted", "aborted": 2}
        assert reasons_of(await asyncio.gather(*tasks)) == ["abort", "abort"]


@pytest.mark.parametrize("content", ["{", '["a"]', '{"request_ids": "a"}'])
async def test_a_trainers_abort_that_cannot_be_read_ends_nothing(content):
    engine = ScriptedEngine(lambda asked: counting(asked, delay_s=0.002))
    async with client_of(app_of(engine, server_dev_mode=True)) as client:
        tasks = await running_requests(client, engine, "a")
        assert (await client.post("/abort_requests", content=content)).status_code == 400
        assert reasons_of(await asyncio.gather(*tasks)) == ["length"]


async def test_an_abort_by_id_speaks_message_pack_too():
    engine = ScriptedEngine(lambda asked: counting(asked, delay_s=0.02))
    async with client_of(app_of(engine, server_dev_mode=True)) as client:
        tasks = await running_requests(client, engine, "a")
        content = msgspec.msgpack.encode({"request_ids": ["a", "b"]})
        reply = await client.post(
            "/inference/v1/abort_requests", content=content, headers={"Content-Type": "application/msgpack"}
        )
        assert msgspec.msgpack.decode(reply.content) == {"aborted": ["a"], "unknown": ["b"]}
        assert reasons_of(await asyncio.gather(*tasks)) == ["abort"]


@pytest.mark.parametrize("cached, status", [(0, 412), (2, 200)])
async def test_prefer_if_available_is_412_without_a_cached_prompt(cached, status):
    app = app_of(ScriptedEngine(cached_prefix_len=cached))
    reply = await post(app, body([1, 2, 3], max_tokens=1), Prefer="respond-async, if-available")
    assert reply.status_code == status


async def test_transfer_params_go_to_the_engine_and_come_back():
    engine = ScriptedEngine(one_sequence([5], kv_transfer_params={"blk": [1, 2]}))
    kv, ec = {"do_remote_decode": True, "id": "z"}, {"e": 1}
    request = {**body(extra_args={"keep": 1}), "kv_transfer_params": kv, "ec_transfer_params": ec}
    reply = await post(app_of(engine), request)
    assert reply.json()["kv_transfer_params"] == {"blk": [1, 2]}
    seen = engine.requests[0]
    assert (seen.kv_transfer_params, seen.ec_transfer_params, seen.sampling.extra_args) == (kv, ec, {"keep": 1})
    assert (await stream(app_of(engine), request))[-1]["kv_transfer_params"] == {"blk": [1, 2]}


async def test_weight_versions_ride_on_the_finish_chunk_only():
    spans = [WeightSpan("s1", 0, 3), WeightSpan("s2", 3, 5)]
    events = await stream(app_of(ScriptedEngine(one_sequence([1, 2, 3, 4, 5], weight_versions=spans))), body())
    versions = [e["choices"][0]["weight_versions"] for e in events]
    assert versions == [None] * 4 + [[{"version": "s1", "start": 0, "end": 3}, {"version": "s2", "start": 3, "end": 5}]]


FAILED = EngineOutput(0, [], finish_reason="error", error="boom")
FAILURES = {
    "an output with reason error": lambda ids: [*one_sequence(ids, finish_reason=None)[: len(ids)], Step([FAILED])],
    "a failing stream": lambda ids: [
        *one_sequence(ids, finish_reason=None)[: len(ids)],
        Step(error=GenerationError("boom")),
    ],
    "a dying engine": lambda ids: [
        *one_sequence(ids, finish_reason=None)[: len(ids)],
        Step(error=EngineDeadError("gone")),
    ],
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failing_engine_is_a_500(failure):
    reply = await post(app_of(ScriptedEngine(FAILURES[failure]([5, 6]))), body())
    assert reply.status_code == 500
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("InternalServerError", 500)


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("token_ids", [[], [5, 6]])
async def test_a_failing_engine_ends_a_stream_with_one_error_and_done(failure, token_ids):
    events = await stream(app_of(ScriptedEngine(FAILURES[failure](token_ids))), body())
    assert events[-1]["error"]["code"] == 500
    assert [e["choices"][0]["token_ids"] for e in events[:-1]] == [[t] for t in token_ids]
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])


async def test_an_unexpected_exception_tells_nothing(caplog):
    def broken(request):
        raise RuntimeError("/secret/path")

    engine = ScriptedEngine()
    engine.generate = broken
    reply = await post(app_of(engine), body())
    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.json()["error"]["message"] == "The server had an error while processing your request."
    assert "/secret/path" in caplog.text


async def test_message_pack_carries_raw_arrays_both_ways():
    scores = logprobs_of([[(5, -0.5), (5, -0.5), (6, math.nan)]])
    app = app_of(ScriptedEngine(one_sequence([5], logprobs=scores)))
    request = {
        "token_ids": np.asarray([1, 2, 3], "<i4").tobytes(),
        "sampling_params": {"logprobs": 2},
        "logprobs_format": "packed",
    }
    async with client_of(app) as client:
        reply = await client.post(
            GENERATE, content=msgspec.msgpack.encode(request), headers={"Content-Type": "application/msgpack"}
        )
    assert reply.headers["content-type"] == "application/msgpack"
    content = msgspec.msgpack.decode(reply.content)
    packed = content["choices"][0]["logprobs"]
    assert content["usage"]["prompt_tokens"] == 3
    values = np.frombuffer(packed["logprobs"], "<f4")
    assert values[:2].tolist() == [-0.5, -0.5]
    assert math.isnan(values[2])


async def test_message_pack_streams_are_length_prefixed_frames():
    app = app_of(ScriptedEngine(one_sequence([5, 6])))
    reply = await post(app, body(stream=True), Accept="application/msgpack")
    frames, rest = [], reply.content
    while rest:
        size = int.from_bytes(rest[:4], "little")
        frames.append(msgspec.msgpack.decode(rest[4 : 4 + size]))
        rest = rest[4 + size :]
    assert frames[-1] == "[DONE]"
    assert [f["choices"][0]["token_ids"] for f in frames[:-1]] == [b"\5\0\0\0", b"\6\0\0\0"]


async def test_errors_are_told_in_the_format_that_the_caller_reads():
    reply = await post(app_of(), {**body(), "model": "nope"}, Accept="application/msgpack")
    assert reply.status_code == 404
    assert msgspec.msgpack.decode(reply.content)["error"]["type"] == "NotFoundError"


@pytest.mark.parametrize(
    "max_tokens, expected",
    [({}, 90), ({"max_tokens": None}, 90), ({"max_tokens": 16}, 16), ({"max_tokens": 1000}, 90)],
)
async def test_a_missing_max_tokens_means_the_rest_of_the_context(max_tokens, expected):
    reply = await post(app_of(ScriptedEngine(max_model_len=100)), body(list(range(1, 11)), **max_tokens))
    choice = reply.json()["choices"][0]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (expected, "length")


async def test_a_server_default_caps_a_missing_max_tokens_only():
    app = app_of(ScriptedEngine(max_model_len=100), override_generation_config={"max_new_tokens": 50})
    assert len((await post(app, body(list(range(1, 11))))).json()["choices"][0]["token_ids"]) == 50
    assert len((await post(app, body(list(range(1, 11)), max_tokens=60))).json()["choices"][0]["token_ids"]) == 60


async def test_a_trainers_abort_exists_in_development_mode_and_on_token_only_workers():
    for options, status in [({}, 404), ({"server_dev_mode": True}, 200), ({"tokens_only": True}, 200)]:
        async with client_of(app_of(ScriptedEngine(), **options)) as client:
            assert (await client.post("/abort_requests", json={"request_ids": ["a"]})).status_code == status


async def test_a_dead_engine_is_told_in_one_fixed_sentence():
    engine = ScriptedEngine()
    app = app_of(engine)
    engine.die()
    reply = await post(app, body())
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "InternalServerError")
    assert reply.json()["error"]["message"] == "The server had an error while processing your request."
