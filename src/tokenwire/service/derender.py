"""`/v1/chat/completions/derender` and `/v1/completions/derender`: token replies into OpenAI's replies.

Needs a tokenizer and no engine. Nothing is kept between calls: a stream's state travels with the client, so any
server with the same tokenizer and parser can go on where another stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tokenwire.errors import InvalidRequestError
from tokenwire.service.derender_chat import chat_chunk, whole_chat
from tokenwire.service.derender_completion import completion_chunk, whole_completion
from tokenwire.service.derender_input import check_prompts, check_replies
from tokenwire.service.derender_setup import DerenderSetup, needs_prompt, num_tokens, replay_size
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.chat_reply import ChatCompletionResponse
from tokenwire.wire.completion_reply import CompletionResponse
from tokenwire.wire.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderChatStreamResponse,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderCompletionStreamResponse,
)

__all__ = ["DerenderService", "DerenderSetup"]

IN_THREAD_TOKENS = 2048
"""From here on decoding takes long enough to be felt by other requests."""
T = TypeVar("T")


class DerenderService:
    """All methods run on one event loop, and raise a `CallerError` for what they cannot take."""

    def __init__(self, setup: DerenderSetup) -> None:
        self.setup = setup

    async def chat(self, request: DerenderChatRequest) -> ChatCompletionResponse:
        """A whole chat reply."""
        setup = self.setup
        setup.models.check(request.model)
        check_replies([request.generate_response], setup.limits)
        check_prompts([request.prompt_token_ids], setup.limits)
        self._require_chat_request(request.chat_request)
        return await _run(lambda: whole_chat(setup, request), num_tokens([request.generate_response]))

    async def completion(self, request: DerenderCompletionRequest) -> CompletionResponse:
        """A whole completion reply over one or several token replies."""
        setup = self.setup
        setup.models.check(request.model)
        if not request.generate_responses:
            raise InvalidRequestError("generate_responses must not be empty", param="generate_responses")
        check_replies(request.generate_responses, setup.limits)
        check_prompts(request.prompt_token_ids or (), setup.limits)
        return await _run(lambda: whole_completion(setup, request), num_tokens(request.generate_responses))

    async def chat_stream(self, request: DerenderChatStreamRequest) -> DerenderChatStreamResponse:
        """One chunk of a streamed chat reply."""
        setup, state = self.setup, request.stream_state
        setup.models.check(request.model)
        self._require_chat_request(request.chat_request)
        if setup.parser is not None and request.prompt_token_ids is None and needs_prompt(state):
            raise InvalidRequestError(
                "prompt_token_ids is required when a tool or reasoning parser is configured: the prompt says whether "
                "reasoning is already open.",
                param="prompt_token_ids",
            )
        setup.check_chunk(request.generate_chunk, request.prompt_token_ids, state, "derender_chat_stream")
        return await _run(lambda: chat_chunk(setup, request), replay_size(state))

    async def completion_stream(self, request: DerenderCompletionStreamRequest) -> DerenderCompletionStreamResponse:
        """One chunk of a streamed completion reply."""
        setup, state = self.setup, request.stream_state
        setup.models.check(request.model)
        setup.check_chunk(request.generate_chunk, request.prompt_token_ids, state, "derender_completion_stream")
        return await _run(lambda: completion_chunk(setup, request), replay_size(state))

    def _require_chat_request(self, chat: ChatCompletionRequest | None) -> None:
        if self.setup.parser is not None and chat is None:
            raise InvalidRequestError(
                "chat_request is required when a tool or reasoning parser is configured because plain detokenization "
                "would leak raw parser markup into content.",
                param="chat_request",
            )


async def _run(work: Callable[[], T], size: int) -> T:
    return work() if size < IN_THREAD_TOKENS else await asyncio.to_thread(work)
