"""A prompt computed by one core and decoded by another.

1. Ids and scores are those of one core that had the prompt in its cache, and pulled tokens count as cached.
2. What the cache of the decoding core already has is not pulled; what nobody needs is let go at once.
3. Short prompts, n > 1, scored prompts, cores without a prefix cache and streams work.
4. Blocks are kept until they have been pulled, their time is over, the cache is cleared or nothing else could run.
5. The reply's parameters have the names that vLLM's connector reads; a request that ends early gives none.
6. Requests, aborts and resets in any order on both cores: every answer is right, and nothing is left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.harness import Harness
from tests.engine.kv_pair import FULL, KEEP, PROMPT, Pair
from tests.support.proxy import proxy
from tokenwire.engine.base import EngineOutput
from tokenwire.engine.control import ResetPrefixCache
from tokenwire.engine.local import messages as wire


@pytest.fixture
def pair(folders: dict[str, Path]) -> Iterator[Pair]:
    made = Pair(folders["llama"])
    yield made
    made.close()


@pytest.fixture(scope="module")
def alone(folders: dict[str, Path]) -> Harness:
    return Harness(folders["llama"])


def run_alone(alone: Harness, prompt: list[int] = PROMPT, **p: Any) -> EngineOutput:
    handle = alone.add(prompt, **p)
    alone.run()
    return alone.output(handle)


def assert_same(got: EngineOutput, want: EngineOutput) -> None:
    assert got.token_ids == want.token_ids
    assert got.logprobs is not None
    assert want.logprobs is not None
    np.testing.assert_array_equal(got.logprobs.token_ids, want.logprobs.token_ids)
    np.testing.assert_allclose(got.logprobs.logprobs, want.logprobs.logprobs, atol=2e-5)


def cached(output: EngineOutput) -> int | None:
    assert output.prompt is not None
    return output.prompt.num_cached_tokens


def test_ids_and_scores_are_those_of_one_core(pair: Pair, alone: Harness) -> None:
    run_alone(alone)
    want = run_alone(alone, logprobs=3)
    got = pair.decode(pair.prefill(), logprobs=3)
    assert cached(got) == cached(want) == FULL
    assert got.token_ids == want.token_ids
    assert got.logprobs is not None
    assert want.logprobs is not None
    np.testing.assert_array_equal(got.logprobs.logprobs, want.logprobs.logprobs)  # the same kernels saw the same
    assert (pair.stats_b.pulls, pair.stats_b.pulled_tokens, pair.stats_b.fallbacks) == (1, FULL, {})
    assert pair.stats_b.bytes_received == 12 * 1536
    pair.assert_nothing_left()
    assert (pair.stats_a.kept, pair.stats_a.given, pair.stats_a.bytes_sent) == (1, 1, 12 * 1536)
    assert pair.b.core.scheduler.prefix_hits == 0


@pytest.mark.parametrize("name", ["mistral-window", "gemma2-capped", "qwen3"])
def test_other_architectures_and_their_own_modules(folders: dict[str, Path], name: str) -> None:
    made = Pair(folders[name])
    want = run_alone(Harness(folders[name]), logprobs=2)
    # The generic path calls the attention that was registered last, so each core registers its own before it runs.
    made.a.core.runner.attention.register()
    params = made.prefill()
    made.b.core.runner.attention.register()
    assert_same(made.decode(params, logprobs=2), want)
    assert made.stats_b.pulled_tokens == FULL
    made.close()


def test_half_precision_travels_bit_by_bit(folders: dict[str, Path]) -> None:
    half = {"dtype": "bfloat16"}
    made = Pair(folders["llama"], a=half, b=half)
    made.b.core.runner.attention.register()
    made.a.core.runner.attention = made.b.core.runner.attention
    attention, caches = made.b.core.runner.attention, (made.a.core.runner.cache, made.b.core.runner.cache)
    attention.cache = caches[0]
    params = made.prefill()
    kept = caches[0].read(params["remote_block_ids"][0])
    attention.cache = caches[1]
    made.decode(params)
    blocks = made.b.core.scheduler.pool.find(made.b.core.scheduler.pool._by_hash)
    assert made.stats_b.pulled_tokens == FULL
    assert any(np.array_equal(caches[1].read([block])[0], kept[0]) for block in blocks)
    made.close()


def test_what_is_cached_is_not_pulled(pair: Pair, alone: Harness) -> None:
    want = run_alone(alone, logprobs=1)
    pair.b.add(PROMPT[:20], max_tokens=1)
    pair.b.run()
    got = pair.decode(pair.prefill(), logprobs=1)
    assert_same(got, want)
    assert cached(got) == FULL
    assert pair.stats_b.pulled_tokens == FULL - 20
    got = pair.decode(pair.prefill(), logprobs=1)
    assert_same(got, want)
    assert (pair.stats_b.pulls, pair.stats_b.pulled_tokens) == (1, FULL - 20)
    pair.assert_nothing_left()
    assert pair.stats_a.given == 2


def test_a_prompt_shorter_than_a_block_is_just_computed(pair: Pair, alone: Harness) -> None:
    params = pair.prefill([5, 6, 7])
    assert (params["remote_block_ids"], params["remote_num_tokens"]) == ([[]], 0)
    got = pair.decode(params, [5, 6, 7], logprobs=1)
    assert_same(got, run_alone(alone, [5, 6, 7], logprobs=1))
    assert pair.stats_a.kept == pair.stats_b.pulls == 0
    assert pair.stats_b.fallbacks == {}
    pair.assert_nothing_left()


def test_the_last_prompt_token_is_computed_even_when_its_block_is_kept(pair: Pair, alone: Harness) -> None:
    prompt = PROMPT[:FULL]
    got = pair.decode(pair.prefill(prompt), prompt, logprobs=1)
    assert_same(got, run_alone(alone, prompt, logprobs=1))
    assert cached(got) == FULL - 4


def test_samples_of_one_request_share_what_was_pulled(pair: Pair, alone: Harness) -> None:
    params = {"n": 3, "temperature": 1.0, "seed": 5, "logprobs": 1}
    wanted, got = alone.add(PROMPT, **params), pair.b.add(PROMPT, kv=pair.prefill(), **params)
    alone.run()
    pair.until(lambda: not len(pair.b.streams))
    for index in range(3):
        assert_same(pair.b.output(got, index), alone.output(wanted, index))
    assert pair.stats_b.pulled_tokens == FULL
    pair.assert_nothing_left()


def test_a_scored_prompt_is_computed_as_far_as_it_is_scored(pair: Pair, alone: Harness) -> None:
    want = run_alone(alone, prompt_logprobs=1)
    got = pair.decode(pair.prefill(), prompt_logprobs=1)
    assert got.token_ids == want.token_ids
    assert got.prompt is not None
    assert want.prompt is not None
    assert got.prompt.logprobs is not None
    assert want.prompt.logprobs is not None
    np.testing.assert_allclose(got.prompt.logprobs.logprobs, want.prompt.logprobs.logprobs, atol=2e-5)
    assert cached(got) == 0
    got = pair.decode(pair.prefill(), skip_reading_prefix_cache=True)
    assert cached(got) == FULL
    assert pair.stats_b.fallbacks == {}
    pair.assert_nothing_left()


def test_cores_without_a_prefix_cache_give_and_pull(folders: dict[str, Path], alone: Harness) -> None:
    without = {"enable_prefix_caching": False}
    made = Pair(folders["llama"], a=without, b=without)
    for _ in range(2):
        got = made.decode(made.prefill(), logprobs=1)
        assert_same(got, run_alone(alone, logprobs=1))
        assert cached(got) == FULL
    assert made.stats_b.pulled_tokens == 2 * FULL
    made.assert_nothing_left()
    made.close()


def test_a_later_turn_brings_its_blocks_back_to_prefill(pair: Pair, alone: Harness) -> None:
    """A request may both bring blocks and keep its own, as vLLM's connector has it for both directions."""
    params = pair.prefill(max_tokens=9, ignore_eos=True)
    assert params["remote_num_tokens"] == 56  # the outputs' blocks too
    answer = pair.a.results[max(pair.a.results)].output.token_ids
    later = [*PROMPT, *answer, 9, 10, 11]
    handle = pair.b.add(later, kv={**params, **KEEP}, max_tokens=1, logprobs=1)
    pair.until(lambda: not len(pair.b.streams))
    assert_same(pair.b.output(handle), run_alone(alone, later, max_tokens=1, logprobs=1))
    assert pair.stats_b.pulled_tokens == 56
    assert pair.stats_b.num_kept == 1
    pair.until(lambda: pair.stats_a.num_kept == 0)


