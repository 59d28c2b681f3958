"""The dialects that workers speak, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tokenwire.engine.remote.dialects.base import Call, Dialect, Reader, WorkerFacts
from tokenwire.engine.remote.dialects.llamacpp import LlamaCpp
from tokenwire.engine.remote.dialects.scale_out import ScaleOut
from tokenwire.engine.remote.dialects.sglang import SGLang

__all__ = ["DIALECTS", "Call", "Dialect", "Reader", "WorkerFacts"]

DIALECTS: Mapping[str, type[Dialect]] = {"scale-out": ScaleOut, "sglang": SGLang, "llamacpp": LlamaCpp}
