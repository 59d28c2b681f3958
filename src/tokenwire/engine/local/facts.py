"""What a model folder says about itself: vocabulary, context, EOS ids, default sampling. JSON only, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.model_config import CONTEXT_KEYS, SAMPLING_KEYS
from tokenwire.errors import EngineUnavailableError

FALLBACK_CONTEXT = 2048
FULL_ATTENTION = frozenset({"full_attention", "sliding_attention"})


@dataclass(slots=True, frozen=True)
class ModelFacts:
    """Lengths in tokens. The first EOS id is the primary one, which stops without a stop_reason."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    default_sampling_params: dict[str, Any]
    is_encoder_decoder: bool


def read_facts(folder: Path, options: LocalEngineOptions) -> ModelFacts:
    """Raises `EngineUnavailableError` when the options ask for what the model cannot do."""
    config = _read(folder / "config.json")
    text = config.get("text_config") or config
    generation = _generation_config(folder, options)
    return ModelFacts(
        vocab_size=int(text["vocab_size"]),
        max_model_len=_max_model_len(text, options.max_model_len),
        eos_token_ids=_eos_ids(folder, text, generation),
        default_sampling_params=_default_sampling(generation, options),
        is_encoder_decoder=bool(config.get("is_encoder_decoder")),
    )


def check_folder(folder: Path, options: LocalEngineOptions) -> None:
    """Raise what starting a core would raise after seconds, as far as JSON can tell."""
    refuse_unsupported(folder)
    read_facts(folder, options)


def refuse_unsupported(folder: Path) -> None:
    """Raise `EngineUnavailableError` for a model whose layers the engine cannot run."""
    config = _read(folder / "config.json")
    text = config.get("text_config") or config
    if config.get("is_encoder_decoder"):
        raise EngineUnavailableError(f"The local engine runs decoder-only models; {_name(config)} has an encoder.")
    strange = sorted(set(text.get("layer_types") or ()) - FULL_ATTENTION)
    if strange:
        raise EngineUnavailableError(
            f"The local engine cannot run {_name(config)}: its layers use {', '.join(strange)}. "
            "Serve it with the vllm engine."
        )


def _name(config: Mapping[str, Any]) -> str:
    return ", ".join(config.get("architectures") or ()) or str(config.get("model_type"))


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _generation_config(folder: Path, options: LocalEngineOptions) -> dict[str, Any]:
    source = options.generation_config
    if source == "vllm":
        config: dict[str, Any] = {}
    else:
        config = _read((folder if source == "auto" else Path(source)) / "generation_config.json")
    return config | options.override_generation_config


def _default_sampling(generation: Mapping[str, Any], options: LocalEngineOptions) -> dict[str, Any]:
    chosen = {key: generation[key] for key in SAMPLING_KEYS if generation.get(key) is not None}
    if generation.get("do_sample") is False and "temperature" not in options.override_generation_config:
        chosen.pop("temperature", None)
    if "max_new_tokens" in chosen:
        chosen["max_tokens"] = chosen.pop("max_new_tokens")
    return chosen


def _max_model_len(text: Mapping[str, Any], asked: int | None) -> int:
    known = [int(text[key]) for key in CONTEXT_KEYS if isinstance(text.get(key), int)]
    limit = min(known) if known else None
    if asked is None:
        return limit or FALLBACK_CONTEXT
    if limit is not None and asked > limit:
        raise EngineUnavailableError(f"max_model_len={asked} is longer than the model's context of {limit} tokens.")
    return asked


def _eos_ids(folder: Path, text: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[int, ...]:
    """The tokenizer's EOS first, as in vLLM, then those of the generation config; else those of the config."""
    primary = _tokenizer_eos(folder)
    ids = [primary] if primary is not None else []
    ids += _id_list(generation.get("eos_token_id"))
    if not ids:
        ids = _id_list(text.get("eos_token_id"))
    return tuple(dict.fromkeys(ids))


def _id_list(value: object) -> list[int]:
    if isinstance(value, int):
        return [value]
    return [v for v in value if isinstance(v, int)] if isinstance(value, list) else []


def _tokenizer_eos(folder: Path) -> int | None:
    token = _read(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    if not isinstance(token, str) or not (folder / "tokenizer.json").exists():
        return None
    tokenizer = _read(folder / "tokenizer.json")
    for added in tokenizer.get("added_tokens") or ():
        if added["content"] == token:
            return int(added["id"])
    vocab = (tokenizer.get("model") or {}).get("vocab")
    return int(vocab[token]) if isinstance(vocab, dict) and token in vocab else None
