"""Raw HTTP clients that cost little, and the CPU time of a server process by the scheduler's own clock."""

from __future__ import annotations

import selectors
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from cases import Case

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Figures:
    cpu_us_per_token: float
    cpu_us_per_request: float
    tokens_per_s: float
    bytes_per_token: float


def cpu_seconds(pid: int) -> float:
    """Run time of all threads, in nanosecond steps."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def run(case: Case, port: int, pid: int) -> Figures:
    """A round of the case after one request to warm up. Raises `RuntimeError` for any answer but 200."""
    message = _message(case, port)
    _exchange(port, [message])
    cpu, start = cpu_seconds(pid), time.perf_counter()
    size = sum(_exchange(port, [message] * case.clients) for _ in range(case.requests))
    wall, cpu = time.perf_counter() - start, cpu_seconds(pid) - cpu
    requests = case.clients * case.requests
    tokens = requests * case.tokens
    return Figures(cpu / tokens * 1e6, cpu / requests * 1e6, tokens / wall, size / tokens)


def _message(case: Case, port: int) -> bytes:
    kind = "application/msgpack" if case.packed else "application/json"
    body = case.body()
    head = (
        f"POST /inference/v1/generate HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: {kind}\r\n"
        f"Accept: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _exchange(port: int, messages: list[bytes]) -> int:
    """Send all at once, each on a connection of its own; returns the bytes of all answers once every one has ended."""
    selector = selectors.DefaultSelector()
    for message in messages:
        connection = socket.create_connection((HOST, port))
        connection.sendall(message)
        selector.register(connection, selectors.EVENT_READ, False)
    buffer = bytearray(1 << 18)
    total, left = 0, len(messages)
    while left:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            count = connection.recv_into(buffer)
            if not key.data and count:
                if not buffer.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(bytes(buffer[:count]).decode(errors="replace"))
                selector.modify(connection, selectors.EVENT_READ, True)
            total += count
            if count == 0:
                selector.unregister(connection)
                connection.close()
                left -= 1
    return total
