"""`/v1/chat/completions/derender` and `/v1/completions/derender`: token replies into OpenAI replies.

Needs a tokenizer and no engine. Nothing is kept between calls: a stream's state travels with the client.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tokenwire.derender.chat_parser import ChatFacts, ParserSetup, final_reason, options_of, prompt_reasoning
from tokenwire.derender.parser import MessageParser
from tokenwire.derender.stream_state import StreamRules, StreamSession, begin, resume
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidRequestError, InvalidStateError, TokenwireError
from tokenwire.service.derender_input import (
    DerenderLimits,
    TextRules,
    check_prompts,
    check_replies,
    text_rules,
)
from tokenwire.service.derender_stream import ChunkReader, ChunkText
from tokenwire.service.derender_whole import LogprobCut, WholeReader, chat_choice
from tokenwire.service.message_shapes import chat_delta
from tokenwire.service.models import ModelRegistry
from tokenwire.service.text_logprobs import completion_logprobs
from tokenwire.service.usage import usage_of
from tokenwire.wire.chat import ChatCompletionRequest
from tokenwire.wire.chat_reply import ChatChunkChoice, ChatCompletionChunk, ChatCompletionResponse
from tokenwire.wire.completion import CompletionRequest
from tokenwire.wire.completion_reply import (
    CompletionChoice,
    CompletionChunk,
    CompletionChunkChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from tokenwire.wire.derender import (
    DerenderChatRequest,
    DerenderChatStreamRequest,
    DerenderChatStreamResponse,
    DerenderCompletionRequest,
    DerenderCompletionStreamRequest,
    DerenderCompletionStreamResponse,
    DerenderStreamState,
    ReceivedReply,
)
from tokenwire.wire.usage import UsageInfo

IN_THREAD_TOKENS = 2048
"""From here on decoding takes long enough to be felt by other requests."""
T = TypeVar("T")


class DerenderService:
    """All methods run on one event loop; long work goes to a thread."""

    def __init__(
        self,
        models: ModelRegistry,
        vocabulary: Vocabulary,
        limits: DerenderLimits,
        *,
        eos_token_ids: Collection[int] = (),
        parser: ParserSetup | None = None,
        return_tokens_as_token_ids: bool = False,
    ) -> None:
        self.models = models
        self.vocabulary = vocabulary
        self.limits = limits
        self.parser = parser
        self._eos = frozenset(eos_token_ids)
        self._as_token_ids = return_tokens_as_token_ids

    # --- whole ---------------------------------------------------------------------------------------------------

    async def chat(self, request: DerenderChatRequest) -> ChatCompletionResponse:
        """A whole chat reply. Raises a `CallerError`."""
        self.models.check(request.model)
        check_replies([request.generate_response], self.limits)
        check_prompts([request.prompt_token_ids], self.limits)
        self._require_chat_request(request.chat_request)
        return await _run(lambda: self._chat(request), _num_tokens([request.generate_response]))

    def _chat(self, request: DerenderChatRequest) -> ChatCompletionResponse:
        reply, chat = request.generate_response, request.chat_request
        prompt = _first_of(request.prompt_token_ids, reply.prompt_token_ids)
        facts = _facts(chat)
        new_parser = self._parser_maker(facts, prompt)
        reader = self._reader(chat, prompt, self._chat_cut(chat))
        return_ids = bool(chat and chat.return_token_ids)
        choices = [
            chat_choice(
                choice, reader, facts, None if new_parser is None else new_parser(None), return_token_ids=return_ids
            )
            for choice in reply.choices
        ]
        return ChatCompletionResponse(
            id=_id(reply),
            created=int(time.time()),
            model=request.model or self.models.name,
            choices=choices,
            usage=usage_of(request.prompt_tokens or 0, _num_tokens([reply]), None),
            prompt_logprobs=reply.prompt_logprobs,
            prompt_token_ids=reply.prompt_token_ids if return_ids else None,
            kv_transfer_params=reply.kv_transfer_params,
            ec_transfer_params=reply.ec_transfer_params,
            metrics=reply.metrics,
        )

    async def completion(self, request: DerenderCompletionRequest) -> CompletionResponse:
        """A whole completion reply over one or several token replies. Raises a `CallerError`."""
        self.models.check(request.model)
        if not request.generate_responses:
            raise InvalidRequestError("generate_responses must not be empty", param="generate_responses")
        check_replies(request.generate_responses, self.limits)
        check_prompts(request.prompt_token_ids or (), self.limits)
        return await _run(lambda: self._completion(request), _num_tokens(request.generate_responses))

    def _completion(self, request: DerenderCompletionRequest) -> CompletionResponse:
        replies = request.generate_responses
        prompts = request.prompt_token_ids or [None] * len(replies)
        choices: list[CompletionChoice] = []
        for reply, prompt in zip(replies, prompts, strict=True):
            choices += self._completion_choices(request.completion_request, reply, prompt, len(choices))
        first = replies[0]
        return CompletionResponse(
            id=_id(first),
            created=int(time.time()),
            model=request.model or self.models.name,
            choices=choices,
            usage=usage_of(sum(request.prompt_tokens or ()), _num_tokens(replies), None),
            kv_transfer_params=_common([reply.kv_transfer_params for reply in replies]),
            ec_transfer_params=_common([reply.ec_transfer_params for reply in replies]),
            metrics=first.metrics if len(replies) == 1 else None,
        )

    def _completion_choices(
        self, request: CompletionRequest | None, reply: ReceivedReply, prompt: list[int] | None, start: int
    ) -> list[CompletionChoice]:
        """The choices of one reply; their indexes go on from `start`."""
        reader = self._reader(request, _first_of(prompt, reply.prompt_token_ids), self._completion_cut(request))
        return_ids = bool(request and request.return_token_ids)
        choices = []
        for index, choice in enumerate(reply.choices, start):
            whole = reader.read(choice, where=f"choice {choice.index} in response {reply.request_id}")
            mask = choice.sampling_mask
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

    # --- streams -------------------------------------------------------------------------------------------------

    async def chat_stream(self, request: DerenderChatStreamRequest) -> DerenderChatStreamResponse:
        """One chunk of a streamed chat reply. Raises a `CallerError`."""
        self.models.check(request.model)
        self._require_chat_request(request.chat_request)
        state = request.stream_state
        if self.parser is not None and request.prompt_token_ids is None and _needs_prompt(state):
            raise InvalidRequestError(
                "prompt_token_ids is required when a tool or reasoning parser is configured: the end of the prompt "
                "says whether reasoning is already open.",
                param="prompt_token_ids",
            )
        self._check_chunk(request.generate_chunk, request.prompt_token_ids, state, "derender_chat_stream")
        return await _run(lambda: self._chat_stream(request), _replay_size(state))

    def _chat_stream(self, request: DerenderChatStreamRequest) -> DerenderChatStreamResponse:
        reply, chat = request.generate_chunk, request.chat_request
        prompt = _first_of(request.prompt_token_ids, reply.prompt_token_ids)
        facts = _facts(chat)
        hides = self.parser is not None and not facts.include_reasoning
        rules = text_rules(chat, keep_special=self.parser is not None)
        make_parser = self._parser_maker(facts, prompt, started=not _needs_prompt(request.stream_state))
        with _state_errors(request.stream_state):
            session = self._session(rules, make_parser, request.stream_state, reply, prompt)
            shown = self._read(reply, session, rules, self._chat_cut(chat), hides=hides)
        choices = []
        if shown is not None:
            with_role, session.role_sent = not session.role_sent, True
            return_ids = chat is not None and chat.return_token_ids and not hides
            choice = reply.choices[0]
            choices.append(
                ChatChunkChoice(
                    index=choice.index,
                    delta=chat_delta(shown.delta, with_role=with_role),
                    logprobs=shown.logprobs,
                    finish_reason=final_reason(shown.finish_reason, facts, has_calls=session.has_calls),
                    stop_reason=shown.stop_reason,
                    token_ids=shown.token_ids if return_ids else None,
                    weight_versions=choice.weight_versions,
                    routed_experts=_given(choice.routed_experts),
                    sampling_mask=UNSET if hides else _given(choice.sampling_mask),
                )
            )
        chunk = ChatCompletionChunk(
            id=_id(reply),
            created=int(time.time()),
            model=request.model or self.models.name,
            choices=choices,
            usage=_usage(reply, request.prompt_tokens),
            prompt_token_ids=reply.prompt_token_ids if chat is not None and chat.return_token_ids else None,
            metrics=reply.metrics,
            kv_transfer_params=reply.kv_transfer_params,
            ec_transfer_params=_given(reply.ec_transfer_params),
            prompt_logprobs=_given(reply.prompt_logprobs),
        )
        return DerenderChatStreamResponse(chunk=chunk, stream_state=session.state())

    async def completion_stream(self, request: DerenderCompletionStreamRequest) -> DerenderCompletionStreamResponse:
        """One chunk of a streamed completion reply. Raises a `CallerError`."""
        self.models.check(request.model)
        state = request.stream_state
        self._check_chunk(request.generate_chunk, request.prompt_token_ids, state, "derender_completion_stream")
        return await _run(lambda: self._completion_stream(request), _replay_size(state))

    def _completion_stream(self, request: DerenderCompletionStreamRequest) -> DerenderCompletionStreamResponse:
        reply, original = request.generate_chunk, request.completion_request
        prompt = _first_of(request.prompt_token_ids, reply.prompt_token_ids)
        rules = text_rules(original, keep_special=False)
        with _state_errors(request.stream_state):
            session = self._session(rules, None, request.stream_state, reply, prompt)
            shown = self._read(reply, session, rules, self._completion_cut(original), hides=False)
        choices = []
        if shown is not None:
            choice = reply.choices[0]
            return_ids = bool(original and original.return_token_ids)
            choices.append(
                CompletionChunkChoice(
                    index=choice.index,
                    text=shown.text,
                    logprobs=_completion_logprobs(shown, session),
                    finish_reason=shown.finish_reason,
                    stop_reason=shown.stop_reason,
                    prompt_token_ids=reply.prompt_token_ids if return_ids else None,
                    token_ids=shown.token_ids if return_ids else None,
                    weight_versions=choice.weight_versions,
                    routed_experts=_given(choice.routed_experts),
                    sampling_mask=_given(choice.sampling_mask),
                    prompt_logprobs=_given(reply.prompt_logprobs),
                )
            )
        chunk = CompletionChunk(
            id=_id(reply),
            created=int(time.time()),
            model=request.model or self.models.name,
            choices=choices,
            usage=_usage(reply, request.prompt_tokens),
            metrics=reply.metrics,
            kv_transfer_params=_given(reply.kv_transfer_params),
            ec_transfer_params=_given(reply.ec_transfer_params),
        )
        return DerenderCompletionStreamResponse(chunk=chunk, stream_state=session.state())

    def _check_chunk(
        self, reply: ReceivedReply, prompt: list[int] | None, state: DerenderStreamState | None, what: str
    ) -> None:
        if len(reply.choices) > 1:
            raise InvalidRequestError(
                f"{what} expects at most one choice per chunk (got {len(reply.choices)}).", param="generate_chunk"
            )
        check_replies([reply], self.limits)
        check_prompts([prompt], self.limits)
        prompt_len, prior, delta = len(prompt or ()), _replay_size(state), _num_tokens([reply])
        if prompt_len + prior + delta > self.limits.max_model_len:
            raise InvalidRequestError(
                f"prompt_token_ids length ({prompt_len}) plus output_token_ids length ({prior}) plus delta ({delta}) "
                f"exceeds max_model_len ({self.limits.max_model_len}).",
                param="generate_chunk",
            )

    def _session(
        self,
        rules: TextRules,
        make_parser: Callable[[Any], MessageParser] | None,
        state: DerenderStreamState | None,
        reply: ReceivedReply,
        prompt: list[int],
    ) -> StreamSession:
        stop = rules.with_reported(reply.choices[0]) if reply.choices else rules.stop
        stream_rules = StreamRules(vocabulary=self.vocabulary, options=rules.options, stop=stop, new_parser=make_parser)
        return begin(stream_rules, prompt) if state is None else resume(stream_rules, state, prompt)

    def _read(
        self, reply: ReceivedReply, session: StreamSession, rules: TextRules, cut: LogprobCut, *, hides: bool
    ) -> ChunkText | None:
        if not reply.choices:
            return None
        reader = ChunkReader(eos_token_ids=self._eos, limits=self.limits, rules=rules, cut=cut, hides_logprobs=hides)
        return reader.read(reply.choices[0], session)

    # --- what the original request says --------------------------------------------------------------------------

    def _require_chat_request(self, chat: ChatCompletionRequest | None) -> None:
        if self.parser is not None and chat is None:
            raise InvalidRequestError(
                "chat_request is required when a tool or reasoning parser is configured because plain detokenization "
                "would leak raw parser markup into content.",
                param="chat_request",
            )

    def _reader(
        self, request: ChatCompletionRequest | CompletionRequest | None, prompt: list[int], cut: LogprobCut
    ) -> WholeReader:
        keep_special = isinstance(request, ChatCompletionRequest) and self.parser is not None
        return WholeReader(
            vocabulary=self.vocabulary,
            eos_token_ids=self._eos,
            limits=self.limits,
            rules=text_rules(request, keep_special=keep_special),
            cut=cut,
            prompt_token_ids=prompt,
        )

    def _parser_maker(
        self, facts: ChatFacts, prompt: list[int], *, started: bool = False
    ) -> Callable[[Any], MessageParser] | None:
        """`started`: the parser's own state knows what the prompt left open."""
        setup = self.parser
        if setup is None:
            return None
        reasoning = "undecided" if started else prompt_reasoning(self.vocabulary.source, setup, facts, prompt)
        options = options_of(setup, facts, reasoning)
        return lambda state: MessageParser(setup.format, options, state)

    def _chat_cut(self, chat: ChatCompletionRequest | None) -> LogprobCut:
        """The first `top_logprobs` candidates where logprobs were asked for; what came anyway is all shown."""
        top = (chat.top_logprobs or 0) if chat is not None and (chat.logprobs or chat.top_logprobs) else None
        return LogprobCut(top=top, as_token_ids=self._ids_as_tokens(chat))

    def _completion_cut(self, request: CompletionRequest | None) -> LogprobCut:
        """The sampled token and `logprobs` candidates beside it."""
        count = None if request is None or request.logprobs is None or request.logprobs < 0 else request.logprobs + 1
        return LogprobCut(top=count, as_token_ids=self._ids_as_tokens(request))

    def _ids_as_tokens(self, request: ChatCompletionRequest | CompletionRequest | None) -> bool:
        asked = None if request is None else request.return_tokens_as_token_ids
        return self._as_token_ids if asked is None else asked


