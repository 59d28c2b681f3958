"""From settings to a server that serves: tokenizer and engine brought up side by side, then put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tokenwire.commands.adapters import load_adapters
from tokenwire.commands.tokenizers import load_tokenizer, tokenizer_folder, wants_tokenizer
from tokenwire.engine.base import Engine
from tokenwire.server.build import build_server
from tokenwire.server.context import Server
from tokenwire.service.admission import Admission
from tokenwire.settings import Settings

Progress = Callable[[str, float], None]


async def open_server(
    settings: Settings, engine: Engine | None, folder: Path | None, *, admission: Admission | None = None
) -> Server:
    """Load the tokenizer in `folder` (see `model_folder`), start the engine, build the server, load adapters."""
    tokenizer, _ = await asyncio.gather(load_tokenizer(settings.model, folder), _start(engine))
    name = _default_name(settings)
    server = build_server(settings, engine, tokenizer=tokenizer, model_name=name, admission=admission)
    await load_adapters(server)
    return server


async def model_folder(settings: Settings, progress: Progress, *, with_engine: bool) -> Path | None:
    """Where the tokenizer beside the weights lies, made or fetched if need be; None if none is wanted from there."""
    model = settings.model
    if not wants_tokenizer(model) or model.tokenizer is not None:
        return None
    own_weights = with_engine and model.engine == "local"
    return await asyncio.to_thread(_model_folder, model.model, progress, with_weights=own_weights)


def _model_folder(model: str | None, progress: Progress, *, with_weights: bool) -> Path:
    if not with_weights and model is not None:
        return tokenizer_folder(model, progress)
    from tokenwire.engine.local.models import prepare_model

    return prepare_model(model, progress=progress)


def _default_name(settings: Settings) -> str | None:
    """What the model is called when nobody named one: not the folder where it happens to be cached."""
    if settings.model.engine != "local":
        return None
    from tokenwire.engine.local.models import DEFAULT_MODEL

    return DEFAULT_MODEL


async def _start(engine: Engine | None) -> None:
    if engine is not None:
        await engine.start()
