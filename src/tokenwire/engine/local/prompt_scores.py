"""The scores of a prompt, gathered chunk by chunk as the prompt is computed.

Position p is scored by the logits at p - 1, so the score row r of a request stands for prompt position
`start + 1 + r`. Only rows of one chunk exist as [rows, vocab] at a time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs
from tokenwire.wire.sampling import SamplingParams


class PromptScores:
    """Collects `prompt_logprobs` and `prompt_logprob_token_ids` of one request."""

    def __init__(self, params: SamplingParams, num_prompt: int) -> None:
        self.num_top = params.prompt_logprobs
        self._num_prompt = num_prompt
        start = params.prompt_logprob_start or 0
        self._id_start = start
        self._rows = params.prompt_logprob_token_ids
        self._width = max((len(row) for row in self._rows), default=0) if self._rows is not None else 0
        self.next_position = 0 if self.num_top is not None else min(start, max(num_prompt - 1, 0))
        """Logits at this position are the next that are needed."""
        self._tops: list[Logprobs] = []
        self._id_scores: list[NDArray[np.float32]] = []

    @property
    def done(self) -> bool:
        """All of positions 1..num_prompt-1 are scored."""
        return self.next_position >= self._num_prompt - 1

    def rows_in(self, start: int, stop: int) -> tuple[int, int]:
        """Which positions of start..stop need logits for a score, as a half open range."""
        first = max(start, self.next_position)
        return first, max(first, min(stop, self._num_prompt - 1))

    def ids_for(self, first: int, stop: int) -> NDArray[np.int64] | None:
        """The ids to score with the logits at first..stop: [rows, width], -1 pads; None if none were asked."""
        if self._rows is None:
            return None
        ids = np.full((stop - first, self._width), -1, dtype=np.int64)
        for r, position in enumerate(range(first, stop)):
            index = position - self._id_start
            if 0 <= index < len(self._rows):
                row = self._rows[index]
                ids[r, : len(row)] = row
        return ids

    def add(self, first: int, stop: int, tops: Logprobs | None, id_scores: NDArray[np.float32] | None) -> None:
        """Scores made from the logits at first..stop."""
        assert first == self.next_position
        self.next_position = stop
        if tops is not None:
            self._tops.append(tops)
        if id_scores is not None:
            skip = max(0, self._id_start - first)
            self._id_scores.append(id_scores[skip:])

    def logprobs(self) -> Logprobs | None:
        """All P-1 rows; None if `prompt_logprobs` was not asked."""
        if self.num_top is None:
            return None
        if not self._tops:
            empty = np.zeros((0, 1), dtype=np.int32)
            return Logprobs(empty, empty.astype(np.float32), np.zeros(0, dtype=np.int32))
        return Logprobs.concat(self._tops)

    def token_id_logprobs(self) -> NDArray[np.float32] | None:
        """[P-1-start, width]; None if `prompt_logprob_token_ids` was not asked."""
        if self._rows is None:
            return None
        if not self._id_scores:
            return np.zeros((0, self._width), dtype=np.float32)
        return np.concatenate(self._id_scores)
