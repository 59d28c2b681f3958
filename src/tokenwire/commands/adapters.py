"""Adapters that the settings name, loaded once the engine is up and before the first request."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenwire.engine.control import LoadAdapter
from tokenwire.errors import TokenwireError
from tokenwire.server.context import Server
from tokenwire.settings import AdapterSettings, SettingsError


class LoraModule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One item of --lora-modules."""

    name: str
    path: str
    base_model_name: str | None = None
    is_3d_lora_weight: bool = False


def lora_modules(adapters: AdapterSettings) -> list[LoraModule]:
    """The items, each `name=path` or a JSON object. Raises `SettingsError`."""
    return [_module(text) for text in adapters.lora_modules]


def _module(text: str) -> LoraModule:
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text, type=LoraModule)
        except msgspec.DecodeError as exc:
            raise SettingsError(f"--lora-modules {text}: {exc}") from exc
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise SettingsError(f"--lora-modules takes NAME=PATH or a JSON object with name and path, got {text!r}.")
    return LoraModule(name=name, path=path)


async def load_adapters(server: Server) -> None:
    """Raises `SettingsError` for one that cannot be loaded, in the engine's words."""
    adapters = server.settings.adapters
    wanted: list[tuple[LoraModule, dict[str, Any]]] = [
        (module, {"parent": module.base_model_name}) for module in lora_modules(adapters)
    ]
    for modality, path in adapters.default_mm_loras.items():
        wanted.append((LoraModule(name=modality, path=str(path)), {"modality": modality}))
    if not wanted or server.engine is None or server.adapters is None:
        return
    if LoadAdapter.__struct_config__.tag not in server.engine.info.capabilities.controls:
        raise SettingsError(f"The {server.engine.info.name} engine takes no adapters; leave --lora-modules out.")
    for module, options in wanted:
        try:
            await server.adapters.load(module.name, module.path, is_3d_lora_weight=module.is_3d_lora_weight, **options)
        except TokenwireError as exc:
            raise SettingsError(f"The adapter '{module.name}' cannot be loaded: {exc}") from exc
