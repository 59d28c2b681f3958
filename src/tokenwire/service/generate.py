"""Token ids in, token ids out: one loop drives an engine for whole replies and for streams.

`prepare` makes every refusal; `full` and `stream` run the same loop over the engine's outputs and differ only in
what they do with each. Text, where asked for, is made by the level and text stage that `TextTools` hands out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from tokenwire.engine.base import Engine
from tokenwire.service.admission import Admission
from tokenwire.service.checks import unread_extra_args
from tokenwire.service.choices import Collector
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.levels import TextTools
from tokenwire.service.models import ModelRegistry
from tokenwire.service.observer import Observer
from tokenwire.service.prepare import ID_PREFIX, Endpoint, PreparedGenerate, Preparer
from tokenwire.service.run import GenerateRun
from tokenwire.wire.generate import GenerateChunk, GenerateRequest, GenerateResponse, UsageChunk

__all__ = ["Endpoint", "GenerateService", "PreparedGenerate"]


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
        *,
        alone: bool = True,
    ) -> PreparedGenerate:
        """Check a request and make it ready to run; see `Preparer.prepare`.

        It has its place when this returns, unless it is one of several that run side by side: `hold` those.
        """
        unknown += unread_extra_args(request.sampling_params, self.engine.info.capabilities)
        if unknown:
            self.observer.unknown_fields(unknown)
        prepared = await self.preparer.prepare(request, context, unknown, endpoint)
        if alone:
            self.hold([prepared])
        return prepared

    def hold(self, prepared: Sequence[PreparedGenerate]) -> None:
        """Take the places of requests that are ready, for all or none. One that never runs gives its place back.

        Raises `OverloadedError`: what the check found free may be taken by now.
        """
        tickets = self.admission.enter_all([(one.n, one.prompt_len) for one in prepared])
        for one, ticket in zip(prepared, tickets, strict=True):
            one.ticket = ticket

    def check_room(self, num_seqs: int) -> None:
        """For requests that will run side by side: is there room for all of them? Raises as `prepare` does."""
        self.preparer.preflight(num_seqs)

    async def full(self, prepared: PreparedGenerate) -> GenerateResponse:
        """Run to the end and give the whole reply. Cancelling it aborts the request in the engine."""
        collectors = [Collector() for _ in range(prepared.n)]
        run = GenerateRun(self, prepared)
        async for shown in run:
            for output in shown:
                collectors[output.index].add(output)
        return run.replies.response([c.result() for c in collectors])

    async def stream(self, prepared: PreparedGenerate) -> AsyncGenerator[list[GenerateChunk | UsageChunk], None]:
        """The stream's events, all that are ready at each wake-up. Closing it early aborts the request."""
        run = GenerateRun(self, prepared)
        async with aclosing(run):
            async for shown in run:
                events = run.replies.events(shown)
                if events:
                    yield events
        if prepared.include_usage:
            yield [run.replies.usage_chunk()]

    def encoded_stream(self, prepared: PreparedGenerate) -> EncodedStream:
        """`stream`, each event encoded in the format that the caller reads."""
        return EncodedStream(GenerateRun(self, prepared), prepared)

    def enter(self, prepared: PreparedGenerate) -> None:
        """A run begins; until `leave` it can be aborted by its replied id."""
        self._live.setdefault(prepared.request_id, set()).add(prepared.engine_request.request_id)

    def leave(self, prepared: PreparedGenerate) -> None:
        """The run has ended."""
        live = self._live[prepared.request_id]
        live.discard(prepared.engine_request.request_id)
        if not live:
            del self._live[prepared.request_id]

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


class EncodedStream:
    """An asynchronous iterator over lists of encoded events; see `GenerateService.encoded_stream`."""

    __slots__ = ("_is_over", "_prepared", "_run")

    def __init__(self, run: GenerateRun, prepared: PreparedGenerate) -> None:
        self._run = run
        self._prepared = prepared
        self._is_over = False

    def __aiter__(self) -> EncodedStream:
        return self

    async def __anext__(self) -> list[bytes]:
        run = self._run
        if self._is_over:
            raise StopAsyncIteration
        try:
            while True:
                payloads = run.replies.payloads(await run.__anext__())
                if payloads:
                    return payloads
        except StopAsyncIteration:
            self._is_over = True
            if not self._prepared.include_usage:
                raise
            return [run.replies.usage_payload()]

    async def aclose(self) -> None:
        """Closing it early aborts the request."""
        await self._run.aclose()
