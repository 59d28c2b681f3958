"""Which tokenizer a server loads, if any."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from tokenwire.settings import ModelSettings, SettingsError

if TYPE_CHECKING:
    from tokenwire.render.tokenizer import Tokenizer


def wants_tokenizer(model: ModelSettings) -> bool:
    """The null engine has none unless one is named."""
    if model.tokens_only or model.skip_tokenizer_init:
        return False
    return model.engine == "local" or model.tokenizer is not None


async def load_tokenizer(model: ModelSettings, folder: Path | None) -> Tokenizer | None:
    """The tokenizer that `--tokenizer` names, else the one beside the weights in `folder`; None if none is wanted.

    Raises `SettingsError` when there is none to load.
    """
    if not wants_tokenizer(model):
        return None
    path = folder if model.tokenizer is None else Path(model.tokenizer)
    assert path is not None
    return await asyncio.to_thread(_load, path)


def _load(path: Path) -> Tokenizer:
    from tokenwire.render.tokenizer import Tokenizer, TokenizerLoadError

    try:
        return Tokenizer.load(path.expanduser())
    except TokenizerLoadError as exc:
        raise SettingsError(f"{exc} Serve ids only with --skip-tokenizer-init.") from exc
