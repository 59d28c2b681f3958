"""A server as a process that is measured: started, waited for, weighed, stopped with everything it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
KIB = 1024


class DidNotStart(Exception):
    """The process ended, or answered nothing in time; carries the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `pss` counts a page that processes share by parts, so that a sum over processes means something."""

    rss: int
    pss: int
    peak_rss: int


def _leave(number: int, _: object) -> None:
    """A bench that is told to end first ends what it started, by the ordinary way out."""
    raise SystemExit(128 + number)


class Server:
    """One command in a process group of its own, listening on `port` of the loopback."""

    def __init__(self, command: Sequence[str], port: int, env: Mapping[str, str] | None = None) -> None:
        self.port = port
        signal.signal(signal.SIGTERM, _leave)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the process
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdout=self._log,
            stderr=self._log,
            env=environment(env),
            start_new_session=True,
        )

    def wait_until_ready(self, path: str = "/health", timeout_s: float = 600.0, poll_s: float = 0.01) -> float:
        """Seconds from the start of the process to the first 200 on `path`. Raises `DidNotStart`."""
        while time.perf_counter() - self.started < timeout_s:
            if self.process.poll() is not None:
                break
            url = f"http://127.0.0.1:{self.port}{path}"
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
                if reply.status == 200:
                    return time.perf_counter() - self.started
            time.sleep(poll_s)
        text = self.log()[-2000:]
        self.stop()
        raise DidNotStart(f"{' '.join(self.process.args[:4])} ... did not start:\n{text}")  # type: ignore[index]

    def log(self) -> str:
        number = self._log.fileno()  # the process writes where the file stands: read without moving that
        return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")

    def processes(self) -> list[int]:
        """The process and its descendants, oldest first."""
        return [self.process.pid, *_descendants(self.process.pid)]

    def cpu_s(self) -> float:
        """Processor time of all of them so far."""
        return sum(_cpu_s(pid) for pid in self.processes())

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15)
                break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def tokenwire(command: str, *arguments: str, env: Mapping[str, str] | None = None) -> Server:
    """`tokenwire COMMAND ARGUMENTS` on a free port, with the package of this tree."""
    port = free_port()
    source = str(Path(__file__).resolve().parents[2] / "src")
    path = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH", "")) if part)
    full = [sys.executable, "-m", "tokenwire", command, *arguments, "--port", str(port)]
    return Server([*full, "--disable-uvicorn-access-log"], port, {"PYTHONPATH": path, **(env or {})})


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, in which Python keeps compiled modules as it does by itself: what is measured is never a first start."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **(extra or {})}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory(pid: int) -> Memory:
    sizes = dict(_kib(f"/proc/{pid}/smaps_rollup"))
    peak = dict(_kib(f"/proc/{pid}/status")).get("VmHWM", 0)
    return Memory(rss=sizes["Rss"] * KIB, pss=sizes["Pss"] * KIB, peak_rss=peak * KIB)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _kib(path: str) -> Iterator[tuple[str, int]]:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            yield name, int(value.split()[0])


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


def _descendants(pid: int) -> Iterator[int]:
    try:
        children = [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield child
        yield from _descendants(child)
