"""Prefill on one worker, decode on another; and the prompt's own leg where streams cannot carry its scores.

1. The prefill worker is asked for one token with do_remote_decode; what it returns goes to the decode worker untouched.
2. Scores of the prompt come from the prefill leg and are not asked for again.
3. Without a prefill worker that answers, the decode worker gets the whole request.
4. Parameters that the caller brings are passed on as they are, and no leg of our own is run.
5. vLLM's streams carry no scores of the prompt: they are fetched in a whole answer first.
6. An abort during the prompt's leg ends the request at once.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from tests.engines.remote import RawServer, ids_of, outputs_of, remote, reply, request, stream, worker
from tests.support.http import GENERATE, until
from tests.support.scripted_engine import ScriptedEngine, Step, counting, logprobs_of, one_sequence
from tokenwire.engine.base import EngineRequest

HANDED_ON = {"do_remote_prefill": True, "remote_engine_id": "e1", "remote_host": "h", "blk": [[1, 2], [3]]}


def prefilling(asked: EngineRequest) -> list[Step]:
    steps = one_sequence([42], kv_transfer_params=HANDED_ON)
    prompt = steps[0].outputs[0].prompt
    assert prompt is not None
    prompt.num_cached_tokens = 2
    if asked.sampling.prompt_logprobs is not None:
        prompt.logprobs = logprobs_of([[(2, -0.5)], [(3, -0.25)]])
    return steps


async def test_what_prefill_returns_goes_to_decode_untouched() -> None:
    prefill, decode = ScriptedEngine(prefilling), ScriptedEngine()
    details = {"enable_prompt_tokens_details": True}
    async with worker(prefill, **details) as p, worker(decode) as d, remote(d, prefill_workers=[p]) as engine:
        outputs = await outputs_of(engine, request(max_tokens=3, logprobs=1, n=2, seed=1))
    (asked,) = prefill.requests
    assert (asked.sampling.max_tokens, asked.sampling.n, asked.stream) == (1, 1, False)
    assert asked.kv_transfer_params == {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    (decoded,) = decode.requests
    assert decoded.kv_transfer_params == HANDED_ON
    assert (decoded.sampling.max_tokens, decoded.sampling.n, decoded.sampling.logprobs) == (3, 2, 1)
    assert ids_of(outputs) == [1003, 1004, 1005]
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.num_cached_tokens == 2


async def test_scores_of_the_prompt_come_from_the_prefill_leg() -> None:
    prefill, decode = ScriptedEngine(prefilling), ScriptedEngine()
    async with worker(prefill) as p, worker(decode) as d, remote(d, prefill_workers=[p]) as engine:
        outputs = await outputs_of(engine, request(prompt_logprobs=0))
    assert decode.requests[0].sampling.prompt_logprobs is None
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.logprobs is not None
    assert outputs[0].prompt.logprobs.token_ids[:, 0].tolist() == [2, 3]


async def test_without_a_prefill_worker_decode_gets_everything() -> None:
    decode = ScriptedEngine()
    async with AsyncExitStack() as stack:
        d = await stack.enter_async_context(worker(decode))
        gone = AsyncExitStack()
        p = await gone.enter_async_context(worker(ScriptedEngine(prefilling)))
        engine = await stack.enter_async_context(remote(d, prefill_workers=[p]))
        await gone.aclose()
        outputs = await outputs_of(engine, request(prompt_logprobs=1))
    assert len(ids_of(outputs)) == 4
    assert decode.requests[0].kv_transfer_params is None
    assert decode.requests[0].sampling.prompt_logprobs == 1


async def test_parameters_of_the_caller_are_passed_on_without_a_leg() -> None:
    prefill, decode = ScriptedEngine(prefilling), ScriptedEngine()
    async with worker(prefill) as p, worker(decode) as d, remote(d, prefill_workers=[p]) as engine:
        await outputs_of(engine, request(kv_transfer_params={"mine": 1}, ec_transfer_params={"e": 2}))
    assert prefill.requests == []
    assert (decode.requests[0].kv_transfer_params, decode.requests[0].ec_transfer_params) == ({"mine": 1}, {"e": 2})


def vllm_scoring(path: str, body: bytes, writer: asyncio.StreamWriter) -> Any:
    """vLLM's answers: scores in whole replies only."""
    if path != GENERATE:
        return reply(writer, b'{"data": [{"id": "m", "max_model_len": 64}]}' if path == "/v1/models" else b"")
    if msgspec.json.decode(body).get("stream"):
        chunk = {"choices": [{"index": 0, "token_ids": [7], "finish_reason": "length"}]}
        return stream(writer, [msgspec.json.encode(chunk)])
    scores = [None, {"2": {"logprob": -0.5, "rank": 3, "decoded_token": None}, "9": {"logprob": -0.25, "rank": 1}}]
    whole = {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "length"}], "prompt_logprobs": scores}
    return reply(writer, msgspec.json.encode({**whole, "kv_transfer_params": HANDED_ON}))


async def test_scores_that_a_stream_cannot_carry_are_fetched_first() -> None:
    server = RawServer(vllm_scoring)
    async with server.run() as url, remote(url) as engine:
        outputs = await outputs_of(engine, request([1, 2], prompt_logprobs=1))
    bodies = [msgspec.json.decode(body) for path, body in server.seen if path == GENERATE]
    assert [body.get("stream", False) for body in bodies] == [False, True]
    assert bodies[0]["sampling_params"]["max_tokens"] == 1
    assert "prompt_logprobs" not in bodies[1]["sampling_params"]
    assert ids_of(outputs) == [7]
    assert outputs[0].prompt is not None
    assert outputs[0].prompt.logprobs is not None
    assert outputs[0].prompt.logprobs.token_ids.tolist() == [[2, 9]]
    assert outputs[0].prompt.logprobs.ranks.tolist() == [3]


async def test_a_caller_that_prefills_by_itself_gets_the_parameters_in_its_stream() -> None:
    async with RawServer(vllm_scoring).run() as url, remote(url) as engine:
        outputs = await outputs_of(engine, request([1, 2], kv_transfer_params={"do_remote_decode": True}))
    assert outputs[-1].kv_transfer_params == HANDED_ON


async def test_an_abort_during_the_prompts_leg_ends_the_request_at_once() -> None:
    prefill = ScriptedEngine(prefilling, gate=True)
    async with worker(prefill) as p, worker(ScriptedEngine()) as d, remote(d, prefill_workers=[p]) as engine:
        outputs = engine.generate(request())
        await until(lambda: prefill.num_live == 1)
        async with asyncio.timeout(0.5):
            assert await engine.abort(["r"]) == ["r"]
        got = [output async for batch in outputs for output in batch]
        assert [output.finish_reason for output in got] == ["abort"]
        await until(lambda: prefill.num_live == 0)


async def test_decode_workers_share_the_load_of_legs() -> None:
    prefill = ScriptedEngine(prefilling)
    decoders = [ScriptedEngine(lambda asked: counting(asked, delay_s=0.01)) for _ in range(2)]
    async with AsyncExitStack() as stack:
        p = await stack.enter_async_context(worker(prefill))
        urls = [await stack.enter_async_context(worker(decoder)) for decoder in decoders]
        engine = await stack.enter_async_context(remote(*urls, prefill_workers=[p]))
        await asyncio.gather(*(outputs_of(engine, request(request_id=str(i))) for i in range(8)))
    assert len(prefill.requests) == 8
    assert {len(decoder.requests) for decoder in decoders} <= {3, 4, 5}
