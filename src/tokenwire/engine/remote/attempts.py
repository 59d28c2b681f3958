"""One request on one worker, and again on another one as long as nothing of its answer has been given out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tokenwire.engine.base import EngineOutput, EngineRequest
from tokenwire.engine.remote.dialects import Reader
from tokenwire.engine.remote.fleet import Fleet
from tokenwire.engine.remote.http import ConnectionLostError, Reply, TransportError
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.engine.remote.worker import Worker
from tokenwire.errors import EngineUnavailableError, GenerationError, OverloadedError, TokenwireError

logger = logging.getLogger(__name__)

Take = Callable[[list[EngineOutput], Reply], None]


@dataclass(slots=True, eq=False)
class Job:
    """A request, or one leg of it, that looks for a worker. `take` gets its outputs as they come."""

    request: EngineRequest
    call_id: str
    """Unique among live calls; the attempt's number is appended."""
    take: Take
    worker: Worker | None = None
    """Where it runs now."""
    worker_call_id: str = ""
    aborted: bool = False
    """No further attempts."""
    ending: bool = False
    """The reader has its tokens; only the last output is still of interest."""
    num_outputs: int = field(default=0, init=False)

    @property
    def n(self) -> int:
        return self.request.sampling.n


async def run_job(job: Job, fleet: Fleet, options: RemoteOptions) -> None:
    """Run to the end. Raises the worker's own error, or `EngineUnavailableError` when no worker is left to try."""
    tried: set[Worker] = set()
    failure: TokenwireError | None = None
    while len(tried) < options.max_attempts and not job.aborted:
        worker = fleet.choose(job.request, tried)
        if worker is None:
            break
        tried.add(worker)
        try:
            await _attempt(job, worker, len(tried))
            return
        except TransportError as exc:
            worker.suspect(str(exc))
            failure = EngineUnavailableError(f"The worker {worker.url} went away: {exc}.")
        except (EngineUnavailableError, OverloadedError) as exc:
            failure = exc
        except GenerationError as exc:
            failure = exc
            if job.num_outputs or await worker.check():
                raise  # it lives: the request is to blame
        if job.num_outputs:
            raise failure
        logger.info("Request %s: %s Trying another worker.", job.call_id, failure)
    raise failure or EngineUnavailableError(fleet.trouble, retry_after_s=5)


async def _attempt(job: Job, worker: Worker, number: int) -> None:
    request = job.request
    job.worker, job.worker_call_id = worker, f"{job.call_id}-{number}"
    dialect = worker.dialect
    reply: Reply | None = None
    worker.num_running += job.n
    try:
        part: EngineRequest | None = dialect.first_part(request)
        while part is not None:
            call = dialect.call(part, job.worker_call_id, worker.told)
            reply = await worker.client.request(call.method, call.path, headers=call.headers, body=call.body)
            if reply.status != 200:
                raise dialect.error(reply.status, await reply.read())
            reader = dialect.reader(part, reply.headers.get("content-type", ""))
            if part.stream:
                await _pump(job, reply, reader)
                _take(job, reader.end(), reply)
                break
            outputs = reader.whole(await reply.read())
            part = dialect.next_part(part, outputs)
            _take(job, outputs, reply)
    finally:
        worker.num_running -= job.n
        job.worker = None
        if reply is not None:
            reply.close()


async def _pump(job: Job, reply: Reply, reader: Reader) -> None:
    def sink(piece: bytes) -> None:
        for output in reader.piece(piece):
            _take(job, [output], reply)
        if reader.has_enough:
            reply.close()

    try:
        await reply.pump(sink)
    except ConnectionLostError:
        if not reader.has_enough:
            raise


def _take(job: Job, outputs: list[EngineOutput], reply: Reply) -> None:
    if outputs:
        job.num_outputs += len(outputs)
        job.take(outputs, reply)
