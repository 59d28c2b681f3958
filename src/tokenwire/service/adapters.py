"""Adapters under the names that requests use: loaded first, then named; forgotten the other way round."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict

from tokenwire.engine.base import Engine
from tokenwire.engine.control import LoadAdapter, UnloadAdapter
from tokenwire.errors import AdapterNotFoundError, InvalidRequestError
from tokenwire.service.models import Adapter, ModelRegistry

logger = logging.getLogger(__name__)


class AdapterService:
    """Loads and unloads; two calls for one name never cross."""

    def __init__(self, engine: Engine, models: ModelRegistry) -> None:
        self._engine = engine
        self._models = models
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def load(
        self,
        name: str,
        path: str,
        *,
        replace: bool = False,
        is_3d_lora_weight: bool = False,
        parent: str | None = None,
        modality: str | None = None,
    ) -> None:
        """Requests may name it once this returns. `modality`: prompts with this medium use it without naming it.

        Raises `InvalidRequestError` for a name that is taken, unless `replace` says so of an adapter's, and
        `AdapterNotFoundError` when nothing is stored at `path`.
        """
        if name in self._models.served_names:
            raise InvalidRequestError(f"'{name}' is a served model; give the adapter another name.", param="lora_name")
        async with self._locks[name]:
            known = {adapter.name for adapter in self._models.adapters()}
            if name in known and not replace:
                raise InvalidRequestError(
                    f"The LoRA adapter '{name}' is loaded already. Unload it first, or set load_inplace to true.",
                    param="lora_name",
                )
            await self._engine.control(
                LoadAdapter(name=name, path=path, load_inplace=name in known, is_3d_lora_weight=is_3d_lora_weight)
            )
            self._models.add(Adapter(name, path, parent=parent or self._models.name, modality=modality))
            logger.info("Loaded the LoRA adapter '%s' from %s", name, path)

    async def unload(self, name: str) -> None:
        """New requests for it are refused from here on. Raises `AdapterNotFoundError`."""
        async with self._locks[name]:
            if name not in {adapter.name for adapter in self._models.adapters()}:
                raise AdapterNotFoundError(f"The LoRA adapter '{name}' is not loaded.", param="lora_name")
            adapter = self._models.remove(name)
            try:
                await self._engine.control(UnloadAdapter(name=name))
            except BaseException:
                self._models.add(adapter)
                raise
            logger.info("Unloaded the LoRA adapter '%s'", name)
