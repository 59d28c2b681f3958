"""Scores tell the truth about the row they were taken from.

1. Log-probabilities equal a float64 log-softmax; the sampled id is column 0, then the best k, best first.
2. k 0 gives the sampled id alone; -1 the whole vocabulary; rows of one batch may ask for different k.
3. A rank counts the ids that score at least as much; ties share the worst rank; NaN has rank 0.
4. `logprob_token_ids` gives those ids in the asked order, each with its true rank.
5. raw scores are of the logits before any adjustment, processed ones of what the draw saw; logits modes give logits.
6. Prompt scores equal row-by-row scores; named prompt ids are NaN where the id is -1.
"""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import reference
from tokenwire.engine.base import Logprobs
from tokenwire.engine.local.sampling import (
    LogprobsMode,
    SequenceSampler,
    sample,
    score_prompt,
    score_prompt_ids,
)
from tokenwire.wire.sampling import SamplingParams


def scored(logits: torch.Tensor, *params: SamplingParams, mode: LogprobsMode = "raw_logprobs") -> list[Logprobs | None]:
    samplers = [SequenceSampler(p, [], vocab_size=logits.shape[1]) for p in params]
    return sample(logits.clone(), samplers, logprobs_mode=mode).logprobs


def one(logits: torch.Tensor, params: SamplingParams, mode: LogprobsMode = "raw_logprobs") -> Logprobs:
    (logprobs,) = scored(logits, params, mode=mode)
    assert logprobs is not None
    return logprobs


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([None, 0, 1, 5, 20, 70, -1]), min_size=1, max_size=5),
    st.sampled_from([90, 4096, 5000]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_scores_equal_a_plain_log_softmax(ks: list[int | None], width: int, greedy: bool, seed: int) -> None:
    logits = torch.randn(len(ks), width, generator=torch.Generator().manual_seed(seed)) * 4
    params = [SamplingParams(logprobs=k, temperature=0.0 if greedy else 1.0, seed=seed) for k in ks]
    samplers = [SequenceSampler(p, [], vocab_size=width) for p in params]
    output = sample(logits.clone(), samplers)
    for i, k in enumerate(ks):
        logprobs, row = output.logprobs[i], logits[i].numpy().astype(np.float64)
        if k is None:
            assert logprobs is None
            continue
        assert logprobs is not None
        k = width if k == -1 else k
        order = sorted(range(width), key=lambda token_id: (-row[token_id], token_id))[:k]
        token_id = int(output.token_ids[i])
        assert logprobs.token_ids.tolist() == [[token_id, *order]]
        np.testing.assert_allclose(
            logprobs.logprobs[0], reference.log_softmax(row)[[token_id, *order]], rtol=1e-5, atol=2e-5
        )
        assert logprobs.ranks.tolist() == [reference.rank(row, token_id)]
        assert (logprobs.token_ids.dtype, logprobs.logprobs.dtype, logprobs.ranks.dtype) == (
            np.int32,
            np.float32,
            np.int32,
        )


def test_equal_values_share_the_worst_rank_and_stand_in_order_of_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 5.0, 0.0]])
    logprobs = one(logits, SamplingParams(temperature=0, logprobs=4))
    assert logprobs.token_ids.tolist() == [[1, 1, 2, 3, 0]]
    assert logprobs.ranks.tolist() == [3]


@pytest.mark.parametrize("k", [0, 3])
def test_a_nan_score_has_rank_zero(k: int) -> None:
    logits = torch.zeros(1, 100)
    logits[0, 7] = float("nan")
    logprobs = one(logits, SamplingParams(temperature=0, logprobs=k))
    assert logprobs.token_ids[0, 0] == 7
    assert logprobs.ranks.tolist() == [0]
    assert np.isnan(logprobs.logprobs).all()


def test_named_ids_come_in_the_asked_order_with_true_ranks() -> None:
    logits = torch.tensor([[0.0, 4.0, 3.0, 2.0, 3.0]])
    logprobs = one(logits, SamplingParams(temperature=0, logprob_token_ids=[4, 0, 1]))
    assert logprobs.token_ids.tolist() == [[1, 4, 0, 1]]
    assert logprobs.candidate_ranks is not None
    assert logprobs.candidate_ranks.tolist() == [[1, 3, 5, 1]]
    np.testing.assert_allclose(
        logprobs.logprobs[0], reference.log_softmax(logits[0].numpy().astype(np.float64))[[1, 4, 0, 1]], rtol=1e-5
    )


