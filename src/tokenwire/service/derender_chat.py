"""Token replies as chat replies: whole, and one chunk at a time."""

from __future__ import annotations

import time

import msgspec
from msgspec import UNSET

from tokenwire.derender.chat_parser import ChatFacts, final_reason
from tokenwire.render.messages import count_tool_calls
from tokenwire.service.chat_prompt import own_variables
from tokenwire.service.derender_setup import (
    DerenderSetup,
    chunk_usage,
    first_given,
    needs_prompt,
    num_tokens,
    reply_id,
)
from tokenwire.service.derender_stream import ChunkText
from tokenwire.service.derender_whole import LogprobCut, chat_choice
from tokenwire.service.message_shapes import chat_delta
from tokenwire.service.reply_fields import given
from tokenwire.service.usage import usage_of
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.chat_reply import ChatChunkChoice, ChatCompletionChunk, ChatCompletionResponse
from tokenwire.wire.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderChatStreamResponse,
    ReceivedChoice,
)


def whole_chat(setup: DerenderSetup, request: DerenderChatRequest) -> ChatCompletionResponse:
    """All choices of a checked request."""
    reply, chat = request.generate_response, request.chat_request
    prompt = first_given(request.prompt_token_ids, reply.prompt_token_ids)
    facts = chat_facts(chat)
    new_parser = setup.parser_maker(facts, prompt)
    reader = setup.whole_reader(setup.rules(chat, parsed=new_parser is not None), _cut(setup, chat), prompt)
    return_ids = bool(chat and chat.return_token_ids)
    choices = [
        chat_choice(choice, reader, facts, new_parser and new_parser(None), return_token_ids=return_ids)
        for choice in reply.choices
    ]
    return ChatCompletionResponse(
        id=reply_id(reply),
        created=int(time.time()),
        model=request.model or setup.models.name,
        choices=choices,
        usage=usage_of(request.prompt_tokens or 0, num_tokens([reply]), None),
        prompt_logprobs=reply.prompt_logprobs,
        prompt_token_ids=reply.prompt_token_ids if return_ids else None,
        kv_transfer_params=reply.kv_transfer_params,
        ec_transfer_params=reply.ec_transfer_params,
        metrics=reply.metrics,
    )


def chat_chunk(setup: DerenderSetup, request: DerenderChatStreamRequest) -> DerenderChatStreamResponse:
    """One chunk of a checked request, and the state for the next."""
    reply, chat, state = request.generate_chunk, request.chat_request, request.stream_state
    prompt = first_given(request.prompt_token_ids, reply.prompt_token_ids)
    facts = chat_facts(chat)
    hides = setup.parser is not None and not facts.include_reasoning
    session, shown = setup.read_chunk(
        reply,
        state,
        prompt,
        setup.rules(chat, parsed=setup.parser is not None),
        _cut(setup, chat),
        setup.parser_maker(facts, prompt, started=not needs_prompt(state)),
        hides_logprobs=hides,
    )
    return_ids = bool(chat and chat.return_token_ids)
    choices = []
    if shown is not None:
        with_role, session.role_sent = not session.role_sent, True
        reason = final_reason(shown.finish_reason, facts, has_calls=session.has_calls)
        ids = shown.token_ids if return_ids and not hides else None
        choices = [_chunk_choice(reply.choices[0], shown, reason, ids, with_role=with_role, hides=hides)]
    chunk = ChatCompletionChunk(
        id=reply_id(reply),
        created=int(time.time()),
        model=request.model or setup.models.name,
        choices=choices,
        usage=chunk_usage(reply, request.prompt_tokens),
        prompt_token_ids=reply.prompt_token_ids if return_ids else None,
        metrics=reply.metrics,
        kv_transfer_params=reply.kv_transfer_params,
        ec_transfer_params=given(reply.ec_transfer_params),
        prompt_logprobs=given(reply.prompt_logprobs),
    )
    return DerenderChatStreamResponse(chunk=chunk, stream_state=session.state())


def _chunk_choice(
    choice: ReceivedChoice,
    shown: ChunkText,
    finish_reason: str | None,
    token_ids: list[int] | None,
    *,
    with_role: bool,
    hides: bool,
) -> ChatChunkChoice:
    return ChatChunkChoice(
        index=choice.index,
        delta=chat_delta(shown.delta, with_role=with_role),
        logprobs=shown.logprobs,
        finish_reason=finish_reason,
        stop_reason=shown.stop_reason,
        token_ids=token_ids,
        weight_versions=choice.weight_versions,
        routed_experts=given(choice.routed_experts),
        sampling_mask=UNSET if hides else given(choice.masks),
    )


def _cut(setup: DerenderSetup, chat: ChatCompletionRequest | None) -> LogprobCut:
    """The first `top_logprobs` candidates where logprobs were asked for; logprobs that came unasked are all shown."""
    asked = chat is not None and (chat.logprobs or chat.top_logprobs)
    return setup.cut(chat, (chat.top_logprobs or 0) if chat is not None and asked else None)


def chat_facts(chat: ChatCompletionRequest | None) -> ChatFacts:
    """What the rendered request says about reading its answer."""
    if chat is None:
        return ChatFacts()
    return ChatFacts(
        tools=None if chat.tools is None else [msgspec.to_builtins(tool) for tool in chat.tools],
        tool_choice=chat.effective_tool_choice,
        parallel_tool_calls=chat.parallel_tool_calls is not False,
        include_reasoning=chat.include_reasoning,
        chat_template_kwargs=own_variables(chat),
        history_tool_call_cnt=count_tool_calls(chat.messages),
    )
