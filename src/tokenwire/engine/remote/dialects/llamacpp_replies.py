"""llama.cpp's answers: exact ids with their scores, why they ended, and errors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import msgspec

from tokenwire.engine.base import EngineOutput, PromptOutput
from tokenwire.engine.remote.dialects.llamacpp_parts import Part
from tokenwire.engine.remote.dialects.reading import decode_answer
from tokenwire.engine.remote.errors import ErrorInfo, from_info
from tokenwire.engine.score_rows import Cell, rows
from tokenwire.errors import GenerationError

_FINISH = {"eos": "stop", "word": "stop", "limit": "length"}


class _Candidate(msgspec.Struct):
    id: int
    logprob: float = -9999.0


class _Scored(_Candidate):
    top_logprobs: list[_Candidate] = []


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Answer(msgspec.Struct):
    tokens: list[int] = []
    tokens_evaluated: int | None = None
    tokens_predicted: int | None = None
    stop_type: str = "none"
    truncated: bool = False
    completion_probabilities: list[_Scored] = []
    timings: _Timings | None = None
    error: ErrorInfo | None = None


_ANSWER = msgspec.json.Decoder(_Answer)


decode = partial(decode_answer, server="llama.cpp")
"""Raises `GenerationError` for a body that the decoder does not take."""


class LlamaCppReader:
    """Implements `Reader` for one sequence of one part. A stop id ends it, whatever the worker goes on to say."""

    has_enough = False

    def __init__(self, part: Part) -> None:
        self._part = part
        self._stop_ids = frozenset(part.sampling.stop_token_ids or ())

    def whole(self, body: bytes) -> list[EngineOutput]:
        answer = decode(_ANSWER, body)
        if answer.error is not None:
            raise from_info(answer.error)
        self._check(answer)
        token_ids, stop_id = self._until_stop(answer.tokens)
        output = EngineOutput(0, token_ids)
        if self._part.sampling.logprobs is not None and token_ids:
            cells = _aligned(answer.tokens, answer.completion_probabilities, self._part.sampling.logprobs)
            output.logprobs = rows(cells[: len(token_ids)])
        if self._part.number == 0:
            output.prompt = PromptOutput(num_cached_tokens=answer.timings.cache_n if answer.timings else None)
        is_eos = answer.stop_type == "eos" and len(token_ids) == len(answer.tokens)
        if stop_id is not None and (not is_eos or self._part.sampling.ignore_eos):
            output.finish_reason, output.stop_reason = "stop", stop_id
        elif self._is_end(answer):
            output.finish_reason = _FINISH.get(answer.stop_type, "stop")  # type: ignore[assignment]
        return [output]

    def _is_end(self, answer: _Answer) -> bool:
        if answer.truncated or len(answer.tokens) == self._part.sampling.max_tokens:
            return True
        if answer.stop_type == "eos":  # a grammar that has ended cannot be continued
            return not self._part.sampling.ignore_eos or self._part.sampling.structured_outputs is not None
        return answer.stop_type != "limit"

    def piece(self, data: bytes) -> Iterator[EngineOutput]:
        raise GenerationError("llama.cpp streams although it was not asked to")

    def end(self) -> list[EngineOutput]:
        return []

    def _check(self, answer: _Answer) -> None:
        """The ids are exactly those that were sent and sampled, or it is an error."""
        sent, sampled = len(self._part.prompt_token_ids), len(answer.tokens)
        if answer.tokens_evaluated not in (None, sent):
            raise GenerationError(f"llama.cpp read {answer.tokens_evaluated} prompt tokens where {sent} were sent")
        if answer.tokens_predicted not in (None, sampled):
            raise GenerationError(f"llama.cpp sampled {answer.tokens_predicted} tokens and tells {sampled}")

    def _until_stop(self, tokens: list[int]) -> tuple[list[int], int | None]:
        for at, token_id in enumerate(tokens):
            if token_id in self._stop_ids:
                return tokens[: at + 1], token_id
        return tokens, None


def _aligned(tokens: list[int], scored: list[_Scored], k: int) -> list[list[Cell]]:
    """One row a token. Scores stand with the last token of each character, so they are dealt out from the end."""
    left = list(scored)
    cells: list[list[Cell]] = []
    for token_id in reversed(tokens):
        known = bool(left) and left[-1].id == token_id
        cells.append(_cells(left.pop(), k) if known else [(token_id, math.nan, 0)])
    cells.reverse()
    return cells


def _cells(scored: _Scored, k: int) -> list[Cell]:
    ranked = [(c.id, c.logprob, rank + 1) for rank, c in enumerate(scored.top_logprobs)]
    rank = next((rank for i, _, rank in ranked if i == scored.id), 0)
    return [(scored.id, scored.logprob, rank), *(cell for cell in ranked[:k] if cell[0] != scored.id)]
