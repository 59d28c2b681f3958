"""Model folder to a torch module whose attention runs over the paged cache, on the chosen device and dtype."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from tokenwire.engine.local.attention import NAME
from tokenwire.engine.local.facts import refuse_unsupported
from tokenwire.engine.local.kv_cache import LayerShape, block_bytes
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.errors import EngineUnavailableError

MAX_CPU_KV_BYTES = 4 << 30
CPU_KV_SHARE = 0.3
CUDA_KV_SHARE = 0.85
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(options: LocalEngineOptions) -> torch.device:
    """The device asked for, else CUDA if there is one; replicas take one CUDA device each, as far as they go round.

    Raises `EngineUnavailableError` if it is not there.
    """
    if options.device == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EngineUnavailableError(f"device={options.device!r}, but PyTorch sees no CUDA device.")
    if device.type == "cuda" and _goes_round(options):
        return torch.device("cuda", options.data_parallel_rank % torch.cuda.device_count())
    return device


def _num_sharing(options: LocalEngineOptions, device: torch.device) -> int:
    """Replicas whose caches lie in the memory of one device."""
    if device.type == "cuda" and _goes_round(options):
        return -(-options.data_parallel_size // torch.cuda.device_count())
    return options.data_parallel_size


def _goes_round(options: LocalEngineOptions) -> bool:
    return options.data_parallel_size > 1 and ":" not in options.device


def load_model(folder: Path, options: LocalEngineOptions, device: torch.device) -> PreTrainedModel:
    """The model in eval mode. Raises `EngineUnavailableError` for models that cannot run here."""
    refuse_unsupported(folder)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    dtype = _dtype(options.dtype, device)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=dtype,
        attn_implementation=NAME,
        low_cpu_mem_usage=True,
        trust_remote_code=options.trust_remote_code,
    )
    if not getattr(model, "_supports_attention_backend", False):
        raise EngineUnavailableError(
            f"The local engine cannot run {type(model).__name__}: its attention cannot be replaced. "
            "Serve it with the vllm engine."
        )
    model.to(device)
    return model.eval()


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if name not in DTYPES:
        raise EngineUnavailableError(f"dtype={name!r} is not one of auto, {', '.join(DTYPES)}.")
    return DTYPES[name]


def choose_num_blocks(
    options: LocalEngineOptions,
    shapes: dict[int, LayerShape],
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
) -> int:
    """Blocks of the KV cache: as asked, else what memory allows and the batch can use."""
    size = block_bytes(shapes, options.block_size, dtype)
    per_sequence = -(-max_model_len // options.block_size)
    if options.num_kv_blocks is not None:
        count = options.num_kv_blocks
    elif options.kv_cache_bytes is not None:
        count = options.kv_cache_bytes // size
    else:
        count = min(_free_bytes(device) // _num_sharing(options, device) // size, per_sequence * options.max_num_seqs)
    if count < per_sequence:
        raise EngineUnavailableError(
            f"The KV cache holds {count * options.block_size} tokens, less than one sequence of "
            f"max_model_len={max_model_len}. Lower max_model_len or raise the cache (now {count * size >> 20} MiB)."
        )
    return count


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_KV_SHARE)
    return min(MAX_CPU_KV_BYTES, int(_available_memory() * CPU_KV_SHARE))


def _available_memory() -> int:
    """Bytes that can be had without swapping; half of the machine where the kernel does not say."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