async def _run(work: Callable[[], T], num_tokens: int) -> T:
    return work() if num_tokens < IN_THREAD_TOKENS else await asyncio.to_thread(work)


@contextmanager
def _state_errors(state: DerenderStreamState | None) -> Iterator[None]:
    """Whatever goes wrong while a client's state is worked on, the state is to blame: it did not come from us."""
    try:
        yield
    except TokenwireError:
        raise
    except Exception as exc:
        if state is None:
            raise
        raise InvalidStateError("derender failed") from exc


def _facts(chat: ChatCompletionRequest | None) -> ChatFacts:
    if chat is None:
        return ChatFacts()
    return ChatFacts(
        tools=None if chat.tools is None else [msgspec.to_builtins(tool) for tool in chat.tools],
        tool_choice=chat.effective_tool_choice,
        parallel_tool_calls=chat.parallel_tool_calls is not False,
        include_reasoning=chat.include_reasoning,
        chat_template_kwargs=_template_kwargs(chat),
        history_tool_call_cnt=_history_tool_calls(chat.messages),
    )


def _template_kwargs(chat: ChatCompletionRequest) -> dict[str, Any]:
    kwargs = dict(chat.chat_template_kwargs or {})
    if chat.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", chat.reasoning_effort)
    return kwargs


def _history_tool_calls(messages: list[dict[str, Any]]) -> int:
    """Calls that assistant messages of the conversation hold; sequential call ids go on from there."""
    calls = (message.get("tool_calls") for message in messages if message.get("role") == "assistant")
    return sum(len(given) for given in calls if isinstance(given, list))


