"""Starts a core process, waits until it serves, and knows when it has died. No torch on this side."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from tokenwire.engine.local.models import Progress
from tokenwire.engine.local.options import Job, LocalEngineOptions
from tokenwire.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

STOP_PATIENCE_S = 3.0


class CoreProcess:
    """One running core. Its standard input stays open as long as we live; the core ends when it closes."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, directory: Path) -> None:
        self._process = process
        self.address = address
        self._directory = directory

    @property
    def pid(self) -> int:
        return self._process.pid

    @staticmethod
    async def start(folder: Path, options: LocalEngineOptions, progress: Progress) -> CoreProcess:
        """A core that serves. Raises `EngineUnavailableError` with its reason if it cannot, or takes too long."""
        directory = Path(tempfile.mkdtemp(prefix="tokenwire-"))
        job = Job(address=f"ipc://{directory / 'core.sock'}", folder=str(folder), options=options)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tokenwire.engine.local.core_main",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=_environment(directory),
        )
        core = CoreProcess(process, job.address, directory)
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.msgpack.encode(job).hex().encode() + b"\n")
            await asyncio.wait_for(core._until_ready(progress), options.load_timeout_s)
        except BaseException as exc:
            await core.stop(patience_s=0.0)
            if isinstance(exc, TimeoutError):
                raise EngineUnavailableError(
                    f"The engine did not start within load_timeout_s={options.load_timeout_s:g}."
                ) from exc
            raise
        return core

    async def _until_ready(self, progress: Progress) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            report = json.loads(line)
            if "ready" in report:
                return
            if "failed" in report:
                raise EngineUnavailableError(report["failed"])
            progress(report["stage"], report["fraction"])
        code = await self._process.wait()
        raise EngineUnavailableError(f"The engine process ended while it started ({describe_exit(code)}).")

    async def wait(self) -> int:
        """The exit code, once it has ended; negative: the signal that killed it."""
        return await self._process.wait()

    async def stop(self, *, patience_s: float = STOP_PATIENCE_S) -> None:
        """Close its standard input, which ends it; kill it if it still lives then; remove what it leaves behind."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), patience_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        finally:
            self.forget()

    def forget(self) -> None:
        """Remove the socket's folder."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _environment(directory: Path) -> dict[str, str]:
    """Ours, and a library path on which numba's OpenMP is PyTorch's: two runtimes would make each other wait.

    numba asks for `libgomp.so.1.0.0`; PyTorch's wheel carries its own copy under another name.
    """
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:
        # Threads that spin for long starve whoever shares the cores, the front end first, and then wait for each
        # other; threads that sleep at once pay for every wake-up. This is about the pause between two layers.
        environment.setdefault("GOMP_SPINCOUNT", "20000")
    spec = importlib.util.find_spec("torch")
    if sys.platform != "linux" or spec is None or spec.origin is None:
        return environment
    carried = sorted((Path(spec.origin).parent / "lib").glob("libgomp*.so*"))
    if len(carried) != 1:
        return environment
    (directory / "libgomp.so.1.0.0").symlink_to(carried[0])
    paths = [str(directory), environment.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in paths if path)
    environment["TOKENWIRE_SHARED_OPENMP"] = "1"
    return environment


def describe_exit(code: int) -> str:
    """An exit code in words."""
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
