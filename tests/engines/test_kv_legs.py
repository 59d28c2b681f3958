"""Prefill and decode on two local engines, each in processes of its own; the prompt has 1,500 ids.

1. Over a coordinator and two servers, ids and scores are those of one server, and the decode worker pulled the prompt.
2. Without a listener, a request to keep blocks is refused by name, with the way out.
3. A prefill engine that is killed in the middle of a transfer costs nothing but time.
4. While several transfers crawl, other requests of the decode engine get their tokens; an abort ends the wait.
5. A decode engine that comes too late, after the blocks' time, computes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.support.http import GENERATE, app_of, body, client_of, events_of
from tests.support.process import TokenwireProcess, tokenwire
from tests.support.proxy import proxy
from tests.support.scripted_engine import ScriptedEngine
from tests.support.tiny_llama import make_tiny_llama
from tokenwire.engine.base import EngineOutput, EngineRequest, KVTransferStats
from tokenwire.engine.control import ResetPrefixCache
from tokenwire.engine.local import LocalEngine, LocalEngineOptions
from tokenwire.engine.local.messages import CAPABILITIES
from tokenwire.wire.sampling import SamplingParams

PROMPT = [3 + (i * i + 11 * i) % 300 for i in range(1500)]
FULL = 1488
"""Tokens in full blocks of 16; 12 MB of K/V, more than sockets hold."""
KEEP = {"do_remote_decode": True, "do_remote_prefill": False}
ASK = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0, "logprobs": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("model"), max_model_len=2048, num_kv_heads=64)


# --- two servers and a coordinator ------------------------------------------------------------------------------


def server(folder: Path, *flags: str) -> Any:
    common = ("--port", "0", "--served-model-name", "m", "--num-kv-blocks", "512", "--num-threads", "1")
    return tokenwire("serve", str(folder), "--tokens-only", "--enable-prompt-tokens-details", *common, *flags)


def ask(worker: TokenwireProcess, **fields: Any) -> dict[str, Any]:
    body = {"token_ids": PROMPT, "sampling_params": ASK, **fields}
    with worker.client() as client:
        reply = client.post(GENERATE, json=body)
    return {"status": reply.status_code, **reply.json()}


def streamed_ids(worker: TokenwireProcess, **fields: Any) -> list[int]:
    request = {"token_ids": PROMPT, "sampling_params": ASK, "stream": True, **fields}
    with worker.client() as client:
        events = events_of(client.post(GENERATE, json=request).text)
    return [i for event in events for choice in event.get("choices", ()) for i in choice["token_ids"]]


def cached(reply: dict[str, Any]) -> int:
    return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])


def metric(worker: TokenwireProcess, name: str) -> float:
    with worker.client() as client:
        lines = client.get("/metrics").text.splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name}{{"))


def test_a_coordinator_over_two_servers_answers_like_one_server(folder: Path) -> None:
    with server(folder, "--kv-transfer-port", "0") as a, server(folder, "--kv-transfer-port", "0") as b:
        a.wait_ready()
        b.wait_ready()
        legs = ("--prefill-worker", a.address, "--decode-worker", b.address)
        told = ("--vocab-size", "320", "--eos-token-ids", "2")
        flags = ("serve", "--engine", "remote", *legs, *told, "--port", "0", "--served-model-name", "m")
        with tokenwire(*flags, "--tokens-only") as coordinator:
            coordinator.wait_ready()
            split = ask(coordinator)
            assert split["status"] == 200, split
            assert metric(b, "tokenwire_kv_pulls_total") == 1
            assert metric(b, "tokenwire_kv_pulled_tokens_total") == FULL
            assert metric(b, "vllm:external_prefix_cache_hits_total") == FULL
            assert metric(b, "tokenwire_prompt_tokens_cached_total") == FULL
            assert metric(b, "tokenwire_prefix_cache_hits_total") == 0
            whole = ask(a)  # with the prompt in its cache, as the decode worker had it
            assert cached(whole) == FULL
            assert split["choices"] == whole["choices"]
            assert streamed_ids(coordinator, cache_salt="t") == whole["choices"][0]["token_ids"]
            sampled = {"sampling_params": {**ASK, "temperature": 1.0, "seed": 7, "n": 2}, "cache_salt": "s"}
            assert ask(coordinator, **sampled)["choices"] == ask(a, **sampled)["choices"]
        by_hand = ask(a, kv_transfer_params=KEEP, sampling_params={"max_tokens": 1}, cache_salt="mine")
        assert by_hand["kv_transfer_params"]["do_remote_prefill"] is True
        decoded = ask(b, kv_transfer_params=by_hand["kv_transfer_params"], cache_salt="mine")
        assert decoded["choices"] == whole["choices"]
        assert cached(decoded) == FULL
        assert metric(b, "tokenwire_kv_pulls_total") == 4
        deadline = time.monotonic() + 10
        while metric(a, "tokenwire_kv_prompts_kept") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert metric(a, "tokenwire_kv_given_total") == 4
        assert metric(a, "tokenwire_kv_cache_usage") == 0


async def test_an_engine_without_a_listener_refuses_by_name() -> None:
    app = app_of(ScriptedEngine(capabilities=CAPABILITIES))  # what a local engine declares before its options
    async with client_of(app) as client:
        reply = await client.post(GENERATE, json={**body(), "kv_transfer_params": KEEP})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == "kv_transfer_params"
    assert "--kv-transfer-port" in error["message"]


# --- two engines ------------------------------------------------------------------------------------------------


def engine_of(folder: Path, **settings: Any) -> LocalEngine:
    known = {"model": str(folder), "num_kv_blocks": 1024, "num_threads": 1, "kv_transfer_port": 0}
    return LocalEngine(LocalEngineOptions(**(known | settings)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(folder: Path) -> AsyncIterator[tuple[LocalEngine, LocalEngine]]:
    """One keeps, one pulls; the last test kills the first."""
    pair = engine_of(folder), engine_of(folder)
    await asyncio.gather(*(engine.start() for engine in pair))
    yield pair
    await asyncio.gather(*(engine.close() for engine in pair))


async def run(
    engine: LocalEngine,
    prompt: list[int],
    kv: dict[str, Any] | None = None,
    *,
    name: str = "r",
    salt: str | None = None,
    **params: Any,
) -> EngineOutput:
    """One sequence, merged."""
    sampling = SamplingParams(**(ASK | params))
    request = EngineRequest(
        request_id=name, prompt_token_ids=prompt, sampling=sampling, stream=True, kv_transfer_params=kv, cache_salt=salt
    )
    merged: EngineOutput | None = None
    async for outputs in engine.generate(request):
        for output in outputs:
            if merged is None:
                merged = output
            else:
                merged.absorb(output)
    assert merged is not None
    return merged


async def prefill(engine: LocalEngine, prompt: list[int], salt: str | None = None) -> dict[str, Any]:
    params = (await run(engine, prompt, KEEP, salt=salt, max_tokens=1)).kv_transfer_params
    assert params is not None
    return params


async def transfers(engine: LocalEngine) -> KVTransferStats:
    stats = (await engine.stats()).kv_transfer
    assert stats is not None
    return stats


async def until_nothing_is_kept(engine: LocalEngine) -> None:
    """An idle core looks by itself."""
    for _ in range(500):
        if (await transfers(engine)).num_kept == 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"blocks are still kept: {await transfers(engine)}")


def assert_same(got: EngineOutput, want: EngineOutput) -> None:
    assert got.token_ids == want.token_ids
    assert got.logprobs is not None
    assert want.logprobs is not None
    np.testing.assert_array_equal(got.logprobs.token_ids, want.logprobs.token_ids)
    np.testing.assert_allclose(got.logprobs.logprobs, want.logprobs.logprobs, atol=2e-5)


def num_cached(output: EngineOutput) -> int | None:
    assert output.prompt is not None
    return output.prompt.num_cached_tokens


@pytest.mark.asyncio(loop_scope="module")
async def test_others_get_their_tokens_while_transfers_crawl(engines: tuple[LocalEngine, LocalEngine]) -> None:
    a, b = engines
    salts = [f"s{i}" for i in range(6)]
    wanted = await run(a, PROMPT)
    kept = [await prefill(a, PROMPT, salt) for salt in salts]
    with proxy((kept[0]["remote_host"], kept[0]["remote_port"])) as between:
        between.rate = 2_000_000
        pulling = [
            asyncio.create_task(run(b, PROMPT, {**params, "remote_port": between.port}, name=salt, salt=salt))
            for params, salt in zip(kept, salts, strict=True)
        ]
        await asyncio.to_thread(between.wait_for, 200_000)
        others = [run(b, [5, 6, 7 + i], max_tokens=60, name=f"other{i}") for i in range(8)]
        outputs = await asyncio.gather(*others)
        assert all(len(output.token_ids) == 60 for output in outputs)
        assert not any(task.done() for task in pulling)
        assert (await transfers(b)).num_waiting == 6
        assert await b.abort(["s4"]) == ["s4"]  # one that waits for its turn
        assert await b.abort(["s0"]) == ["s0"]  # one that is being pulled
        for task in (pulling[0], pulling[4]):
            assert (await task).finish_reason == "abort"
        between.rate = float("inf")
        for index in (1, 2, 3, 5):
            got = await pulling[index]
            assert_same(got, wanted)
            assert num_cached(got) == FULL
        await until_nothing_is_kept(a)
    assert (await transfers(b)).pulls == 4
    assert (await transfers(b)).fallbacks == {}
    assert (await transfers(a)).given == 6
    for engine in (a, b):
        await run(engine, [9], max_tokens=1)
        assert (await engine.stats()).kv_cache_usage == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_kill_in_the_middle_of_a_transfer_loses_nothing(engines: tuple[LocalEngine, LocalEngine]) -> None:
    a, b = engines
    want = await run(b, PROMPT, salt="other")
    before = await transfers(b)
    params = await prefill(a, PROMPT)
    with proxy((params["remote_host"], params["remote_port"])) as between:
        between.rate = 4_000_000
        reading = asyncio.create_task(run(b, PROMPT, {**params, "remote_port": between.port}))
        await asyncio.to_thread(between.wait_for, 3_000_000)
        assert a.pid is not None
        os.kill(a.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            got = await reading
    assert_same(got, want)
    after = await transfers(b)
    assert (after.fallbacks, after.pulls) == ({"lost": 1}, before.pulls)
    assert 0 < (num_cached(got) or 0) < FULL  # what had come before is not computed again
    # The address is now nobody's.
    assert_same(await run(b, PROMPT, params, salt="third"), want)
    assert (await transfers(b)).fallbacks == {"lost": 1, "unreachable": 1}


async def test_blocks_whose_time_is_over_are_computed(folder: Path) -> None:
    engine = engine_of(folder, kv_transfer_ttl_s=0.2)
    await engine.start()
    try:
        params = await prefill(engine, PROMPT)
        assert (await transfers(engine)).num_kept == 1
        await until_nothing_is_kept(engine)
        assert (await engine.stats()).kv_cache_usage == 0
        want = await run(engine, PROMPT)
        await engine.control(ResetPrefixCache())
        got = await run(engine, PROMPT, params)  # from itself, as from any other
        assert_same(got, want)
        assert num_cached(got) == 0
        assert (await transfers(engine)).fallbacks == {"expired": 1}
    finally:
        await engine.close()
