"""A server of several front-end processes: this one starts them and the cores that they share, and serves nothing.

It holds the address, passes on what becomes of the cores, and on SIGTERM or SIGINT has all front ends drain before the
cores end.
"""

from __future__ import annotations

import asyncio
import logging
import socket

from tokenwire.commands.cores import Cores
from tokenwire.commands.crew import Crew, CrewError, patience_s
from tokenwire.commands.engines import local_options
from tokenwire.commands.progress import LoadProgress
from tokenwire.commands.runtime import START_FAILED, STOPPED, OnReady
from tokenwire.engine.local.models import prepare_model
from tokenwire.engine.local.options import LocalEngineOptions, of_replica
from tokenwire.errors import TokenwireError
from tokenwire.server.board import Board
from tokenwire.server.channel import Job
from tokenwire.server.process import STOP_SIGNALS, address_of, reserve, unbind
from tokenwire.settings import Settings

logger = logging.getLogger("tokenwire")


def run(settings: Settings, *, with_engine: bool, on_ready: OnReady) -> int:
    """Run to the end; returns the exit code. Raises `SettingsError` before anything has started."""
    options: list[LocalEngineOptions] = []
    if with_engine and settings.model.engine == "local":
        size = settings.engine.data_parallel_size
        options = [of_replica(local_options(settings), rank, size) for rank in range(size)]
    listener = reserve(settings.network)
    try:
        supervisor = _Supervisor(settings, options, listener, with_engine=with_engine)
        return asyncio.run(supervisor.run(on_ready))
    finally:
        listener.close()
        unbind(settings.network)


class _Supervisor:
    def __init__(
        self, settings: Settings, options: list[LocalEngineOptions], listener: socket.socket, *, with_engine: bool
    ) -> None:
        self._settings = settings
        self._options = options
        self._listener = listener
        self._with_engine = with_engine
        self._progress = LoadProgress()

    async def run(self, on_ready: OnReady) -> int:
        settings, stopped = self._settings, asyncio.Event()
        board = Board.create(settings.network.api_server_count)
        cores = Cores(self._options, self._progress, lambda rank, news: crew.tell_core(rank, news), lambda: crew.state)
        crew = Crew(self._job(board), board, self._descriptors(board), cores.forget)

        def stop() -> None:
            if stopped.is_set():
                crew.drain()  # once more: do not wait
            stopped.set()

        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop)
        crew.start()
        opening = asyncio.create_task(self._open(crew, cores), name="open-server")
        stopping = asyncio.create_task(stopped.wait(), name="wait-for-signal")
        try:
            await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return STOPPED
            error = opening.exception()
            if error is not None:
                return _not_started(error)
            on_ready(settings, address_of(self._listener, settings.network), opening.result(), self._with_engine)
            await stopping
            return STOPPED
        finally:
            stopped.set()
            opening.cancel()
            await asyncio.gather(opening, stopping, return_exceptions=True)
            crew.drain()
            await crew.ended(patience_s(settings.network.shutdown_timeout))
            await cores.close()

    async def _open(self, crew: Crew, cores: Cores) -> str:
        """Bring up what is shared and wait for the front ends; returns the served name."""
        with self._progress.shown():
            serving = asyncio.create_task(crew.serving(), name="front-ends")
            loading = asyncio.create_task(self._load(crew, cores), name="load-cores")
            try:
                await asyncio.wait({serving, loading}, return_when=asyncio.FIRST_EXCEPTION)
                for task in (loading, serving):
                    if task.done():
                        task.result()
                return serving.result()
            finally:
                serving.cancel()
                loading.cancel()
                await asyncio.gather(serving, loading, return_exceptions=True)

    async def _load(self, crew: Crew, cores: Cores) -> None:
        if not len(cores):
            return
        folder = await asyncio.to_thread(prepare_model, self._options[0].model, progress=self._progress)
        crew.tell_model(str(folder))
        await cores.start()

    def _job(self, board: Board) -> Job:
        """What all front ends have in common."""
        is_unix = self._settings.network.uds is not None
        return Job(
            settings=self._settings,
            with_engine=self._with_engine,
            row=0,
            identity=b"",
            board=board.descriptor,
            family=int(self._listener.family),
            address=None if is_unix else self._listener.getsockname(),
            listener=self._listener.fileno() if is_unix else None,
            num_cores=len(self._options),
        )

    def _descriptors(self, board: Board) -> list[int]:
        shared = [board.descriptor]
        return [*shared, self._listener.fileno()] if self._settings.network.uds is not None else shared


def _not_started(error: BaseException) -> int:
    if isinstance(error, TokenwireError | CrewError):
        logger.error("The server did not start: %s", error)
    else:
        logger.error("The server did not start", exc_info=error)
    return START_FAILED
