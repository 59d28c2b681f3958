"""SGLang's native `/generate` as it travels: the request, and the names of its sampling parameters."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenwire.wire.sampling import SamplingParams, StructuredOutputs

DEFAULT_MAX_NEW_TOKENS = 128


class SGLangSampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """SGLang's names and defaults; null stands for the default."""

    max_new_tokens: int | None = DEFAULT_MAX_NEW_TOKENS
    min_new_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[int, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    stream_interval: int | None = None

    def to_sampling_params(self, **scores: Any) -> SamplingParams:
        """Under our names; `scores` are logprob fields, which SGLang has outside of its sampling parameters."""
        constraints = {
            "json": self.json_schema,
            "regex": self.regex,
            "grammar": self.ebnf,
            "structural_tag": self.structural_tag,
        }
        given: dict[str, Any] = {name: value for name, value in constraints.items() if value is not None}
        values: dict[str, Any] = {
            "max_tokens": self.max_new_tokens,
            "structured_outputs": StructuredOutputs(**given) if given else None,
            **scores,
        }
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            ours = _NAMES.get(field.name, field.name)
            if value is not None and ours is not None:
                values[ours] = value
        return SamplingParams(**values)


_NAMES: dict[str, str | None] = {
    "max_new_tokens": None,
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    "no_stop_trim": "include_stop_str_in_output",
    **dict.fromkeys(("json_schema", "regex", "ebnf", "structural_tag"), None),
}


class SGLangRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One prompt of ids, or a batch of them; lists of a batch have an item per prompt."""

    input_ids: list[int | list[int]]
    sampling_params: SGLangSampling | list[SGLangSampling] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    """First prompt position whose scores are wanted; -1 or absent: none."""
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int]] | None = None
    return_text_in_logprobs: bool = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    lora_path: str | list[str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    data_parallel_rank: int | None = None
    routed_dp_rank: int | None = None


class SGLangAbort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rid: str = ""
    abort_all: bool = False
