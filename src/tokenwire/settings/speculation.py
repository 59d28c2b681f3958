"""Speculative decoding from the settings: our flags and vLLM's `--speculative-config` say the same in two ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenwire.settings.groups import EngineSettings
from tokenwire.settings.option import SettingsError

_FLAG = "--speculative-config"
_NUMBERS = ("num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_MOST_TOKENS = 64


@dataclass(slots=True, frozen=True)
class PromptLookup:
    """Numbers of tokens."""

    num_speculative_tokens: int
    lookup_min: int
    lookup_max: int


def prompt_lookup(engine: EngineSettings) -> PromptLookup | None:
    """What the built-in engine is to do; None: one token a step. Keys of the JSON object win over flags.

    Raises `SettingsError` for another method, an unknown key or sizes that cannot be.
    """
    config = engine.speculative_config
    if not config and engine.speculative == "none":
        return None
    if config:
        _check_config(config)
    count = config.get("num_speculative_tokens") or engine.num_speculative_tokens
    given = [config[name] for name in ("prompt_lookup_min", "prompt_lookup_max") if config.get(name)]
    # vLLM's rule: one of them alone stands for both.
    shortest, longest = (given[0], given[-1]) if given else (engine.ngram_min, engine.ngram_max)
    if shortest > longest:
        name = "prompt_lookup" if given else "ngram"
        raise SettingsError(f"{name}_min={shortest} must be at most {name}_max={longest}.")
    return PromptLookup(count, shortest, longest)


def as_vllm_config(engine: EngineSettings) -> dict[str, Any]:
    """The JSON object for vLLM itself, which knows more methods; empty without speculation."""
    if engine.speculative_config or engine.speculative == "none":
        return engine.speculative_config
    return {
        "method": "ngram",
        "num_speculative_tokens": engine.num_speculative_tokens,
        "prompt_lookup_min": engine.ngram_min,
        "prompt_lookup_max": engine.ngram_max,
    }


def _check_config(config: dict[str, Any]) -> None:
    method = config.get("method") or config.get("model")  # vLLM reads a model named ngram as the method
    if method not in ("ngram", "[ngram]"):
        raise SettingsError(f"{_FLAG} has method {method!r}; the built-in engine knows ngram. See --engine vllm.")
    unknown = sorted(set(config) - {"method", "model", *_NUMBERS})
    if unknown:
        raise SettingsError(f"{_FLAG} has {', '.join(unknown)}, and ngram has method, {', '.join(_NUMBERS)}.")
    for name in _NUMBERS:
        value = config.get(name)
        if value is not None and (type(value) is not int or not value >= 1):
            raise SettingsError(f"{_FLAG}: {name} must be a whole number of at least 1, got {value!r}.")
    if (config.get("num_speculative_tokens") or 1) > _MOST_TOKENS:
        raise SettingsError(
            f"{_FLAG}: num_speculative_tokens must be at most {_MOST_TOKENS}, got {config['num_speculative_tokens']}."
        )
