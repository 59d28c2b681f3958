"""What the engine declares: facts of its workers, of a local folder where they cannot tell, and of the operator."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tokenwire.engine.base import Capabilities, EngineInfo
from tokenwire.engine.remote.dialects.base import WorkerFacts
from tokenwire.engine.remote.options import RemoteOptions
from tokenwire.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

UNKNOWN_VOCAB = 2**31 - 1
"""Lets every id pass; the worker refuses what it does not know."""
UNKNOWN_NUM_SEQS = 16384
UNKNOWN_CONTEXT = 2**31 - 1

_SAMPLING = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}


def combine(options: RemoteOptions, workers: Sequence[WorkerFacts]) -> EngineInfo:
    """One engine's facts: the least that all workers can do.

    The operator's word wins, then the workers', then the folder's.
    Raises `EngineUnavailableError` if workers disagree on the vocabulary: they serve different models.
    """
    folder = folder_facts(Path(options.tokenizer)) if options.tokenizer else {}
    vocab_size = _vocab_size(options, workers, folder)
    eos = options.eos_token_ids or next((w.eos_token_ids for w in workers if w.eos_token_ids), folder.get("eos"))
    if not eos:
        logger.warning("No worker tells its EOS ids; set --eos-token-ids or --tokenizer, or text keeps the EOS token.")
    lengths = [w.max_model_len for w in workers if w.max_model_len]
    context = min(lengths, default=folder.get("max_model_len", UNKNOWN_CONTEXT))
    return EngineInfo(
        name="remote",
        model=options.model or next((w.model for w in workers if w.model), "remote"),
        max_model_len=min(options.max_model_len, context) if options.max_model_len else context,
        vocab_size=vocab_size,
        eos_token_ids=tuple(eos or ()),
        max_num_seqs=min((w.max_num_seqs for w in workers if w.max_num_seqs), default=UNKNOWN_NUM_SEQS),
        max_logprobs=_max_logprobs(workers),
        default_sampling_params={
            **folder.get("defaults", {}),
            **next((w.default_sampling_params for w in workers if w.default_sampling_params), {}),
            **options.default_sampling_params,
        },
        capabilities=common([w.capabilities for w in workers]),
        extra={
            "num_workers": len(options.workers),
            "dialect": options.dialect,
            **(workers[0].extra if workers else {}),
        },
    )


def _vocab_size(options: RemoteOptions, workers: Sequence[WorkerFacts], folder: Mapping[str, Any]) -> int:
    if options.vocab_size:
        return options.vocab_size
    told = {w.vocab_size for w in workers if w.vocab_size}
    if len(told) > 1:
        raise EngineUnavailableError(f"The workers serve different models: vocabularies of {sorted(told)} ids.")
    return told.pop() if told else folder.get("vocab_size", UNKNOWN_VOCAB)


def _max_logprobs(workers: Sequence[WorkerFacts]) -> int:
    """-1 is no limit; 20 is vLLM's default where a worker does not tell."""
    limits = [20 if w.max_logprobs is None else w.max_logprobs for w in workers]
    bounded = [limit for limit in limits if limit >= 0]
    return min(bounded, default=-1)


def common(capabilities: Sequence[Capabilities]) -> Capabilities:
    """What every one of them can do. Ranks are passed on: only the worker that gets a request knows which it has."""
    if not capabilities:
        return Capabilities(data_parallel_size=None)
    result = capabilities[0]
    for other in capabilities[1:]:
        result = replace(
            result, **{f.name: _meet(getattr(result, f.name), getattr(other, f.name)) for f in fields(Capabilities)}
        )
    return replace(result, cache_probe=False, data_parallel_size=None)


def _meet(a: Any, b: Any) -> Any:
    if isinstance(a, frozenset):
        return a & b
    return (a and b) if isinstance(a, bool) else a


def folder_facts(folder: Path) -> dict[str, Any]:
    """vocab_size, eos, max_model_len and defaults of a model or tokenizer folder, as far as its files tell."""
    config = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json")
    text = config.get("text_config") or config
    facts: dict[str, Any] = {}
    if isinstance(text.get("vocab_size"), int):
        facts["vocab_size"] = text["vocab_size"]
    if isinstance(text.get("max_position_embeddings"), int):
        facts["max_model_len"] = text["max_position_embeddings"]
    eos = generation.get("eos_token_id", text.get("eos_token_id"))
    if eos is None:
        eos = _eos_by_name(folder)
    if eos is not None:
        facts["eos"] = tuple(eos) if isinstance(eos, list) else (eos,)
    facts["defaults"] = {k: v for k, v in generation.items() if k in _SAMPLING and v is not None}
    if isinstance(generation.get("max_new_tokens"), int):
        facts["defaults"]["max_tokens"] = generation["max_new_tokens"]
    return facts


def _eos_by_name(folder: Path) -> int | None:
    name = _json(folder / "tokenizer_config.json").get("eos_token")
    name = name.get("content") if isinstance(name, dict) else name
    for token in _json(folder / "tokenizer.json").get("added_tokens", []):
        if name is not None and token.get("content") == name:
            return int(token["id"])
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
