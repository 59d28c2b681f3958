"""What the installed vLLM can do, seen from its signatures and fields; no version number is looked at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.engine.base import (
    Capabilities,
    CollectiveRpc,
    LoadAdapter,
    Pause,
    ResetPrefixCache,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
    WeightTransfer,
)
from tokenwire.errors import UnsupportedFeatureError

_METHODS = {
    Pause: "pause_generation",
    Resume: "resume_generation",
    ResetPrefixCache: "reset_prefix_cache",
    Sleep: "sleep",
    WakeUp: "wake_up",
    LoadAdapter: "add_lora",
    UnloadAdapter: "remove_lora",
    CollectiveRpc: "collective_rpc",
}
WEIGHT_ACTIONS = frozenset(
    {
        *("init_weight_transfer_engine", "shutdown_weight_transfer_engine", "start_weight_update"),
        *("start_draft_weight_update", "update_weights", "finish_weight_update", "update_weight_version"),
        *("weight_info", "weight_checker", "get_world_size"),
    }
)
STRUCTURED_KINDS = frozenset({"json", "regex", "choice", "grammar", "json_object", "structural_tag"})


def accepts(function: Callable[..., Any]) -> frozenset[str]:
    """Names of the parameters that a function takes."""
    return frozenset(inspect.signature(function).parameters)


def fields_of(struct: Any) -> frozenset[str]:
    """Fields of vLLM's parameter classes, which are msgspec Structs or dataclasses."""
    names: Iterable[str] = getattr(struct, "__struct_fields__", ()) or getattr(struct, "__dataclass_fields__", ())
    return frozenset(names)


@dataclass(slots=True, frozen=True)
class Support:
    """Names that vLLM's entry points know."""

    generate: frozenset[str]
    """Parameters of `AsyncLLM.generate`."""
    sampling: frozenset[str]
    """Fields of its SamplingParams."""

    @staticmethod
    def of(engine: Any, sampling_params: Any) -> Support:
        return Support(accepts(engine.generate), fields_of(sampling_params))

    def keep(self, wanted: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Arguments for `generate`, without those that are None. Raises for one that this vLLM does not take."""
        kept = {name: value for name, value in wanted.items() if value is not None}
        for name, value in kept.items():
            if name not in self.generate:
                raise UnsupportedFeatureError(name, value=value, where=where, way_out="Upgrade vLLM or leave it out.")
        return kept


def capabilities(engine: Any, support: Support) -> Capabilities:
    """What this engine, with its model and flags, can be asked for."""
    config = engine.vllm_config
    model = config.model_config
    has_tokenizer = not getattr(model, "skip_tokenizer_init", False)
    multimodal = bool(getattr(model, "is_multimodal_model", False))
    return Capabilities(
        logprob_token_ids="logprob_token_ids" in support.sampling,
        prompt_logprobs=True,
        prompt_logprob_token_ids="prompt_logprob_token_ids" in support.sampling,
        structured_outputs=STRUCTURED_KINDS if has_tokenizer else frozenset(),
        bad_words=has_tokenizer,
        repetition_detection="repetition_detection" in support.sampling,
        trace_decode="trace_decode_token_ids" in support.sampling,
        thinking_token_budget="thinking_token_budget" in support.sampling,
        watermarking="watermarking" in support.sampling,
        routed_experts=flag(config, "enable_return_routed_experts"),
        sampling_mask=flag(config, "return_sampling_mask"),
        priority=getattr(config.scheduler_config, "policy", "fcfs") == "priority",
        cache_salt=True,
        adapters=getattr(config, "lora_config", None) is not None,
        modalities=frozenset({"image", "audio", "video"}) if multimodal else frozenset(),
        content_parts=multimodal,
        kv_transfer=getattr(config, "kv_transfer_config", None) is not None,
        ec_transfer=getattr(config, "ec_transfer_config", None) is not None,
        data_parallel_size=config.parallel_config.data_parallel_size,
        extra_args=True,
        controls=_controls(engine),
    )


def flag(config: Any, name: str) -> bool:
    """A boolean that has stood in different sections of vLLM's configuration."""
    sections = [config, *(value for value in vars(config).values() if hasattr(value, "__dict__"))]
    return any(bool(getattr(section, name, False)) for section in sections)


def _controls(engine: Any) -> frozenset[str]:
    kinds = [kind for kind, method in _METHODS.items() if hasattr(engine, method)]
    kinds += [WeightTransfer] if hasattr(engine, "init_weight_transfer_engine") else []
    return frozenset(str(kind.__struct_config__.tag) for kind in kinds)
