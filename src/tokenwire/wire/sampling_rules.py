"""The rules of sampling parameters: ranges, combinations, and limits of the model that will run them.

`normalize` needs no model and turns parameters into their canonical form; `check_against` holds them against a
model's limits. Sentences follow vLLM's where clients match on them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenwire.errors import InvalidRequestError
from tokenwire.wire.sampling import RepetitionDetection, SamplingParams, StructuredOutputs

MAX_TEMPERATURE = 2.0
MIN_TEMPERATURE = 0.01
MAX_LOGPROB_TOKEN_IDS = 128
MAX_JSON_NESTING = 64
MAX_TAG_NESTING = 80


@dataclass(slots=True, frozen=True, kw_only=True)
class SamplingLimits:
    """What the rules need to know of the server. Lengths in tokens."""

    vocab_size: int
    max_model_len: int
    max_logprobs: int = 20
    """-1: no cap."""
    max_bad_words: int = 128


def fail(field: str, sentence: str, value: object = None) -> InvalidRequestError:
    """An error in vLLM's shape: the sentence, then `(parameter=field, value=v)`."""
    shown = "" if value is None else f" (parameter={field}, value={value!r})"
    return InvalidRequestError(sentence + shown, param=field)


def normalize(params: SamplingParams) -> SamplingParams:
    """Check everything that needs no model; returns the canonical form.

    Greedy resets top_p, top_k and min_p; a temperature in (0, 0.01) becomes 0.01; seed -1 and thinking budget -1
    become None; `stop` becomes a list. Raises `InvalidRequestError`.
    """
    for rule in _RULES:
        rule(params)
    return _canonical(params)


def check_against(params: SamplingParams, limits: SamplingLimits) -> None:
    """Check a normalised object against a model's limits. Raises `InvalidRequestError`."""
    _check_logprob_counts(params, limits)
    for field in ("stop_token_ids", "logprob_token_ids", "trace_decode_token_ids"):
        _check_in_vocab(field, getattr(params, field) or (), limits.vocab_size)
    _check_in_vocab("logit_bias", params.logit_bias or (), limits.vocab_size)
    for token_id in params.allowed_token_ids or ():
        if not 0 <= token_id < limits.vocab_size:
            raise fail(
                "allowed_token_ids", "allowed_token_ids contains out-of-vocab token id!", params.allowed_token_ids
            )
    _check_prompt_rows(params, limits)
    if params.bad_words and len(params.bad_words) > limits.max_bad_words:
        raise fail(
            "bad_words", f"bad_words has {len(params.bad_words)} entries, at most {limits.max_bad_words} allowed."
        )


def _check_in_vocab(field: str, ids: Iterable[int], vocab_size: int) -> None:
    bad = [i for i in ids if not 0 <= i < vocab_size]
    if bad:
        raise fail(
            field, f"token_id(s) {bad} in {field} contain out-of-vocab token ids. Vocabulary size: {vocab_size}", bad
        )


def _check_logprob_counts(params: SamplingParams, limits: SamplingLimits) -> None:
    most = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    for field, noun in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
        asked = getattr(params, field)
        if asked is None:
            continue
        count = limits.vocab_size if asked == -1 else asked
        if count > most:
            raise fail(
                field,
                f"Requested {noun} logprobs of {count}, which is greater than max allowed: {most}",
                asked,
            )


def _check_prompt_rows(params: SamplingParams, limits: SamplingLimits) -> None:
    rows = params.prompt_logprob_token_ids
    if rows is None:
        return
    field = "prompt_logprob_token_ids"
    if len(rows) > limits.max_model_len - 1:
        raise fail(
            field, f"{field} has {len(rows)} rows, at most max_model_len-1 = {limits.max_model_len - 1} allowed."
        )
    width = max((len(row) for row in rows), default=0)
    cap = limits.max_logprobs
    if cap != -1 and width > cap:
        raise fail(field, f"{field} has rows of {width} ids, which is greater than max allowed: {cap}")
    for row in rows:
        _check_in_vocab(field, (i for i in row if i != -1), limits.vocab_size)


# --- rules that need no model; each looks at one field or one combination ----------------------------------------


def _finite(field: str) -> Callable[[SamplingParams], None]:
    def rule(p: SamplingParams) -> None:
        value = getattr(p, field)
        if not math.isfinite(value):
            raise fail(field, f"{field} must be a finite number, got {value}.", value)

    return rule


def _check_counts(p: SamplingParams) -> None:
    if p.n < 1:
        raise fail("n", f"n must be at least 1, got {p.n}.")
    max_tokens = p.max_tokens
    if isinstance(max_tokens, int) and max_tokens < 1:
        raise fail("max_tokens", f"max_tokens must be at least 1, got {max_tokens}.", max_tokens)
    if p.min_tokens < 0:
        raise fail("min_tokens", f"min_tokens must be greater than or equal to 0, got {p.min_tokens}.")
    if isinstance(max_tokens, int) and p.min_tokens > max_tokens:
        raise fail(
            "min_tokens", f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {p.min_tokens}."
        )


