"""The small rules around sampling.

1. Repetition: the tail repeats a pattern of an allowed size `min_count` times; equal to a plain comparison of slices.
2. Bad words: both spellings, the second only if it says something new; impossible ones are refused by name.
3. Thinking budget: the end of reasoning is forced after the budget, continued where it has begun, and not outside.
4. A trace is replayed id by id, scores tell of the forced ids, and sampling goes on after it.
5. The sampling mask of a row without truncation is every id that has any probability.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tokenwire.engine.local.sampling import SequenceSampler, ThinkingMarkers, has_repetition, sample, tokenize_bad_words
from tokenwire.errors import InvalidRequestError
from tokenwire.wire.sampling import RepetitionDetection, SamplingParams


@given(
    st.lists(st.integers(0, 2), max_size=24),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 5),
)
def test_repetition_equals_a_comparison_of_slices(tokens: list[int], low: int, high: int, count: int) -> None:
    def plain() -> bool:
        if high <= 0 or count < 2:
            return False
        return any(
            len(tokens) >= size * count and tokens[len(tokens) - size * count :] == tokens[len(tokens) - size :] * count
            for size in range(max(low, 1), high + 1)
        )

    rule = RepetitionDetection(max_pattern_size=high, min_pattern_size=low, min_count=count)
    assert has_repetition(tokens, rule) == plain()
    prompt = tokens[-6:] * 2
    assert has_repetition(prompt + tokens, rule, start=len(prompt)) == plain(), "the prompt does not count"


def letters(text: str) -> list[int]:
    """A toy encoder: a space and the letter after it are one id, as in byte-level vocabularies."""
    return [ord(c) + (1000 if i and text[i - 1] == " " else 0) for i, c in enumerate(text) if c != " "]


def test_bad_words_are_forbidden_at_the_start_and_after_a_space() -> None:
    assert tokenize_bad_words(["ab", " c"], letters, vocab_size=2000) == [[97, 98], [1097, 98], [99], [1099]]


def test_a_spaced_form_of_another_length_or_beginning_is_left_out() -> None:
    longer = tokenize_bad_words(["x"], lambda text: [1, 2, 3] if text.startswith(" ") else [7], vocab_size=10)
    same_start = tokenize_bad_words(["x"], lambda text: [7, 9] if text.startswith(" ") else [7, 8], vocab_size=10)
    assert (longer, same_start) == ([[7]], [[7, 8]])


@pytest.mark.parametrize(
    ("words", "limit", "message"),
    [(["  "], 128, "at least one token"), (["a"] * 2, 3, "Too many bad words"), (["é"], 128, "outside the vocabulary")],
)
def test_impossible_bad_words_are_refused(words: list[str], limit: int, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        tokenize_bad_words(words, letters, vocab_size=1200, max_sequences=limit)
    assert caught.value.param == "bad_words"


MARKERS = ThinkingMarkers(start=(1, 2), end=(8,), forced_end=(6, 7, 8))


def think(budget: int, prompt: list[int], steps: int, likes: int = 4) -> list[int]:
    params = SamplingParams(temperature=0, thinking_token_budget=budget)
    sampler = SequenceSampler(params, prompt, vocab_size=10, markers=MARKERS)
    logits = torch.zeros(10)
    logits[likes] = 9.0
    tokens = []
    for _ in range(steps):
        tokens.append(int(sample(logits[None].clone(), [sampler]).token_ids[0]))
        sampler.append(tokens[-1])
    return tokens


def test_thinking_ends_after_its_budget() -> None:
    assert think(2, [1, 2], 7) == [4, 4, 6, 7, 8, 4, 4]
    assert think(0, [1, 2], 4) == [6, 7, 8, 4]


def test_reasoning_in_the_prompt_counts_against_the_budget() -> None:
    assert think(3, [1, 2, 4, 4], 5) == [4, 6, 7, 8, 4]
    assert think(1, [1, 2, 4, 4, 6], 3) == [7, 8, 4]


def test_nothing_is_forced_outside_of_reasoning() -> None:
    assert think(1, [5, 5], 4) == [4] * 4
    assert think(1, [1, 2, 8], 4) == [4] * 4
    assert think(1, [1, 2], 4, likes=8) == [8, 8, 8, 8]


def test_a_second_reasoning_has_the_whole_budget_again() -> None:
    assert think(2, [1, 2, 4, 4, 4, 8, 1, 2], 6) == [4, 4, 6, 7, 8, 4]


def test_a_trace_is_replayed_and_scored() -> None:
    params = SamplingParams(temperature=0, logprobs=1, trace_decode_token_ids=[3, 0])
    sampler = SequenceSampler(params, [], vocab_size=5)
    logits = torch.tensor([[1.0, 5.0, 2.0, 3.0, 4.0]])
    seen = []
    for _ in range(3):
        output = sample(logits.clone(), [sampler])
        assert output.logprobs[0] is not None
        seen.append(
            (int(output.token_ids[0]), output.logprobs[0].token_ids[0].tolist(), int(output.logprobs[0].ranks[0]))
        )
        sampler.append(seen[-1][0])
    assert seen == [(3, [3, 1], 3), (0, [0, 1], 5), (1, [1, 1], 1)]


def test_the_mask_of_an_untruncated_row_is_every_possible_id() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, allowed_token_ids=[1, 4])
        sampler = SequenceSampler(params, [], vocab_size=6, return_mask=True)
        (mask,) = sample(torch.zeros(1, 6), [sampler]).masks
        assert mask is not None
        assert mask.tolist() == [1, 4]
        assert mask.dtype == np.int32
