"""A real `tokenwire` process: started, read line by line, stopped by signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

READY = re.compile(r"tokenwire \S+ (?:serves|renders for) (?P<name>\S+) at (?P<address>\S+)")


class TokenwireProcess:
    """`address` is known once `wait_ready` has returned; everything printed is in `lines`."""

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENWIRE_")}
        keep = {name: os.environ[name] for name in ("TOKENWIRE_CACHE",) if name in os.environ}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "tokenwire", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**clean, **keep, "OMP_NUM_THREADS": "1", **(env or {})},
        )
        self.lines: list[str] = []
        self.address = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip("\n"))
            match = READY.match(line)
            if match:
                self.address = match["address"]
                self._ready.set()
        self._ready.set()

    def wait_ready(self, timeout_s: float = 100.0) -> None:
        assert self._ready.wait(timeout_s), self.output
        assert self.address, self.output

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.popen.send_signal(number)

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code."""
        code = self.popen.wait(timeout_s)
        self._reader.join(5)
        return code

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=60, **options)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait()
        self._reader.join(5)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@contextlib.contextmanager
def tokenwire(*args: str, env: dict[str, str] | None = None) -> Iterator[TokenwireProcess]:
    """A process that is gone at the end of the block, whatever happens in it."""
    process = TokenwireProcess(*args, env=env)
    try:
        yield process
    finally:
        process.kill()


def null_server(*args: str, env: dict[str, str] | None = None) -> Any:
    """`tokenwire serve --engine null` on a free port."""
    return tokenwire("serve", "--engine", "null", "--port", "0", *args, env=env)


def children_of(pid: int) -> list[int]:
    """Process ids of all descendants."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *children_of(int(child))]
    return found
