"""Random numbers that depend on nothing but (seed, sequence index, position).

One uniform number decides one token. It is a hash of a per-sequence key and the token's position (SplitMix64, a
counter-based generator), so preemption, recomputation and the other rows of a batch change nothing, and no generator
state has to be kept or rolled back.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def stream_key(seed: int | None, index: int) -> int:
    """The 64-bit key of sequence `index` of a request; without a seed it comes from the operating system.

    Any Python int is a seed, negative ones included; seeds that are equal modulo 2**64 are the same seed.
    """
    if seed is None:
        return secrets.randbits(64)
    return _mix(_mix((seed + _GOLDEN) & _MASK) ^ _mix((index * _GOLDEN + _MIX_1) & _MASK))


def derived_seed(seed: int, number: int) -> int:
    """The seed of the request `number` of a server that has one seed for all; the same on every start."""
    return _mix((_mix((seed + _GOLDEN) & _MASK) + number) & _MASK)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def uniforms(keys: Sequence[int], positions: Sequence[int]) -> NDArray[np.float64]:
    """One number in the open interval (0, 1) per (key, position), with 52 random bits."""
    state = np.array(keys, dtype=np.uint64)
    steps = np.array(positions, dtype=np.uint64)
    with np.errstate(over="ignore"):
        state = state + (steps + np.uint64(1)) * np.uint64(_GOLDEN)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(_MIX_1)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(_MIX_2)
        state = state ^ (state >> np.uint64(31))
    # Half a step up keeps zero out: a draw of exactly zero could choose an id of probability zero.
    return ((state >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
