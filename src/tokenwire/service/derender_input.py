"""What comes in at `/derender`: bounds, how generation ended, and logprobs in either of their forms.

Everything is checked before a token is decoded, so that a body costs no more than its size.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenwire.derender.detokenizer import DetokenizerOptions
from tokenwire.derender.stop import StopRules
from tokenwire.errors import InvalidRequestError
from tokenwire.wire.chat import CommonSampling
from tokenwire.wire.derender import ReceivedCandidate, ReceivedChoice, ReceivedEntry, ReceivedLogprobs, ReceivedReply


@dataclass(slots=True, frozen=True, kw_only=True)
class DerenderLimits:
    """Sizes that a body may have; ids, logprob rows and prompt scores are all bounded by the context."""

    max_model_len: int
    max_logprobs: int = 20
    """-1: no bound."""
    max_n: int = 16384


def check_replies(replies: list[ReceivedReply], limits: DerenderLimits) -> None:
    """Raises `InvalidRequestError` for anything larger than a server can have made."""
    if len(replies) > limits.max_n:
        raise InvalidRequestError(
            f"generate_responses count ({len(replies)}) exceeds server maximum ({limits.max_n}).",
            param="generate_responses",
        )
    for reply in replies:
        if len(reply.choices) > limits.max_n:
            raise InvalidRequestError(
                f"choices count ({len(reply.choices)}) in response '{reply.request_id}' exceeds server maximum "
                f"({limits.max_n}).",
                param="choices",
            )
        for choice in reply.choices:
            _check_choice(choice, limits)
        scores = reply.prompt_logprobs
        if isinstance(scores, list) and len(scores) > limits.max_model_len:
            raise InvalidRequestError(
                f"prompt_logprobs length ({len(scores)}) in response '{reply.request_id}' exceeds max_model_len "
                f"({limits.max_model_len}).",
                param="prompt_logprobs",
            )


def check_prompts(prompts: Iterable[list[int] | None], limits: DerenderLimits) -> None:
    """Raises `InvalidRequestError` for a prompt that is longer than the context."""
    for ids in prompts:
        if ids is not None and len(ids) > limits.max_model_len:
            raise InvalidRequestError(
                f"prompt_token_ids length ({len(ids)}) exceeds max_model_len ({limits.max_model_len}).",
                param="prompt_token_ids",
            )


def _check_choice(choice: ReceivedChoice, limits: DerenderLimits) -> None:
    _bounded("token_ids", len(choice.token_ids or ()), choice.index, limits)
    if choice.logprobs is None:
        return
    entries = choice.logprobs.content or ()
    _bounded("logprobs.content", len(entries), choice.index, limits)
    most = max((len(entry.top_logprobs) for entry in entries), default=0)
    # Beside k candidates the sampled token may stand, as token servers send it.
    if 0 <= limits.max_logprobs < most - 1:
        raise InvalidRequestError(
            f"top_logprobs count ({most}) in choice {choice.index} exceeds max_logprobs ({limits.max_logprobs}).",
            param="logprobs",
        )


def _bounded(name: str, length: int, index: int, limits: DerenderLimits) -> None:
    if length > limits.max_model_len:
        raise InvalidRequestError(
            f"{name} length ({length}) in choice {index} exceeds max_model_len ({limits.max_model_len}).", param=name
        )


# --- how it ended -----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class TextRules:
    """What the original request says about text."""

    options: DetokenizerOptions
    stop: StopRules
    stop_token_ids: frozenset[int] = frozenset()

    def with_reported(self, choice: ReceivedChoice) -> StopRules:
        """The stop rules, knowing what the token server reports. A stop string it found is one to cut at."""
        reported = choice.stop_reason
        if not isinstance(reported, str) or not reported or reported in self.stop.strings:
            return self.stop
        return StopRules((*self.stop.strings, reported), self.stop.min_tokens, self.stop.include_in_output)

    def hides_last(self, choice: ReceivedChoice, finish_reason: str | None, eos_token_ids: Collection[int]) -> bool:
        """Whether the last token ended generation and so has no text: the reported id, else EOS or a stop id."""
        ids, reported = choice.token_ids, choice.stop_reason
        if not ids or finish_reason != "stop" or self.stop.include_in_output or isinstance(reported, str):
            return False
        if reported is not None:
            return ids[-1] == reported
        return ids[-1] in eos_token_ids or ids[-1] in self.stop_token_ids


def text_rules(request: CommonSampling | None, *, keep_special: bool) -> TextRules:
    """`keep_special`: a parser reads the text. Raises `InvalidRequestError` for an empty stop string."""
    if request is None:
        return TextRules(DetokenizerOptions(skip_special_tokens=not keep_special), StopRules())
    given = request.stop or []
    strings = (given,) if isinstance(given, str) else tuple(given)
    if "" in strings:
        raise InvalidRequestError("stop cannot contain an empty string.", param="stop")
    return TextRules(
        DetokenizerOptions(
            skip_special_tokens=request.skip_special_tokens and not keep_special,
            spaces_between_special_tokens=request.spaces_between_special_tokens,
        ),
        StopRules(strings, request.min_tokens, request.include_stop_str_in_output),
        frozenset(request.stop_token_ids or ()),
    )


# --- logprobs ---------------------------------------------------------------------------------------------------


def received_entries(choice: ReceivedChoice, limits: DerenderLimits) -> list[ReceivedEntry] | None:
    """One entry a token, from nested or packed logprobs. Raises `InvalidRequestError` for arrays that do not fit."""
    logprobs = choice.logprobs
    if logprobs is None:
        return None
    if logprobs.format != "packed":
        return logprobs.content or []
    return _unpacked(logprobs, choice, limits)


def _unpacked(logprobs: ReceivedLogprobs, choice: ReceivedChoice, limits: DerenderLimits) -> list[ReceivedEntry]:
    rows, k = len(choice.token_ids or ()), logprobs.k or 0
    widest = limits.max_logprobs + 1 if limits.max_logprobs >= 0 else None
    if k < 1 or (widest is not None and k > widest):
        raise InvalidRequestError(f"packed logprobs of choice {choice.index} have k={logprobs.k}.", param="logprobs")
    ids = _array(logprobs.token_ids, "<i4", rows * k, choice.index).reshape(rows, k)
    values = _array(logprobs.logprobs, "<f4", rows * k, choice.index).reshape(rows, k)
    entries = []
    for token_id, row_ids, row_values in zip(choice.token_ids or (), ids.tolist(), values.tolist(), strict=True):
        if row_ids[0] != token_id:
            entries.append(ReceivedEntry(token_id, -np.inf))
            continue
        top = [ReceivedCandidate(i, v) for i, v in zip(row_ids, row_values, strict=True) if i >= 0]
        entries.append(ReceivedEntry(token_id, row_values[0], None, top))
    return entries


def _array(data: Any, dtype: str, size: int, index: int) -> NDArray[np.generic]:
    try:
        raw = base64.b64decode(data, validate=True) if isinstance(data, str) else data
        array = np.frombuffer(raw, dtype)
    except (ValueError, TypeError, binascii.Error) as exc:
        raise InvalidRequestError(f"packed logprobs of choice {index}: {exc}", param="logprobs") from exc
    if array.size != size:
        raise InvalidRequestError(
            f"packed logprobs of choice {index} have {array.size} cells where {size} are needed.", param="logprobs"
        )
    return array
