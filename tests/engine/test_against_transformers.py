"""The engine's answers are the model's own.

1. Greedy ids equal transformers' `generate`, for every architecture, whatever is in the batch, however the prompt is
   cut into chunks, and however often sequences are preempted.
2. Logprobs, their ranks and prompt scores are those of a plain forward pass.
3. A prefix-cache hit changes no result.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.harness import Harness, Reference
from tests.engine.tiny_models import CONFIGS, EOS, VOCAB
from tokenwire.engine.local.batch import StepBatch

MODELS = sorted(CONFIGS)


def prompts(seed: int, count: int, longest: int = 60) -> list[list[int]]:
    rnd = random.Random(seed)
    return [[rnd.randrange(4, VOCAB) for _ in range(rnd.randint(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_batched_tokens": 5, "enable_prefix_caching": False},
        {"num_kv_blocks": 32, "max_model_len": 128, "scheduling_policy": "priority"},
    ],
    ids=["plain", "small-chunks", "tiny-pool"],
)
def test_greedy_ids_equal_those_of_transformers(
    name: str, options: dict[str, object], folders: dict[str, Path], references: dict[str, Reference]
) -> None:
    harness = Harness(folders[name], **options)
    cases = prompts(1, 10)
    handles = []
    for i, prompt in enumerate(cases):
        handles.append(harness.add(prompt, max_tokens=12 + i, stream=i % 2 == 0, priority=-i if i % 3 else 0))
        if i % 4 == 0:
            harness.tick()
    harness.run()
    for i, (handle, prompt) in enumerate(zip(handles, cases, strict=True)):
        expected = references[name].greedy(prompt, 12 + i)
        assert harness.ids(handle) == expected
        assert harness.output(handle).finish_reason == ("stop" if expected[-1] == EOS else "length")
    assert harness.core.scheduler.pool.usage == 0
    if options.get("num_kv_blocks") == 32:
        assert harness.core.scheduler.num_preemptions > 0


@pytest.mark.parametrize("name", MODELS)
def test_logprobs_and_ranks_are_those_of_a_forward_pass(
    name: str, folders: dict[str, Path], references: dict[str, Reference]
) -> None:
    harness = Harness(folders[name])
    cases = prompts(2, 4)
    handles = [harness.add(p, max_tokens=6, logprobs=3, temperature=1.0, seed=i) for i, p in enumerate(cases)]
    harness.run()
    for handle, prompt in zip(handles, cases, strict=True):
        output = harness.output(handle)
        assert output.logprobs is not None
        table = references[name].logprobs(prompt + output.token_ids)[len(prompt) - 1 : -1].numpy()
        sampled = table[np.arange(len(output.token_ids)), output.token_ids]
        np.testing.assert_allclose(output.logprobs.logprobs[:, 0], sampled, atol=2e-4)
        np.testing.assert_array_equal(output.logprobs.ranks, 1 + (table > sampled[:, None] + 1e-6).sum(1))
        np.testing.assert_allclose(output.logprobs.logprobs[:, 1:4], -np.sort(-table)[:, :3], atol=2e-4)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gpt2"])
@pytest.mark.parametrize("budget", [7, 64])
def test_prompt_scores_are_those_of_a_forward_pass_with_and_without_the_prefix_cache(
    name: str, budget: int, folders: dict[str, Path], references: dict[str, Reference]
) -> None:
    harness = Harness(folders[name], max_num_batched_tokens=budget)
    (prompt,) = prompts(3, 1, 1)
    prompt = (prompt + prompts(4, 1)[0] * 40)[:40]
    table = references[name].logprobs(prompt)[:-1].numpy()
    wanted = [[5, 6, -1], [7]] * 15
    for skip in (None, False, None):
        handle = harness.add(prompt, max_tokens=1, prompt_logprobs=2, skip_reading_prefix_cache=skip)
        by_id = harness.add(
            prompt,
            max_tokens=1,
            prompt_logprob_token_ids=wanted[:30],
            prompt_logprob_start=9,
            skip_reading_prefix_cache=skip,
        )
        harness.run()
        scores = harness.output(handle).prompt
        assert scores is not None
        assert scores.logprobs is not None
        assert len(scores.logprobs) == 39
        np.testing.assert_array_equal(scores.logprobs.token_ids[:, 0], prompt[1:])
        own = table[np.arange(39), prompt[1:]]
        np.testing.assert_allclose(scores.logprobs.logprobs[:, 0], own, atol=2e-4)
        np.testing.assert_array_equal(scores.logprobs.ranks, 1 + (table > own[:, None] + 1e-6).sum(1))
        ids = harness.output(by_id).prompt
        assert ids is not None
        assert ids.token_id_logprobs is not None
        assert ids.token_id_logprobs.shape == (30, 3)
        np.testing.assert_allclose(ids.token_id_logprobs[0, :2], table[9, [5, 6]], atol=2e-4)
        np.testing.assert_allclose(ids.token_id_logprobs[29, 0], table[38, 7], atol=2e-4)
        assert np.isnan(ids.token_id_logprobs[0, 2])
        if skip is False:
            assert ids.num_cached_tokens == 8  # two blocks lie before the first position with a score


def test_a_prefix_hit_is_reported_and_changes_no_result(
    folders: dict[str, Path], references: dict[str, Reference]
) -> None:
    harness = Harness(folders["llama"])
    prompt = (prompts(5, 1)[0] * 40)[:41]
    expected = references["llama"].greedy(prompt, 8)
    cached = []
    for salt, skip in [(None, None), (None, None), ("a", None), ("a", None), (None, True)]:
        handle = harness.add(prompt, salt=salt, skip_reading_prefix_cache=skip)
        harness.run()
        assert harness.ids(handle) == expected
        news = harness.output(handle).prompt
        assert news is not None
        cached.append(news.num_cached_tokens)
    assert cached == [0, 40, 0, 40, 0]


def test_the_last_prompt_token_is_always_computed(folders: dict[str, Path]) -> None:
    harness = Harness(folders["llama"])
    prompt = (prompts(5, 1)[0] * 40)[:40]
    results = []
    for _ in range(2):
        handle = harness.add(prompt)
        harness.run()
        news = harness.output(handle).prompt
        assert news is not None
        results.append((harness.ids(handle), news.num_cached_tokens))
    assert results[0][0] == results[1][0]
    assert [cached for _, cached in results] == [0, 36]


def test_a_conversation_continues_from_the_blocks_of_its_own_answer(folders: dict[str, Path]) -> None:
    harness = Harness(folders["llama"])
    first = harness.add((prompts(6, 1)[0] * 20)[:18], max_tokens=10, ignore_eos=True)
    harness.run()
    turn = (prompts(6, 1)[0] * 20)[:18] + harness.ids(first) + [9, 9]
    second = harness.add(turn)
    harness.run()
    news = harness.output(second).prompt
    assert news is not None
    assert news.num_cached_tokens == 24  # the K/V of the answer's last token were never computed


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("gemma2-capped", "gpt2")])
def test_the_fused_path_gives_the_same_logits_as_the_models_own_modules(name: str, folders: dict[str, Path]) -> None:
    seen: dict[bool, list[torch.Tensor]] = {}
    for fused in (True, False):
        harness = Harness(folders[name], fused=fused, max_num_seqs=12, num_kv_blocks=256)
        assert harness.core.runner.is_fused is fused
        rows = seen[fused] = []
        original = harness.core.runner.logits

        def recorded(
            batch: StepBatch, original: Callable[[StepBatch], torch.Tensor] = original, rows: list[torch.Tensor] = rows
        ) -> torch.Tensor:
            logits = original(batch)
            rows.append(logits.clone())
            return logits

        harness.core.runner.logits = recorded  # type: ignore[method-assign]
        for i, prompt in enumerate(prompts(8, 12)):
            harness.add(prompt, max_tokens=30 + i, trace_decode_token_ids=[i + 4] * (30 + i))
        harness.run()
    assert [len(rows) for rows in seen[True]] == [len(rows) for rows in seen[False]]
    sizes = {len(rows) for rows in seen[True]}
    assert sizes >= {1, 2, 4, 8}, "few rows and many"
    for mine, own in zip(seen[True], seen[False], strict=True):
        torch.testing.assert_close(mine, own, atol=3e-4, rtol=1e-4)
