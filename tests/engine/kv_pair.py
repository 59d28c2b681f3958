"""Two cores in this process, one that keeps blocks and one that pulls them, and what is right for both."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engine.harness import Harness
from tokenwire.engine.base import EngineOutput, KVTransferStats

KEEP = {"do_remote_decode": True, "do_remote_prefill": False}
PROMPT = [4 + (7 * i) % 90 for i in range(50)]
"""12 full blocks of 4, and 2 tokens."""
FULL = 48


class Pair:
    """`a` prefills, `b` decodes, `alone` has neither. Blocks of 4 tokens, 1536 bytes each (3 layers, 2 heads of 8)."""

    def __init__(self, folder: Path, *, a: dict[str, Any] | None = None, b: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.a = Harness(folder, **{"kv_transfer_port": 0, **(a or {})})
        self.b = Harness(folder, **{"kv_transfer_port": 0, **(b or {})})

    def close(self) -> None:
        for harness in (self.a, self.b):
            transfers = harness.core._transfers
            if transfers is not None:
                transfers.server.close()

    def prefill(self, prompt: list[int] = PROMPT, *, harness: Harness | None = None, **p: Any) -> dict[str, Any]:
        """Run a prompt on `a`; the reply's parameters."""
        engine = harness or self.a
        handle = engine.add(prompt, kv=KEEP, **{"max_tokens": 1, "stream": False} | p)
        engine.run()
        params = engine.output(handle).kv_transfer_params
        assert params is not None
        return params

    def decode(self, params: dict[str, Any], prompt: list[int] = PROMPT, **p: Any) -> EngineOutput:
        """Run a prompt on `b`, with parameters of `a`."""
        handle = self.b.add(prompt, kv=params, **p)
        self.until(lambda: not len(self.b.streams))
        return self.b.output(handle)

    def until(self, condition: Callable[[], object], timeout_s: float = 20.0) -> None:
        """Both go on until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, (self.stats_a, self.stats_b)
            self.a.tick()
            self.b.tick()
            time.sleep(0.001)

    @property
    def stats_a(self) -> KVTransferStats:
        return self._stats(self.a)

    @property
    def stats_b(self) -> KVTransferStats:
        return self._stats(self.b)

    def _stats(self, harness: Harness) -> KVTransferStats:
        assert harness.core._transfers is not None
        return harness.core._transfers.stats

    def assert_nothing_left(self) -> None:
        """No block held, nobody waiting, nothing kept."""
        self.until(lambda: self.stats_a.num_kept == 0)
        for harness in (self.a, self.b):
            assert harness.core.idle
            assert harness.core.scheduler.pool.usage == 0
            assert harness.core._transfers is not None
            assert len(harness.core._transfers.pulls) == 0
            assert harness.core._transfers.pulls._buffered == 0
