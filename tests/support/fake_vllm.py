"""A stand-in for vLLM's AsyncLLM that writes down what it is asked, and for the few modules that our adapter imports.

Signatures are those that count: the adapter reads them to learn what a vLLM can do.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


@dataclass
class SamplingParams:
    """A few of vLLM's fields; an unknown one is an error, as it is there."""

    n: int = 1
    temperature: float = 1.0
    max_tokens: int | None = 16
    seed: int | None = None
    logprobs: int | None = None
    detokenize: bool = True
    output_kind: str = ""
    flat_logprobs: bool = False
    skip_clone: bool = False
    extra_args: dict[str, Any] | None = None


@dataclass
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str
    is_3d_lora_weight: bool = False


@dataclass
class WeightRequest:
    init_info: dict[str, Any] = field(default_factory=dict)
    update_info: Any = None


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the modules where the adapter's imports find them."""
    kinds = SimpleNamespace(DELTA="delta", FINAL_ONLY="final")
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.sampling_params": {"SamplingParams": SamplingParams, "RequestOutputKind": kinds},
        "vllm.inputs": {"tokens_input": None},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": LoRARequest},
        "vllm.distributed": {},
        "vllm.distributed.weight_transfer": {},
        "vllm.distributed.weight_transfer.base": {
            "WeightTransferInitRequest": WeightRequest,
            "WeightTransferUpdateRequest": WeightRequest,
        },
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)


def config(*, lora: bool = False, transfer: bool = False, sleep: bool = False, profiler: str | None = None) -> Any:
    """A VllmConfig's shape; each flag is one of vLLM's."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="/weights",
            max_model_len=128,
            get_vocab_size=lambda: 1000,
            max_logprobs=20,
            get_diff_sampling_param=dict,
            dtype="torch.float32",
            enable_sleep_mode=sleep,
            hf_config=SimpleNamespace(eos_token_id=2),
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=4, policy="priority"),
        cache_config=SimpleNamespace(block_size=16),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=2,
            pipeline_parallel_size=1,
            data_parallel_size=2,
            world_size=2,
            world_size_across_dp=4,
        ),
        lora_config=SimpleNamespace() if lora else None,
        weight_transfer_config=SimpleNamespace(backend="nccl") if transfer else None,
        profiler_config=SimpleNamespace(profiler=profiler),
    )


class FakeAsyncLLM:
    """Answers every request with ids 7, 8 and records every call in `calls`. `fails` names calls that raise."""

    errored = False
    tokenizer = None

    def __init__(self, *, tracing: bool = False, **flags: Any) -> None:
        self.vllm_config = config(**flags)
        self.calls: list[Call] = []
        self.fails: dict[str, Exception] = {}
        self.awake = True
        self.version = "default"
        self.completion: dict[str, Any] = {}
        """Fields of the last output beside the plain ones."""
        self.hold: Callable[[], Any] | None = None
        """Awaited before a request's last output."""
        self._tracing = tracing

    def note(self, name: str, *args: Any, **kwargs: Any) -> None:
        self.calls.append((name, args, kwargs))
        if name in self.fails:
            raise self.fails[name]

    def named(self, name: str) -> list[Call]:
        return [call for call in self.calls if call[0] == name]

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: Any = None,
        trace_headers: Any = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
        session_id: str | None = None,
        reasoning_ended: bool | None = None,
        reasoning_parser_kwargs: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Any, None]:
        given = {k: v for k, v in locals().items() if k not in ("self", "prompt", "sampling_params", "request_id")}
        self.note("generate", prompt, sampling_params, request_id, **{k: v for k, v in given.items() if v})
        plain = {"token_ids": [7], "logprobs": None, "finish_reason": None, "stop_reason": None}
        yield SimpleNamespace(outputs=[SimpleNamespace(**plain)], num_cached_tokens=0)
        if self.hold is not None:
            await self.hold()
        last = {**plain, "token_ids": [8], "finish_reason": "length", **self.completion}
        yield SimpleNamespace(outputs=[SimpleNamespace(**last)], kv_transfer_params={"back": 1})

    async def abort(self, request_ids: list[str]) -> None:
        self.note("abort", request_ids)

    def shutdown(self) -> None:
        self.note("shutdown")

    async def is_tracing_enabled(self) -> bool:
        return self._tracing

    # --- controls

    async def pause_generation(self, *, mode: str = "abort", clear_cache: bool = True) -> None:
        self.note("pause_generation", mode=mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        self.note("resume_generation")

    async def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.note("reset_prefix_cache", reset_running_requests, reset_connector)
        return False

    async def reset_mm_cache(self) -> None:
        self.note("reset_mm_cache")

    async def reset_encoder_cache(self) -> None:
        self.note("reset_encoder_cache")

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.note("sleep", level, mode)
        self.awake = level == 0

    async def release_kv_cache_memory(self) -> None:
        self.note("release_kv_cache_memory")

    async def wake_up(self, tags: list[str] | None = None) -> bool:
        self.note("wake_up", tags)
        self.awake = tags is None
        return self.awake

    async def is_sleeping(self) -> bool:
        return not self.awake

    async def add_lora(self, lora_request: Any) -> bool:
        self.note("add_lora", lora_request)
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        self.note("remove_lora", lora_id)
        return True

    async def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,  # noqa: ASYNC109  # the name is vLLM's
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> list[Any]:
        self.note("collective_rpc", method, timeout, args, kwargs)
        return [{"rank": 0}, None]

    async def start_profile(self, profile_prefix: str | None = None, *, max_iterations: int | None = None) -> None:
        self.note("start_profile", profile_prefix, max_iterations)

    async def stop_profile(self) -> None:
        self.note("stop_profile")

    def get_kv_event_sources(self) -> dict[int, Any]:
        return {}

    # --- weights

    async def init_weight_transfer_engine(self, request: Any) -> None:
        self.note("init_weight_transfer_engine", request.init_info)

    async def shutdown_weight_transfer_engine(self) -> None:
        self.note("shutdown_weight_transfer_engine")

    async def start_weight_update(self) -> None:
        self.note("start_weight_update")

    async def update_weights(self, request: Any) -> None:
        self.note("update_weights", request.update_info)

    async def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.note("finish_weight_update", weight_version)
        self.version = weight_version or self.version

    async def update_weight_version(self, new_version: str) -> None:
        self.note("update_weight_version", new_version)
        self.version = new_version

    async def get_weight_version(self) -> str:
        return self.version

    async def compute_weight_checksums(self) -> list[dict[str, str]]:
        return [{"tp0:w": "a"}, {"tp1:w": "b"}]
