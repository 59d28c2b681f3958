"""What the installed vLLM can do, seen from its signatures and fields; no version number is looked at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenwire.engine.base import Capabilities
from tokenwire.engine.control import (
    CollectiveRpc,
    Control,
    Describe,
    IsSleeping,
    KvEventSources,
    LoadAdapter,
    Pause,
    Profile,
    ReleaseKvCache,
    ResetEncoderCache,
    ResetMediaCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    UnloadAdapter,
    WakeUp,
    WeightTransfer,
)
from tokenwire.errors import UnsupportedFeatureError

_METHODS: dict[type[Control], str] = {
    Pause: "pause_generation",
    Resume: "resume_generation",
    ResetPrefixCache: "reset_prefix_cache",
    ResetMediaCache: "reset_mm_cache",
    ResetEncoderCache: "reset_encoder_cache",
    Sleep: "sleep",
    WakeUp: "wake_up",
    ReleaseKvCache: "release_kv_cache_memory",
    IsSleeping: "is_sleeping",
    LoadAdapter: "add_lora",
    UnloadAdapter: "remove_lora",
    CollectiveRpc: "collective_rpc",
    Profile: "start_profile",
    KvEventSources: "get_kv_event_sources",
    WeightTransfer: "collective_rpc",
    Describe: "vllm_config",
}
"""Message -> the attribute of AsyncLLM without which it cannot be carried out."""
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
        controls=controls_of(engine),
    )


def flag(config: Any, name: str) -> bool:
    """A boolean that has stood in different sections of vLLM's configuration."""
    sections = [config, *(value for value in vars(config).values() if hasattr(value, "__dict__"))]
    return any(bool(getattr(section, name, False)) for section in sections)


def controls_of(engine: Any) -> frozenset[str]:
    """Tags of what this engine can carry out: the method is there, and the flag that it needs was given."""
    config = engine.vllm_config
    missing: set[type[Control]] = set()
    if getattr(config, "lora_config", None) is None:
        missing |= {LoadAdapter, UnloadAdapter}
    if not flag(config, "enable_sleep_mode"):
        missing.add(ReleaseKvCache)
    profiler = getattr(config, "profiler_config", None)
    if profiler is not None and getattr(profiler, "profiler", None) is None:
        missing.add(Profile)
    return frozenset(tag_of(k) for k, name in _METHODS.items() if hasattr(engine, name) and k not in missing)


def tag_of(kind: type[Control]) -> str:
    return str(kind.__struct_config__.tag)
