"""Token ids in, token ids out: one loop drives an engine for whole replies and for streams.

`prepare` makes every refusal; `full` and `stream` run the same loop over the engine's outputs and differ only in
what they do with each. Text, where asked for, is made by the level and text stage that `TextTools` hands out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tokenwire.engine.base import Engine, EngineOutput, OutputStream
from tokenwire.errors import ServiceError
from tokenwire.service.admission import Admission
from tokenwire.service.checks import unread_extra_args
from tokenwire.service.choices import ChoiceRun, Collector, failure_of
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.levels import TextTools
from tokenwire.service.models import ModelRegistry
from tokenwire.service.observer import Observer
from tokenwire.service.prepare import ID_PREFIX, Endpoint, PreparedGenerate, Preparer
from tokenwire.service.replies import ReplyShaper, RequestFacts
from tokenwire.wire.generate import GenerateChunk, GenerateRequest, GenerateResponse, UsageChunk

__all__ = ["Endpoint", "GenerateService", "PreparedGenerate"]

LAST_WORD_WITHIN_S = 2.0
"""How long a choice that a stop string ended waits for what only the engine's last output of it tells."""


class GenerateService:
    """Serves generate requests over one engine. All methods run on one event loop."""

    def __init__(
        self,
        engine: Engine,
        models: ModelRegistry,
        options: ServiceOptions,
        *,
        text: TextTools | None = None,
        observer: Observer | None = None,
        admission: Admission | None = None,
    ) -> None:
        """`text` is None on a server without a tokenizer; text levels and stop strings are refused there.

        `admission` is given where several processes share the limits.
        """
        self.engine = engine
        self.models = models
        self.options = options
        self.text = text
        self.observer = observer or Observer()
        self.admission = admission or Admission(options.max_num_queued_reqs, options.max_num_queued_tokens)
        self.preparer = Preparer(engine, models, options, text, self.admission)
        self._live: dict[str, set[str]] = {}
        """Replied request id -> engine request ids; two live requests may share the former."""

    async def prepare(
        self,
        request: GenerateRequest,
        context: RequestContext,
        unknown: tuple[str, ...] = (),
        endpoint: Endpoint | None = None,
    ) -> PreparedGenerate:
        """Check a request and make it ready to run; see `Preparer.prepare`."""
        unknown += unread_extra_args(request.sampling_params, self.engine.info.capabilities)
        if unknown:
            self.observer.unknown_fields(unknown)
        return await self.preparer.prepare(request, context, unknown, endpoint)

    def check_room(self, num_seqs: int) -> None:
        """For requests that will run side by side: is there room for all of them? Raises as `prepare` does."""
        self.preparer.preflight(num_seqs)

    async def full(self, prepared: PreparedGenerate) -> GenerateResponse:
        """Run to the end and give the whole reply. Cancelling it aborts the request in the engine."""
        collectors = [Collector() for _ in range(prepared.n)]
        runs = self._runs(prepared)
        replies = ReplyShaper(prepared, runs, self.options, self.text)
        async with aclosing(self._outputs(prepared, runs, replies.facts)) as outputs:
            async for shown in outputs:
                for output in shown:
                    collectors[output.index].add(output)
        return replies.response([c.result() for c in collectors])

    async def stream(self, prepared: PreparedGenerate) -> AsyncGenerator[list[GenerateChunk | UsageChunk], None]:
        """The stream's events, all that are ready at each wake-up. Closing it early aborts the request."""
        runs = self._runs(prepared)
        replies = ReplyShaper(prepared, runs, self.options, self.text)
        async with aclosing(self._outputs(prepared, runs, replies.facts)) as outputs:
            async for shown in outputs:
                events = replies.events(shown)
                if events:
                    yield events
        if prepared.include_usage:
            yield [replies.usage_chunk()]

    async def abort(self, request_ids: list[str]) -> tuple[list[str], list[str]]:
        """Abort by replied id, with or without the prefix. Returns (aborted, unknown), as they were given."""
        live = self._live
        asked = {given: tuple(live.get(given) or live.get(ID_PREFIX + given) or ()) for given in request_ids}
        engine_ids = [engine_id for ids in asked.values() for engine_id in ids]
        ended = set(await self.engine.abort(engine_ids)) if engine_ids else set()
        aborted = [given for given, ids in asked.items() if ended.intersection(ids)]
        return aborted, [given for given in asked if given not in aborted]

    async def abort_all(self) -> int:
        """Abort every live request; returns how many that ended."""
        ids = [engine_id for live in self._live.values() for engine_id in live]
        return len(await self.engine.abort(ids)) if ids else 0

    def live_ids(self) -> list[str]:
        """Ids of the requests under way, as their replies show them."""
        return list(self._live)

    @property
    def draining(self) -> bool:
        """True: refuse new requests, finish the running ones."""
        return self.preparer.draining

    @draining.setter
    def draining(self, value: bool) -> None:
        self.preparer.draining = value

    def _runs(self, prepared: PreparedGenerate) -> list[ChoiceRun]:
        text, engine_request = self.text, prepared.engine_request
        if text is None or not prepared.needs_text:
            return [ChoiceRun(None) for _ in range(prepared.n)]
        prompt, sampling, mode = engine_request.prompt_token_ids, engine_request.sampling, prepared.request.output_mode
        num_prompt_rows = len(prompt) - sampling.routed_experts_prompt_start
        return [ChoiceRun(text.stage(prompt, sampling, mode), num_prompt_rows) for _ in range(prepared.n)]

    async def _outputs(
        self, prepared: PreparedGenerate, runs: list[ChoiceRun], facts: RequestFacts
    ) -> AsyncGenerator[list[EngineOutput], None]:
        """The one loop: engine outputs through their choices' text stages, with all bookkeeping."""
        engine_id = prepared.engine_request.request_id
        ticket = self.admission.enter(prepared.n, prepared.prompt_len)
        live = self._live.setdefault(prepared.request_id, set())
        live.add(engine_id)
        observer = self.observer
        observer.started(prepared)
        completed = False
        try:
            stream = self.engine.generate(prepared.engine_request)
            async with aclosing(stream):
                async for outputs in stream:
                    if not facts.has_output:
                        ticket.prefilled()
                        observer.prefilled(prepared, facts.first(outputs))
                    shown, failure = self._show(prepared, stream, outputs, runs, facts)
                    if shown:
                        yield shown
                    if failure is not None:
                        raise failure
            completed = True
        finally:
            ticket.leave()
            live.discard(engine_id)
            if not live and self._live.get(prepared.request_id) is live:
                del self._live[prepared.request_id]
            observer.ended(prepared, completed=completed)

    def _show(
        self,
        prepared: PreparedGenerate,
        stream: OutputStream,
        outputs: list[EngineOutput],
        runs: list[ChoiceRun],
        facts: RequestFacts,
    ) -> tuple[list[EngineOutput], ServiceError | None]:
        """What of these outputs may be shown, and the failure that came after it."""
        shown: list[EngineOutput] = []
        failure: ServiceError | None = None
        num_tokens = 0
        for output in outputs:
            run = runs[output.index]
            if run.stopped:
                last = run.last_word(output)
                if last is not None:
                    facts.finish(last)
                    self.observer.choice_finished(prepared, last)
                    shown.append(last)
                continue
            if output.finish_reason == "error":
                self.observer.choice_finished(prepared, output)
                failure = failure_of(output)
                break
            visible = run.take(output)
            num_tokens += len(visible.token_ids)
            if visible.finish_reason is not None and output.finish_reason is None:
                if self._wants_last_word(prepared, run):
                    stream.stop(output.index, LAST_WORD_WITHIN_S)
                    run.hold(visible)
                    continue
                stream.stop(output.index)
            if visible.finish_reason is not None:
                facts.finish(visible)
                self.observer.choice_finished(prepared, visible)
            shown.append(visible)
        if num_tokens:
            self.observer.tokens(prepared, num_tokens)
        return shown, failure

    def _wants_last_word(self, prepared: PreparedGenerate, run: ChoiceRun) -> bool:
        """A stop string ended the choice: does the engine know more of it than came with its tokens?"""
        request, capabilities = prepared.engine_request, self.engine.info.capabilities
        return (
            request.kv_transfer_params is not None
            or request.ec_transfer_params is not None
            or capabilities.routed_experts
            or (capabilities.weight_versions_at_end and not run.has_labels)
            or (capabilities.speculation and prepared.n == 1 and self.options.per_request_spec_decode_metrics != "none")
        )