def _check_seed(p: SamplingParams) -> None:
    if p.seed is not None and not -(2**63) <= p.seed <= 2**63 - 1:
        raise fail("seed", f"seed must fit in 64 bits (-2**63 to 2**63-1), got {p.seed}.")


def _check_penalties(p: SamplingParams) -> None:
    for field in ("presence_penalty", "frequency_penalty"):
        value = getattr(p, field)
        if not -2.0 <= value <= 2.0:
            raise fail(field, f"{field} must be in [-2, 2], got {value}.")
    if p.repetition_penalty <= 0.0:
        raise fail("repetition_penalty", f"repetition_penalty must be greater than zero, got {p.repetition_penalty}.")


def _check_temperature(p: SamplingParams) -> None:
    t = p.temperature
    if t < 0.0:
        raise fail("temperature", f"temperature must be non-negative, got {t}.", t)
    if t > MAX_TEMPERATURE:
        raise fail("temperature", f"temperature must be in [0, 2], got {t}.", t)


def _check_truncation(p: SamplingParams) -> None:
    if not 0.0 < p.top_p <= 1.0:
        raise fail("top_p", f"top_p must be in (0, 1], got {p.top_p}.", p.top_p)
    if p.top_k < -1:
        raise fail("top_k", f"top_k must be 0 (disable), or at least 1, got {p.top_k}.")
    if not 0.0 <= p.min_p <= 1.0:
        raise fail("min_p", f"min_p must be in [0, 1], got {p.min_p}.")


def _check_greedy(p: SamplingParams) -> None:
    if p.is_greedy and p.n > 1:
        raise fail("n", f"n must be 1 when using greedy sampling, got {p.n}.")


def _check_logprobs(p: SamplingParams) -> None:
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(p, field)
        if value is not None and value < -1:
            raise fail(field, f"{field} must be non-negative or -1, got {value}.", value)
    ids = p.logprob_token_ids
    if ids is not None and len(ids) > MAX_LOGPROB_TOKEN_IDS:
        raise fail(
            "logprob_token_ids", f"logprob_token_ids has {len(ids)} ids, at most {MAX_LOGPROB_TOKEN_IDS} allowed."
        )
    if ids is not None and p.logprobs is not None and p.logprobs != len(ids):
        raise fail(
            "logprobs",
            f"when logprob_token_ids is set, logprobs must equal its length ({len(ids)}) or be left out, "
            f"got {p.logprobs}.",
        )
    start = p.prompt_logprob_start
    if start is not None and p.prompt_logprob_token_ids is None:
        raise fail("prompt_logprob_start", "prompt_logprob_start requires prompt_logprob_token_ids.", start)
    if start is not None and start < 0:
        raise fail("prompt_logprob_start", f"prompt_logprob_start must be at least 0, got {start}.", start)
    if p.prompt_logprob_token_ids is not None and not p.prompt_logprob_token_ids:
        raise fail("prompt_logprob_token_ids", "prompt_logprob_token_ids must have at least one row.")


def _check_words(p: SamplingParams) -> None:
    if any(s == "" for s in p.stop_strings):
        raise fail("stop", "stop cannot contain an empty string.")
    if p.stop_strings and not p.detokenize:
        raise fail(
            "stop",
            "stop strings are only supported when detokenize is True. Set detokenize=True or use stop_token_ids.",
        )
    if p.bad_words and any(w == "" for w in p.bad_words):
        raise fail("bad_words", f"bad_words cannot contain an empty string. Got bad_words={p.bad_words}")
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        raise fail("allowed_token_ids", "allowed_token_ids is not None and empty!", p.allowed_token_ids)
    for token_id, bias in (p.logit_bias or {}).items():
        if not math.isfinite(bias):
            raise fail("logit_bias", f"logit_bias of token {token_id} must be a finite number, got {bias}.", bias)


def _check_output(p: SamplingParams) -> None:
    if p.output_kind not in (0, 1, 2):
        raise fail("output_kind", f"output_kind must be 0, 1 or 2, got {p.output_kind}.")
    if p.stream_interval is not None and p.stream_interval < 1:
        raise fail("stream_interval", f"stream_interval must be at least 1, got {p.stream_interval}.")
    if p.routed_experts_prompt_start < 0:
        raise fail(
            "routed_experts_prompt_start",
            f"routed_experts_prompt_start must be at least 0, got {p.routed_experts_prompt_start}.",
        )
    budget = p.thinking_token_budget
    if budget is not None and budget < -1:
        raise fail("thinking_token_budget", f"thinking_token_budget must be non-negative or -1, got {budget}.", budget)


