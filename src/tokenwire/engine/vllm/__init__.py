"""vLLM in this process behind the engine interface. Importing this package does not import vLLM."""

from tokenwire.engine.vllm.engine import VllmEngine, VllmOptions

__all__ = ["VllmEngine", "VllmOptions"]
