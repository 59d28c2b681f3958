"""LoRA adapters by name. vLLM knows them by number, and caches prompts by name and path.

Every load gets a number and a name of its own, so that a name which is loaded again, with other weights, finds nothing
in the prefix cache that the old ones computed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tokenwire.engine.control import LoadAdapter
from tokenwire.engine.vllm.errors import adapter_errors
from tokenwire.errors import ModelNotFoundError


class Adapters:
    """The adapters of one AsyncLLM."""

    def __init__(self, engine: Any, is_used: Callable[[Any], bool]) -> None:
        """`is_used`: does a running request use this LoRARequest?"""
        self._engine = engine
        self._is_used = is_used
        self._loaded: dict[str, Any] = {}
        self._serial = itertools.count(1)

    def find(self, name: str) -> Any:
        """vLLM's LoRARequest of a loaded adapter. Raises `ModelNotFoundError`."""
        if name not in self._loaded:
            raise ModelNotFoundError(name, list(self._loaded))
        return self._loaded[name]

    async def load(self, message: LoadAdapter) -> None:
        """Load, or replace what has the name: requests that run keep the old one."""
        from vllm.lora.request import LoRARequest

        number = next(self._serial)
        options = {"is_3d_lora_weight": True} if message.is_3d_lora_weight else {}
        adapter = LoRARequest(
            lora_name=f"{message.name}@{number}", lora_int_id=number, lora_path=message.path, **options
        )
        with adapter_errors(message.path):
            await self._engine.add_lora(adapter)
        old, self._loaded[message.name] = self._loaded.get(message.name), adapter
        if old is not None:
            await self._drop(old)

    async def unload(self, name: str) -> None:
        adapter = self.find(name)
        del self._loaded[name]
        await self._drop(adapter)

    async def _drop(self, adapter: Any) -> None:
        """Free its memory, unless a running request uses it: vLLM would read its files again for the next step. Such a
        one is left to vLLM, which drops the adapter used least recently when it needs room."""
        if not self._is_used(adapter):
            await self._engine.remove_lora(adapter.lora_int_id)
