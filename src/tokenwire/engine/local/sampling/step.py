"""One sampling step: logits of a batch in, one id per row out, with the scores and masks that were asked for.

The order is vLLM's: grammar masks, raw scores, adjustments, temperature, truncation, the draw, processed scores. Rows
that ask for nothing special share one argmax or one softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from tokenwire.engine.base import Logprobs
from tokenwire.engine.local.sampling.adjust import adjust
from tokenwire.engine.local.sampling.best import take_rows
from tokenwire.engine.local.sampling.bitmask import apply_constraints
from tokenwire.engine.local.sampling.draw import argmax, draw_untruncated
from tokenwire.engine.local.sampling.random import uniforms
from tokenwire.engine.local.sampling.scores import ScoreAsk, score
from tokenwire.engine.local.sampling.softmax import over_temperature
from tokenwire.engine.local.sampling.state import SequenceSampler
from tokenwire.engine.local.sampling.truncate import draw_truncated

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


@dataclass(slots=True)
class SampleOutput:
    """One token per row. `logprobs[i]` has one position; None where row i asked for none."""

    token_ids: NDArray[np.int32]  # [B]
    logprobs: list[Logprobs | None]
    masks: list[NDArray[np.int32] | None]
    """Ids that survived truncation, rising; None where row i did not ask."""


def sample(
    logits: torch.Tensor, samplers: Sequence[SequenceSampler], *, logprobs_mode: LogprobsMode = "raw_logprobs"
) -> SampleOutput:
    """Choose the next token of every row of `logits` [B, V].

    `logits` may be changed in place where a row is constrained or adjusted; float32 without gaps is not copied.
    Nothing is appended to the samplers: the caller appends what it accepts.
    """
    logits = logits.to(torch.float32).contiguous()
    if all(sampler.is_plain_greedy for sampler in samplers):
        return _bare(argmax(logits))
    constrained = [(i, s.grammar) for i, s in enumerate(samplers) if s.grammar is not None]
    apply_constraints(logits, constrained)
    scored = [i for i, sampler in enumerate(samplers) if sampler.wants_scores]
    raw = logits
    adjusted = [(i, sampler) for i, sampler in enumerate(samplers) if sampler.adjusts]
    if adjusted:
        if logprobs_mode.startswith("raw") and any(samplers[i].adjusts for i in scored):
            raw = logits[scored]
        adjust(logits, adjusted)
    log_peaks = np.full(len(samplers), np.nan, dtype=np.float32)
    output = _choose(logits, samplers, log_peaks, keep_masks=logprobs_mode.startswith("processed"))
    _replay(output, samplers)
    if scored:
        if logprobs_mode.startswith("processed"):
            table = _processed(logits, samplers, scored, output.masks)
        else:
            table = take_rows(raw, scored) if raw is logits else raw
        _add_scores(output, samplers, scored, table, log_peaks, as_logits=logprobs_mode.endswith("logits"))
    for i, sampler in enumerate(samplers):
        if not sampler.return_mask:
            output.masks[i] = None
    return output


def _bare(token_ids: NDArray[np.int64]) -> SampleOutput:
    count = len(token_ids)
    return SampleOutput(token_ids.astype(np.int32), [None] * count, [None] * count)


def _choose(
    logits: torch.Tensor, samplers: Sequence[SequenceSampler], log_peaks: NDArray[np.float32], *, keep_masks: bool
) -> SampleOutput:
    """Choose by argmax or draw. Fills `log_peaks` where a draw has found one for the very logits to be scored."""
    greedy = [i for i, s in enumerate(samplers) if s.greedy]
    free = [i for i, s in enumerate(samplers) if not s.greedy and not s.truncates]
    truncated = [i for i, s in enumerate(samplers) if s.truncates]
    output = _bare(np.zeros(len(samplers), dtype=np.int64))
    if greedy:
        output.token_ids[greedy] = argmax(take_rows(logits, greedy))
    noise = uniforms([s.key for s in samplers], [s.num_output_tokens for s in samplers])
    if free:
        temperatures = [samplers[i].temperature for i in free]
        output.token_ids[free], peaks = draw_untruncated(logits, free, temperatures, noise[free])
        same = np.array([samplers[i].temperature == 1.0 and not samplers[i].adjusts for i in free])
        log_peaks[free] = np.where(same, peaks, np.nan)
    if truncated:
        chosen = [samplers[i] for i in truncated]
        wants = [s.return_mask or (keep_masks and s.wants_scores) for s in chosen]
        draws = draw_truncated(take_rows(logits, truncated), chosen, noise[truncated], wants)
        for i, draw in zip(truncated, draws, strict=True):
            output.token_ids[i] = draw.token_id
            output.masks[i] = draw.survivors
    for i in (*greedy, *free):
        if samplers[i].return_mask:
            output.masks[i] = np.flatnonzero(np.isfinite(logits[i].cpu().numpy())).astype(np.int32)
    return output


def _replay(output: SampleOutput, samplers: Sequence[SequenceSampler]) -> None:
    """A replayed trace overrides the choice; scores then tell of the forced id."""
    for i, sampler in enumerate(samplers):
        forced = sampler.forced_now()
        if forced is not None:
            output.token_ids[i] = forced


def _processed(
    logits: torch.Tensor,
    samplers: Sequence[SequenceSampler],
    scored: Sequence[int],
    masks: Sequence[NDArray[np.int32] | None],
) -> torch.Tensor:
    """The logits the draw was made from: adjusted, over temperature, -inf where truncation cut."""
    table = over_temperature(take_rows(logits, scored), [samplers[i].temperature for i in scored])
    for j, i in enumerate(scored):
        mask = masks[i]
        if samplers[i].truncates and mask is not None:
            ids = torch.from_numpy(mask.astype(np.int64)).to(table.device)
            kept = table[j, ids]
            table[j] = float("-inf")
            table[j, ids] = kept
    return table


def _add_scores(
    output: SampleOutput,
    samplers: Sequence[SequenceSampler],
    scored: Sequence[int],
    table: torch.Tensor,
    log_peaks: NDArray[np.float32],
    *,
    as_logits: bool,
) -> None:
    asks = [ScoreAsk(samplers[i].num_logprobs or 0, samplers[i].logprob_token_ids) for i in scored]
    chosen = output.token_ids[scored].astype(np.int64)
    found = score(table, chosen, asks, as_logits=as_logits, log_peaks=log_peaks[scored])
    for i, logprobs in zip(scored, found, strict=True):
        output.logprobs[i] = logprobs
