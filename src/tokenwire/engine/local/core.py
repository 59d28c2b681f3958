"""The core: one loop that takes messages, schedules, runs the model, samples and sends what came of it.

Everything happens on one thread; a step is the unit in which requests join, end, and are aborted. A fault that one
request can be blamed for ends that request only; any other ends the process, and the front ends say so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from typing import Any, NoReturn, Protocol

from tokenwire.engine.base import EngineInfo, EngineStats, FinishReason
from tokenwire.engine.local import messages as wire
from tokenwire.engine.local.blocks import root_hash
from tokenwire.engine.local.controls import PauseControl
from tokenwire.engine.local.finish import FinishRules
from tokenwire.engine.local.grammars import Grammars
from tokenwire.engine.local.intake import Intake
from tokenwire.engine.local.label import WEIGHT_VERSION
from tokenwire.engine.local.model_step import ModelStep
from tokenwire.engine.local.outputs import OutputBuffer
from tokenwire.engine.local.requests import Request, RequestKey, Sequence, SequenceState
from tokenwire.engine.local.runner import ModelRunner
from tokenwire.engine.local.sampling import LogprobsMode, SampleOutput, SequenceSampler
from tokenwire.engine.local.scheduler import Scheduler
from tokenwire.engine.local.transfer.transfers import Transfers
from tokenwire.errors import InvalidRequestError

logger = logging.getLogger(__name__)

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
        transfers: Transfers | None = None,
    ) -> None:
        self._link = link
        self.runner = runner
        self._scheduler = scheduler
        self._intake = intake
        self._grammars = grammars
        self._rules = rules
        self._info = info
        self._transfers = transfers
        self._requests: dict[RequestKey, Request] = {}
        self._samplers: dict[Sequence, SequenceSampler] = {}
        self._model_step = ModelStep(runner, scheduler, self._samplers, self, logprobs_mode)
        self._clients: set[bytes] = set()
        self._gone: set[bytes] = set()
        """Front ends that died; their last messages may be on the way still."""
        self._outputs = OutputBuffer()
        self._pause = PauseControl(self)
        self._num_steps = 0
        self._changed = False
        self._has_been_attached = False
        self._starved = False
        """There is work, but blocks that others read are in its way."""
        self.weight_version = WEIGHT_VERSION

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> NoReturn:
        """Until the process is ended."""
        while True:
            self.turn()

    def turn(self) -> None:
        """Take what has come, make one step, send what came of it. Waits for a message if there is nothing to do."""
        for client, message in self._link.receive(self._patience_ms):
            self.take(client, message)
        self._admit_compiled()
        self._admit_pulled()
        if self.can_step:
            self.step()
        self._pause.settle()
        self.flush()

    @property
    def can_step(self) -> bool:
        return self._scheduler.has_work and not self._pause.frozen

    def _begin(self, request: Request) -> None:
        """Let the first sample compute the prompt for all; where it has been ended, each computes it by itself."""
        first = request.sequences[0]
        alone = [s for s in request.sequences if s.state is SequenceState.HELD]
        for sequence in alone if first.state is SequenceState.FINISHED else [first]:
            self._scheduler.add(sequence)

    @property
    def _patience_ms(self) -> int | None:
        if self.can_step and not self._starved:
            return 0
        waits = [COMPILE_POLL_MS if self._grammars.busy or self.can_step else None]
        if self._transfers is not None:
            waits.append(self._transfers.patience_ms)
        return min((wait for wait in waits if wait is not None), default=None)

    def _admit_compiled(self) -> None:
        """Requests whose grammar is ready may run, those without a possible one are refused."""
        for request, problem in self._grammars.take_finished():
            if request.is_done:  # aborted meanwhile
                continue
            if problem is None:
                self._pull_or_begin(request)
            else:
                self._refuse(request.key, problem)
                self.end(request, "abort", heard=False)

    def _pull_or_begin(self, request: Request) -> None:
        if self._transfers is None or not self._transfers.hold(request, self.weight_version):
            self._begin(request)

    def _admit_pulled(self) -> None:
        """Requests whose blocks have come, or will not come, may run."""
        if self._transfers is None:
            return
        for request in self._transfers.take_finished():
            self._begin(request)
            self._changed = True
        if self._transfers.settle():
            self._changed = True

    def step(self) -> None:
        """Schedule, run, sample."""
        chunks = self._scheduler.schedule()
        if self._transfers is not None:
            self._transfers.fill(self.runner.cache.write)
            if not chunks:
                self._transfers.make_room()
        self._starved = not chunks
        if chunks:
            self._num_steps += 1
            self._changed = True
            self._model_step.run(chunks)

    # --- ModelStep's receiver -------------------------------------------------------------------------------------

    def accept(self, sequences: Seq[Sequence], result: SampleOutput, followed: Seq[bool] | None) -> None:
        """Append, and send or finish. What is followed by more in the same step is sent with that."""
        version = self.weight_version
        for row, (sequence, token_id) in enumerate(zip(sequences, result.token_ids.tolist(), strict=True)):
            request = sequence.request
            if not self._samplers[sequence].append(token_id):
                message = "no token is left that allowed_token_ids or structured_outputs and the other parameters allow"
                self._outputs.finish(sequence, "error", error=message)
                self._close(sequence)
                continue
            sequence.token_ids.append(token_id)
            sequence.label_token(version)
            end = self._rules.check(request.params, request.max_tokens, sequence.token_ids, sequence.num_prompt)
            if end is None:
                more = followed is not None and followed[row]
                self._outputs.token(sequence, result.logprobs[row], result.masks[row], followed=more)
            else:
                reason, stop_reason = end
                self._outputs.finish(
                    sequence,
                    reason,
                    stop_reason,
                    logprobs=result.logprobs[row],
                    mask=result.masks[row],
                    kv_transfer_params=self._keep_blocks(sequence),
                )
                self._close(sequence)

    def fail(self, request: Request, exc: Exception) -> None:
        """End a request with the error it met."""
        logger.error("request %d failed", request.key.handle, exc_info=exc)
        self.end(request, "error", error=f"{type(exc).__name__}: {exc}")

    def _keep_blocks(self, sequence: Sequence) -> dict[str, Any] | None:
        asked = sequence.request.transfer
        if self._transfers is None or asked is None or not asked.keep:
            return None
        return self._transfers.keep(sequence, self.weight_version)

    # --- endings --------------------------------------------------------------------------------------------------

    def _close(self, sequence: Sequence) -> None:
        self._scheduler.finish(sequence)
        del self._samplers[sequence]
        if sequence.request.is_done:
            self._requests.pop(sequence.request.key, None)
            if self._transfers is not None:
                self._transfers.forget(sequence.request)
        self._changed = True

    def end(self, request: Request, reason: FinishReason, *, heard: bool = True, error: str | None = None) -> None:
        """End what is left of a request; with `heard`, its sequences report what they had."""
        for sequence in request.sequences:
            if sequence.state is not SequenceState.FINISHED:
                if heard:
                    self._outputs.finish(sequence, reason, error=error)
                self._close(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """End one sequence for its reader; others may have waited for its prompt pass."""
        has_begun = sequence.state is not SequenceState.HELD  # else the request still waits for its grammar
        self._close(sequence)
        if sequence.index == 0 and has_begun:
            self._begin(sequence.request)

    def set_weight_version(self, version: str) -> None:
        """From the next token on. What streams hold back is sent first, so that no row has tokens of both."""
        for request in self._requests.values():
            for sequence in request.sequences:
                if sequence.state is not SequenceState.FINISHED:
                    self._outputs.push_held(sequence)
        self.flush()
        self.weight_version = version

    def end_all(self, reason: FinishReason) -> None:
        """End every request."""
        for request in list(self._requests.values()):
            self.end(request, reason)

    # --- messages -------------------------------------------------------------------------------------------------

    def take(self, client: bytes, message: wire.ToCore) -> None:
        if client in self._gone:
            return
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
                self._attach(client, message)
            case wire.Begin(state=state):
                self._has_been_attached = True
                self._pause.begin(state)
                self._changed = True
            case wire.Detach():
                self._detach(client)
            case wire.Forget(client=dead):
                self._gone.add(dead)
                self._detach(dead)

    def _attach(self, client: bytes, message: wire.Attach) -> None:
        if not self._has_been_attached:
            self._has_been_attached = True
            self._pause.begin(message.state)
        self._clients.add(client)
        self._link.send(client, wire.Ready(self._info))
        self._changed = True

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
        self._changed = True
        self._samplers.update(samplers)
        if self._scheduler.drafter is not None:
            for sequence in request.sequences:
                sequence.drafts = self._scheduler.drafter.new_state()
        if not self._grammars.hold(request, samplers):
            self._pull_or_begin(request)

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
        sequence = None if request is None else request.sequences[message.index]
        if sequence is not None and sequence.state is not SequenceState.FINISHED:
            if message.heard:
                self._outputs.finish(sequence, "abort", kv_transfer_params=self._keep_blocks(sequence))
            self._leave(sequence)

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
        figures = None if scheduler.drafter is None else scheduler.drafter.figures
        return wire.Gauges(
            EngineStats(
                num_running=num_running,
                num_waiting=len(self._samplers) - num_running,
                kv_cache_usage=scheduler.pool.usage,
                num_preemptions=scheduler.num_preemptions,
                prefix_cache_queries=scheduler.prefix_queries,
                prefix_cache_hits=scheduler.prefix_hits,
                num_steps=self._num_steps,
                num_waiting_tokens=scheduler.waiting.num_tokens,
                num_drafts=0 if figures is None else figures.num_drafts,
                num_draft_tokens=0 if figures is None else figures.num_draft_tokens,
                accepted_per_position=() if figures is None else tuple(figures.accepted_per_position),
                kv_transfer=None if self._transfers is None else self._transfers.stats,
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
