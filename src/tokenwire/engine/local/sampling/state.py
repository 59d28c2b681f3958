"""What one sequence carries from step to step for sampling: its parameters, laid out for the step, and its history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.local.sampling.random import stream_key
from tokenwire.engine.local.sampling.thinking import ThinkingBudget, ThinkingMarkers
from tokenwire.wire.sampling import SamplingParams


class TokenConstraint(Protocol):
    """A grammar's view from here: which ids may come next, and which came."""

    def fill(self, bitmask: NDArray[np.int32]) -> bool:
        """Write one bit per id, 1 = allowed, into a row of int32 words; False if nothing is forbidden."""

    def accept(self, token_id: int) -> bool:
        """Advance by one token; False, and no change, if it is forbidden."""


class TokenCounts:
    """How often each id has appeared, for penalties: prompt ids count 0, output ids 1 and up. Grows by append."""

    __slots__ = ("_counts", "_ids", "_size", "_slots")

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        unique = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._size = len(unique)
        self._ids = np.zeros(self._size + 256, dtype=np.int64)
        self._ids[: self._size] = unique
        self._counts = np.zeros(self._size + 256, dtype=np.float32)
        self._slots = {token_id: slot for slot, token_id in enumerate(unique.tolist())}

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct ids so far."""
        return self._ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Appearances in the output, aligned with `ids`."""
        return self._counts[: self._size]

    def append(self, token_id: int) -> None:
        slot = self._slots.get(token_id)
        if slot is None:
            if self._size == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            slot = self._slots[token_id] = self._size
            self._ids[slot] = token_id
            self._size += 1
        self._counts[slot] += 1


class SequenceSampler:
    """Sampling state of one sequence. `append` every token the sequence takes; everything else is read by `sample`.

    `bad_words` are id sequences (`tokenize_bad_words`), `eos_token_ids` the model's EOS set, `index` the choice's
    number among the request's n. `output_token_ids` rebuilds the state after a restart. `grammar` may be set later,
    before the first step; tokens appended then do not reach it. `markers` make `thinking_token_budget` work.
    Of the prompt only the repetition penalty and the thinking budget keep anything.
    """

    __slots__ = (
        "_last_tokens",
        "adjusts",
        "allowed",
        "bad_words",
        "bias_ids",
        "bias_values",
        "counts",
        "forced",
        "frequency_penalty",
        "grammar",
        "greedy",
        "key",
        "logprob_token_ids",
        "min_p",
        "min_tokens",
        "num_logprobs",
        "num_output_tokens",
        "params",
        "presence_penalty",
        "repetition_penalty",
        "return_mask",
        "stop_ids",
        "temperature",
        "thinking",
        "top_k",
        "top_p",
        "truncates",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        *,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        index: int = 0,
        bad_words: Sequence[Sequence[int]] = (),
        output_token_ids: Iterable[int] = (),
        grammar: TokenConstraint | None = None,
        return_mask: bool = False,
        markers: ThinkingMarkers | None = None,
    ) -> None:
        self.params = params
        self.greedy = params.is_greedy
        self.temperature = 1.0 if self.greedy else params.temperature
        self.key = stream_key(params.seed, index)
        self.num_output_tokens = 0
        self.thinking: ThinkingBudget | None = None
        if params.thinking_token_budget is not None and markers is not None:
            self.thinking = ThinkingBudget(params.thinking_token_budget, markers, prompt_token_ids)
        self._set_truncation(params, vocab_size)
        self._set_adjustments(params, eos_token_ids, vocab_size, bad_words)
        has_penalty = bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)
        self.presence_penalty = params.presence_penalty
        self.frequency_penalty = params.frequency_penalty
        self.repetition_penalty = params.repetition_penalty
        history = prompt_token_ids if params.repetition_penalty != 1.0 else ()
        self.counts = TokenCounts(history) if has_penalty else None
        self.forced = params.trace_decode_token_ids
        self.logprob_token_ids = np.array(params.logprob_token_ids, np.int64) if params.logprob_token_ids else None
        self.num_logprobs = vocab_size if params.logprobs == -1 else params.logprobs
        self.return_mask = return_mask
        self.grammar: TokenConstraint | None = None
        for token_id in output_token_ids:
            self.append(token_id)
        self.grammar = grammar

    def _set_truncation(self, params: SamplingParams, vocab_size: int) -> None:
        usable = not self.greedy
        self.top_k = params.top_k if usable and 0 < params.top_k < vocab_size else 0
        self.top_p = params.top_p if usable else 1.0
        self.min_p = params.min_p if usable else 0.0
        self.truncates = bool(self.top_k or self.top_p < 1.0 or self.min_p > 0.0)

    def _set_adjustments(
        self,
        params: SamplingParams,
        eos_token_ids: Iterable[int],
        vocab_size: int,
        bad_words: Sequence[Sequence[int]],
    ) -> None:
        self.allowed = _ids(params.allowed_token_ids) if params.allowed_token_ids else None
        bias = params.logit_bias or {}
        self.bias_ids = _ids(bias)
        self.bias_values = np.array(list(bias.values()), dtype=np.float32)
        self.min_tokens = params.min_tokens
        stops = {*eos_token_ids, *(params.stop_token_ids or ())}
        self.stop_ids = _ids(sorted(i for i in stops if 0 <= i < vocab_size))
        self.bad_words = [tuple(word) for word in bad_words]
        self._last_tokens: list[int] = []
        self.adjusts = bool(
            self.allowed is not None
            or len(bias)
            or self.min_tokens
            or self.bad_words
            or self.thinking
            or params.presence_penalty
            or params.frequency_penalty
            or params.repetition_penalty != 1.0
        )

    @property
    def wants_scores(self) -> bool:
        return self.num_logprobs is not None or self.logprob_token_ids is not None

    @property
    def is_plain_greedy(self) -> bool:
        """The next token is the argmax of the logits as they are, and nobody asks for more."""
        return self.greedy and not (
            self.adjusts or self.grammar or self.forced or self.return_mask or self.wants_scores
        )

    def append(self, token_id: int) -> bool:
        """Take one token into the history.

        False if the grammar or `allowed_token_ids` forbid it: other parameters left no allowed token with a finite
        logit. The sequence cannot go on then.
        """
        self.num_output_tokens += 1
        if self.counts is not None:
            self.counts.append(token_id)
        if self.thinking is not None:
            self.thinking.append(token_id)
        if self.bad_words:
            self._last_tokens.append(token_id)
        if self.allowed is not None and self.forced is None and token_id not in self.allowed:
            return False
        return self.grammar is None or self.grammar.accept(token_id)

    def forbidden_now(self) -> list[int]:
        """The ids that would complete a bad word at the next position."""
        tail = self._last_tokens
        return [
            word[-1]
            for word in self.bad_words
            if len(word) <= len(tail) + 1 and (len(word) == 1 or tuple(tail[1 - len(word) :]) == word[:-1])
        ]

    def forced_now(self) -> int | None:
        """The id a replayed trace puts at the next position."""
        if self.forced is None or self.num_output_tokens >= len(self.forced):
            return None
        return self.forced[self.num_output_tokens]


def _ids(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, dtype=np.int64)
