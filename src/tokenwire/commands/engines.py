"""Engine names to engines. Nothing heavy is imported before the name is known."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from tokenwire.engine.base import Engine
from tokenwire.settings import Settings, SettingsError

Progress = Callable[[str, float], None]


def make_engine(settings: Settings, progress: Progress) -> Engine:
    """The engine that `--engine` names, not started. Raises `SettingsError` with what to install."""
    return _ENGINES[settings.model.engine](settings, progress)


def _require(engine: str, extra: str, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"--engine {engine} needs {', '.join(missing)}. Install it with: pip install 'tokenwire[{extra}]'"
        )


def _local(settings: Settings, progress: Progress) -> Engine:
    _require("local", "local", ("torch", "transformers", "safetensors"))
    from tokenwire.engine.local.engine import LocalEngine
    from tokenwire.engine.local.options import LocalEngineOptions

    model, limits, engine = settings.model, settings.limits, settings.engine
    defaults = LocalEngineOptions()
    return LocalEngine(
        LocalEngineOptions(
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
            seed=engine.seed,
            num_threads=engine.num_threads,
            restarts=engine.engine_restarts,
            load_timeout_s=engine.load_timeout,
            fused=engine.fused,
            trust_remote_code=engine.trust_remote_code,
        ),
        progress=progress,
    )


def _null(settings: Settings, progress: Progress) -> Engine:
    from tokenwire.engine.null import NullEngine, NullEngineOptions

    defaults = NullEngineOptions()
    return NullEngine(
        NullEngineOptions(
            vocab_size=settings.engine.null_vocab_size,
            max_model_len=settings.model.max_model_len or defaults.max_model_len,
            max_num_seqs=settings.limits.max_num_seqs,
            max_logprobs=settings.limits.max_logprobs,
            step_s=settings.engine.null_step_ms / 1000,
            model=settings.model.model or defaults.model,
        )
    )


_ENGINES: dict[str, Callable[[Settings, Progress], Engine]] = {"local": _local, "null": _null}