def _check_repetition(p: SamplingParams) -> None:
    r: RepetitionDetection | None = p.repetition_detection
    if r is None:
        return
    if r.max_pattern_size < 0 or r.min_pattern_size < 0 or r.min_pattern_size > r.max_pattern_size:
        raise fail(
            "repetition_detection",
            "max_pattern_size, min_pattern_size must be >=0, with min_pattern_size <= max_pattern_size. "
            "Set both to 0 to disable repetitive pattern detection.",
        )
    if r.max_pattern_size > 0 and r.min_count < 2:
        raise fail("repetition_detection", f"min_count must be at least 2 when detection is on, got {r.min_count}.")


def _check_trace(p: SamplingParams) -> None:
    if p.trace_decode_token_ids is None:
        return
    if not p.trace_decode_token_ids:
        raise fail("trace_decode_token_ids", "trace_decode_token_ids must not be empty.")
    clashes: tuple[tuple[str, Any], ...] = (
        ("n", p.n > 1),
        ("prompt_logprobs", p.prompt_logprobs is not None),
        ("prompt_logprob_token_ids", p.prompt_logprob_token_ids is not None),
        ("structured_outputs", p.structured_outputs is not None),
        ("repetition_detection", p.repetition_detection is not None),
        ("thinking_token_budget", p.thinking_token_budget is not None),
        ("bad_words", bool(p.bad_words)),
    )
    for field, used in clashes:
        if used:
            raise fail("trace_decode_token_ids", f"trace_decode_token_ids cannot be combined with {field}.")


def _check_structured(p: SamplingParams) -> None:
    s: StructuredOutputs | None = p.structured_outputs
    if s is None:
        return
    kinds = s.kinds
    if len(kinds) != 1:
        which = f"multiple are specified: {kinds}" if kinds else "none are specified"
        verb = "can only" if kinds else "must"
        raise fail(
            "structured_outputs",
            f"You {verb} use one kind of structured outputs constraint but {which}; the kinds are {list(s.KINDS)}.",
        )
    if s.json_object is False:
        raise fail("structured_outputs", "structured_outputs.json_object must be true if given.")
    for kind in ("json", "regex", "grammar", "structural_tag"):
        if getattr(s, kind) == "":
            raise fail("structured_outputs", f"structured_outputs.{kind} must not be an empty string.")
    if s.choice is not None and not s.choice:
        raise fail("structured_outputs", "structured_outputs.choice must not be empty.")
    if s.regex is not None and "\0" in s.regex:
        raise fail("structured_outputs", "structured_outputs.regex must not contain NUL.")
    _check_nesting("json", s.json, MAX_JSON_NESTING)
    _check_nesting("structural_tag", s.structural_tag, MAX_TAG_NESTING)


def _check_nesting(kind: str, spec: Any, limit: int) -> None:
    if isinstance(spec, str):
        try:
            spec = json.loads(spec)
        except RecursionError:
            raise fail("structured_outputs", f"structured_outputs.{kind} is nested deeper than {limit}.") from None
        except ValueError as exc:
            raise fail(
                "structured_outputs", f"Invalid JSON grammar specification in structured_outputs.{kind}."
            ) from exc
    layer, depth = [spec], 0
    while layer:
        containers = [v for v in layer if isinstance(v, dict | list)]
        layer = [c for v in containers for c in (v.values() if isinstance(v, dict) else v)]
        depth += bool(containers)
        if depth > limit:
            raise fail("structured_outputs", f"structured_outputs.{kind} is nested deeper than {limit}.")


_RULES: tuple[Callable[[SamplingParams], None], ...] = (
    _check_counts,
    _check_seed,
    *(
        _finite(f)
        for f in ("temperature", "presence_penalty", "frequency_penalty", "repetition_penalty", "top_p", "min_p")
    ),
    _check_penalties,
    _check_temperature,
    _check_truncation,
    _check_greedy,
    _check_logprobs,
    _check_words,
    _check_output,
    _check_repetition,
    _check_trace,
    _check_structured,
)


def _canonical(p: SamplingParams) -> SamplingParams:
    changes: dict[str, Any] = {}
    if p.is_greedy:
        changes |= {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    elif p.temperature < MIN_TEMPERATURE:
        changes["temperature"] = MIN_TEMPERATURE
    if p.top_k == -1:
        changes["top_k"] = 0
    if p.seed == -1:
        changes["seed"] = None
    if p.thinking_token_budget == -1:
        changes["thinking_token_budget"] = None
    if p.stop is not None:
        changes["stop"] = p.stop_strings
    if p.stop_token_ids is not None:
        changes["stop_token_ids"] = list(dict.fromkeys(p.stop_token_ids))
    if p.skip_reading_prefix_cache is None and p.wants_prompt_scores:
        changes["skip_reading_prefix_cache"] = True
    changes = {k: v for k, v in changes.items() if getattr(p, k) != v}
    return msgspec.structs.replace(p, **changes) if changes else p
