"""Workers of one kind, and the choice among them: the session's own, else the least loaded."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
from collections.abc import Collection, Iterator, Sequence

from tokenwire.engine.base import EngineRequest
from tokenwire.engine.remote.dialects.base import Dialect
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.engine.remote.worker import Worker
from tokenwire.errors import EngineUnavailableError

logger = logging.getLogger(__name__)


class Fleet:
    """Watches its workers' health in the background between `start` and `close`."""

    def __init__(self, urls: Sequence[str], dialect: Dialect, options: RemoteOptions) -> None:
        self.workers = [Worker(url.rstrip("/"), dialect, options) for url in urls]
        self._options = options
        self._turn = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []

    def __bool__(self) -> bool:
        return bool(self.workers)

    @property
    def is_up(self) -> bool:
        return any(worker.is_up for worker in self.workers)

    @property
    def trouble(self) -> str:
        """What to tell while no worker is up."""
        who = "The only worker does not answer" if len(self.workers) == 1 else "None of the workers answers"
        return f"{who}; the coordinator asks again every {self._options.health_interval_s:g} s."

    async def start(self) -> None:
        """Wait for the first worker that is well. Raises `EngineUnavailableError` if none comes in time."""
        self._tasks = [asyncio.create_task(self._watch(w), name=f"watch-{w.url}") for w in self.workers]
        deadline = asyncio.get_running_loop().time() + self._options.start_timeout_s
        await asyncio.gather(*(worker.check() for worker in self.workers))
        while not self.is_up:
            if asyncio.get_running_loop().time() > deadline:
                urls, waited = ", ".join(w.url for w in self.workers), self._options.start_timeout_s
                raise EngineUnavailableError(f"None of {urls} came up within {waited:g} s.")
            await asyncio.sleep(min(0.2, self._options.health_interval_s))

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self.workers:
            worker.close()

    def choose(self, request: EngineRequest, exclude: Collection[Worker] = ()) -> Worker | None:
        """A worker that is up and not excluded; None if there is none.

        A session keeps its worker while that one is up, and only sessions of a lost worker move (rendezvous
        hashing). Without a session: fewest sequences, equals in turn.
        """
        candidates = [worker for worker in self.workers if worker.is_up and worker not in exclude]
        if not candidates:
            return None
        if request.session_id is not None:
            session = request.session_id
            return max(candidates, key=lambda worker: _weight(session, worker.url))
        turn = next(self._turn) % len(candidates)
        rotated = candidates[turn:] + candidates[:turn]
        return min(rotated, key=lambda worker: worker.num_running)

    def live(self) -> Iterator[Worker]:
        return (worker for worker in self.workers if worker.is_up)

    async def _watch(self, worker: Worker) -> None:
        while True:
            await asyncio.sleep(self._options.health_interval_s)
            await worker.check()


def _weight(session: str, url: str) -> bytes:
    return hashlib.blake2b(f"{session}\0{url}".encode(), digest_size=8).digest()