def test_the_replys_parameters_are_those_that_vllms_connector_reads(pair: Pair) -> None:
    asked = {**KEEP, "remote_engine_id": None, "remote_block_ids": None}
    handle = pair.a.add(PROMPT, kv=asked, stream=True, ignore_eos=True)
    pair.a.run()
    params = pair.a.output(handle).kv_transfer_params
    assert params is not None
    assert params["do_remote_prefill"] is True
    assert params["do_remote_decode"] is False
    assert (params["remote_host"], params["tp_size"], params["remote_num_tokens"]) == ("127.0.0.1", 1, 56)
    assert [len(group) for group in params["remote_block_ids"]] == [14]
    for name in ("remote_engine_id", "remote_request_id"):
        assert len(params[name]) == 32
    assert isinstance(params["remote_port"], int)


def test_a_request_that_ends_early_or_asks_nothing_keeps_nothing(pair: Pair) -> None:
    handle = pair.a.add(PROMPT, kv=KEEP, max_tokens=50, ignore_eos=True)
    for _ in range(6):
        pair.a.tick()
    pair.a.link.inbox.append(wire.Abort([handle], 1))
    pair.a.run()
    assert pair.a.output(handle).finish_reason == "abort"
    assert pair.a.output(handle).kv_transfer_params is None
    other = pair.a.add(PROMPT, kv={"mine": 1})
    pair.a.run()
    assert pair.a.output(other).kv_transfer_params is None
    assert pair.stats_a.kept == 0
    pair.assert_nothing_left()


