"""KV blocks: who holds which, and which hold a known prefix. Knows ids and hashes, no tensors.

A full block is known by a hash that chains over all tokens before it, so equal hash means equal prefix. Blocks that
nobody holds stay known until their memory is needed, least recently used first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import numpy as np

from tokenwire.wire.media import MultiModalFeatures


def root_hash(cache_salt: str | None, adapter: str | None) -> bytes:
    """The hash that stands before block 0. Two prompts share blocks only under the same root."""
    return hashlib.blake2b(repr((cache_salt, adapter)).encode(), digest_size=16).digest()


def block_hash(parent: bytes, token_ids: Sequence[int], media: bytes = b"") -> bytes:
    """The hash of one full block after `parent`; `media` stands for what lies under its placeholder tokens."""
    data = np.asarray(token_ids, dtype="<i4").tobytes()
    return hashlib.blake2b(parent + data + media, digest_size=16).digest()


def media_key(features: MultiModalFeatures | None, start: int, stop: int) -> bytes:
    """What media the tokens start..stop (half open) stand for, with their place in each item."""
    if features is None:
        return b""
    touched = [
        (modality, digest, start - place.offset)
        for modality, places in features.mm_placeholders.items()
        for digest, place in zip(features.mm_hashes[modality], places, strict=True)
        if place.offset < stop and start < place.offset + place.length
    ]
    return repr(sorted(touched)).encode() if touched else b""


class BlockPool:
    """Reference-counted blocks 0..num_blocks-1 with a prefix index."""

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self._references = [0] * num_blocks
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, known ones included."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """Fraction of blocks held, 0..1."""
        return 1.0 - len(self._free) / self.num_blocks

    def allocate(self, count: int) -> list[int]:
        """`count` blocks with unknown content, held once. The caller has checked `num_free`."""
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known run of `hashes`; holds nothing."""
        found = []
        for digest in hashes:
            block = self._by_hash.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def num_free_without(self, blocks: Sequence[int]) -> int:
        """How many blocks `allocate` could give after these have been held."""
        return len(self._free) - sum(1 for block in blocks if self._references[block] == 0)

    def hold(self, blocks: Sequence[int]) -> None:
        """One more holder for each."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One holder less. Give a sequence's blocks in order: its tail is reused first, its start last."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._hashes[block] is None:
                    self._free.move_to_end(block, last=False)
            assert self._references[block] >= 0, f"block {block} released too often"

    def register(self, block: int, digest: bytes) -> None:
        """`block` is full and holds the prefix `digest`. The first block of a prefix keeps the name."""
        if self.caching and self._hashes[block] is None and digest not in self._by_hash:
            self._hashes[block] = digest
            self._by_hash[digest] = block

    def forget_all(self) -> None:
        """Nothing is known any more; holders keep their blocks."""
        self._by_hash.clear()
        self._hashes = [None] * self.num_blocks

    def _forget(self, block: int) -> None:
        digest = self._hashes[block]
        if digest is not None:
            self._hashes[block] = None
            del self._by_hash[digest]
