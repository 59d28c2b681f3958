"""The remote engine over a real llama.cpp server: `TOKENWIRE_LLAMA_SERVER` is the URL of one that serves
SmolLM2-135M-Instruct in float32, with at least two slots.

1. A prompt is read as it was sent, whatever ids it has; greedy ids are those that our own engine gives.
2. Streams have every id that whole answers have, also inside characters; so have seeded and several sequences.
3. Scores are those of the whole vocabulary, before sampling's own filters.
4. EOS and stop ids are in the ids; the reasons tell them apart.
5. Grammars hold; a client that leaves frees the slot.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import httpx
import numpy as np
import pytest

from tests.engines.remote import ids_of, outputs_of, remote, request
from tokenwire.engine.base import EngineOutput, Logprobs
from tokenwire.engine.remote import RemoteEngine
from tokenwire.wire.sampling import StructuredOutputs

URL = os.environ.get("TOKENWIRE_LLAMA_SERVER", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not URL, reason="needs TOKENWIRE_LLAMA_SERVER"),
]

EMOJI = [48010, 42, *[15107, 232, 227], *[10813, 232, 227] * 7]
"""An emoji of three tokens, eight times: the model goes on with it."""
PLAIN = [1, 2, 3, 4]
GREEDY = [79, 100, 43405, 198, 198, 57]
"""What SmolLM2-135M-Instruct says after PLAIN, in float32."""
EOS = 2


@pytest.fixture
async def engine() -> AsyncIterator[RemoteEngine]:
    async with remote(URL, dialect="llamacpp", health_timeout_s=30.0, start_timeout_s=60) as engine:
        yield engine


async def ids(engine: RemoteEngine, token_ids: list[int], **fields: Any) -> list[int]:
    return ids_of(await outputs_of(engine, request(token_ids, temperature=0.0, **fields)))


def scores(outputs: list[EngineOutput]) -> Logprobs:
    return Logprobs.concat([output.logprobs for output in outputs if output.logprobs is not None])


async def test_greedy_ids_are_those_of_our_own_engine(engine: RemoteEngine) -> None:
    assert (await ids(engine, PLAIN, max_tokens=len(GREEDY), stream=False)) == GREEDY
    assert (await ids(engine, PLAIN, max_tokens=len(GREEDY))) == GREEDY


async def test_streams_have_the_ids_inside_characters(engine: RemoteEngine) -> None:
    whole = await ids(engine, EMOJI, max_tokens=9, stream=False)
    assert whole == [10813, 232, 227] * 3
    assert await ids(engine, EMOJI, max_tokens=9) == whole
    outputs = await outputs_of(engine, request(EMOJI, temperature=0.0, max_tokens=9, logprobs=1))
    assert ids_of(outputs) == whole
    assert scores(outputs).ranks[2::3].tolist() == [1, 1, 1]


async def test_a_seed_gives_the_same_ids_streamed_and_whole(engine: RemoteEngine) -> None:
    def asked(**fields: Any) -> Any:
        return request(PLAIN, temperature=1.0, max_tokens=24, ignore_eos=True, **fields)

    first = ids_of(await outputs_of(engine, asked(seed=5)))
    assert len(first) == 24
    assert ids_of(await outputs_of(engine, asked(seed=5, stream=False))) == first
    assert ids_of(await outputs_of(engine, asked(seed=6))) != first
    several = await outputs_of(engine, asked(seed=5, n=2))
    assert [o.token_ids for o in several if o.index == 0][0][0] == first[0]
    assert {o.index for o in several if o.finish_reason == "length"} == {0, 1}


async def test_scores_are_of_the_whole_vocabulary(engine: RemoteEngine) -> None:
    whole = await outputs_of(engine, request(PLAIN, temperature=0.0, max_tokens=4, logprobs=5, top_k=1, stream=False))
    streamed = await outputs_of(engine, request(PLAIN, temperature=0.0, max_tokens=4, logprobs=5))
    for got in (scores(whole), scores(streamed)):
        assert got.token_ids[:, 0].tolist() == GREEDY[:4]
        assert got.token_ids.shape == (4, 6)
        np.testing.assert_allclose(got.logprobs[:2, 0], [-1.5167, -4.1742], atol=5e-3)
        assert got.ranks.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("streamed", [False, True])
async def test_eos_is_in_the_ids_and_so_is_a_stop_id(engine: RemoteEngine, streamed: bool) -> None:
    bias = {EOS: 100.0}
    ended = await outputs_of(engine, request(PLAIN, temperature=0.0, logit_bias=bias, max_tokens=5, stream=streamed))
    assert (ids_of(ended), ended[-1].finish_reason, ended[-1].stop_reason) == ([EOS], "stop", None)
    stopped = await outputs_of(
        engine, request(PLAIN, temperature=0.0, stop_token_ids=[198], max_tokens=200, stream=streamed)
    )
    assert (ids_of(stopped), stopped[-1].stop_reason) == (GREEDY[:4], 198)
    going = await ids(engine, PLAIN, logit_bias=bias, ignore_eos=True, max_tokens=5, stream=streamed)
    assert going == [EOS] * 5


async def test_a_grammar_holds(engine: RemoteEngine) -> None:
    grammar = StructuredOutputs(grammar='root ::= "yes" | "no"')
    outputs = await outputs_of(engine, request(PLAIN, structured_outputs=grammar, max_tokens=20))
    assert outputs[-1].finish_reason == "stop"


async def test_the_parts_of_a_stream_find_their_cache(engine: RemoteEngine) -> None:
    prompt = list(range(100, 400))
    await ids(engine, prompt, max_tokens=1)
    start = time.monotonic()
    async with httpx.AsyncClient(timeout=60) as client:
        asked = {"prompt": prompt, "n_predict": 48, "temperature": 0, "ignore_eos": True}
        assert (await client.post(f"{URL}/completion", json=asked)).status_code == 200
    whole = time.monotonic() - start
    start = time.monotonic()
    await ids(engine, prompt, max_tokens=48, ignore_eos=True)
    assert time.monotonic() - start < 2 * whole + 1


async def test_a_client_that_leaves_frees_the_slot(engine: RemoteEngine) -> None:
    stream = engine.generate(request(PLAIN, temperature=0.0, max_tokens=1500, ignore_eos=True))
    async with aclosing(stream):
        await anext(stream)
    whole = asyncio.create_task(
        outputs_of(engine, request(PLAIN, temperature=0.0, max_tokens=1500, ignore_eos=True, stream=False))
    )
    await asyncio.sleep(0.5)
    whole.cancel()
    await asyncio.gather(whole, return_exceptions=True)
    async with asyncio.timeout(5):
        while await busy_slots():  # noqa: ASYNC110  # the server is another process
            await asyncio.sleep(0.2)


async def busy_slots() -> int:
    async with httpx.AsyncClient(timeout=30) as client:
        return sum(slot["is_processing"] for slot in (await client.get(f"{URL}/slots")).json())
