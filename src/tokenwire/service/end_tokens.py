"""Which tokens end an answer of this model: what a server without an engine reads beside its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

FILES = ("generation_config.json", "config.json")


def eos_token_ids(folder: Path, eos_token_id: int | None) -> frozenset[int]:
    """The tokenizer's own EOS and those that the model's configuration names; unreadable files name none."""
    found = {eos_token_id} if eos_token_id is not None else set()
    for name in FILES:
        found |= _named_in(folder / name)
    return frozenset(found)


def _named_in(file: Path) -> set[int]:
    try:
        config: Any = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return set()
    value = config.get("eos_token_id") if isinstance(config, dict) else None
    values = value if isinstance(value, list) else [value]
    return {token_id for token_id in values if isinstance(token_id, int) and not isinstance(token_id, bool)}
