"""Blocks that are kept for other engines: held in the pool until they have been pulled, or their time is over.

The core's thread keeps and releases; the server's threads read. A block that is being read is not released: an export
that ends early is cut first, and its blocks go when the last reader has left.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tokenwire.engine.local.blocks import BlockPool
from tokenwire.engine.local.transfer.framing import DIGEST_BYTES


@dataclass(slots=True, eq=False)
class Export:
    """Full blocks of one sequence, from its first on."""

    request_id: str
    blocks: list[int]
    hashes: list[bytes]
    weight_version: str
    deadline: float
    """On the monotonic clock; a pull that has begun by then is finished."""
    num_readers: int = 0
    ended: bool = False
    """Nobody may begin to read, and those who read must stop."""
    pulled: bool = False

    def num_matching(self, first: int, hashes: bytes) -> int:
        """How many of the asked hashes are those of the blocks from `first` on."""
        mine = b"".join(self.hashes[first:]) if first >= 0 else b""
        count = 0
        for at in range(0, min(len(mine), len(hashes)), DIGEST_BYTES):
            if mine[at : at + DIGEST_BYTES] != hashes[at : at + DIGEST_BYTES]:
                break
            count += 1
        return count


@dataclass(slots=True)
class ExportCounts:
    """Only grow."""

    kept: int = 0
    pulled: int = 0
    expired: int = 0
    dropped: int = 0
    """Ended early: for room, or because the cache was cleared."""
    bytes_sent: int = 0


@dataclass(slots=True)
class Exports:
    """By request id. `ttl_s` counts from the end of the prompt's request."""

    pool: BlockPool
    ttl_s: float
    counts: ExportCounts = field(default_factory=ExportCounts)
    _by_id: dict[str, Export] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._by_id)

    # --- the core's thread ----------------------------------------------------------------------------------------

    def keep(self, blocks: Sequence[int], hashes: Sequence[bytes], weight_version: str) -> str:
        """Hold blocks under a new id, which nobody can guess. Without blocks there is nothing to hold."""
        request_id = secrets.token_hex(16)
        if not blocks:
            return request_id
        self.pool.hold(blocks)
        export = Export(request_id, list(blocks), list(hashes), weight_version, time.monotonic() + self.ttl_s)
        with self._lock:
            self._by_id[request_id] = export
            self.counts.kept += 1
        return request_id

    def settle(self) -> bool:
        """Release what has been pulled or has expired; whether anything was."""
        now = time.monotonic()
        gone = []
        with self._lock:
            for export in self._by_id.values():
                if not export.ended and export.num_readers == 0 and now >= export.deadline:
                    export.ended = True
                    self.counts.expired += 1
                if export.ended and export.num_readers == 0:
                    gone.append(export)
            for export in gone:
                del self._by_id[export.request_id]
        for export in gone:
            self.pool.release(export.blocks)
        return bool(gone)

    def drop_oldest(self) -> None:
        """End the export that has waited longest, of those that nobody reads."""
        with self._lock:
            for export in self._by_id.values():
                if not export.ended and export.num_readers == 0:
                    self._drop(export)
                    return

    def drop_all(self) -> None:
        """End all, also those being read."""
        with self._lock:
            for export in self._by_id.values():
                if not export.ended:
                    self._drop(export)

    def _drop(self, export: Export) -> None:
        export.ended = True
        self.counts.dropped += 1

    # --- the server's threads -------------------------------------------------------------------------------------

    def open(self, request_id: str) -> Export | None:
        """Begin to read; None if there is no such export. `close` must follow."""
        with self._lock:
            export = self._by_id.get(request_id)
            if export is None or export.ended:
                return None
            export.num_readers += 1
            return export

    def close(self, export: Export, *, pulled: bool, num_bytes: int = 0) -> None:
        """Read no more; `pulled`: it is not needed any longer."""
        with self._lock:
            export.num_readers -= 1
            self.counts.bytes_sent += num_bytes
            if pulled and not export.ended:
                export.ended = True
                self.counts.pulled += 1
