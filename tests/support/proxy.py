"""A TCP proxy that is slow, that changes bytes, or that ends in the middle; on threads, for clients that block."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator


class Proxy:
    """Passes connections on to `target`. What the target sends goes through `change` and no faster than `rate`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.rate = float("inf")
        """Bytes a second from the target, over all connections."""
        self.change: Callable[[bytes], bytes] = lambda data: data
        self.num_bytes = 0
        """That the target has sent and that were passed on."""
        self.num_connections = 0
        self._open: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._threads: list[threading.Thread] = [threading.Thread(target=self._listen, daemon=True)]
        self._threads[0].start()

    def wait_for(self, num_bytes: int, timeout_s: float = 20.0) -> None:
        """Until so many bytes have been passed on."""
        deadline = time.monotonic() + timeout_s
        while self.num_bytes < num_bytes:
            assert time.monotonic() < deadline, f"only {self.num_bytes} bytes came"
            time.sleep(0.002)

    def cut(self) -> None:
        """End every connection, in both directions."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for sock in self._open:
            sock.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.num_connections += 1
            try:
                upstream = socket.create_connection(self.target, 5)
            except OSError:
                client.close()
                continue
            upstream.settimeout(None)
            self._open += [client, upstream]
            for source, sink, slow in ((client, upstream, False), (upstream, client, True)):
                thread = threading.Thread(target=self._pump, args=(source, sink, slow), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(int(min(1 << 14, max(1, self.rate / 20)))):
                if slow:
                    time.sleep(len(data) / self.rate)
                    data = self.change(data)
                    self.num_bytes += len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def proxy(target: tuple[str, int]) -> Iterator[Proxy]:
    """A proxy that is gone at the end of the block."""
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
