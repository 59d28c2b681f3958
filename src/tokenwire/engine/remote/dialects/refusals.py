"""Sampling fields that a dialect has no words for are refused by name, never left out in silence."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from tokenwire.errors import UnsupportedFeatureError
from tokenwire.wire.sampling import SamplingParams

_NEUTRAL = SamplingParams()
NO_MEANING = frozenset(
    {
        # Made here from ids, or about containers of another engine.
        *("n", "stop", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind"),
        *("include_stop_str_in_output", "flat_logprobs", "skip_clone", "output_text_buffer_length", "stream_interval"),
        # A hint: without it the answer is the same.
        "skip_reading_prefix_cache",
    }
)


def refuse_others(sampling: SamplingParams, known: Collection[str], where: str) -> None:
    """Raises `UnsupportedFeatureError` for the first field that is set and not in `known`."""
    for field in msgspec.structs.fields(SamplingParams):
        if field.name in known or field.name in NO_MEANING:
            continue
        value = getattr(sampling, field.name)
        if value and value != getattr(_NEUTRAL, field.name):
            raise UnsupportedFeatureError(
                f"sampling_params.{field.name}", value=value, where=where, way_out="Leave it out."
            )
