"""A generate stream's events as chat chunks.

Every choice begins with its role; what is echoed comes next; then one chunk per event that shows something, with
nothing in its delta but what is new. Prompt facts ride on the first chunk of all.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tokenwire.service.prepare import PreparedGenerate
from tokenwire.service.reply_fields import given
from tokenwire.service.usage import usage_of
from tokenwire.wire.chat_reply import ChatStreamChoice, ChatStreamChunk
from tokenwire.wire.generate import DeltaMessage, DerenderDeltaChoice, GenerateChunk, TextLogprobs, UsageChunk
from tokenwire.wire.usage import PromptTokensDetails, UsageInfo

NOTHING = DeltaMessage()


class ChatStream:
    """Shapes the stream of one chat."""

    def __init__(
        self,
        prepared: PreparedGenerate,
        system_fingerprint: str | None,
        *,
        return_token_ids: bool,
        echo: str,
        prompt_text: str | None,
    ) -> None:
        self._prepared = prepared
        self._fingerprint = system_fingerprint
        self._return_token_ids = return_token_ids
        self._echo = echo
        self._prompt_text = prompt_text
        self._begun = False

    def chunks(self, event: GenerateChunk | UsageChunk) -> list[ChatStreamChunk]:
        """What this event adds; empty where it shows nothing."""
        chunks = [] if self._begun else self._first(event)
        if isinstance(event, UsageChunk):
            return [*chunks, self._chunk([], usage=whole_usage(event), metrics=event.metrics)]
        choices = [shown for choice in event.choices if (shown := self._shown(choice)) is not None]
        extras = {"kv_transfer_params": event.kv_transfer_params, "ec_transfer_params": event.ec_transfer_params}
        if choices or any(value is not UNSET for value in extras.values()):
            chunks.append(self._chunk(choices, usage=UNSET if event.usage is None else event.usage, **extras))
        return chunks

    def _first(self, event: GenerateChunk | UsageChunk) -> list[ChatStreamChunk]:
        self._begun = True
        usage: UsageInfo | UnsetType = UNSET
        if isinstance(event, GenerateChunk) and event.usage is not None:
            usage = usage_of(event.usage.prompt_tokens, 0, None)
        first: dict[str, Any] = {"prompt_text": UNSET if self._prompt_text is None else self._prompt_text}
        if isinstance(event, GenerateChunk):
            first |= {"prompt_token_ids": event.prompt_token_ids, "prompt_logprobs": event.prompt_logprobs}
        chunks = []
        for index in range(self._prepared.n):
            role = ChatStreamChoice(index=index, delta=DeltaMessage(role="assistant", content=""))
            chunks.append(self._chunk([role], usage=usage, **(first if index == 0 else {})))
        for index in range(self._prepared.n if self._echo else 0):
            echoed = ChatStreamChoice(index=index, delta=DeltaMessage(content=self._echo))
            chunks.append(self._chunk([echoed], usage=usage))
        return chunks

    def _shown(self, choice: DerenderDeltaChoice) -> ChatStreamChoice | None:
        delta = choice.delta
        if delta.role is not UNSET:
            delta = msgspec.structs.replace(delta, role=UNSET)
        scores = choice.logprobs if isinstance(choice.logprobs, TextLogprobs) and choice.logprobs.content else None
        ids = choice.token_ids if self._return_token_ids and isinstance(choice.token_ids, list) else UNSET
        finished = choice.finish_reason is not None
        if delta == NOTHING and not finished and scores is None and not ids:
            return None
        return ChatStreamChoice(
            index=choice.index,
            delta=delta,
            logprobs=scores,
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason if finished else UNSET,
            token_ids=ids,
            weight_versions=given(choice.weight_versions),
            routed_experts=given(choice.routed_experts),
            sampling_mask=given(choice.sampling_mask),
        )

    def _chunk(self, choices: list[ChatStreamChoice], **fields: Any) -> ChatStreamChunk:
        prepared = self._prepared
        return ChatStreamChunk(
            id=prepared.request_id,
            created=prepared.created,
            model=prepared.model_name,
            choices=choices,
            system_fingerprint=self._fingerprint,
            **fields,
        )


def whole_usage(event: UsageChunk) -> UsageInfo:
    """The counts of a generate stream's last event."""
    details = event.usage.get("prompt_tokens_details")
    return UsageInfo(
        prompt_tokens=event.usage["prompt_tokens"],
        completion_tokens=event.usage["completion_tokens"],
        total_tokens=event.usage["total_tokens"],
        prompt_tokens_details=None if details is None else PromptTokensDetails(**details),
    )
