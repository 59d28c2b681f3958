"""The core: one loop that takes messages, schedules, runs the model, samples and sends what came of it.

Everything happens on one thread; a step is the unit in which requests join, end, and are aborted. A fault that one
request can be blamed for ends that request only; any other ends the process, and the front ends say so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
import torch

from tokenwire.engine.base import EngineInfo, EngineStats, FinishReason
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.batch import StepBatch
from tokenwire.engine.local.blocks import root_hash
from tokenwire.engine.local.controls import PauseControl
from tokenwire.engine.local.finish import FinishRules
from tokenwire.engine.local.grammars import Grammars
from tokenwire.engine.local.intake import Intake
from tokenwire.engine.local.outputs import OutputBuffer
from tokenwire.engine.local.requests import Request, RequestKey, Sequence, SequenceState
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

WEIGHT_VERSION = "default"
"""The label of weights as they were loaded."""
COMPILE_POLL_MS = 5
"""How soon a core without other work sees that a grammar is ready."""


class Link(Protocol):
    """`CoreLink`, or what a test puts in its place."""

    def receive(self, timeout_ms: int | None) -> list[tuple[bytes, wire.ToCore]]: ...
    def send(self, client: bytes, message: wire.FromCore) -> None: ...


class Core:
    """Owns all requests of all front ends."""

    def __init__(
        self,
        link: Link,
        runner: ModelRunner,
        scheduler: Scheduler,
        intake: Intake,
        grammars: Grammars,
        rules: FinishRules,
        info: EngineInfo,
        logprobs_mode: LogprobsMode,
    ) -> None:
        self._link = link
        self.runner = runner
        self._scheduler = scheduler
        self._intake = intake
        self._grammars = grammars
        self._rules = rules
        self._info = info
        self._logprobs_mode = logprobs_mode
        self._requests: dict[RequestKey, Request] = {}
        self._samplers: dict[Sequence, SequenceSampler] = {}
        self._clients: set[bytes] = set()
        self._outputs = OutputBuffer()
        self._pause = PauseControl(self)
        self._num_steps = 0
        self._changed = False
        self._stopping = False
        self.weight_version = WEIGHT_VERSION

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until a `Shutdown` message."""
        while not self._stopping:
            self.turn()

    def turn(self) -> None:
        """Take what has come, make one step, send what came of it. Waits for a message if there is nothing to do."""
        for client, message in self._link.receive(self._patience_ms):
            self.take(client, message)
        self._admit_compiled()
        if self.can_step:
            self.step()
        self._pause.settle()
        self.flush()

    @property
    def can_step(self) -> bool:
        return self._scheduler.has_work and not self._pause.frozen

    @property
    def _patience_ms(self) -> int | None:
        if self.can_step:
            return 0
        return COMPILE_POLL_MS if self._grammars.busy else None

    def _admit_compiled(self) -> None:
        """Requests whose grammar is ready may run, those without a possible one are refused."""
        for request, problem in self._grammars.take_finished():
            if request.is_done:  # aborted meanwhile
                continue
            if problem is None:
                self._scheduler.add(request.sequences[0])
            else:
                self._refuse(request.key, problem)
                self.end(request, "abort", heard=False)

    @torch.inference_mode()
    def step(self) -> None:
        """Schedule, run, sample."""
        chunks = self._scheduler.schedule()
        if not chunks:
            return
        self._num_steps += 1
        self._changed = True
        try:
            logits, batch = self.runner.forward(chunks, self._scheduler.block_tables)
        except (IndexError, ValueError, RuntimeError) as exc:
            if len(chunks) == 1 and not isinstance(exc, torch.OutOfMemoryError):
                self._fail(chunks[0].sequence.request, exc)
                return
            if isinstance(exc, torch.OutOfMemoryError):
                raise
            self._step_one_by_one(chunks, exc)
            return
        self._after_forward(chunks, logits, batch)

    def _step_one_by_one(self, chunks: Seq[Chunk], cause: Exception) -> None:
        """Find out whose fault it was: those that fail alone end, the others go on. If all fail, it is ours."""
        failures = 0
        for chunk in chunks:
            if chunk.sequence.state is not SequenceState.RUNNING:
                continue
            try:
                logits, batch = self.runner.forward([chunk], self._scheduler.block_tables)
            except (IndexError, ValueError, RuntimeError) as exc:
                failures += 1
                self._fail(chunk.sequence.request, exc)
                continue
            self._after_forward([chunk], logits, batch)
        if failures == len(chunks):
            raise cause

    def _after_forward(self, chunks: Seq[Chunk], logits: torch.Tensor, batch: StepBatch) -> None:
        for chunk, start, stop in batch.score_rows:
            self._score_prompt(chunk, logits[start:stop])
        self._scheduler.advance(chunks)
        rows, sequences = self._sampling_rows(batch)
        if not sequences:
            return
        picked = logits if rows == list(range(len(logits))) else logits[torch.tensor(rows, device=logits.device)]
        samplers = [self._samplers[s] for s in sequences]
        try:
            result = sample(picked, samplers, logprobs_mode=self._logprobs_mode)
        except (ValueError, RuntimeError, InvalidRequestError):
            logger.exception("sampling failed; trying row by row")
            self._sample_one_by_one(picked, sequences)
            return
        self._accept(sequences, result)

    def _sample_one_by_one(self, logits: torch.Tensor, sequences: Seq[Sequence]) -> None:
        for row, sequence in enumerate(sequences):
            if sequence.state is not SequenceState.RUNNING:
                continue
            try:
                result = sample(logits[row : row + 1], [self._samplers[sequence]], logprobs_mode=self._logprobs_mode)
            except (ValueError, RuntimeError, InvalidRequestError) as exc:
                self._fail(sequence.request, exc)
                continue
            self._accept([sequence], result)

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
            self.runner.cache.copy_block(*copy)
        return True

    def _accept(self, sequences: Seq[Sequence], result: SampleOutput) -> None:
        version = self.weight_version
        for row, (sequence, token_id) in enumerate(zip(sequences, result.token_ids.tolist(), strict=True)):
            sequence.token_ids.append(token_id)
            sequence.label_token(version)
            request = sequence.request
            if not self._samplers[sequence].append(token_id):
                message = "no token is left that both the grammar and the other parameters allow"
                self._outputs.finish(sequence, "error", error=message)
                self._close(sequence)
                continue
            end = self._rules.check(request.params, request.max_tokens, sequence.token_ids, sequence.num_prompt)
            if end is None:
                self._outputs.token(sequence, result.logprobs[row], result.masks[row])
            else:
                reason, stop_reason = end
                self._outputs.finish(
                    sequence, reason, stop_reason, logprobs=result.logprobs[row], mask=result.masks[row]
                )
                self._close(sequence)

    def _score_prompt(self, chunk: Chunk, logits: torch.Tensor) -> None:
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

    # --- endings --------------------------------------------------------------------------------------------------

    def _close(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        del self._samplers[sequence]
        if sequence.request.is_done:
            self._requests.pop(sequence.request.key, None)
        self._changed = True

    def end(self, request: Request, reason: FinishReason, *, heard: bool = True, error: str | None = None) -> None:
        """End what is left of a request; with `heard`, its sequences report what they had."""
        for sequence in request.sequences:
            if sequence.state is not SequenceState.FINISHED:
                if heard:
                    self._outputs.finish(sequence, reason, error=error)
                self._close(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """End one sequence that nobody listens to. Siblings that wait for its prompt pass compute it themselves."""
        request = sequence.request
        self._close(sequence)
        if sequence.index == 0:
            for sibling in request.sequences[1:]:
                if sibling.state is SequenceState.HELD:
                    self._scheduler.add(sibling)

    def set_weight_version(self, version: str) -> None:
        """From the next token on. What streams hold back is sent first, so that no row has tokens of both."""
        for sequence in self._scheduler.running:
            self._outputs.push_held(sequence)
        self.flush()
        self.weight_version = version

    def end_all(self, reason: FinishReason) -> None:
        """End every request."""
        for request in list(self._requests.values()):
            self.end(request, reason)

    def _fail(self, request: Request, exc: Exception) -> None:
        logger.error("request %d failed", request.key.handle, exc_info=exc)
        self.end(request, "error", error=f"{type(exc).__name__}: {exc}")

    # --- messages -------------------------------------------------------------------------------------------------

    def take(self, client: bytes, message: wire.ToCore) -> None:
        match message:
            case wire.Add():
                self._add(client, message)
            case wire.Abort():
                self._abort(client, message)
            case wire.Stop():
                self._stop(client, message)
            case wire.Probe():
                self._probe(client, message)
            case wire.ControlCall():
                self._pause.take(client, message)
            case wire.Attach():
                self._clients.add(client)
                self._link.send(client, wire.Ready(self._info))
                self._changed = True
            case wire.Detach():
                self._detach(client)
            case wire.Shutdown():
                self._stopping = True

    def _add(self, client: bytes, message: wire.Add) -> None:
        if self._pause.refusing:
            self._outputs.refuse(client, wire.Refusal(message.handle, "The engine is paused.", None, True))
            return
        try:
            request, samplers = self._intake.build(client, message)
        except InvalidRequestError as exc:
            self._refuse(RequestKey(client, message.handle), exc)
            return
        self._requests[request.key] = request
        self._samplers.update(samplers)
        if not self._grammars.hold(request, samplers):
            self._scheduler.add(request.sequences[0])

    def _refuse(self, key: RequestKey, problem: InvalidRequestError) -> None:
        self._outputs.refuse(key.client, wire.Refusal(key.handle, problem.message, problem.param, False))

    def _abort(self, client: bytes, message: wire.Abort) -> None:
        for handle in message.handles:
            request = self._requests.get(RequestKey(client, handle))
            if request is not None:
                self.end(request, "abort", heard=message.call is not None)
        if message.call is not None:
            self.reply(client, wire.Reply(message.call))

    def _stop(self, client: bytes, message: wire.Stop) -> None:
        request = self._requests.get(RequestKey(client, message.handle))
        if request is not None and request.sequences[message.index].state is not SequenceState.FINISHED:
            self._leave(request.sequences[message.index])

    def _detach(self, client: bytes) -> None:
        self._clients.discard(client)
        for request in [r for r in self._requests.values() if r.key.client == client]:
            self.end(request, "abort", heard=False)

    def _probe(self, client: bytes, message: wire.Probe) -> None:
        prompt = wire.unpack_ids(message.prompt)
        held = self._scheduler.num_cached(prompt, root_hash(message.cache_salt, message.adapter), message.features)
        self.reply(client, wire.Reply(message.call, {"num_cached_tokens": held}))

    def reply(self, client: bytes, reply: wire.Reply) -> None:
        """Answer a call; tokens and state that came before it are sent before it."""
        self.flush()
        self._link.send(client, reply)

    # --- what goes out --------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._requests

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def mark_changed(self) -> None:
        """The gauges differ from what the front ends know."""
        self._changed = True

    def _gauges(self) -> wire.Gauges:
        scheduler = self._scheduler
        num_running = len(scheduler.running)
        waiting_tokens = sum(s.num_to_compute for s in scheduler.waiting)
        return wire.Gauges(
            EngineStats(
                num_running=num_running,
                num_waiting=len(self._samplers) - num_running,
                kv_cache_usage=scheduler.pool.usage,
                num_preemptions=scheduler.num_preemptions,
                prefix_cache_queries=scheduler.prefix_queries,
                prefix_cache_hits=scheduler.prefix_hits,
                num_steps=self._num_steps,
                num_waiting_tokens=waiting_tokens,
            ),
            self._pause.state,
        )

    def flush(self) -> None:
        """Send rows to those who have any, and the gauges to everybody if they changed."""
        gauges = self._gauges()
        steps = self._outputs.take(gauges, self.weight_version)
        if self._changed:
            empty = wire.Step(gauges=gauges)
            steps = dict.fromkeys(self._clients, empty) | steps
            self._changed = False
        for client, step in steps.items():
            self._link.send(client, step)
