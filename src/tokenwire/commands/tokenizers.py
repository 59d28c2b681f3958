"""Which tokenizer a server loads, if any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tokenwire.settings import ModelSettings, SettingsError

if TYPE_CHECKING:
    from tokenwire.render.tokenizer import Tokenizer


Progress = Callable[[str, float], None]
"""Told what is being done, and the fraction done, 0..1."""


def wants_tokenizer(model: ModelSettings) -> bool:
    """The null engine and remote workers have none unless one is named."""
    if model.tokens_only or model.skip_tokenizer_init:
        return False
    return model.engine in ("local", "vllm") or model.tokenizer is not None


async def load_tokenizer(model: ModelSettings, folder: Path | None) -> Tokenizer | None:
    """The tokenizer that `--tokenizer` names, else the one beside the weights in `folder`; None if none is wanted.

    Raises `SettingsError` when there is none to load.
    """
    if not wants_tokenizer(model):
        return None
    path = folder if model.tokenizer is None else Path(model.tokenizer)
    assert path is not None
    return await asyncio.to_thread(_load, path)


HUB_FILES = ["*.json", "*.jinja", "tokenizer*", "tekken*", "additional_chat_templates/*"]
"""What rendering may need of a model on the hub: everything but weights."""


def tokenizer_folder(model: str, progress: Progress) -> Path:
    """Where the tokenizer of `model` lies, for a server without an engine: no weights, no config.json needed.

    A folder or a tokenizer file is taken as it is; a hub name is downloaded without its weights. Blocks. Raises
    `SettingsError`.
    """
    path = Path(model).expanduser()
    if path.exists():
        return path
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
        raise SettingsError(f"model={model!r} does not exist.")
    from huggingface_hub import snapshot_download

    progress(f"downloading the tokenizer of {model}", 0.0)
    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except Exception as exc:  # the hub client raises many kinds, for names and for networks alike
        raise SettingsError(f"model={model!r} could not be fetched from the hub: {exc}") from exc


def _load(path: Path) -> Tokenizer:
    from tokenwire.render.tokenizer import Tokenizer, TokenizerLoadError

    try:
        return Tokenizer.load(path.expanduser())
    except TokenizerLoadError as exc:
        raise SettingsError(f"{exc} Serve ids only with --skip-tokenizer-init.") from exc
