"""The client and this package's own server, with an engine whose every output is written down.

1. Both wires give the same replies and the same chunks, scores and prompt scores as arrays included.
2. Every kind of error the server raises comes back as the type it was raised as, before and inside a stream.
3. An abort from elsewhere ends the request with what it had.
4. `Prefer: if-available`, request ids, a full queue: status, type and facts arrive.
5. On a socket, a client that leaves a stream stops the engine's work.
6. `tokenwire bench` measures it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support.http import app_of, serving, until
from tests.support.scripted_engine import (
    ScriptedEngine,
    Step,
    counting,
    interleave,
    logprobs_of,
    one_sequence,
    sequence,
)
from tokenwire import errors
from tokenwire.bench.connection import Pool, Target
from tokenwire.bench.load import PATH, run_level
from tokenwire.bench.options import BenchOptions, RequestShape
from tokenwire.bench.summary import summarise
from tokenwire.client import AsyncClient, ReplyError
from tokenwire.client.codec import WireName
from tokenwire.client.replies import ReplyLogprobs
from tokenwire.engine.base import PromptOutput, WeightSpan

WIRES: tuple[WireName, ...] = ("json", "msgpack")


def client_of(app: Any, wire: WireName = "json", **options: Any) -> AsyncClient:
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    return AsyncClient("http://test", wire=wire, transport=transport, **options)


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> WireName:
    name: WireName = request.param
    return name


# --- the same on both wires ---------------------------------------------------------------------------------------


async def test_a_whole_reply_arrives_whole(wire: WireName) -> None:
    scores = logprobs_of([[(5, -0.25), (6, -1.5)], [(7, -0.5), (8, -2.0)]], ranks=[1, 3])
    spans = [WeightSpan("a", 0, 1), WeightSpan("b", 1, 2)]
    engine = ScriptedEngine(
        one_sequence([5, 7], logprobs=scores, finish_reason="stop", stop_reason=7, weight_versions=spans)
    )
    async with client_of(app_of(engine), wire) as client:
        reply = await client.generate(
            [1, 2, 3], {"logprobs": 1, "max_tokens": 2}, logprobs_format="packed", return_token_ids=True
        )
    choice = reply.choices[0]
    assert (reply.token_ids, reply.prompt_token_ids) == ([5, 7], [1, 2, 3])
    assert (choice.finish_reason, choice.stop_reason) == ("stop", 7)
    assert choice.logprobs is not None
    arrays = choice.logprobs.arrays()
    np.testing.assert_array_equal(arrays.token_ids, [[5, 6], [7, 8]])
    np.testing.assert_array_equal(arrays.logprobs, np.float32([[-0.25, -1.5], [-0.5, -2.0]]))
    np.testing.assert_array_equal(arrays.ranks, [1, 3])
    assert [(s.version, s.start, s.end) for s in choice.weight_versions or ()] == [("a", 0, 1), ("b", 1, 2)]
    assert reply.usage is not None
    assert reply.usage.total_tokens == 5


@pytest.mark.parametrize("logprobs_format", ["content", "packed"])
async def test_prompt_scores_arrive_in_both_formats(wire: WireName, logprobs_format: str) -> None:
    steps = one_sequence([5])
    steps[0].outputs[0].prompt = PromptOutput(logprobs=logprobs_of([[(2, -1.0)], [(3, -2.0)]]), num_cached_tokens=0)
    async with client_of(app_of(ScriptedEngine(steps)), wire) as client:
        reply = await client.generate(
            [1, 2, 3], {"prompt_logprobs": 0, "max_tokens": 1}, logprobs_format=logprobs_format
        )
    if logprobs_format == "packed":
        assert isinstance(reply.prompt_logprobs, ReplyLogprobs)
        assert reply.prompt_logprobs.sampled().tolist() == [-1.0, -2.0]
    else:
        assert isinstance(reply.prompt_logprobs, list)
        assert [p and {i: s.logprob for i, s in p.items()} for p in reply.prompt_logprobs] == [
            None,
            {2: -1.0},
            {3: -2.0},
        ]


async def test_routed_experts_and_sampling_masks_arrive(wire: WireName) -> None:
    experts = np.arange(8, dtype=np.uint8).reshape(4, 1, 2)
    engine = ScriptedEngine(one_sequence([5], routed_experts=experts, sampling_mask=[np.array([5, 6], np.int32)]))
    for experts_format in ("npy", "object"):
        async with client_of(app_of(engine), wire) as client:
            reply = await client.generate([1, 2], {"max_tokens": 1}, routed_experts_format=experts_format)
        np.testing.assert_array_equal(reply.choices[0].routed_experts_array(), experts)
        assert reply.choices[0].sampling_mask == [[5, 6]]


async def test_a_stream_of_two_choices_arrives_in_order(wire: WireName) -> None:
    engine = ScriptedEngine(lambda request: interleave(sequence([1, 2, 3], index=0), sequence([4, 5], index=1)))
    async with client_of(app_of(engine), wire) as client:
        stream = client.generate_stream(
            [9], {"n": 2, "max_tokens": 3}, return_token_ids=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    ids: dict[int, list[int]] = {0: [], 1: []}
    for chunk in chunks[:-1]:
        ids[chunk.choices[0].index] += chunk.choices[0].token_ids or []
    assert ids == {0: [1, 2, 3], 1: [4, 5]}
    assert chunks[0].prompt_token_ids == [9]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prompt, sampling, fields, kind, param",
    [
        ([], {}, {}, errors.BodyValidationError, "body.token_ids"),
        ([1], {"top_p": 7}, {}, errors.InvalidRequestError, "top_p"),
        ([1], {}, {"model": "nope"}, errors.ModelNotFoundError, "model"),
        ([1], {}, {"output_mode": "text"}, errors.InvalidRequestError, None),
        ([1], {}, {"cache_salt": "a/b"}, errors.InvalidRequestError, "cache_salt"),
    ],
)
async def test_refusals_come_back_as_they_were_raised(
    wire: WireName, prompt: list[int], sampling: Any, fields: Any, kind: type[Exception], param: str | None
) -> None:
    async with client_of(app_of(), wire) as client:
        with pytest.raises(kind) as whole:
            await client.generate(prompt, sampling, **fields)
        with pytest.raises(kind) as streamed:
            await anext(client.generate_stream(prompt, sampling, **fields))
    for caught in (whole, streamed):
        assert isinstance(caught.value, ReplyError)
        assert caught.value.status in (400, 404)
        assert param is None or caught.value.param == param


async def test_a_failure_of_the_engine_raises_after_the_tokens_before_it(wire: WireName) -> None:
    steps = [*one_sequence([1, 2], finish_reason=None), Step(error=errors.GenerationError("the step broke"))]
    async with client_of(app_of(ScriptedEngine(steps)), wire) as client:
        stream = client.generate_stream([9], {"max_tokens": 5})
        assert [(await anext(stream)).choices[0].token_ids for _ in range(2)] == [[1], [2]]
        with pytest.raises(errors.GenerationError) as caught:
            await anext(stream)
        with pytest.raises(errors.GenerationError):
            await client.generate([9], {"max_tokens": 5})
    assert isinstance(caught.value, ReplyError)
    assert caught.value.status == 500


async def test_a_full_queue_says_when_to_come_back(wire: WireName) -> None:
    app = app_of(ScriptedEngine(lambda request: counting(request, delay_s=0.2)), max_num_queued_reqs=1)
    async with client_of(app, wire) as client:
        running = asyncio.create_task(client.generate([1], {"max_tokens": 2}))
        await asyncio.sleep(0.1)
        with pytest.raises(errors.OverloadedError) as caught:
            await client.generate([1], {"max_tokens": 2})
        assert isinstance(caught.value, ReplyError)
        assert (caught.value.status, caught.value.retry_after_s >= 0) == (503, True)
        await running


async def test_a_full_queue_is_waited_for_when_asked() -> None:
    app = app_of(ScriptedEngine(lambda request: counting(request, delay_s=0.2)), max_num_queued_reqs=1)
    async with client_of(app, retries=5) as client:
        replies = await asyncio.gather(*(client.generate([1], {"max_tokens": 2}) for _ in range(2)))
    assert [reply.token_ids for reply in replies] == [[1001, 1002]] * 2


# --- abort and leaving --------------------------------------------------------------------------------------------


@pytest.fixture
async def slow_server() -> AsyncIterator[tuple[str, ScriptedEngine]]:
    engine = ScriptedEngine(lambda request: counting(request, delay_s=0.01))
    async with serving(app_of(engine)) as port:
        yield f"http://127.0.0.1:{port}", engine


async def test_an_abort_ends_the_request_with_what_it_had(
    slow_server: tuple[str, ScriptedEngine], wire: WireName
) -> None:
    url, _ = slow_server
    async with AsyncClient(url, wire=wire) as client:
        ids: list[int] = []
        ended = None
        async for chunk in client.generate_stream([1], {"max_tokens": 5000}, request_id="mine"):
            ids += chunk.choices[0].token_ids or []
            ended = chunk.choices[0].finish_reason
            if len(ids) == 3 and ended is None:
                aborted = await client.abort("mine")
                assert aborted.aborted is not None
                assert [name.removeprefix("generate-tokens-") for name in aborted.aborted] == ["mine"]
    assert ended == "abort"
    assert ids == [1001 + i for i in range(len(ids))]
    assert len(ids) < 1000


async def test_leaving_a_stream_stops_the_engine(slow_server: tuple[str, ScriptedEngine], wire: WireName) -> None:
    url, engine = slow_server
    async with AsyncClient(url, wire=wire) as client:
        async with client.generate_stream([1], {"max_tokens": 5000}) as stream:
            await anext(stream)
        await until(lambda: engine.aborted)


async def test_the_bench_measures_it(slow_server: tuple[str, ScriptedEngine]) -> None:
    url, _ = slow_server
    options = BenchOptions(base_url=url, shape=RequestShape(prompt_len=8, output_len=5), num_requests=6)
    pool = Pool(Target.of(url, PATH, {}))
    level = summarise(await run_level(options, pool, 0, 3, lambda run: None), options)
    pool.close()
    assert (level.num_requests, level.num_failed, level.num_short) == (6, 0, 0)
    assert level.ttft_ms is not None
    assert level.e2e_ms is not None
    assert level.e2e_ms.p50 > 49  # five steps of 10 ms