async def test_a_sequence_that_its_reader_ended_tells_what_was_kept(pair: Pair, alone: Harness) -> None:
    handle = pair.a.add(PROMPT, kv=KEEP, max_tokens=50, ignore_eos=True)
    while not pair.a.results:
        pair.a.tick()
    pair.a.queues[handle].stop(0, 5.0)
    pair.a.run()
    params = pair.a.output(handle).kv_transfer_params
    assert params is not None
    assert pair.decode(params).token_ids == run_alone(alone).token_ids
    assert pair.stats_b.pulled_tokens >= FULL
    pair.assert_nothing_left()


def test_a_request_that_its_reader_stops_keeps_what_was_computed(pair: Pair, alone: Harness) -> None:
    """A stop string was found: the engine's last word tells where the blocks are."""
    handle = pair.a.add(PROMPT, kv=KEEP, max_tokens=50, ignore_eos=True)
    for _ in range(6):
        pair.a.tick()
    early = pair.a.add([8, *PROMPT], kv=KEEP, n=2, temperature=1.0, max_tokens=50, ignore_eos=True)
    pair.a.link.inbox.append(wire.Stop(handle, 0, heard=True))
    pair.a.link.inbox.append(wire.Stop(early, 0, heard=True))
    pair.a.tick()
    params = pair.a.output(handle).kv_transfer_params
    nothing = pair.a.output(early).kv_transfer_params
    assert params is not None
    assert nothing is not None
    assert (params["remote_num_tokens"], nothing["remote_num_tokens"]) == (52, 0)
    assert_same(pair.decode(params, logprobs=1), run_alone(alone, logprobs=1))
    assert_same(pair.decode(nothing, [8, *PROMPT], logprobs=1), run_alone(alone, [8, *PROMPT], logprobs=1))
    assert (pair.stats_b.pulls, pair.stats_b.fallbacks) == (1, {})


def test_blocks_are_held_until_their_time_is_over(folders: dict[str, Path], alone: Harness) -> None:
    made = Pair(folders["llama"], a={"kv_transfer_ttl_s": 0.3})
    params = made.prefill()
    made.a.tick()
    assert made.a.core.scheduler.pool.usage == 12 / 64
    time.sleep(0.35)
    made.a.tick()
    assert made.a.core.scheduler.pool.usage == 0
    assert (made.stats_a.expired, made.stats_a.num_kept) == (1, 0)
    assert_same(made.decode(params, logprobs=1), run_alone(alone, logprobs=1))
    assert made.stats_b.fallbacks == {"expired": 1}
    made.close()


def test_kept_blocks_go_oldest_first_when_nothing_else_can_run(folders: dict[str, Path], alone: Harness) -> None:
    made = Pair(folders["llama"], a={"num_kv_blocks": 40})
    prompts = [[salt, *PROMPT] for salt in (5, 6, 7)]
    params = [made.prefill(prompt) for prompt in prompts]
    assert made.a.core.scheduler.pool.num_free == 4
    assert made.stats_a.dropped == 0
    long = made.a.add(PROMPT, max_tokens=20, ignore_eos=True)
    made.a.run()
    assert len(made.a.ids(long)) == 20
    assert 1 <= made.stats_a.dropped <= 2
    for prompt, given in zip(prompts, params, strict=True):
        assert_same(made.decode(given, prompt, logprobs=1), run_alone(alone, prompt, logprobs=1))
    assert made.stats_b.fallbacks == {"expired": made.stats_a.dropped}
    made.assert_nothing_left()
    made.close()


