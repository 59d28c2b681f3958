"""Engine names to engines. Nothing heavy is imported before the name is known."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tokenwire.engine.base import Engine
from tokenwire.engine.replicas import ReplicaEngine
from tokenwire.server.build import message_format
from tokenwire.settings import Settings, SettingsError
from tokenwire.settings.speculation import as_vllm_config, prompt_lookup

if TYPE_CHECKING:
    from tokenwire.engine.local.options import LocalEngineOptions

Progress = Callable[[str, float], None]


def make_engine(settings: Settings, progress: Progress) -> Engine:
    """The engine that `--engine` names, with its replicas, not started. Raises `SettingsError` with what to install."""
    return _ENGINES[settings.model.engine](settings, progress)


def _require(engine: str, extra: str, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"--engine {engine} needs {', '.join(missing)}. Install it with: pip install 'tokenwire[{extra}]'"
        )


def _local(settings: Settings, progress: Progress) -> Engine:
    from tokenwire.engine.local.engine import LocalEngine
    from tokenwire.engine.local.options import of_replica

    options, size = local_options(settings), settings.engine.data_parallel_size
    return _together([LocalEngine(of_replica(options, rank, size), progress=progress) for rank in range(size)])


def _together(replicas: Sequence[Engine]) -> Engine:
    return replicas[0] if len(replicas) == 1 else ReplicaEngine(replicas)


def local_options(settings: Settings) -> LocalEngineOptions:
    """What the settings say to the local engine. Raises `SettingsError` where its packages are not installed."""
    _require("local", "local", ("torch", "transformers", "safetensors"))
    from tokenwire.engine.local.options import LocalEngineOptions, NgramOptions

    model, limits, engine = settings.model, settings.limits, settings.engine
    defaults = LocalEngineOptions()
    reasoning_start, reasoning_end = _reasoning_markers(settings)
    lookup = prompt_lookup(engine)
    return LocalEngineOptions(
        model=model.model,
        dtype=engine.dtype,
        device=engine.device,
        max_model_len=model.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens or defaults.max_num_batched_tokens,
        block_size=engine.block_size,
        num_kv_blocks=engine.num_kv_blocks,
        kv_cache_bytes=engine.kv_cache_memory_bytes,
        scheduling_policy=limits.scheduling_policy,
        enable_prefix_caching=engine.enable_prefix_caching,
        max_logprobs=limits.max_logprobs,
        logprobs_mode=limits.logprobs_mode,
        generation_config=model.generation_config,
        override_generation_config=model.override_generation_config,
        stream_interval=limits.stream_interval,
        return_sampling_mask=settings.output.return_sampling_mask,
        seed=engine.seed,
        num_threads=engine.num_threads,
        restarts=engine.engine_restarts,
        load_timeout_s=engine.load_timeout,
        fused=engine.fused,
        quantization=engine.quantization,
        trust_remote_code=engine.trust_remote_code,
        kv_transfer_port=engine.kv_transfer_port,
        kv_transfer_host=engine.kv_transfer_host,
        kv_transfer_secret=engine.kv_transfer_secret,
        kv_transfer_ttl_s=engine.kv_transfer_ttl,
        kv_transfer_timeout_s=engine.kv_transfer_timeout,
        reasoning_start=reasoning_start,
        reasoning_end=reasoning_end,
        speculative=None if lookup is None else NgramOptions(**dataclasses.asdict(lookup)),
    )


def _reasoning_markers(settings: Settings) -> tuple[str | None, str | None]:
    """Texts around the model's reasoning, by its parser. Harmony's have no single end: its grammars spell them out."""
    format = message_format(settings.chat)
    reasoning = None if format is None else format.reasoning
    if reasoning is None or reasoning.harmony:
        return None, None
    return next(iter(reasoning.start), None), next(iter(reasoning.end), None)


def _null(settings: Settings, progress: Progress) -> Engine:
    from tokenwire.engine.null import NullEngine, NullEngineOptions

    defaults = NullEngineOptions()
    options = NullEngineOptions(
        vocab_size=settings.engine.null_vocab_size,
        max_model_len=settings.model.max_model_len or defaults.max_model_len,
        max_num_seqs=settings.limits.max_num_seqs,
        max_logprobs=settings.limits.max_logprobs,
        step_s=settings.engine.null_step_ms / 1000,
        model=settings.model.model or defaults.model,
    )
    return _together([NullEngine(options) for _ in range(settings.engine.data_parallel_size)])


def _remote(settings: Settings, progress: Progress) -> Engine:
    from tokenwire.engine.remote import RemoteEngine, RemoteOptions

    remote, model = settings.remote, settings.model
    workers = [*remote.worker, *remote.decode_worker]
    if not workers:
        raise SettingsError("--engine remote needs --worker URL, or --prefill-worker URL and --decode-worker URL.")
    try:
        return RemoteEngine(
            RemoteOptions(
                workers=workers,
                prefill_workers=remote.prefill_worker,
                dialect=remote.worker_dialect,
                api_key=remote.worker_api_key,
                model=remote.worker_model,
                tokenizer=model.tokenizer,
                max_model_len=model.max_model_len,
                vocab_size=remote.vocab_size,
                eos_token_ids=[int(text) for text in remote.eos_token_ids] or None,
                prefer_msgpack=remote.worker_msgpack,
                health_interval_s=remote.worker_health_interval,
                start_timeout_s=remote.worker_start_timeout,
                max_attempts=remote.worker_attempts,
            )
        )
    except ValueError as exc:
        raise SettingsError(f"--engine remote: {exc}") from exc


def _vllm(settings: Settings, progress: Progress) -> Engine:
    _require("vllm", "vllm", ("vllm",))
    from tokenwire.engine.vllm import VllmEngine, VllmOptions

    if settings.model.model is None:
        raise SettingsError("--engine vllm needs a MODEL: a folder or a hub name.")
    return VllmEngine(VllmOptions(model=settings.model.model, args=vllm_flags(settings)))


def vllm_flags(settings: Settings) -> list[str]:
    """vLLM's own flags, after ours that mean the same: a flag of vLLM's that is given wins."""
    model, limits, engine, plain = settings.model, settings.limits, settings.engine, Settings()
    flags = [] if model.max_model_len is None else ["--max-model-len", str(model.max_model_len)]
    for flag, value, default in (
        ("--tokenizer", model.tokenizer, None),
        ("--generation-config", model.generation_config, "auto"),
        ("--max-num-seqs", limits.max_num_seqs, plain.limits.max_num_seqs),
        ("--max-num-batched-tokens", limits.max_num_batched_tokens, None),
        ("--max-logprobs", limits.max_logprobs, plain.limits.max_logprobs),
        ("--logprobs-mode", limits.logprobs_mode, plain.limits.logprobs_mode),
        ("--scheduling-policy", limits.scheduling_policy, None),
        ("--stream-interval", limits.stream_interval, plain.limits.stream_interval),
        ("--dtype", engine.dtype, plain.engine.dtype),
        ("--data-parallel-size", engine.data_parallel_size, 1),
        ("--seed", engine.seed, None),
        ("--block-size", engine.block_size, plain.engine.block_size),
        ("--num-gpu-blocks-override", engine.num_kv_blocks, None),
        ("--kv-cache-memory-bytes", engine.kv_cache_memory_bytes, None),
        ("--per-request-spec-decode-metrics", settings.output.per_request_spec_decode_metrics, "none"),
        ("--otlp-traces-endpoint", settings.logs.otlp_traces_endpoint, None),
        ("--max-loras", settings.adapters.max_loras, None),
        ("--max-lora-rank", settings.adapters.max_lora_rank, None),
    ):
        if value != default:
            flags += [flag, str(value)]
    adapters = settings.adapters
    if adapters.enable_lora or adapters.lora_modules or adapters.default_mm_loras:
        flags.append("--enable-lora")
    if model.override_generation_config:
        flags += ["--override-generation-config", json.dumps(model.override_generation_config)]
    if speculation := as_vllm_config(settings.engine):
        flags += ["--speculative-config", json.dumps(speculation)]
    if settings.output.return_sampling_mask:
        flags.append("--return-sampling-mask")
    if not engine.enable_prefix_caching:
        flags.append("--no-enable-prefix-caching")
    if engine.trust_remote_code:
        flags.append("--trust-remote-code")
    if model.tokens_only or model.skip_tokenizer_init:
        flags.append("--skip-tokenizer-init")
    return [*flags, *settings.remote.vllm_args]


_ENGINES: dict[str, Callable[[Settings, Progress], Engine]] = {
    "local": _local,
    "vllm": _vllm,
    "remote": _remote,
    "null": _null,
}
