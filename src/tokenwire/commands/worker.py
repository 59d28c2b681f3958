"""One front end of several: `python -m tokenwire.commands.worker DESCRIPTOR`, started by `crew`.

The descriptor is its end of the channel; the first message says what to be. It serves at the server's address beside
the others, drains when told to, and ends at once when its starter is gone.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path

from tokenwire.commands import logs
from tokenwire.commands.engines import make_engine
from tokenwire.commands.memory import release_start_up_memory
from tokenwire.commands.opening import model_folder, open_server
from tokenwire.commands.progress import LoadProgress
from tokenwire.commands.runtime import close
from tokenwire.engine.announced import AnnouncedEngine, RememberedEngine
from tokenwire.engine.base import Engine
from tokenwire.engine.control import Control
from tokenwire.engine.local.engine import LocalEngine
from tokenwire.engine.local.keeper import ToldCore
from tokenwire.engine.local.messages import state_after
from tokenwire.engine.replicas import ReplicaEngine
from tokenwire.errors import TokenwireError
from tokenwire.server.app import create_app
from tokenwire.server.board import Board, SharedAdmission
from tokenwire.server.channel import (
    Answer,
    Ask,
    Channel,
    Drain,
    Job,
    ModelAt,
    News,
    NotStarted,
    Obey,
    Obeyed,
    Started,
    ToFrontEnd,
)
from tokenwire.server.peers import Peers
from tokenwire.server.process import STOP_SIGNALS, Gate, HttpProcess, join, uvicorn_config

STOPPED = 0
START_FAILED = 1


class FrontEnd:
    """The life of one front end."""

    def __init__(self, job: Job, channel: Channel[ToFrontEnd], process: HttpProcess, gate: Gate) -> None:
        self._job = job
        self._channel = channel
        self._process = process
        self._gate = gate
        self._progress = LoadProgress()
        self._board = Board(job.board, job.settings.network.api_server_count)
        self._cores = [ToldCore() for _ in range(job.num_cores)]
        self._model: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._peers = Peers(channel, share_engine=job.num_cores > 0)
        self._engine = self._make_engine()
        self._opening: asyncio.Task[str] | None = None
        self._is_lost = False

    async def run(self) -> int:
        """Until it has drained; returns the exit code."""
        hearing = asyncio.create_task(self._hear(), name="hear-starter")
        self._opening = opening = asyncio.create_task(self._open(), name="open-server")
        serving = None if self._job.is_late else self._serve()
        try:
            await asyncio.wait({opening, serving} if serving else {opening}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
            await asyncio.wait({opening})
            if opening.cancelled():
                return await self._leave(serving, STOPPED)
            error = opening.exception()
            if error is not None:
                self._channel.send(_not_started(error))
                return await self._leave(serving, START_FAILED)
            self._channel.send(Started(opening.result()))
            return await self._leave(serving or self._serve(), STOPPED, at_once=False)
        finally:
            hearing.cancel()
            await close(self._engine, self._process)
            await self._channel.flush()

    async def _leave(self, serving: asyncio.Task[None] | None, code: int, *, at_once: bool = True) -> int:
        if at_once:
            self._process.should_exit = True
        if serving is not None:
            await serving
        return START_FAILED if self._is_lost else code

    def _serve(self) -> asyncio.Task[None]:
        job = self._job
        listener = join(job.family, _address(job)) if job.listener is None else socket.socket(fileno=job.listener)
        return asyncio.create_task(self._process.serve([listener]), name="serve")

    async def _open(self) -> str:
        job, settings = self._job, self._job.settings
        if job.num_cores:
            folder: Path | None = Path(await self._model)
        else:
            folder = await model_folder(settings, self._progress, with_engine=job.with_engine)
        limits = settings.limits
        admission = SharedAdmission(limits.max_num_queued_reqs, limits.max_num_queued_tokens, self._board, job.row)
        server = await open_server(settings, self._engine, folder, admission=admission)
        if job.pause is not None and self._peers.own_engine is not None:
            await self._peers.own_engine.control(job.pause)
        server.peers = self._peers
        self._process.server = server
        app = create_app(server)
        release_start_up_memory()
        self._gate.open(app)
        return server.models.name

    def _make_engine(self) -> Engine | None:
        job = self._job
        if not job.with_engine:
            return None
        if self._cores:
            state = "ready" if job.pause is None else state_after(job.pause)
            replicas = [LocalEngine(source=core, identity=job.identity, state=state) for core in self._cores]
            alone = len(replicas) == 1
            shared = replicas[0] if alone else ReplicaEngine(replicas, self._board.sessions, first=job.row)
            return RememberedEngine(shared, lambda control: self._channel.send(Obeyed(control)))
        self._peers.own_engine = make_engine(job.settings, self._progress)
        return AnnouncedEngine(self._peers.own_engine, self._announce)

    async def _announce(self, message: Control) -> list[dict[str, object]]:
        return await self._peers.ask(Obey(message))  # type: ignore[arg-type]  # a pause or its end

    async def _hear(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case News(rank=rank, core=news):
                    self._cores[rank].tell(news)
                case ModelAt(folder=folder):
                    if not self._model.done():
                        self._model.set_result(folder)
                case Drain():
                    self._stop()
                case Ask() | Answer():
                    self._peers.take(self._process.server, message)
        self._is_lost = True
        self._process.force_exit = self._process.should_exit = True
        self._stop()

    def _stop(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        self._process.stop()


def _address(job: Job) -> tuple[object, ...]:
    return tuple(job.address)


def _not_started(error: BaseException) -> NotStarted:
    if isinstance(error, TokenwireError):
        return NotStarted(error.message, START_FAILED)
    return NotStarted(f"{type(error).__name__}: {error}", START_FAILED)


async def _main(job: Job, end: socket.socket, process: HttpProcess, gate: Gate) -> int:
    channel: Channel[ToFrontEnd] = await Channel.over(end, ToFrontEnd)
    return await FrontEnd(job, channel, process, gate).run()


def main() -> int:
    """Serve until told to stop."""
    for number in STOP_SIGNALS:
        # Meant for the starter, which says what to do; terminals and service managers send it to all processes.
        signal.signal(number, signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    job = Channel.first(end, Job)
    logs.configure(job.settings.logs)
    gate = Gate()
    network = job.settings.network
    config = uvicorn_config(gate, network, job.settings.logs)
    process = HttpProcess(config, shutdown_timeout_s=network.shutdown_timeout, heeds_signals=False)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_main(job, end, process, gate))


if __name__ == "__main__":
    raise SystemExit(main())
