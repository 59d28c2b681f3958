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

    def accept(self, sequences: Seq[Sequence], result: SampleOutput, followed: Seq[bool] | None) -> None:
        """Row i of the result is the next token of sequence i; `followed`: if it goes on, then within this step."""

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
        drafts = {chunk.sequence: chunk.draft for chunk, _ in batch.sample_rows if chunk.draft}
        if drafts:
            self._verify(logits, rows, sequences, drafts)
        else:
            self._sample(logits, rows, sequences, None)

    def _verify(
        self, logits: torch.Tensor, rows: list[int], sequences: list[Sequence], drafts: Mapping[Sequence, Seq[int]]
    ) -> None:
        """Sample position after position, each for all sequences whose guesses were right so far.

        So every token is sampled from the model's own distribution, with all that depends on the tokens before it, and
        by the random number of its position: exactly as without guesses.
        """
        drafter = self._scheduler.drafter
        assert drafter is not None
        for sequence, draft in drafts.items():
            drafter.verifying(sequence, len(draft))
        place = 0
        while sequences:
            guesses = [_guess_at(drafts.get(sequence, ()), place) for sequence in sequences]
            right = self._sample(logits, [row + place for row in rows], sequences, guesses)
            kept = [i for i in right if sequences[i].state is SequenceState.RUNNING]
            for i in kept:
                self._scheduler.keep_guess(sequences[i])
            rows, sequences = [rows[i] for i in kept], [sequences[i] for i in kept]
            place += 1

    def _sample(
        self, logits: torch.Tensor, rows: list[int], sequences: list[Sequence], guesses: list[int | None] | None
    ) -> list[int]:
        """One token for each of the sequences, from their rows of the logits; returns where it was the guess."""
        picked = logits if rows == list(range(len(logits))) else logits[torch.tensor(rows, device=logits.device)]
        samplers = [self._samplers[s] for s in sequences]
        try:
            result = sample(picked, samplers, logprobs_mode=self._logprobs_mode)
        except (ValueError, RuntimeError, InvalidRequestError) as exc:
            logger.exception("sampling failed; trying row by row")
            return self._sample_one_by_one(picked, sequences, guesses, exc)
        return self._accept(sequences, result, guesses)

    def _accept(self, sequences: list[Sequence], result: SampleOutput, guesses: list[int | None] | None) -> list[int]:
        if guesses is None:
            self._receiver.accept(sequences, result, None)
            return []
        followed = [g == token_id for g, token_id in zip(guesses, result.token_ids.tolist(), strict=True)]
        right = [i for i, is_right in enumerate(followed) if is_right]
        for i in right:
            assert self._scheduler.drafter is not None
            self._scheduler.drafter.was_right(sequences[i])
        self._receiver.accept(sequences, result, followed)
        return right

    def _sample_one_by_one(
        self, logits: torch.Tensor, sequences: list[Sequence], guesses: list[int | None] | None, cause: Exception
    ) -> list[int]:
        """Like `_one_by_one`. A row that is adjusted may have been, in place: it cannot be tried again."""
        right = []
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
            if self._accept([sequence], result, None if guesses is None else guesses[row : row + 1]):
                right.append(row)
        return right

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


def _guess_at(draft: Seq[int], place: int) -> int | None:
    return draft[place] if place < len(draft) else None


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
