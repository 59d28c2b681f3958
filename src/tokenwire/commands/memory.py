"""Giving memory back to the system once a process has started."""

from __future__ import annotations

import ctypes
import gc
import sys

OBJECTS_PER_COLLECTION = 20_000
"""New objects that live at once before the youngest are looked through; Python's own 700 are a few replies."""


def release_start_up_memory() -> None:
    """Return to the system what was only needed to load: the parsed text of a vocabulary is several times its tables.

    glibc keeps freed memory for later, which a front end never asks for: with a vocabulary of 200,000 tokens that would
    be 170 MB for as long as it lives. What start-up has made lives on, so collections need not look through it again;
    and requests leave hardly any cycles behind, so collections may be rare.
    Does nothing where the C library has no `malloc_trim`.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
