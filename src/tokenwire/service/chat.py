"""`/v1/chat/completions`: render, generate and derender in one call.

The same three stages that `/render`, `/generate` and `/derender` give out one by one, so that the message is the same
by any road: the request is rendered as for `/render`, runs at the level `derender`, and its choices become OpenAI's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from tokenwire.service.answers import AnswerOptions, ChoiceListener, with_session
from tokenwire.service.chat_stream import ChatStream
from tokenwire.service.context import RequestContext
from tokenwire.service.generate import Endpoint, GenerateService, PreparedGenerate
from tokenwire.service.render import RenderService
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.chat_reply import ChatChoice, ChatCompletionResponse, ChatStreamChunk
from tokenwire.wire.generate import DerenderChoice, Message
from tokenwire.wire.usage import UsageInfo

__all__ = ["ChatService", "PreparedChat"]


@dataclass(slots=True, kw_only=True)
class PreparedChat:
    """A chat that passed every check and waits to run."""

    generate: PreparedGenerate
    return_token_ids: bool
    echo: str
    """What stands before every choice's content."""
    prompt_text: str | None

    @property
    def request_id(self) -> str:
        return self.generate.request_id


class ChatService:
    """Chats over one server's render and generate services."""

    def __init__(
        self,
        render: RenderService,
        generate: GenerateService,
        options: AnswerOptions | None = None,
        *,
        listener: ChoiceListener | None = None,
    ) -> None:
        self.render = render
        self.generate = generate
        self.options = options or AnswerOptions()
        self._listener = listener

    async def prepare(
        self, request: ChatCompletionRequest, context: RequestContext, *, request_id: str | None = None
    ) -> PreparedChat:
        """Everything that can be refused is refused here. `request_id`: complete; None: `chatcmpl-...`, as render's."""
        rendered = await self.render.chat(request, context)
        options = self.options
        prepared = await self.generate.prepare(
            msgspec.structs.replace(rendered, output_mode="derender", stream_options=options.stream_options(request)),
            with_session(request, context),
            endpoint=Endpoint(
                request_id=request_id or rendered.request_id or "",
                tokens_as_token_ids=request.return_tokens_as_token_ids,
                timings=options.per_request_metrics,
            ),
        )
        text = await asyncio.to_thread(self.render.prompt_text, request) if request.return_prompt_text else None
        return PreparedChat(
            generate=prepared,
            return_token_ids=bool(request.return_token_ids),
            echo=_echoed(request) if request.echo else "",
            prompt_text=text,
        )

    async def full(self, prepared: PreparedChat) -> ChatCompletionResponse:
        """Run to the end. Cancelling it aborts the request in the engine."""
        reply = await self.generate.full(prepared.generate)
        if self._listener is not None:
            self._listener(prepared.generate, reply.choices)
        return ChatCompletionResponse(
            id=reply.request_id,
            created=reply.created,
            model=reply.model,
            choices=[_choice(choice, prepared) for choice in reply.choices],
            system_fingerprint=self.options.system_fingerprint,
            usage=reply.usage or UsageInfo(),
            prompt_logprobs=reply.prompt_logprobs,
            prompt_token_ids=_plain(reply.prompt_token_ids),
            prompt_text=prepared.prompt_text,
            kv_transfer_params=reply.kv_transfer_params,
            ec_transfer_params=reply.ec_transfer_params,
            metrics=reply.metrics,
        )

    async def stream(self, prepared: PreparedChat) -> AsyncGenerator[list[ChatStreamChunk], None]:
        """The stream's events, all that are ready at each wake-up. Closing it early aborts the request."""
        shaper = ChatStream(
            prepared.generate,
            self.options.system_fingerprint,
            return_token_ids=prepared.return_token_ids,
            echo=prepared.echo,
            prompt_text=prepared.prompt_text,
        )
        async with aclosing(self.generate.stream(prepared.generate)) as batches:
            async for events in batches:
                if self._listener is not None:
                    self._listener(prepared.generate, [choice for event in events for choice in event.choices])
                chunks = [chunk for event in events for chunk in shaper.chunks(event)]
                if chunks:
                    yield chunks


def _choice(choice: DerenderChoice, prepared: PreparedChat) -> ChatChoice:
    mask = choice.sampling_mask
    return ChatChoice(
        index=choice.index,
        message=_after_echo(choice.message, prepared.echo),
        logprobs=choice.logprobs,  # type: ignore[arg-type]  # packed ones are generate's alone
        finish_reason=choice.finish_reason,
        stop_reason=choice.stop_reason,
        token_ids=_plain(choice.token_ids) if prepared.return_token_ids else None,
        routed_experts=choice.routed_experts,
        weight_versions=choice.weight_versions,
        sampling_mask=UNSET if mask is None else mask,
    )


def _after_echo(message: Message, echo: str) -> Message:
    return msgspec.structs.replace(message, content=echo + (message.content or "")) if echo else message


def _plain(ids: list[int] | bytes | None) -> list[int] | None:
    return ids if isinstance(ids, list) else None


def _echoed(request: ChatCompletionRequest) -> str:
    """The content of the last message, if it is of the role that answers (with no generation prompt: of any)."""
    last = request.messages[-1] if request.messages else {}
    if request.wants_generation_prompt and last.get("role") != "assistant":
        return ""
    content = last.get("content")
    if isinstance(content, list):
        return "\n".join(text for part in content if (text := _part_text(part)) is not None)
    return content or ""


def _part_text(part: Any) -> str | None:
    text = part if isinstance(part, str) else part.get("text")
    return text if isinstance(text, str) else None
