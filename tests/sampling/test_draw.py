"""Draws follow the distribution, and depend on (seed, index, position) alone.

1. Frequencies match the probabilities (chi-square, fixed seeds), with and without truncation.
2. A seeded row draws the same ids alone, in any batch, in any place of it, and after a restart in mid-sequence.
3. Different choices of one request, different seeds and different positions give different streams.
4. Every 64-bit seed works; -2**63 and 2**63 - 1 too.
5. Without a seed two sequences differ.
6. The smallest and largest uniform numbers pick ids of positive probability.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import reference
from tokenwire.engine.local.sampling import SequenceSampler, sample
from tokenwire.engine.local.sampling.draw import draw_untruncated
from tokenwire.engine.local.sampling.random import stream_key, uniforms
from tokenwire.wire.sampling import SamplingParams

V = 300
LOGITS = torch.randn(V, generator=torch.Generator().manual_seed(3)) * 2


def run(params: SamplingParams, steps: int, index: int = 0, history: list[int] | None = None) -> list[int]:
    sampler = SequenceSampler(params, [], vocab_size=V, index=index, output_token_ids=history or [])
    tokens = []
    for _ in range(steps):
        tokens.append(int(sample(LOGITS[None].clone(), [sampler]).token_ids[0]))
        sampler.append(tokens[-1])
    return tokens


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=1),
        SamplingParams(seed=1, temperature=0.5),
        SamplingParams(seed=1, top_k=12),
        SamplingParams(seed=1, top_p=0.8),
        SamplingParams(seed=1, min_p=0.05, temperature=1.5),
        SamplingParams(seed=1, top_k=100, top_p=0.95, temperature=0.8),
    ],
    ids=["plain", "cold", "top_k", "top_p", "min_p", "all"],
)
def test_frequencies_match_the_probabilities(params: SamplingParams) -> None:
    draws, rows = 20_000, 500
    counts = np.zeros(V)
    samplers = [SequenceSampler(params, [], vocab_size=V, index=i) for i in range(rows)]
    for position in range(draws // rows):
        for sampler in samplers:
            sampler.num_output_tokens = position
        np.add.at(counts, sample(LOGITS.expand(rows, -1).clone(), samplers).token_ids, 1)
    probs = reference.softmax(reference.truncate(LOGITS.numpy().astype(np.float64), params))
    assert counts[probs == 0].sum() == 0
    common = probs * draws >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(probs[common], probs[~common].sum()) * draws
    keep = wanted > 0
    chi_square = ((observed - wanted)[keep] ** 2 / wanted[keep]).sum()
    degrees = keep.sum() - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees) + 4


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            SamplingParams,
            seed=st.integers(-(2**63), 2**63 - 1),
            temperature=st.sampled_from([0.5, 1.0, 2.0]),
            top_k=st.sampled_from([0, 3, 70]),
            top_p=st.sampled_from([1.0, 0.7]),
            logprobs=st.sampled_from([None, 1]),
        ),
        min_size=2,
        max_size=6,
    ),
    st.integers(0, 1000),
    st.integers(0, 2**31),
)
def test_neighbours_change_nothing(params: list[SamplingParams], position: int, seed: int) -> None:
    logits = torch.randn(len(params), V, generator=torch.Generator().manual_seed(seed)) * 3

    def sampler(p: SamplingParams) -> SequenceSampler:
        return SequenceSampler(p, [], vocab_size=V, output_token_ids=[0] * position)

    together = sample(logits.clone(), [sampler(p) for p in params]).token_ids.tolist()
    alone = [int(sample(logits[i : i + 1].clone(), [sampler(p)]).token_ids[0]) for i, p in enumerate(params)]
    backwards = sample(logits.flip(0).clone(), [sampler(p) for p in reversed(params)]).token_ids.tolist()
    assert together == alone == backwards[::-1]


def test_a_sequence_restarted_in_the_middle_goes_on_the_same() -> None:
    params = SamplingParams(seed=42)
    whole = run(params, 20)
    assert run(params, 12, 0, whole[:8]) == whole[8:]


def test_choices_seeds_and_positions_give_different_streams() -> None:
    streams = {
        tuple(run(SamplingParams(seed=seed), 20, index)) for seed in (0, 1, -2, 2**63 - 1) for index in (0, 1, 2)
    }
    assert len(streams) == 12
    assert len(set(uniforms([stream_key(7, 0)] * 1000, range(1000)).tolist())) == 1000


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63 - 1])
def test_every_64_bit_seed_repeats_itself(seed: int) -> None:
    params = SamplingParams(seed=seed)
    assert run(params, 5) == run(params, 5)


def test_without_a_seed_sequences_differ() -> None:
    assert run(SamplingParams(), 30) != run(SamplingParams(), 30)


def test_uniform_numbers_are_spread_evenly_and_uncorrelated() -> None:
    numbers = uniforms([stream_key(s, 0) for s in range(200) for _ in range(200)], list(range(200)) * 200)
    assert 0 < numbers.min() < numbers.max() < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 99 + 4 * np.sqrt(2 * 99)
    grid = numbers.reshape(200, 200)
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("uniform", [2.0**-53, 1 - 2.0**-53])
@pytest.mark.parametrize("width", [5, 64, 65, 1000])
def test_the_extremes_pick_ids_of_positive_probability(uniform: float, width: int) -> None:
    logits = torch.full((1, width), -np.inf)
    logits[0, [1, 3]] = 0.0
    ids, _ = draw_untruncated(logits, [0], [1.0], np.array([uniform]))
    assert ids[0] == (1 if uniform < 0.5 else 3)


def test_different_rows_draw_independently() -> None:
    samplers = [SequenceSampler(SamplingParams(seed=9), [], vocab_size=V, index=i) for i in range(64)]
    ids = sample(torch.zeros(64, V), samplers).token_ids
    assert len(set(ids.tolist())) > 40