def _needs_prompt(state: DerenderStreamState | None) -> bool:
    return state is None or state.tokenwire is None


def _replay_size(state: DerenderStreamState | None) -> int:
    return 0 if state is None else len(state.output_token_ids)


def _num_tokens(replies: list[ReceivedReply]) -> int:
    return sum(len(choice.token_ids or ()) for reply in replies for choice in reply.choices)


def _first_of(*candidates: list[int] | None) -> list[int]:
    return next((ids for ids in candidates if ids is not None), [])


def _id(reply: ReceivedReply) -> str:
    return reply.request_id or uuid.uuid4().hex


def _common(params: list[dict[str, Any] | None]) -> dict[str, Any] | None:
    """The one value that all replies have; None where they differ."""
    return params[0] if all(other == params[0] for other in params) else None


def _given(value: T | None) -> T | UnsetType:
    return UNSET if value is None else value


def _usage(reply: ReceivedReply, prompt_tokens: int | None) -> UsageInfo | None:
    usage = reply.usage
    if usage is None:
        return None
    return usage_of(usage.prompt_tokens if prompt_tokens is None else prompt_tokens, usage.completion_tokens or 0, None)


def _completion_logprobs(shown: ChunkText, session: StreamSession) -> CompletionLogprobs | None:
    """Offsets count token strings over the whole stream, as in a whole reply."""
    start = session.text_offset
    if shown.logprobs is None:
        session.text_offset = start + len(shown.text)
        return None
    session.text_offset = start + sum(len(entry.token) for entry in shown.logprobs.content)
    return completion_logprobs(shown.logprobs, text_offset=start)
