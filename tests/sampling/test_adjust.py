"""Adjustments give what the plain rules give.

1. Any combination of parameters equals the reference, row by row, in a batch of different rows.
2. The order of the steps is observable, and it is allowed, bad words, min_tokens, bias, penalties.
3. A bad word is forbidden only where its beginning has just been written.
4. With a grammar, min_tokens does not take the last allowed id away.
5. Rows that ask for nothing are left untouched.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sampling import reference
from tokenwire.engine.local.sampling import SequenceSampler, sample
from tokenwire.engine.local.sampling.adjust import adjust
from tokenwire.wire.sampling import SamplingParams

V = 40
EOS = (2, 5)
ids = st.integers(0, V - 1)
words = st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    maybe = draw(st.fixed_dictionaries({name: st.booleans() for name in ("allowed", "bias", "penalty", "stop")}))
    params = SamplingParams(
        allowed_token_ids=draw(st.lists(ids, min_size=1, max_size=10, unique=True)) if maybe["allowed"] else None,
        logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=5)) if maybe["bias"] else None,
        min_tokens=draw(st.integers(0, 6)),
        stop_token_ids=draw(st.lists(ids, max_size=3)) if maybe["stop"] else None,
        presence_penalty=draw(st.sampled_from([0.0, 0.5, -2.0])) if maybe["penalty"] else 0.0,
        frequency_penalty=draw(st.sampled_from([0.0, 0.25, 2.0])) if maybe["penalty"] else 0.0,
        repetition_penalty=draw(st.sampled_from([1.0, 1.5, 0.5])) if maybe["penalty"] else 1.0,
    )
    prompt = draw(st.lists(ids, max_size=8))
    output = draw(st.lists(ids, max_size=8))
    return {"params": params, "prompt": prompt, "output": output, "bad_words": draw(words)}


def build(row: dict[str, Any]) -> SequenceSampler:
    return SequenceSampler(
        row["params"],
        row["prompt"],
        vocab_size=V,
        eos_token_ids=EOS,
        bad_words=row["bad_words"],
        output_token_ids=row["output"],
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=4), st.integers(0, 2**31))
def test_a_batch_equals_the_reference_row_by_row(batch: list[dict[str, Any]], seed: int) -> None:
    logits = torch.randn(len(batch), V, generator=torch.Generator().manual_seed(seed)) * 5
    expected = [
        reference.adjust(
            logits[i].numpy().astype(np.float64),
            row["params"],
            row["prompt"] if row["params"].repetition_penalty != 1.0 else (),
            row["output"],
            eos=EOS,
            bad_words=row["bad_words"],
        )
        for i, row in enumerate(batch)
    ]
    adjust(logits, list(enumerate(map(build, batch))))
    np.testing.assert_allclose(logits.numpy(), np.stack(expected), rtol=1e-5, atol=1e-4)


def test_the_repetition_penalty_sees_the_biased_logit() -> None:
    # -1 + 3 = 2 is positive, so it is divided; penalised first, -1 would have been multiplied.
    params = SamplingParams(logit_bias={1: 3.0}, repetition_penalty=2.0)
    logits = torch.tensor([[0.0, -1.0, 0.0]])
    adjust(logits, [(0, SequenceSampler(params, [1], vocab_size=3))])
    assert logits.tolist() == [[0.0, 1.0, 0.0]]


def test_a_bias_cannot_bring_a_forbidden_id_back() -> None:
    params = SamplingParams(
        temperature=0, allowed_token_ids=[0, 1, 2], logit_bias={1: 100.0, 2: 100.0, 3: 100.0}, min_tokens=1
    )
    sampler = SequenceSampler(params, [], vocab_size=4, eos_token_ids=[2], bad_words=[[1]])
    assert sample(torch.zeros(1, 4), [sampler]).token_ids.tolist() == [0]


def test_a_bad_word_is_forbidden_only_after_its_beginning() -> None:
    params = SamplingParams(temperature=0)
    sampler = SequenceSampler(params, [7, 8], vocab_size=10, bad_words=[[7, 8, 9]])
    logits = torch.zeros(10)
    logits[9] = 1.0

    def choose() -> int:
        return int(sample(logits[None].clone(), [sampler]).token_ids[0])

    assert choose() == 9, "the prompt does not count"
    sampler.append(7)
    assert choose() == 9
    sampler.append(8)
    assert choose() == 0
    sampler.append(0)
    assert choose() == 9


class OnlyStop:
    """A grammar that has reached its end: nothing but id 2 may follow."""

    def fill(self, bitmask: NDArray[np.int32]) -> bool:
        bitmask[:] = 0
        bitmask[0] = 1 << 2
        return True

    def accept(self, token_id: int) -> bool:
        return token_id == 2


def test_min_tokens_yields_to_a_grammar_that_allows_only_a_stop_id() -> None:
    params = SamplingParams(temperature=0, min_tokens=5, logprobs=0)
    sampler = SequenceSampler(params, [], vocab_size=8, eos_token_ids=[2], grammar=OnlyStop())
    output = sample(torch.zeros(1, 8), [sampler])
    assert output.token_ids.tolist() == [2]
    assert output.logprobs[0] is not None
    # The grammar's mask comes before the raw scores: it leaves the id all the probability.
    assert output.logprobs[0].logprobs.tolist() == [[0.0]]
    assert sampler.append(2)
    assert not sampler.append(3), "a token the grammar forbids is reported"


def test_rows_that_ask_for_nothing_are_untouched() -> None:
    logits = torch.randn(3, V)
    before = logits.clone()
    plain = SequenceSampler(SamplingParams(temperature=0.7, top_k=3, logprobs=2), [], vocab_size=V)
    biased = SequenceSampler(SamplingParams(logit_bias={1: 5.0}), [], vocab_size=V)
    sample(logits, [plain, biased, plain])
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
