"""Token replies as completion replies: whole, over one or several prompts, and one chunk at a time."""

from __future__ import annotations

import time

from msgspec import UNSET

from tokenwire.derender.stream_state import StreamSession
from tokenwire.service.derender_setup import DerenderSetup, chunk_usage, first_given, num_tokens, reply_id
from tokenwire.service.derender_stream import ChunkText
from tokenwire.service.derender_whole import LogprobCut
from tokenwire.service.reply_fields import agreed, given
from tokenwire.service.text_logprobs import completion_logprobs
from tokenwire.service.usage import usage_of
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.completion_reply import (
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from tokenwire.wire.derender import (
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderCompletionStreamResponse,
    ReceivedReply,
)


def whole_completion(setup: DerenderSetup, request: DerenderCompletionRequest) -> CompletionResponse:
    """All choices of all replies of a checked request; their indexes run on."""
    replies = request.generate_responses
    prompts = request.prompt_token_ids or [None] * len(replies)
    choices: list[CompletionChoice] = []
    for reply, prompt in zip(replies, prompts, strict=True):
        ids = first_given(prompt, reply.prompt_token_ids)
        choices += _choices(setup, request.completion_request, reply, ids, len(choices))
    first = replies[0]
    return CompletionResponse(
        id=reply_id(first),
        created=int(time.time()),
        model=request.model or setup.models.name,
        choices=choices,
        usage=usage_of(sum(request.prompt_tokens or ()), num_tokens(replies), None),
        kv_transfer_params=agreed([reply.kv_transfer_params for reply in replies]),
        ec_transfer_params=agreed([reply.ec_transfer_params for reply in replies]),
        metrics=first.metrics if len(replies) == 1 else None,
    )


def _choices(
    setup: DerenderSetup, request: CompletionRequest | None, reply: ReceivedReply, prompt: list[int], start: int
) -> list[CompletionChoice]:
    reader = setup.whole_reader(setup.rules(request, parsed=False), _cut(setup, request), prompt)
    return_ids = bool(request and request.return_token_ids)
    choices = []
    for index, choice in enumerate(reply.choices, start):
        whole = reader.read(choice, where=f"choice {choice.index} in response {reply.request_id}")
        mask = choice.masks
        choices.append(
            CompletionChoice(
                index=index,
                text=whole.text,
                logprobs=None if whole.logprobs is None else completion_logprobs(whole.logprobs),
                finish_reason=whole.finish_reason,
                stop_reason=whole.stop_reason,
                token_ids=whole.token_ids if return_ids else None,
                prompt_logprobs=reply.prompt_logprobs,
                prompt_token_ids=reply.prompt_token_ids if return_ids else None,
                routed_experts=choice.routed_experts,
                weight_versions=choice.weight_versions,
                sampling_mask=UNSET if mask is None else mask[: len(whole.token_ids)],
            )
        )
    return choices


def completion_chunk(
    setup: DerenderSetup, request: DerenderCompletionStreamRequest
) -> DerenderCompletionStreamResponse:
    """One chunk of a checked request, and the state for the next."""
    reply, original = request.generate_chunk, request.completion_request
    prompt = first_given(request.prompt_token_ids, reply.prompt_token_ids)
    rules = setup.rules(original, parsed=False)
    session, shown = setup.read_chunk(reply, request.stream_state, prompt, rules, _cut(setup, original))
    return_ids = bool(original and original.return_token_ids)
    choices = []
    if shown is not None:
        choice = reply.choices[0]
        choices.append(
            CompletionChunkChoice(
                index=choice.index,
                text=shown.text,
                logprobs=_logprobs(shown, session),
                finish_reason=shown.finish_reason,
                stop_reason=shown.stop_reason,
                prompt_token_ids=reply.prompt_token_ids if return_ids else None,
                token_ids=shown.token_ids if return_ids else None,
                weight_versions=choice.weight_versions,
                routed_experts=given(choice.routed_experts),
                sampling_mask=given(choice.masks),
                prompt_logprobs=given(reply.prompt_logprobs),
            )
        )
    chunk = CompletionChunk(
        id=reply_id(reply),
        created=int(time.time()),
        model=request.model or setup.models.name,
        choices=choices,
        usage=chunk_usage(reply, request.prompt_tokens),
        metrics=reply.metrics,
        kv_transfer_params=given(reply.kv_transfer_params),
        ec_transfer_params=given(reply.ec_transfer_params),
    )
    return DerenderCompletionStreamResponse(chunk=chunk, stream_state=session.state())


def _cut(setup: DerenderSetup, request: CompletionRequest | None) -> LogprobCut:
    """The sampled token and `logprobs` candidates beside it."""
    asked = None if request is None or request.logprobs is None or request.logprobs < 0 else request.logprobs + 1
    return setup.cut(request, asked)


def _logprobs(shown: ChunkText, session: StreamSession) -> CompletionLogprobs | None:
    """Offsets count token strings over the whole stream, as in a whole reply."""
    start = session.text_offset
    if shown.logprobs is None:
        session.text_offset = start + len(shown.text)
        return None
    session.text_offset = start + sum(len(entry.token) for entry in shown.logprobs.content)
    return completion_logprobs(shown.logprobs, text_offset=start)
