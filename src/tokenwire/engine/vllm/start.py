"""Bringing vLLM up from its own command-line flags, and the facts it tells about itself."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenwire.engine.base import EngineInfo, EngineStats
from tokenwire.engine.vllm.support import Support, accepts, capabilities
from tokenwire.errors import EngineUnavailableError, InvalidRequestError


@dataclass(slots=True, frozen=True, kw_only=True)
class VllmOptions:
    """`args` are flags of `vllm serve` that make the engine: parallelism, memory, LoRA, transfer, quantisation."""

    model: str
    args: Sequence[str] = ()


def parse_args(options: VllmOptions) -> Any:
    """vLLM's AsyncEngineArgs. Raises `InvalidRequestError` for a flag that its engine does not have."""
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
    except ImportError as exc:
        raise EngineUnavailableError(f"vLLM cannot be imported: {exc}. Install it with: pip install vllm") from exc
    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vLLM", add_help=False, exit_on_error=False))
    try:
        known, unknown = parser.parse_known_args(list(options.args))
    except SystemExit as exc:
        raise InvalidRequestError(f"vLLM does not accept these flags: {' '.join(options.args)}") from exc
    if unknown:
        raise InvalidRequestError(
            f"vLLM's engine has no flag {unknown[0]}; flags of its server are flags of tokenwire."
        )
    known.model = options.model
    return AsyncEngineArgs.from_cli_args(known)


def build(args: Any, stat_loggers: list[Any]) -> Any:
    """An AsyncLLM. Blocks until the model is loaded, which takes minutes; any thread will do."""
    from vllm.v1.engine.async_llm import AsyncLLM

    extra: dict[str, Any] = (
        {"stat_loggers": stat_loggers} if "stat_loggers" in accepts(AsyncLLM.from_engine_args) else {}
    )
    return AsyncLLM.from_engine_args(args, **extra)


def describe(engine: Any, support: Support) -> EngineInfo:
    config = engine.vllm_config
    model = config.model_config
    return EngineInfo(
        name="vllm",
        model=model.model,
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        eos_token_ids=_eos(engine, model),
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_logprobs=model.max_logprobs,
        default_sampling_params=dict(model.get_diff_sampling_param()),
        capabilities=capabilities(engine, support),
        is_encoder_decoder=bool(getattr(model, "is_encoder_decoder", False)),
        extra={
            "version": _version(),
            "dtype": str(model.dtype).removeprefix("torch."),
            "block_size": config.cache_config.block_size,
            "num_kv_blocks": getattr(config.cache_config, "num_gpu_blocks", None),
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "pipeline_parallel_size": config.parallel_config.pipeline_parallel_size,
        },
    )


def _version() -> str:
    try:
        return importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _eos(engine: Any, model: Any) -> tuple[int, ...]:
    """The tokenizer's EOS first, as vLLM has it, then those of the generation config."""
    found: list[int] = []
    tokenizer = None if getattr(model, "skip_tokenizer_init", False) else getattr(engine, "tokenizer", None)
    generation = model.try_get_generation_config() if hasattr(model, "try_get_generation_config") else {}
    config = getattr(model, "hf_text_config", None) or getattr(model, "hf_config", None)
    for value in (
        getattr(tokenizer, "eos_token_id", None),
        generation.get("eos_token_id"),
        getattr(config, "eos_token_id", None),
    ):
        found += value if isinstance(value, list) else [] if value is None else [value]
    return tuple(dict.fromkeys(found))


class StatsKeeper:
    """The newest figures of each engine core, as vLLM's loggers are told them."""

    def __init__(self) -> None:
        self._newest: dict[int, Any] = {}
        self._queries = self._hits = self._preemptions = self._steps = 0

    def factory(self) -> Any:
        """What vLLM takes for a stat logger; its base class is vLLM's."""
        from vllm.v1.metrics.loggers import StatLoggerBase

        keeper = self

        class _Logger(StatLoggerBase):  # type: ignore[misc]
            def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
                self.engine_index = engine_index

            def record(
                self, scheduler_stats: Any = None, iteration_stats: Any = None, *rest: Any, **named: Any
            ) -> None:
                keeper.take(scheduler_stats, iteration_stats, named.get("engine_idx", self.engine_index))

            def log_engine_initialized(self) -> None:
                """Nothing to say."""

        return _Logger

    def take(self, scheduler: Any, iteration: Any, engine_index: int) -> None:
        if scheduler is not None:
            self._newest[engine_index] = scheduler
            self._steps += 1
            cache = getattr(scheduler, "prefix_cache_stats", None)
            self._queries += getattr(cache, "queries", 0)
            self._hits += getattr(cache, "hits", 0)
        self._preemptions += getattr(iteration, "num_preempted_reqs", 0)

    def stats(self) -> EngineStats:
        newest = list(self._newest.values())
        return EngineStats(
            num_running=sum(s.num_running_reqs for s in newest),
            num_waiting=sum(s.num_waiting_reqs for s in newest),
            kv_cache_usage=max((getattr(s, "kv_cache_usage", 0.0) for s in newest), default=0.0),
            num_preemptions=self._preemptions,
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            num_steps=self._steps,
        )
