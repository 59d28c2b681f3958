"""min-p, top-k and top-p keep exactly what the plain rules keep, and draws stay inside.

1. The survivors equal the reference for any combination, on small and large vocabularies, with and without ties.
2. Both ways through the code (short list, whole row) give the same survivors.
3. Ids that tie with the k-th stay; of ids that tie at the border of top-p the lower ones stay.
4. Rows without a distribution give their argmax instead of an error.
5. The block trick finds the same best k as a sort.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sampling import reference
from tokenwire.engine.local.sampling import SequenceSampler, best, sample, truncate
from tokenwire.engine.local.sampling.best import top_k
from tokenwire.wire.sampling import SamplingParams

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 0, 1, 2, 10, 50, 60, 200, 2000]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
)


def survivors(logits: torch.Tensor, params: list[SamplingParams]) -> list[list[int]]:
    samplers = [SequenceSampler(p, [], vocab_size=logits.shape[1], return_mask=True) for p in params]
    output = sample(logits.clone(), samplers)
    masks = [mask.tolist() for mask in output.masks if mask is not None]
    assert len(masks) == len(params)
    for token_id, mask in zip(output.token_ids.tolist(), masks, strict=True):
        assert token_id in mask
    return masks


def expected(logits: torch.Tensor, params: list[SamplingParams]) -> list[list[int]]:
    rows = logits.numpy().astype(np.float64)
    return [
        np.flatnonzero(np.isfinite(reference.truncate(row, p))).tolist() for row, p in zip(rows, params, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(PARAMS, min_size=1, max_size=5),
    st.sampled_from([1, 7, 64, 300, 1000, 4097]),
    st.sampled_from([0.01, 1.0, 5.0]),
    st.integers(0, 2**31),
)
def test_survivors_equal_the_reference(params: list[SamplingParams], width: int, spread: float, seed: int) -> None:
    logits = torch.randn(len(params), width, generator=torch.Generator().manual_seed(seed)) * spread
    assert survivors(logits, params) == expected(logits, params)


@settings(max_examples=60, deadline=None)
@given(st.lists(PARAMS, min_size=1, max_size=4), st.integers(1, 30), st.integers(0, 2**31))
def test_ties_are_cut_as_the_reference_cuts_them(params: list[SamplingParams], levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Powers of two apart, so that sums of equal weights are exact in any order.
    logits = torch.randint(0, levels, (len(params), 1000), generator=generator).float() * np.log(2)
    params = [SamplingParams(top_k=p.top_k, top_p=0.5 if p.top_p < 1 else 1.0, min_p=p.min_p) for p in params]
    got, want = survivors(logits, params), expected(logits, params)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if params[i].top_p == 1.0:
            assert a == b
        else:  # the border may fall on the very edge of an id, where rounding decides
            assert abs(len(a) - len(b)) <= 1
            values = logits[i].tolist()
            best_first = sorted(range(1000), key=lambda token_id: (-values[token_id], token_id))
            assert sorted(best_first[: len(a)]) == a


def test_top_k_keeps_all_ids_that_tie_with_the_kth() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    assert survivors(logits, [SamplingParams(top_k=2)]) == [[1, 2, 3, 4]]


def test_top_p_keeps_the_lower_ids_of_a_tie_and_no_more_than_needed() -> None:
    assert survivors(torch.zeros(1, 8), [SamplingParams(top_p=0.49)]) == [[0, 1, 2, 3]]
    assert survivors(torch.zeros(1, 1024), [SamplingParams(top_p=0.249)]) == [list(range(255))]


def test_masked_ids_never_survive() -> None:
    logits = torch.full((1, 300), -np.inf)
    logits[0, [7, 9]] = 0.0
    for p in (
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.99),
        SamplingParams(min_p=0.1),
        SamplingParams(top_k=250),
    ):
        assert survivors(logits, [p]) == [[7, 9]]


@pytest.mark.parametrize("params", [SamplingParams(top_k=20), SamplingParams(top_p=0.8), SamplingParams(min_p=0.05)])
def test_a_short_list_and_the_whole_row_agree(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(8, 3000, generator=torch.Generator().manual_seed(5)) * 6
    short = survivors(logits, [params] * 8)
    monkeypatch.setattr(truncate, "_LIST_SIZES", ())
    assert survivors(logits, [params] * 8) == short


@settings(max_examples=30, deadline=None)
@given(
    st.lists(PARAMS, min_size=1, max_size=4),
    st.sampled_from([50, 1000]),
    st.sampled_from([3, 10**6]),
    st.integers(0, 99),
)
def test_lists_from_a_devices_own_top_k_serve_as_well(
    params: list[SamplingParams], width: int, levels: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, levels, (len(params), width), generator=generator) * (20.0 / levels)
    want = survivors(logits, params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truncate, "best_lists", best._by_topk)
        assert survivors(logits, params) == want


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(top_k=3),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=0),
    ],
)
def test_a_row_without_a_distribution_gives_its_argmax(bad: float, params: SamplingParams) -> None:
    logits = torch.zeros(2, 500)
    logits[0, 123] = bad
    samplers = [SequenceSampler(params, [], vocab_size=500) for _ in range(2)]
    assert sample(logits, samplers).token_ids[0] == 123


def test_a_row_of_minus_infinity_gives_the_first_id() -> None:
    for params in (SamplingParams(), SamplingParams(top_k=3), SamplingParams(top_p=0.5, logprobs=2)):
        output = sample(torch.full((1, 500), -np.inf), [SequenceSampler(params, [], vocab_size=500)])
        assert output.token_ids.tolist() == [0]


@pytest.mark.parametrize("width", [1, 63, 64, 1000, 6400, 6421])
@pytest.mark.parametrize("k", [1, 5, 31, 64])
@pytest.mark.parametrize("levels", [2, 40, 10**6])
def test_the_best_k_are_those_of_a_sort(width: int, k: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(width)
    values = torch.randint(0, levels, (3, width), generator=generator).float()
    values[1, width // 2 :] = -np.inf
    found, ids = top_k(values, min(k, width))
    want = values.sort(descending=True, stable=True)
    assert found.tolist() == want.values[:, :k].tolist()
    assert ids.tolist() == want.indices[:, :k].tolist()
