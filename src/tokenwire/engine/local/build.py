"""Puts the parts of a core together from options and a model folder."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import cast

import msgspec
import torch

from tokenwire.engine.base import EngineInfo
from tokenwire.engine.local.blocks import BlockPool
from tokenwire.engine.local.core import Core, Link
from tokenwire.engine.local.facts import ModelFacts, read_facts
from tokenwire.engine.local.finish import FinishRules
from tokenwire.engine.local.grammars import Grammars
from tokenwire.engine.local.intake import Intake
from tokenwire.engine.local.kv_cache import block_bytes
from tokenwire.engine.local.messages import CAPABILITIES
from tokenwire.engine.local.models import Progress, no_progress
from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.reasoning import Reasoning
from tokenwire.engine.local.runner import ModelRunner
from tokenwire.engine.local.sampling import LogprobsMode
from tokenwire.engine.local.scheduler import Scheduler, SchedulerConfig
from tokenwire.engine.local.speculation import Drafter
from tokenwire.engine.local.speculation.costs import measure_costs
from tokenwire.engine.local.transfer.fingerprint import fingerprint
from tokenwire.engine.local.transfer.transfers import Transfers, open_transfers

logger = logging.getLogger(__name__)

MAX_SCORE_BYTES = 64 << 20
"""Memory of the logits that score prompts in one step."""


def build_core(folder: Path, options: LocalEngineOptions, link: Link, progress: Progress = no_progress) -> Core:
    """A core that talks over `link`. Raises a `ServiceError` for a model or options that cannot work."""
    facts = read_facts(folder, options)
    progress("loading the model", 0.3)
    runner = ModelRunner(folder, options, facts.max_model_len)
    budget = options.max_num_batched_tokens or (512 if runner.device.type == "cpu" else 8192)
    config = SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=facts.max_model_len,
        max_score_rows=max(1, MAX_SCORE_BYTES // (4 * facts.vocab_size)),
        policy=options.scheduling_policy,
    )
    reasoning = Reasoning.read(folder, options)
    pool = BlockPool(runner.cache.num_blocks, options.block_size, caching=options.enable_prefix_caching)
    scheduler = Scheduler(config, pool, _drafter(options, runner))
    transfers = None if options.kv_transfer_port is None else _open_transfers(options, scheduler, runner)
    progress("ready", 1.0)
    return Core(
        link,
        runner,
        scheduler,
        Intake(folder, facts, options, reasoning),
        Grammars(folder, facts, reasoning),
        FinishRules(facts.eos_token_ids, facts.max_model_len),
        _info(folder, options, facts, runner, budget, transfers, can_end_thinking=reasoning.markers is not None),
        cast(LogprobsMode, options.logprobs_mode),
        transfers,
    )


def _open_transfers(options: LocalEngineOptions, scheduler: Scheduler, runner: ModelRunner) -> Transfers:
    cache, attention = runner.cache, runner.attention
    return open_transfers(
        options,
        scheduler,
        cache.read,
        fingerprint=fingerprint(
            runner.weights_digest, attention.shapes, runner.dtype, options.block_size, sorted(attention.calls.items())
        ),
        block_bytes=block_bytes(attention.shapes, options.block_size, runner.dtype),
    )


def _drafter(options: LocalEngineOptions, runner: ModelRunner) -> Drafter | None:
    if options.speculative is None:
        return None
    costs = measure_costs(runner)
    logger.info("a step of %s rows takes %s ms", costs.rows, [round(seconds * 1000, 2) for seconds in costs.times])
    return Drafter(options.speculative, costs)


def _info(
    folder: Path,
    options: LocalEngineOptions,
    facts: ModelFacts,
    runner: ModelRunner,
    budget: int,
    transfers: Transfers | None,
    *,
    can_end_thinking: bool,
) -> EngineInfo:
    return EngineInfo(
        name="local",
        model=options.model or str(folder),
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        max_num_seqs=options.max_num_seqs,
        max_logprobs=options.max_logprobs,
        default_sampling_params=facts.default_sampling_params,
        capabilities=replace(
            CAPABILITIES,
            priority=options.scheduling_policy == "priority",
            sampling_mask=options.return_sampling_mask,
            speculation=options.speculative is not None,
            thinking_token_budget=can_end_thinking,
            kv_transfer=transfers is not None,
        ),
        extra={
            "folder": str(folder),
            "dtype": str(runner.dtype).removeprefix("torch."),
            "device": str(runner.device),
            "block_size": options.block_size,
            "num_kv_blocks": runner.cache.num_blocks,
            "max_num_batched_tokens": budget,
            "enable_prefix_caching": options.enable_prefix_caching,
            "num_threads": torch.get_num_threads(),
            "fused": runner.is_fused,
            "quantization": options.quantization,
            "weight_codes": runner.weight_codes,
            "model_class": type(runner.model).__name__,
            "speculative": None if options.speculative is None else msgspec.to_builtins(options.speculative),
            "load_time_s": round(runner.load_time_s, 2),
            "kv_transfer": None if transfers is None else transfers.facts,
        },
    )
