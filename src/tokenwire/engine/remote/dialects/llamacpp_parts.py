"""A request as parts of a few tokens each, asked one after another; why, says `llamacpp`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tokenwire.engine.base import EngineOutput, EngineRequest
from tokenwire.errors import GenerationError
from tokenwire.wire.sampling import SamplingParams

PART_SIZES = (1, 2, 4)
"""Tokens of the first parts; the first one comes as soon as it can."""
PART_SIZE = 8
"""Tokens of every later part."""


@dataclass(slots=True, frozen=True)
class Part(EngineRequest):
    """Some tokens of a request. The prompt has those of the parts before; `max_tokens` is what is left."""

    number: int = 0
    num_done: int = 0
    """Tokens of the parts before."""
    n_predict: int = 0

    @property
    def penalty_window(self) -> int:
        """How many tokens before the next one are penalised: its output, or all of the context."""
        return self.num_done if counts_outputs(self.sampling) else len(self.prompt_token_ids) + self.n_predict

    @property
    def seed(self) -> int:
        """-1: at random. Parts of a seed must not draw the same numbers, nor those of the next seed's parts."""
        seed = self.sampling.seed
        return -1 if seed is None else (seed + self.number * 0x9E3779B1) % 2**32

    def next(self, outputs: Sequence[EngineOutput]) -> Part | None:
        """What to ask after these outputs; None after an end."""
        if any(output.finish_reason is not None for output in outputs):
            return None
        token_ids = [token_id for output in outputs for token_id in output.token_ids]
        left = left_of(self) - len(token_ids)
        if not token_ids or left < 1:
            raise GenerationError("llama.cpp answered without tokens and without an end")
        sampling = msgspec.structs.replace(self.sampling, max_tokens=left)
        prompt = [*self.prompt_token_ids, *token_ids]
        rest = dataclasses.replace(self, prompt_token_ids=prompt, sampling=sampling)
        return part_of(rest, self.number + 1, self.num_done + len(token_ids))


def counts_outputs(p: SamplingParams) -> bool:
    """Some of its penalties are for output tokens only."""
    return bool(p.presence_penalty or p.frequency_penalty)


def part_of(request: EngineRequest, number: int = 0, num_done: int = 0) -> Part:
    """Part `number` of what is left of a request. Nothing else decides its size, so a seed gives the same tokens every
    time. A grammar would begin anew with every part, so that is one part."""
    p = request.sampling
    left = left_of(request)
    size = 1 if counts_outputs(p) else (*PART_SIZES, PART_SIZE)[min(number, len(PART_SIZES))]
    n_predict = min(left, size) if p.structured_outputs is None else left
    fields = {f.name: getattr(request, f.name) for f in dataclasses.fields(EngineRequest)}
    return Part(**{**fields, "stream": False}, number=number, num_done=num_done, n_predict=n_predict)


def left_of(request: EngineRequest) -> int:
    left = request.sampling.max_tokens
    assert isinstance(left, int)
    return left
