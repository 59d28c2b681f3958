"""vLLM's request outputs as ours. Flat scores become arrays without a Python object per candidate."""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenwire.engine.base import EngineOutput, EngineRequest, Logprobs, PromptOutput, SpecDecodeStats, WeightSpan
from tokenwire.engine.score_rows import rows
from tokenwire.engine.speculation import spec_stats


class OutputMaker:
    """Converts the outputs of one sequence of a request, in order."""

    def __init__(self, request: EngineRequest, index: int) -> None:
        self._index = index
        self._scored = request.sampling.logprobs is not None or request.sampling.logprob_token_ids is not None
        self._first = index == 0

    def make(self, result: Any) -> EngineOutput:
        """`result` is a RequestOutput with one completion."""
        completion = result.outputs[0]
        token_ids = completion.token_ids
        output = EngineOutput(self._index, token_ids if isinstance(token_ids, list) else list(token_ids))
        if self._scored and token_ids:
            output.logprobs = scores(completion.logprobs)
        mask = getattr(completion, "sampling_mask", None)
        if mask is not None:
            output.sampling_mask = [np.asarray(ids, np.int32) for ids in mask.token_ids]
        if self._first:
            output.prompt = _prompt(result)
            self._first = False
        if completion.finish_reason is not None:
            _finish(output, completion, result)
        return output


def _finish(output: EngineOutput, completion: Any, result: Any) -> None:
    output.finish_reason = completion.finish_reason
    output.stop_reason = completion.stop_reason
    output.routed_experts = getattr(completion, "routed_experts", None)
    spans = getattr(completion, "weight_versions", None)
    if spans is not None:
        output.weight_versions = [WeightSpan(span.version, span.start, span.end) for span in spans]
    output.spec_decode = _speculation(getattr(completion, "spec_decode_metrics", None))
    output.kv_transfer_params = getattr(result, "kv_transfer_params", None)
    output.ec_transfer_params = getattr(result, "ec_transfer_params", None)
    if completion.finish_reason == "error":
        output.error = "vLLM failed on this request"


def _prompt(result: Any) -> PromptOutput:
    encoder = getattr(result, "encoder_prompt_token_ids", None)
    ids = getattr(result, "prompt_token_id_logprobs", None)
    return PromptOutput(
        num_cached_tokens=getattr(result, "num_cached_tokens", None),
        logprobs=prompt_scores(getattr(result, "prompt_logprobs", None)),
        token_id_logprobs=None if ids is None else np.asarray(ids, np.float32),
        num_encoder_tokens=len(encoder) if encoder else 0,
    )


def scores(given: Any) -> Logprobs | None:
    """Scores of all positions in `given`: FlatLogprobs, or a list of dicts in older versions."""
    if given is None or len(given) == 0:
        return None
    if hasattr(given, "start_indices"):
        return _flat(given, 0)
    return rows([_cells(position) for position in given])


def prompt_scores(given: Any) -> Logprobs | None:
    """P-1 rows: vLLM's first position is empty."""
    if given is None or len(given) < 2:
        return None
    if hasattr(given, "start_indices"):
        return _flat(given, 1)
    return rows([_cells(position) for position in given[1:]])


def _flat(flat: Any, first: int) -> Logprobs:
    """Positions first.. of FlatLogprobs: the sampled token, then the candidates by rank; all rows equally wide."""
    starts, ends = flat.start_indices, flat.end_indices
    count, start = len(starts) - first, starts[first]
    width = ends[first] - start
    stop = start + count * width
    if stop != ends[-1]:
        return rows([_cells(flat[position]) for position in range(first, len(starts))])
    ranks = flat.ranks[start:stop:width]
    return Logprobs(
        np.array(flat.token_ids[start:stop], np.int32).reshape(count, width),
        np.array(flat.logprobs[start:stop], np.float32).reshape(count, width),
        np.array([rank or 0 for rank in ranks], np.int32),
    )


def _cells(position: Any) -> list[tuple[int, float, int]]:
    return [(token_id, entry.logprob, entry.rank or 0) for token_id, entry in (position or {}).items()]


def _speculation(metrics: Any) -> SpecDecodeStats | None:
    if metrics is None:
        return None
    return spec_stats(
        metrics.num_spec_tokens,
        metrics.histogram,
        metrics.num_draft_tokens,
        list(metrics.per_step_accepted),
        list(metrics.per_step_drafted),
    )
