"""Sampling parameters as they travel: vLLM's names, defaults and omission rules.

The Struct only holds values; `sampling_rules` checks and normalises them. Nullable fields say so in their type,
so an explicit null elsewhere is a type error, as it is upstream.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Exactly one kind of constraint, with its options."""

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

    @property
    def kinds(self) -> list[str]:
        """The kinds that are set; a valid object has exactly one."""
        return [kind for kind in self.KINDS if getattr(self, kind) is not None]


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """End a sequence once its tail repeats one pattern of min..max_pattern_size tokens `min_count` times."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to sample. `UNSET` max_tokens means the caller left it out and the server fills it in."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    watermarking: Any = None
    top_p: float = 1.0
    top_k: int = 0
    """0 and -1: all tokens."""
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None | UnsetType = UNSET
    min_tokens: int = 0
    logprobs: int | None = None
    """k candidates beside the sampled token; 0: the sampled token alone; -1: the whole vocabulary."""
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list[list[int]] | None = None
    """One row of ids per scored prompt position; -1 pads a row."""
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: int = 0
    stream_interval: int | None = None
    skip_clone: bool = False
    output_text_buffer_length: int = 0
    structured_outputs: StructuredOutputs | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: list[int] | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list, in the caller's order."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def wants_prompt_scores(self) -> bool:
        return self.prompt_logprobs is not None or self.prompt_logprob_token_ids is not None


GREEDY_BELOW = 1e-5
"""A temperature below this is greedy (vLLM's _SAMPLING_EPS)."""
