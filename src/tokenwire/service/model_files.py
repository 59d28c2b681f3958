"""What the files beside a tokenizer say about the model: its type, its context, its sampling defaults.

For servers without an engine, which has read the same files. Every file is optional; one that cannot be read counts
as absent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tokenwire.engine.model_config import CONTEXT_KEYS, SAMPLING_KEYS


@dataclass(slots=True, frozen=True, kw_only=True)
class ModelFiles:
    """Lengths in tokens; None where no file says so."""

    model_type: str | None = None
    max_model_len: int | None = None
    sampling_defaults: dict[str, Any] = field(default_factory=dict)
    """Under sampling_params names."""


def read_model_files(folder: Path, *, generation_config: str = "auto") -> ModelFiles:
    """`generation_config`: "auto" (in `folder`), "vllm" (none), or another folder."""
    config = _read(folder / "config.json")
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else config
    lengths = [text[key] for key in CONTEXT_KEYS if isinstance(text.get(key), int)]
    model_type = config.get("model_type")
    return ModelFiles(
        model_type=model_type if isinstance(model_type, str) else None,
        max_model_len=min(lengths) if lengths else None,
        sampling_defaults=_sampling(folder, generation_config),
    )


def _sampling(folder: Path, source: str) -> dict[str, Any]:
    if source == "vllm":
        return {}
    config = _read((folder if source == "auto" else Path(source)) / "generation_config.json")
    chosen = {key: config[key] for key in SAMPLING_KEYS if config.get(key) is not None}
    if config.get("do_sample") is False:
        chosen.pop("temperature", None)
    if "max_new_tokens" in chosen:
        chosen["max_tokens"] = chosen.pop("max_new_tokens")
    return chosen


def _read(file: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return value if isinstance(value, dict) else {}
