"""What the local engine can be told at its start. Plain data: it travels to the core process as MessagePack."""

from __future__ import annotations

import os
from typing import Any, Literal

import msgspec


class NgramOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding by prompt lookup. Numbers of tokens; 1 <= `lookup_min` <= `lookup_max`."""

    num_speculative_tokens: int = 4
    """The longest guess."""
    lookup_min: int = 2
    """How many of the newest tokens must stand somewhere earlier for a guess to be made."""
    lookup_max: int = 4
    """Of several such places the one that agrees longest counts; so far back is agreement looked at."""


class LocalEngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in tokens unless the name says otherwise; None: chosen from the model and the machine."""

    model: str | None = None
    """A folder with safetensors, a .gguf file, or a hub name; None: SmolLM2-135M-Instruct."""
    dtype: str = "auto"
    """auto (float32 on CPU, the model's own on CUDA), float32, bfloat16 or float16."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    max_model_len: int | None = None
    max_num_seqs: int = 256
    """Sequences that run at the same time."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step, prefill chunks and decodes together; None: 512 on CPU, 8192 on CUDA."""
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_bytes: int | None = None
    """Used when `num_kv_blocks` is None."""
    scheduling_policy: Literal["fcfs", "priority"] = "priority"
    """priority: the lowest value first, equal ones first come, first served; fcfs: without priorities."""
    enable_prefix_caching: bool = True
    max_logprobs: int = 20
    """-1: no cap."""
    logprobs_mode: str = "raw_logprobs"
    generation_config: str = "auto"
    """auto: the model's generation_config.json; vllm: none; else a folder."""
    override_generation_config: dict[str, Any] = {}
    stream_interval: int = 1
    """Tokens per streamed output, at least."""
    return_sampling_mask: bool = False
    """Send with every token the ids that survived top-k, top-p and min-p."""
    seed: int | None = None
    """Requests without a seed of their own draw by this one and by their order of arrival; None: each at random."""
    num_threads: int | None = None
    restarts: int = 0
    """How often a core process that died is started again."""
    load_timeout_s: float = 600.0
    fused: bool = True
    """Use the fused path for architectures that have one; off: transformers' own modules only."""
    quantization: Literal["none", "int8"] = "none"
    """int8: linear layers with 8-bit weights in blocks of 32, a scale each; inputs too where the processor has VNNI."""
    trust_remote_code: bool = False
    kv_transfer_port: int | None = None
    """Where other engines pull KV blocks; 0: any free port; None: blocks are neither given nor pulled."""
    kv_transfer_host: str = "127.0.0.1"
    """The address to listen on, which others are told. From a loopback address only loopback is asked for blocks."""
    kv_transfer_secret: str | None = None
    """Both sides of a transfer must know it."""
    kv_transfer_ttl_s: float = 60.0
    """How long blocks are kept for a pull to begin."""
    kv_transfer_timeout_s: float = 30.0
    """How long a pull may take before the prompt is computed instead."""
    reasoning_start: str | None = None
    """What the model writes when its reasoning begins; with `reasoning_end`, thinking budgets work."""
    reasoning_end: str | None = None
    """What it writes when its reasoning ends; grammars hold from there on."""
    speculative: NgramOptions | None = None
    """Guess the next tokens and verify them together; None: one token a step."""
    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    """Replicas on this machine, which share its devices and its memory."""


def of_replica(options: LocalEngineOptions, rank: int, size: int) -> LocalEngineOptions:
    """The options of one replica of `size`: its share of the cores, random numbers and a transfer port of its own."""
    threads = options.num_threads
    if threads is None and size > 1 and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, num_cores() // size)
    return msgspec.structs.replace(
        options,
        num_threads=threads,
        seed=None if options.seed is None else options.seed + rank,
        kv_transfer_port=options.kv_transfer_port + rank if options.kv_transfer_port else options.kv_transfer_port,
        data_parallel_rank=rank,
        data_parallel_size=size,
    )


def num_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a core process is started with."""

    address: str
    folder: str
    options: LocalEngineOptions
