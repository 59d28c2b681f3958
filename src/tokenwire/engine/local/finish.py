"""When a sequence ends, and why. The order of the rules is vLLM's, since it is visible in the answer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenwire.engine.base import FinishReason
from tokenwire.engine.local.sampling import has_repetition
from tokenwire.wire.sampling import SamplingParams

REPETITION = "repetition_detected"
"""`stop_reason` of a sequence that repeats itself."""


class FinishRules:
    """The rules of one model: its EOS ids (the first is the primary one) and its context length."""

    def __init__(self, eos_token_ids: Sequence[int], max_model_len: int) -> None:
        self.primary_eos = eos_token_ids[0] if eos_token_ids else None
        self.other_eos = frozenset(eos_token_ids[1:])
        self.max_model_len = max_model_len

    def check(
        self, params: SamplingParams, max_tokens: int, token_ids: Sequence[int], num_prompt: int
    ) -> tuple[FinishReason, int | str | None] | None:
        """`(finish_reason, stop_reason)` if the newest token ends the sequence, else None.

        `token_ids` is prompt and output. A stop token counts even at `max_tokens`; the primary EOS has no stop_reason.
        A forced trace ends with its last token and by nothing else.
        """
        last = token_ids[-1]
        num_output = len(token_ids) - num_prompt
        if params.trace_decode_token_ids is not None:
            max_tokens = min(max_tokens, len(params.trace_decode_token_ids))
        else:
            if not params.ignore_eos and last == self.primary_eos:
                return "stop", None
            if last in (params.stop_token_ids or ()) or (not params.ignore_eos and last in self.other_eos):
                return "stop", last
        if num_output >= max_tokens or len(token_ids) >= self.max_model_len:
            return "length", None
        rule = params.repetition_detection
        if rule is None or num_output < params.min_tokens:
            return None
        return ("repetition", REPETITION) if has_repetition(token_ids, rule, start=num_prompt) else None
