"""The built-in engine: PyTorch on CPU or CUDA, in a process of its own. This side of it imports no torch."""

from tokenwire.engine.local.engine import LocalEngine
from tokenwire.engine.local.models import cache_dir, prepare_model
from tokenwire.engine.local.options import LocalEngineOptions

__all__ = ["LocalEngine", "LocalEngineOptions", "cache_dir", "prepare_model"]
