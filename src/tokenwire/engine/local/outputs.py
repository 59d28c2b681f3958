"""From what sequences produced to step messages: what is sent when, one message per front end and step.

A streamed sequence sends its first token at once, then every `stream_interval` tokens; one that is not streamed sends
everything at its end. Prompt facts ride on the first output of a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.base import FinishReason, Logprobs, PromptOutput
from tokenwire.engine.local.messages import (
    Detail,
    Gauges,
    PromptNews,
    Refusal,
    Scores,
    Speculation,
    Step,
    pack_ids,
    pack_prompt,
    pack_scores,
)
from tokenwire.engine.local.requests import Request, Sequence


@dataclass(slots=True)
class _Columns:
    """The rows of one front end."""

    handles: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    details: list[Detail] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


class OutputBuffer:
    """Collects rows until `take`."""

    def __init__(self) -> None:
        self._columns: dict[bytes, _Columns] = {}

    def refuse(self, client: bytes, refusal: Refusal) -> None:
        self._of(client).refusals.append(refusal)

    def token(
        self,
        sequence: Sequence,
        logprobs: Logprobs | None,
        mask: NDArray[np.int32] | None,
        *,
        followed: bool = False,
    ) -> None:
        """The sequence has a new token, already appended, and goes on; `followed`: with another in this same step."""
        _hold(sequence, logprobs, mask)
        request = sequence.request
        if followed or not request.stream:
            return
        num_new = sequence.num_output - sequence.num_sent
        if sequence.num_sent == 0 or num_new >= request.stream_interval:
            self._row(sequence, None, None, None, retryable=False)

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        *,
        logprobs: Logprobs | None = None,
        mask: NDArray[np.int32] | None = None,
        error: str | None = None,
        retryable: bool = False,
        kv_transfer_params: dict[str, Any] | None = None,
    ) -> None:
        """The sequence ends; `logprobs` and `mask` are those of its newest token, if that is new."""
        _hold(sequence, logprobs, mask)
        self._row(sequence, reason, stop_reason, error, retryable=retryable, kv_transfer_params=kv_transfer_params)

    def push_held(self, sequence: Sequence) -> None:
        """Send what a streamed sequence holds back."""
        if sequence.request.stream and sequence.num_output > sequence.num_sent:
            self._row(sequence, None, None, None, retryable=False)

    def take(self, gauges: Gauges, version: str) -> dict[bytes, Step]:
        """The messages so far, by front end; the buffer is empty afterwards."""
        taken, self._columns = self._columns, {}
        return {
            client: Step(
                handles=pack_ids(c.handles),
                indexes=pack_ids(c.indexes),
                counts=pack_ids(c.counts),
                token_ids=pack_ids(c.token_ids),
                details=c.details,
                refusals=c.refusals,
                gauges=gauges,
                version=version,
            )
            for client, c in taken.items()
        }

    def _of(self, client: bytes) -> _Columns:
        columns = self._columns.get(client)
        if columns is None:
            columns = self._columns[client] = _Columns()
        return columns

    def _row(
        self,
        sequence: Sequence,
        reason: FinishReason | None,
        stop_reason: int | str | None,
        error: str | None,
        *,
        retryable: bool,
        kv_transfer_params: dict[str, Any] | None = None,
    ) -> None:
        request = sequence.request
        columns = self._of(request.key.client)
        new_ids = sequence.token_ids[sequence.num_prompt + sequence.num_sent :]
        sequence.num_sent += len(new_ids)
        prompt = _prompt_news(request)
        if reason is not None or sequence.held_logprobs or sequence.held_masks or prompt is not None:
            columns.details.append(
                Detail(
                    row=len(columns.handles),
                    finish_reason=reason,
                    stop_reason=stop_reason,
                    error=error,
                    retryable=retryable,
                    scores=_take_scores(sequence),
                    masks=_take_masks(sequence),
                    versions=None if reason is None else sequence.weight_spans(),
                    speculation=None if reason is None else _speculation(sequence),
                    prompt=prompt,
                    kv_transfer_params=kv_transfer_params,
                )
            )
        columns.handles.append(request.key.handle)
        columns.indexes.append(sequence.index)
        columns.counts.append(len(new_ids))
        columns.token_ids += new_ids


def _hold(sequence: Sequence, logprobs: Logprobs | None, mask: NDArray[np.int32] | None) -> None:
    if logprobs is not None:
        sequence.held_logprobs.append(logprobs)
    if mask is not None:
        sequence.held_masks.append(mask)


def _take_scores(sequence: Sequence) -> Scores | None:
    held, sequence.held_logprobs = sequence.held_logprobs, []
    return pack_scores(Logprobs.concat(held)) if held else None


def _take_masks(sequence: Sequence) -> list[bytes] | None:
    held, sequence.held_masks = sequence.held_masks, []
    return [mask.astype("<i4").tobytes() for mask in held] if held else None


def _speculation(sequence: Sequence) -> Speculation | None:
    drafts = sequence.drafts
    if drafts is None:
        return None
    return Speculation(drafts.num_spec_tokens, bytes(drafts.drafted), bytes(drafts.accepted))


def _prompt_news(request: Request) -> PromptNews | None:
    """Once per request, when the prompt has been computed."""
    if request.prompt_reported or not request.prompt_computed:
        return None
    request.prompt_reported = True
    scores = request.scores
    return pack_prompt(
        PromptOutput(
            num_cached_tokens=request.num_cached_tokens,
            logprobs=None if scores is None else scores.logprobs(),
            token_id_logprobs=None if scores is None else scores.token_id_logprobs(),
        )
    )
