"""The state of a token-exact dialogue, apart from any client: what to ask next, and what an answer adds.

The ids of a dialogue only ever grow at their end. Each turn asks render for a prompt that begins with exactly the ids
so far, and takes the sampled ids as they came; text is never encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.client.errors import BadReplyError
from tokenwire.client.record import TrainingRecord
from tokenwire.client.replies import DerenderChoice, GenerateResponse, Rendered, TokensChoice
from tokenwire.errors import InvalidRequestError, PrefixMismatchError
from tokenwire.wire.generate import Message, ToolCall, WeightVersionSpan

Parse = Literal["generate", "derender"]
"""Who turns ids into a message: generate itself (output_mode "derender"), or the derender route afterwards."""


@dataclass(slots=True, frozen=True)
class Turn:
    """One answer of the model."""

    message: Message
    prompt_token_ids: list[int]
    """All ids it was conditioned on; the prompts of later turns begin with these and `token_ids`."""
    token_ids: list[int]
    logprobs: NDArray[np.float32] | None  # [len(token_ids)]; None if the dialogue asks for none
    response: GenerateResponse

    @property
    def choice(self) -> TokensChoice:
        return self.response.choices[0]

    @property
    def finish_reason(self) -> str | None:
        return self.choice.finish_reason

    @property
    def tool_calls(self) -> list[ToolCall]:
        calls = self.message.tool_calls
        return [] if calls is msgspec.UNSET else calls


@dataclass(slots=True)
class Dialogue:
    """Messages and ids so far. `covered` messages are in `token_ids`; those after it wait for the next prompt."""

    model: str | None
    chat_fields: dict[str, Any]
    sampling_params: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    covered: int = 0

    def __post_init__(self) -> None:
        _refuse_many(self.sampling_params)
        _refuse_many(self.chat_fields)
        if self.chat_fields.get("include_reasoning") is False:
            raise InvalidRequestError(
                "include_reasoning=false hides the sampled ids, and a dialogue is made of them",
                param="include_reasoning",
            )

    def fork(self) -> Dialogue:
        """A copy that goes its own way from here."""
        return Dialogue(
            self.model,
            deepcopy(self.chat_fields),
            deepcopy(self.sampling_params),
            deepcopy(self.messages),
            list(self.token_ids),
            list(self.turns),
            self.covered,
        )

    # --- what to ask --------------------------------------------------------------------------------------------

    def chat_request(self) -> dict[str, Any]:
        """The chat completion request of the messages so far, without the prefix."""
        named = {"model": self.model} if self.model is not None else {}
        return {"messages": self.messages, **named, **self.chat_fields}

    def render_request(self) -> dict[str, Any]:
        if len(self.messages) == self.covered:
            raise InvalidRequestError(
                "there is no new message since the last answer; add a user or tool message first", param="messages"
            )
        request = self.chat_request()
        if self.token_ids:
            request |= {"prefix_token_ids": self.token_ids, "prefix_message_count": self.covered}
        return request

    def check_prompt(self, rendered: Rendered) -> None:
        """Raise `PrefixMismatchError` unless the prompt begins with the ids so far."""
        prompt, known = rendered.token_ids, self.token_ids
        if prompt[: len(known)] == known:
            return
        same = (a == b for a, b in zip(prompt, known, strict=False))
        position = next((at for at, equal in enumerate(same) if not equal), min(len(prompt), len(known)))
        raise PrefixMismatchError(
            position,
            f"render was given the {len(known)} ids so far as prefix_token_ids and answered with another prompt; "
            "this server does not know prefix_token_ids",
        )

    def generate_fields(self, parse: Parse) -> dict[str, Any]:
        mode = "derender" if parse == "generate" else "tokens"
        return {"output_mode": mode, "logprobs_format": "packed", "stream": False, "stream_options": None}

    def sampling(self, this_turn: Mapping[str, Any] | None) -> dict[str, Any]:
        """The caller's parameters, to go over those that render resolved. Scores of sampled tokens unless refused."""
        params = {"logprobs": 0, **self.sampling_params, **(this_turn or {})}
        _refuse_many(params)
        return params

    # --- what an answer adds ------------------------------------------------------------------------------------

    def accept(self, prompt: list[int], response: GenerateResponse, message: Message, *, scored: bool) -> Turn:
        """Append an answer; `scored` if scores were asked for.

        Raises `BadReplyError`, and changes nothing, if ids or scores are not all there.
        """
        token_ids = response.token_ids
        logprobs = _scores(response.choices[0], len(token_ids)) if scored else None
        turn = Turn(message, prompt, token_ids, logprobs, response)
        self.messages.append(_as_dict(message))
        self.token_ids = [*prompt, *token_ids]
        self.covered = len(self.messages)
        self.turns.append(turn)
        return turn

    def record(self) -> TrainingRecord:
        """Everything up to the last answer; messages that wait for the next prompt are left out."""
        size = len(self.token_ids)
        mask, logprobs = np.zeros(size, np.bool_), np.full(size, np.nan, np.float32)
        spans: list[WeightVersionSpan] = []
        for turn in self.turns:
            start = len(turn.prompt_token_ids)
            end = start + len(turn.token_ids)
            mask[start:end] = True
            if turn.logprobs is not None:
                logprobs[start:end] = turn.logprobs
            for span in turn.choice.weight_versions or ():
                spans.append(WeightVersionSpan(span.version, start + span.start, start + span.end))
        ids = np.array(self.token_ids, np.int32)
        return TrainingRecord(ids, mask, logprobs, spans, deepcopy(self.messages[: self.covered]))


def _refuse_many(params: Mapping[str, Any]) -> None:
    if params.get("n") not in (None, 1):
        raise InvalidRequestError("a dialogue has one answer per turn, so n must be 1; fork() it instead", param="n")


def _scores(choice: TokensChoice, num_tokens: int) -> NDArray[np.float32]:
    scores = np.zeros(0, np.float32) if choice.logprobs is None else choice.logprobs.sampled()
    if len(scores) != num_tokens:
        raise BadReplyError(
            f"{num_tokens} tokens were sampled, but the reply has logprobs for {len(scores)}; set "
            'sampling_params={"logprobs": None} to do without'
        )
    return scores


def message_of(response: GenerateResponse) -> Message:
    """The message of a derender-level answer. Raises `BadReplyError` from a server that gave tokens only."""
    if response.choices and not isinstance(response.choices[0], DerenderChoice):
        raise BadReplyError(
            'generate was asked for output_mode "derender" and answered with '
            f'"{response.output_mode}"; this server cannot do it, use parse="derender"'
        )
    return response.message


def _as_dict(message: Message) -> dict[str, Any]:
    """The message as history: what a template reads, without the nulls."""
    plain: dict[str, Any] = msgspec.to_builtins(message)
    return {k: v for k, v in plain.items() if v is not None or k == "content"}


def as_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]