def test_rows_with_and_without_named_ids_mix() -> None:
    named = SamplingParams(temperature=0, logprob_token_ids=[3], logprobs=1)
    first, second, third = scored(
        torch.eye(3, 200), named, SamplingParams(temperature=0), SamplingParams(temperature=0, logprobs=2)
    )
    assert first is not None
    assert third is not None
    assert first.token_ids.tolist() == [[0, 3]]
    assert second is None
    assert third.token_ids.tolist() == [[2, 2, 0]]


@pytest.mark.parametrize("mode", get_args(LogprobsMode))
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_the_mode_decides_what_is_scored(mode: LogprobsMode, temperature: float) -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1)) * 3
    logits[0, 9] = 15.0
    params = SamplingParams(
        temperature=temperature, logprobs=500, logit_bias={4: 12.0, 9: -3.0}, top_k=3 if temperature else 0, seed=5
    )
    logprobs = one(logits, params, mode)
    row = logits[0].numpy().astype(np.float64)
    if mode.startswith("processed"):
        row = reference.truncate(reference.adjust(row, params, [], []), params)
    want = row if mode.endswith("logits") else reference.log_softmax(row)
    got = np.full(500, np.nan)
    got[logprobs.token_ids[0, 1:]] = logprobs.logprobs[0, 1:]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_a_temperature_row_without_other_wishes_is_scored_before_the_temperature() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1)) * 3
    for temperature in (1.0, 0.5):
        logprobs = one(logits, SamplingParams(temperature=temperature, logprobs=3))
        row = reference.log_softmax(logits[0].numpy().astype(np.float64))
        np.testing.assert_allclose(logprobs.logprobs[0], row[logprobs.token_ids[0]], rtol=1e-5, atol=1e-5)


def test_logits_may_be_a_slice_of_something_wider() -> None:
    wide = torch.randn(4, 6500, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=0, logprobs=3), SamplingParams(top_k=5, seed=1), SamplingParams(seed=2)]
    samplers = [SequenceSampler(p, [], vocab_size=6400) for p in params]
    sliced, copied = sample(wide[:3, :6400], samplers), sample(wide[:3, :6400].clone(), samplers)
    assert sliced.token_ids.tolist() == copied.token_ids.tolist()
    whole = score_prompt(wide[:, :6400].contiguous(), [1, 2, 3, 4], 2)
    assert score_prompt(wide[:, :6400], [1, 2, 3, 4], 2).token_ids.tolist() == whole.token_ids.tolist()


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = torch.randn(1, 500, generator=torch.Generator().manual_seed(1)).bfloat16()
    logprobs = one(logits, SamplingParams(temperature=0, logprobs=0))
    want = reference.log_softmax(logits[0].double().numpy()).max()
    np.testing.assert_allclose(logprobs.logprobs[0, 0], want, rtol=1e-5)


@pytest.mark.parametrize("k", [0, 2, -1])
def test_prompt_scores_equal_scores_row_by_row(k: int) -> None:
    logits = torch.randn(150, 80, generator=torch.Generator().manual_seed(2))
    token_ids = torch.randint(0, 80, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    logprobs = score_prompt(logits, token_ids, k)
    assert logprobs.token_ids.shape == (150, 1 + (80 if k == -1 else k))
    for i, token_id in enumerate(token_ids):
        row = reference.log_softmax(logits[i].numpy().astype(np.float64))
        assert logprobs.token_ids[i, 0] == token_id
        assert logprobs.ranks[i] == reference.rank(row, token_id)
        np.testing.assert_allclose(logprobs.logprobs[i], row[logprobs.token_ids[i]], rtol=1e-5, atol=1e-5)
        assert (np.diff(logprobs.logprobs[i, 1:]) <= 0).all()


def test_a_prompt_of_one_token_has_no_scores() -> None:
    assert len(score_prompt(torch.empty(0, 80), [], 3)) == 0
    assert score_prompt_ids(torch.empty(0, 80), []).shape == (0, 0)


def test_named_prompt_ids_are_nan_where_padded() -> None:
    logits = torch.randn(100, 50, generator=torch.Generator().manual_seed(2))
    rows = [[i % 50, -1, 3] if i % 2 else [i % 50] for i in range(100)]
    found = score_prompt_ids(logits, rows)
    assert found.shape == (100, 3)
    for i, row in enumerate(rows):
        want = reference.log_softmax(logits[i].numpy().astype(np.float64))
        for j in range(3):
            token_id = row[j] if j < len(row) else -1
            if token_id == -1:
                assert np.isnan(found[i, j])
            else:
                np.testing.assert_allclose(found[i, j], want[token_id], rtol=1e-5, atol=1e-5)
