"""`/v1/completions` and its `/render`: the request (vLLM's fields and defaults).

A prompt may be a text, ids, or a list of either; `prompts` turns that into one shape and says what is wrong with
anything else.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tokenwire.errors import BodyValidationError, InvalidRequestError
from tokenwire.wire.chat import CommonSampling

DEFAULT_MAX_TOKENS = 16
"""OpenAI's; a null counts as left out."""

Prompt = str | list[int]


class CompletionRequest(CommonSampling, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    prompt: Any = None
    """str, list[int], list[str] or list[list[int]]."""
    prompt_embeds: Any = None
    suffix: str | None = None
    max_tokens: int | None | UnsetType = UNSET
    n: int = 1
    echo: bool | None = False
    logprobs: int | None = None
    add_special_tokens: bool = True

    @property
    def requested_max_tokens(self) -> int:
        return DEFAULT_MAX_TOKENS if self.max_tokens is UNSET or self.max_tokens is None else self.max_tokens

    def prompts(self) -> list[Prompt]:
        """Every prompt, in order; never empty. Raises `InvalidRequestError`."""
        prompt = self.prompt
        if prompt is None or prompt == "" or prompt == []:
            raise InvalidRequestError(
                "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", param="prompt"
            )
        if isinstance(prompt, str):
            return [prompt]
        try:
            if _is_nested(prompt):
                return list(msgspec.convert(prompt, _Many))
            return [msgspec.convert(prompt, _Ids)]
        except msgspec.ValidationError as exc:
            raise BodyValidationError([(_path(exc), _sentence(exc))]) from exc


_Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Ids = list[_Id]
_Many = list[str | list[_Id]]


def _is_nested(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)


def _path(exc: msgspec.ValidationError) -> str:
    where = str(exc).partition(" - at `$")[2].rstrip("`").replace("[", ".").replace("]", "")
    return f"body.prompt{where}"


def _sentence(exc: msgspec.ValidationError) -> str:
    return f"a prompt is a text, a list of token ids >= 0, or a list of these: {str(exc).partition(' - at ')[0]}"
