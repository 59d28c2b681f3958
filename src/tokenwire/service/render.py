"""`/render`: a chat, completion, messages or responses request into the token request that generate takes.

Everything blocking (templates, tokenizing) runs in a thread, so that a long prompt holds nobody else up. No engine is
needed: this service runs the same in a front end of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from msgspec import UNSET

from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.errors import InvalidRequestError
from tokenwire.render.chat import ChatEncoder
from tokenwire.render.fingerprint import render_fingerprint
from tokenwire.render.tokenize import TokenizeOptions, tokenize
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.service.answer_reading import AnswerReading, parse_context
from tokenwire.service.chat_prompt import ChatPrompts, RenderOptions, without_reused_ids
from tokenwire.service.chat_rules import check_chat, check_completion, check_lengths
from tokenwire.service.chat_sampling import chat_sampling, completion_sampling, max_tokens_for
from tokenwire.service.context import RequestContext
from tokenwire.service.messages_to_chat import messages_to_chat
from tokenwire.service.models import ModelRegistry
from tokenwire.service.responses_to_chat import responses_to_chat
from tokenwire.wire.chat import ChatCompletionRequest, CommonSampling
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.generate import GenerateRequest, ReasoningParserKwargs
from tokenwire.wire.messages import CountTokensRequest, MessagesRequest
from tokenwire.wire.render import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from tokenwire.wire.responses import ResponsesRequest

__all__ = ["RenderOptions", "RenderService"]


class RenderService:
    """One server's way from conversations to ids."""

    def __init__(
        self,
        models: ModelRegistry,
        tokenizer: Tokenizer,
        encoder: ChatEncoder,
        options: RenderOptions | None = None,
        *,
        parser: ParserSetup | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """`fingerprint`: of tokenizer and encoder, if it is known already."""
        self.models = models
        self.tokenizer = tokenizer
        self.encoder = encoder
        self.options = options or RenderOptions()
        self._prompts = ChatPrompts(models.name, tokenizer, encoder, self.options)
        self._reading = AnswerReading(
            parser,
            tokenizer,
            auto_tools=self.options.enable_auto_tool_choice,
            format_has_calls=encoder.has_own_calls,
        )
        self._fingerprint = fingerprint
        self._merge_system: bool | None = None

    # --- the routes --------------------------------------------------------------------------------------------------

    async def chat(self, request: ChatCompletionRequest, ctx: RequestContext | None = None) -> GenerateRequest:
        """Raises `InvalidRequestError` and `ModelNotFoundError`; `PrefixMismatchError` with `prefix_token_ids`."""
        check_chat(request, max_stop_strings=self.options.max_stop_strings)
        self.models.check(request.model)
        check_lengths(request, self.options.max_model_len)
        return await asyncio.to_thread(self._chat, request, _request_id("chatcmpl", request, ctx))

    async def completion(self, request: CompletionRequest, ctx: RequestContext | None = None) -> list[GenerateRequest]:
        """One request per prompt, in order; several get ids with `-i` behind."""
        check_completion(request, max_stop_strings=self.options.max_stop_strings)
        self.models.check(request.model)
        check_lengths(request, self.options.max_model_len)
        return await asyncio.to_thread(self._completion, request, _request_id("cmpl", request, ctx))

    async def messages(self, request: MessagesRequest, ctx: RequestContext | None = None) -> GenerateRequest:
        """Anthropic's messages, as the chat request they stand for."""
        return await self.chat(await self.messages_as_chat(request), ctx)

    async def messages_as_chat(self, request: MessagesRequest) -> ChatCompletionRequest:
        """The chat request that a messages request stands for."""
        if self._merge_system is None:
            self._merge_system = await asyncio.to_thread(self._prompts.wants_system_first)
        return messages_to_chat(request, merge_system=self._merge_system)

    async def count_tokens(self, request: CountTokensRequest) -> int:
        """How many tokens the prompt of a messages request has."""
        chat = await self.messages_as_chat(request.as_messages())
        check_chat(chat)
        self.models.check(chat.model)
        rendered = await asyncio.to_thread(self._prompts.render, chat, bounded=False)
        return len(rendered.prompt.token_ids)

    async def responses(self, request: ResponsesRequest, ctx: RequestContext | None = None) -> GenerateRequest:
        """Stateless responses: no `parse_context`, `reasoning_ended` or `stream_options`, as upstream has it."""
        chat = responses_to_chat(request)
        check_chat(chat, max_stop_strings=self.options.max_stop_strings)
        self.models.check(request.model)
        check_lengths(chat, self.options.max_model_len)
        request_id = request.request_id or f"resp_{uuid.uuid4().hex}"
        return await asyncio.to_thread(self._chat, chat, request_id, is_responses=True)

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Ids of a text, or of a rendered conversation."""
        self.models.check(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise InvalidRequestError("Give either prompt or messages.", param="prompt")
        token_ids = await asyncio.to_thread(self._tokenize, request)
        pieces = [self.tokenizer.id_to_piece(i) or "" for i in token_ids] if request.return_token_strs else None
        return TokenizeResponse(
            count=len(token_ids), max_model_len=self.options.max_model_len, tokens=token_ids, token_strs=pieces
        )

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """Text of ids, special tokens included."""
        self.models.check(request.model)
        known = [token_id for token_id in request.tokens if token_id <= self.tokenizer.max_token_id]
        return DetokenizeResponse(prompt=await asyncio.to_thread(self.tokenizer.decode, known))

    def fingerprint(self) -> str:
        """Of tokenizer and chat format; rendered requests carry it. Computed once; blocking the first time."""
        if self._fingerprint is None:
            self._fingerprint = render_fingerprint(self.tokenizer, self.encoder)
        return self._fingerprint

    # --- chat --------------------------------------------------------------------------------------------------------

    def prompt_text(self, request: ChatCompletionRequest) -> str:
        """The prompt as text (`return_prompt_text`). Blocking."""
        rendered = self._prompts.render(request)
        return rendered.text if rendered.text is not None else self.tokenizer.decode(rendered.prompt.token_ids)

    def _chat(self, request: ChatCompletionRequest, request_id: str, *, is_responses: bool = False) -> GenerateRequest:
        self._reading.check_tool_parser(request)
        rendered = self._prompts.render(request)
        token_ids = rendered.prompt.token_ids
        if not token_ids:
            raise InvalidRequestError("No token_ids rendered", param="messages")
        structured = self._reading.structured(request)
        kwargs = (
            ReasoningParserKwargs(chat_template_kwargs=rendered.variables) if self._reading.reads_reasoning else None
        )
        sampling = chat_sampling(
            request,
            self._max_tokens(request, len(token_ids)),
            self.options.default_sampling_params,
            structured=structured,
            keep_special_tokens=self._reading.keeps_special_tokens(request),
        )
        return GenerateRequest(
            request_id=request_id,
            token_ids=token_ids,
            token_offsets=rendered.prompt.offsets,
            sampling_params=sampling,
            reasoning_ended=None
            if is_responses
            else self._reading.reasoning_ended(request, rendered.variables, token_ids),
            reasoning_parser_kwargs=kwargs,
            parse_context=None if is_responses else parse_context(request, rendered.variables),
            stream_options=request.stream_options if request.stream and not is_responses else None,
            **self._shared(request),
        )

    def _max_tokens(self, request: ChatCompletionRequest | CompletionRequest, prompt_len: int) -> Any:
        return max_tokens_for(
            prompt_len,
            request.requested_max_tokens,
            max_model_len=self.options.max_model_len,
            defaults=self.options.default_sampling_params,
            override=self.options.override_max_tokens,
        )

    # --- completions, tokenize ---------------------------------------------------------------------------------------

    def _completion(self, request: CompletionRequest, base_id: str) -> list[GenerateRequest]:
        if request.suffix is not None:
            raise InvalidRequestError(
                "suffix is only supported for models with FIM completion rendering", param="suffix"
            )
        prompts = request.prompts()
        options = TokenizeOptions(
            max_model_len=self.options.max_model_len,
            truncate=request.truncate_prompt_tokens,
            truncation_side=request.truncation_side,
            add_special_tokens=request.add_special_tokens,
            with_offsets=bool(request.return_token_offsets),
        )
        out = []
        for index, prompt in enumerate(prompts):
            tokenized = tokenize(self.tokenizer, prompt, options)
            if not tokenized.token_ids:
                raise InvalidRequestError("No token_ids rendered", param="prompt")
            sampling = completion_sampling(
                request,
                self._max_tokens(request, len(tokenized.token_ids)),
                self.options.default_sampling_params,
            )
            out.append(
                GenerateRequest(
                    request_id=base_id if len(prompts) == 1 else f"{base_id}-{index}",
                    token_ids=tokenized.token_ids,
                    token_offsets=tokenized.offsets,
                    sampling_params=sampling,
                    stream_options=request.stream_options if request.stream else None,
                    **self._shared(request),
                )
            )
        return out

    def _tokenize(self, request: TokenizeRequest) -> list[int]:
        if request.prompt is not None:
            add_special = True if request.add_special_tokens is UNSET else request.add_special_tokens
            return self.tokenizer.encode(request.prompt, add_special_tokens=add_special)
        chat = ChatCompletionRequest(
            messages=request.messages or [],
            tools=request.tools,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            add_special_tokens=False if request.add_special_tokens is UNSET else request.add_special_tokens,
            chat_template=request.chat_template,
            chat_template_kwargs=request.chat_template_kwargs,
            media_io_kwargs=request.media_io_kwargs,
            mm_processor_kwargs=request.mm_processor_kwargs,
        )
        check_chat(chat)
        return self._prompts.render(chat, bounded=False).prompt.token_ids

    def _shared(self, request: CommonSampling) -> dict[str, Any]:
        """What a request hands on unread."""
        return {
            "model": request.model,
            "stream": bool(request.stream),
            "return_token_ids": request.return_token_ids,
            "cache_salt": request.cache_salt,
            "priority": request.priority,
            "kv_transfer_params": without_reused_ids(request.kv_transfer_params),
            "ec_transfer_params": request.ec_transfer_params,
            "render_fingerprint": self.fingerprint(),
        }


def _request_id(kind: str, request: CommonSampling, ctx: RequestContext | None) -> str:
    header = ctx.request_id_header if ctx is not None else None
    return f"{kind}-{header or request.request_id or uuid.uuid4().hex}"
