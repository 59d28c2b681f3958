"""One step's work: chunks through the model, tokens sampled, and whose fault it is when something fails.

A fault that one sequence can be blamed for ends its request; the others of the step go on. What several or all have in
common, or what leaves the device unusable, is raised and ends the core.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
import torch

from tokenwire.engine.local.batch import StepBatch
from tokenwire.engine.local.requests import Request, Sequence, SequenceState
from tokenwire.engine.local.runner import ModelRunner
from tokenwire.engine.local.sampling import (
    LogprobsMode,
    SampleOutput,
    SequenceSampler,
    sample,
    score_prompt,
    score_prompt_ids,
)
from tokenwire.engine.local.scheduler import Chunk, Scheduler
from tokenwire.errors import InvalidRequestError

logger = logging.getLogger(__name__)

FATAL = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""After these the next step has no better chance."""


class Receiver(Protocol):
    """Who takes what a step brings."""

    def accept(self, sequences: Seq[Sequence], result: SampleOutput) -> None:
        """Row i of the result is the next token of sequence i."""

    def fail(self, request: Request, exc: Exception) -> None:
        """End a request that cannot go on."""


class ModelStep:
    """Computes chunks. `samplers` is the core's own table; it changes between steps and while tokens are accepted."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        samplers: Mapping[Sequence, SequenceSampler],
        receiver: Receiver,
        logprobs_mode: LogprobsMode,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._samplers = samplers
        self._receiver = receiver
        self._logprobs_mode = logprobs_mode

    @torch.inference_mode()
    def run(self, chunks: Seq[Chunk]) -> None:
        """Compute the chunks, one or more; the receiver hears of every token and every failure."""
        try:
            logits, batch = self._runner.forward(chunks, self._scheduler.block_tables)
        except FATAL:
            raise
        except (IndexError, ValueError, RuntimeError) as exc:
            if len(chunks) == 1:
                self._receiver.fail(chunks[0].sequence.request, exc)
            else:
                self._one_by_one(chunks, exc)
            return
        self._finish(chunks, logits, batch)

    def _one_by_one(self, chunks: Seq[Chunk], cause: Exception) -> None:
        """Find out whose fault it was: those that fail alone end, the others go on. If all fail, it is ours."""
        failures = 0
        for chunk in chunks:
            if chunk.sequence.state is not SequenceState.RUNNING:
                continue
            try:
                logits, batch = self._runner.forward([chunk], self._scheduler.block_tables)
            except FATAL:
                raise
            except (IndexError, ValueError, RuntimeError) as exc:
                failures += 1
                self._receiver.fail(chunk.sequence.request, exc)
                continue
            self._finish([chunk], logits, batch)
        if failures == len(chunks):
            raise cause

    def _finish(self, chunks: Seq[Chunk], logits: torch.Tensor, batch: StepBatch) -> None:
        """Scores of prompts, then the next token of every chunk that reached its sequence's end."""
        for chunk, start, stop in batch.score_rows:
            _score_prompt(chunk, logits[start:stop])
        self._scheduler.advance(chunks)
        rows, sequences = self._sampling_rows(batch)
        if not sequences:
            return
        picked = logits if rows == list(range(len(logits))) else logits[torch.tensor(rows, device=logits.device)]
        samplers = [self._samplers[s] for s in sequences]
        try:
            result = sample(picked, samplers, logprobs_mode=self._logprobs_mode)
        except (ValueError, RuntimeError, InvalidRequestError) as exc:
            logger.exception("sampling failed; trying row by row")
            self._sample_one_by_one(picked, sequences, exc)
            return
        self._receiver.accept(sequences, result)

    def _sample_one_by_one(self, logits: torch.Tensor, sequences: Seq[Sequence], cause: Exception) -> None:
        """Like `_one_by_one`. A row that is adjusted may have been, in place: it cannot be tried again."""
        for row, sequence in enumerate(sequences):
            if sequence.state is not SequenceState.RUNNING:
                continue
            sampler = self._samplers[sequence]
            if sampler.adjusts:
                self._receiver.fail(sequence.request, cause)
                continue
            try:
                result = sample(logits[row : row + 1], [sampler], logprobs_mode=self._logprobs_mode)
            except (ValueError, RuntimeError, InvalidRequestError) as exc:
                self._receiver.fail(sequence.request, exc)
                continue
            self._receiver.accept([sequence], result)

    def _sampling_rows(self, batch: StepBatch) -> tuple[list[int], list[Sequence]]:
        """Logit row and sequence of every token to sample; a finished prompt also serves its request's siblings."""
        rows: list[int] = []
        sequences: list[Sequence] = []
        for chunk, row in batch.sample_rows:
            sequence = chunk.sequence
            rows.append(row)
            sequences.append(sequence)
            sequence.request.prompt_computed = True
            for child in sequence.request.sequences[1:] if sequence.index == 0 else ():
                if child.state is SequenceState.HELD and self._fork(sequence, child):
                    rows.append(row)
                    sequences.append(child)
        return rows, sequences

    def _fork(self, parent: Sequence, child: Sequence) -> bool:
        copy = self._scheduler.fork(parent, child)
        if copy is None:
            self._scheduler.add(child)
            return False
        if copy[0] >= 0:
            self._runner.cache.copy_block(*copy)
        return True


def _score_prompt(chunk: Chunk, logits: torch.Tensor) -> None:
    request = chunk.sequence.request
    scores = request.scores
    assert scores is not None
    first, stop = chunk.score_start, chunk.score_stop
    tops = None
    if scores.num_top is not None:
        following = np.array(request.prompt_token_ids[first + 1 : stop + 1], dtype=np.int64)
        tops = score_prompt(logits, following, scores.num_top)
    ids = scores.ids_for(first, stop)
    scores.add(first, stop, tops, None if ids is None else score_prompt_ids(logits, ids.tolist()))