def test_clearing_the_cache_ends_what_is_kept_and_what_travels(pair: Pair, alone: Harness) -> None:
    params = pair.prefill()
    pair.a.link.inbox.append(wire.ControlCall(1, ResetPrefixCache()))
    pair.a.tick()
    assert pair.a.core.scheduler.pool.usage == 0
    assert_same(pair.decode(params, logprobs=1), run_alone(alone, logprobs=1))
    assert pair.stats_b.fallbacks == {"expired": 1}
    # On the other side: blocks that were asked for before are not used after.
    params = pair.prefill([9, *PROMPT])
    with proxy(("127.0.0.1", params["remote_port"])) as between:
        between.rate = 10_000
        handle = pair.b.add([9, *PROMPT], kv={**params, "remote_port": between.port}, logprobs=1)
        pair.b.tick()
        pair.b.link.inbox.append(wire.ControlCall(2, ResetPrefixCache()))
        pair.b.tick()
        assert pair.stats_b.num_waiting == 1
        between.rate = float("inf")
        pair.until(lambda: not len(pair.b.streams))
    assert_same(pair.b.output(handle), run_alone(alone, [9, *PROMPT], logprobs=1))
    assert cached(pair.b.output(handle)) == 0
    assert pair.stats_b.fallbacks["weights"] == 1
    pair.assert_nothing_left()


def test_a_core_that_moves_no_blocks_refuses_the_parameters(alone: Harness) -> None:
    handle = alone.add(PROMPT, kv=KEEP)
    alone.tick()
    with pytest.raises(Exception, match="kv_transfer_port"):
        raise alone.queues[handle]._error  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(6))
def test_in_any_order_every_answer_is_right(folders: dict[str, Path], alone: Harness, seed: int) -> None:
    rnd = random.Random(seed)
    small = {"num_kv_blocks": 40, "max_num_seqs": 4, "max_num_batched_tokens": 24}
    made = Pair(folders["llama"], a={**small, "kv_transfer_ttl_s": rnd.choice([0.02, 5.0])}, b=small)
    waiting: dict[int, list[int]] = {}
    handed: dict[int, list[int]] = {}
    left: set[int] = set()
    for _ in range(150):
        prompt = PROMPT[: rnd.randint(1, 50)] if rnd.random() < 0.5 else [rnd.randint(4, 9), *PROMPT[:30]]
        kind = rnd.random()
        if kind < 0.3 and len(waiting) < 6:
            waiting[made.a.add(prompt, kv=KEEP, max_tokens=1)] = prompt
        elif kind < 0.35 and waiting:
            made.a.link.inbox.append(wire.Abort([rnd.choice(list(waiting))], 1))
        elif kind < 0.4 and handed:
            handle = rnd.choice(list(handed))
            left.add(handle)
            made.b.link.inbox.append(wire.Abort([handle], 1))
        elif kind < 0.43:
            harness = rnd.choice([made.a, made.b])
            harness.link.inbox.append(wire.ControlCall(1, ResetPrefixCache(reset_running_requests=rnd.random() < 0.5)))
        for handle in [h for h in waiting if (h, 0) in made.a.results and made.a.output(h).finish_reason]:
            given = made.a.output(handle).kv_transfer_params
            extra = [rnd.randint(4, 90) for _ in range(rnd.choice([0, 0, 5]))]
            decoding = waiting.pop(handle) + extra
            handed[made.b.add(decoding, kv=given, max_tokens=rnd.choice([1, 6]), ignore_eos=True)] = decoding
        made.a.tick()
        made.b.tick()
        time.sleep(rnd.choice([0, 0, 0.002]))
    made.until(lambda: not len(made.a.streams) and not len(made.b.streams))
    for handle, prompt in handed.items():
        got = made.b.output(handle)
        want = run_alone(alone, prompt, max_tokens=6, ignore_eos=True).token_ids
        assert got.token_ids == want[: len(got.token_ids)]
        assert len(got.token_ids) in (1, 6) or handle in left
    assert made.stats_b.pulls > 0
    made.until(lambda: made.stats_a.num_kept == 0)
    made.assert_nothing_left()
    made.close()
