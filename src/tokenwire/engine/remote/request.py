"""A live request: its legs and parts, its stream, and how it is ended early."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import msgspec

from tokenwire.engine.base import EngineOutput, EngineRequest, PromptOutput
from tokenwire.engine.remote.attempts import Job, run_job
from tokenwire.engine.remote.dialects.base import Dialect
from tokenwire.engine.remote.fleet import Fleet
from tokenwire.engine.remote.http import Reply, TransportError
from tokenwire.engine.remote.legs import prefill_leg, scoring_leg, without_prompt_scores
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.engine.remote.stream import RemoteStream
from tokenwire.errors import EngineUnavailableError, GenerationError, TokenwireError

logger = logging.getLogger(__name__)


class LiveRequest:
    """One request of the engine, from `start` to the end of its task."""

    def __init__(
        self,
        request: EngineRequest,
        *,
        fleet: Fleet,
        prefill: Fleet,
        dialect: Dialect,
        options: RemoteOptions,
        background: set[asyncio.Task[None]],
    ) -> None:
        self.request = request
        self.stream = RemoteStream(request.sampling.n, self._leave, self._stop, self._ask_end)
        self._fleet = fleet
        self._prefill = prefill
        self._dialect = dialect
        self._options = options
        self._background = background
        self._jobs: dict[int, Job] = {}
        """By the index of the first sequence; -1: the prompt's leg."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._open = set(range(request.sampling.n))
        self._prompt: PromptOutput | None = None
        self._aborting = False
        self.task: asyncio.Task[None] | None = None

    @property
    def num_open(self) -> int:
        return len(self._open)

    def start(self) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self._play(), name=f"remote-{self.request.request_id}")
        return self.task

    async def abort(self) -> None:
        """End it on its worker, wait for what the worker had, and give that out with reason "abort"."""
        self._aborting = True
        jobs = list(self._jobs.values())
        for job in jobs:
            job.aborted = True
        if self._hands_over(jobs) and self.task is not None:
            await asyncio.gather(*(self._tell(job) for job in jobs))
            await asyncio.wait([self.task], timeout=self._options.abort_grace_s)
        for index in sorted(self._open):
            self._put(EngineOutput(index, [], finish_reason="abort"))
        self._end()

    def _hands_over(self, jobs: list[Job]) -> bool:
        """A worker that is told to abort answers with what it had; but not one that only runs the prompt's leg."""
        running = [job for job in jobs if job.worker is not None]
        return bool(running) and -1 not in self._jobs and self._dialect.abort("") is not None

    def fail(self, error: TokenwireError) -> None:
        """End the stream with an error, and the work with it."""
        self.stream.fail(error)
        self._end()

    # --- the work

    async def _play(self) -> None:
        try:
            request = await self._prompt_leg()
            parts = self._parts(request)
            if len(parts) == 1:
                await self._run(*parts[0])
            else:
                async with asyncio.TaskGroup() as group:
                    for offset, part in parts:
                        if offset in self._open:
                            self._tasks[offset] = group.create_task(self._run(offset, part))
            if self._open:
                self._fail(GenerationError("The worker's answer ended before all of its sequences did."))
        except TokenwireError as exc:
            self._fail(exc)
        except ExceptionGroup as group_error:
            self._fail(_first(group_error))
        except Exception as exc:
            logger.exception("Request %s failed unexpectedly", self.request.request_id)
            self._fail(GenerationError(f"The remote engine failed: {exc}"))

    def _fail(self, error: TokenwireError) -> None:
        if not self._aborting:  # else `abort` ends what is open
            self.stream.fail(error)

    async def _prompt_leg(self) -> EngineRequest:
        request = self.request
        if not request.stream and self._dialect.must_stream(request):
            request = replace(request, stream=True)
        if self._prefill and request.kv_transfer_params is None:
            request, self._prompt = await prefill_leg(request, lambda leg: self._leg(leg, self._prefill))
        elif request.sampling.wants_prompt_scores and request.stream and not self._streams_scores():
            request, self._prompt = await scoring_leg(request, lambda leg: self._leg(leg, self._fleet))
        elif request.kv_transfer_params is not None or request.ec_transfer_params is not None:
            produces = bool((request.kv_transfer_params or {}).get("do_remote_decode"))
            if produces and not all(self._dialect.streams_transfer_params(w.told) for w in self._fleet.live()):
                request = replace(request, stream=False)  # the parameters that it asks for come in whole answers only
        return request

    def _streams_scores(self) -> bool:
        return all(self._dialect.streams_prompt_scores(self.request, worker.told) for worker in self._fleet.live())

    async def _leg(self, leg: EngineRequest, fleet: Fleet) -> list[EngineOutput]:
        outputs: list[EngineOutput] = []
        job = Job(leg, f"{leg.request_id}-prompt", lambda news, reply: outputs.extend(news))
        self._jobs[-1] = job
        try:
            await run_job(job, fleet, self._options)
        finally:
            del self._jobs[-1]
        return outputs

    def _parts(self, request: EngineRequest) -> list[tuple[int, EngineRequest]]:
        """The calls to make, with the index of their first sequence.

        One call, unless the worker's sequences cannot be had or stopped together: then one call each, with seeds
        that follow each other, as vLLM seeds its sequences.
        """
        sampling = request.sampling
        n, limit = sampling.n, self._dialect.max_n
        if n == 1 or not (
            (limit is not None and n > limit) or (sampling.stop_strings and self._may_split(sampling.seed))
        ):
            return [(0, request)]
        parts = []
        for index in range(n):
            seed = None if sampling.seed is None else sampling.seed + index
            part = replace(request, sampling=msgspec.structs.replace(sampling, n=1, seed=seed))
            if index:
                part = without_prompt_scores(part)
            parts.append((index, part))
        return parts

    def _may_split(self, seed: int | None) -> bool:
        """tokenwire draws sequence i of a seed in its own way: a split would change what is drawn."""
        return seed is None or not any(worker.told.is_tokenwire for worker in self._fleet.live())

    async def _run(self, offset: int, request: EngineRequest) -> None:
        def take(outputs: list[EngineOutput], reply: Reply) -> None:
            for output in outputs:
                output.index += offset
                self._put(output)
            if self.stream.is_full and request.stream:
                reply.pause()
                self.stream.when_drained(reply.resume)

        job = Job(request, f"{request.request_id}-s{offset}", take)
        self._jobs[offset] = job
        try:
            await run_job(job, self._fleet, self._options)
        except TokenwireError as exc:
            if not job.ending:
                raise
            logger.debug("Request %s: its last word is lost: %s", job.call_id, exc)
            for index in sorted(self._open.intersection(range(offset, offset + job.n))):
                self._put(EngineOutput(index, [], finish_reason="abort"))
        finally:
            del self._jobs[offset]

    def _put(self, output: EngineOutput) -> None:
        if self._prompt is not None:
            if output.prompt is not None:
                self._prompt.fill(output.prompt)
            output.prompt, self._prompt = self._prompt, None
        if output.finish_reason is not None:
            self._open.discard(output.index)
        self.stream.put(output)

    # --- early ends

    def _leave(self) -> None:
        """The reader left: close the connections and tell the workers."""
        self._open.clear()
        self._end()

    def _stop(self, index: int) -> None:
        """The reader has enough of one sequence."""
        self._open.discard(index)
        if not self._open:
            self._end()
        elif index in self._tasks:
            self._tell_later(self._jobs.get(index))
            self._tasks[index].cancel()

    def _ask_end(self, index: int) -> bool:
        """Have the worker end the call of this sequence and read on to its last word.

        False where it cannot: the worker knows no aborts, or other sequences run in the same call.
        """
        job = self._jobs.get(index if self._tasks else 0)
        if job is None or job.worker is None or self._dialect.abort("") is None:
            return False
        if not self._tasks and self._open != {index}:
            return False
        job.aborted = job.ending = True
        self._tell_later(job)
        return True

    def _end(self) -> None:
        for job in self._jobs.values():
            self._tell_later(job)
        if self.task is not None and self.task is not asyncio.current_task():
            self.task.cancel()

    def _tell_later(self, job: Job | None) -> None:
        if job is None or job.worker is None:
            return
        task = asyncio.create_task(self._tell(replace(job)))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _tell(self, job: Job) -> None:
        """Tell the worker that a call is aborted. A worker that cannot be told has the closed connection to see."""
        worker = job.worker
        call = None if worker is None else self._dialect.abort(job.worker_call_id)
        if worker is None or call is None:
            return
        try:
            timeout = self._options.call_timeout_s
            await worker.client.fetch(call.method, call.path, headers=call.headers, body=call.body, timeout_s=timeout)
        except TransportError as exc:
            logger.debug("Worker %s could not be told to abort %s: %s", worker.url, job.worker_call_id, exc)


def _first(group: ExceptionGroup[Exception]) -> TokenwireError:
    """The error that ended a group of calls."""
    first = group.exceptions[0]
    if isinstance(first, ExceptionGroup):
        return _first(first)
    if isinstance(first, TokenwireError):
        return first
    logger.error("A remote call failed unexpectedly", exc_info=first)
    return EngineUnavailableError(f"The remote engine failed: {first}")
