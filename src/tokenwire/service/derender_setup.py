"""What all derendering on this server shares, and the small rules that chat and completions have in common."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tokenwire.derender.chat_parser import ChatFacts, ParserSetup, options_of, prompt_reasoning
from tokenwire.derender.parser import MessageParser
from tokenwire.derender.stream_state import StreamRules, StreamSession, begin, resume
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidRequestError, InvalidStateError, TokenwireError
from tokenwire.service.derender_input import DerenderLimits, TextRules, check_prompts, check_replies, text_rules
from tokenwire.service.derender_stream import ChunkReader, ChunkText
from tokenwire.service.derender_whole import LogprobCut, WholeReader
from tokenwire.service.models import ModelRegistry
from tokenwire.service.usage import usage_of
from tokenwire.wire.chat import CommonSampling
from tokenwire.wire.derender import DerenderStreamState, ReceivedReply
from tokenwire.wire.usage import UsageInfo

T = TypeVar("T")
ParserMaker = Callable[[Any], MessageParser]


@dataclass(slots=True, frozen=True, kw_only=True)
class DerenderSetup:
    """One server's tokenizer, parser and limits."""

    models: ModelRegistry
    vocabulary: Vocabulary
    limits: DerenderLimits
    eos_token_ids: frozenset[int] = frozenset()
    parser: ParserSetup | None = None
    return_tokens_as_token_ids: bool = False

    def rules(self, request: CommonSampling | None, *, parsed: bool) -> TextRules:
        """`parsed`: a parser reads the text, and must see special tokens."""
        return text_rules(request, keep_special=parsed)

    def cut(self, request: CommonSampling | None, top: int | None) -> LogprobCut:
        asked = None if request is None else request.return_tokens_as_token_ids
        return LogprobCut(top=top, as_token_ids=self.return_tokens_as_token_ids if asked is None else asked)

    def whole_reader(self, rules: TextRules, cut: LogprobCut, prompt: list[int]) -> WholeReader:
        return WholeReader(
            vocabulary=self.vocabulary,
            eos_token_ids=self.eos_token_ids,
            limits=self.limits,
            rules=rules,
            cut=cut,
            prompt_token_ids=prompt,
        )

    def parser_maker(self, facts: ChatFacts, prompt: list[int], *, started: bool = False) -> ParserMaker | None:
        """Makes a request's parsers. `started`: they come from states, which know what the prompt left open."""
        setup = self.parser
        if setup is None:
            return None
        reasoning = "undecided" if started else prompt_reasoning(self.vocabulary.source, setup, facts, prompt)
        options = options_of(setup, facts, reasoning)
        return lambda state: MessageParser(setup.format, options, state)

    def read_chunk(
        self,
        reply: ReceivedReply,
        state: DerenderStreamState | None,
        prompt: list[int],
        rules: TextRules,
        cut: LogprobCut,
        make_parser: ParserMaker | None = None,
        *,
        hides_logprobs: bool = False,
    ) -> tuple[StreamSession, ChunkText | None]:
        """One chunk through the sequence's session. Raises `InvalidStateError` for a state that was tampered with."""
        choice = reply.choices[0] if reply.choices else None
        stream_rules = StreamRules(
            vocabulary=self.vocabulary,
            options=rules.options,
            stop=rules.stop if choice is None else rules.with_reported(choice),
            new_parser=make_parser,
        )
        reader = ChunkReader(
            eos_token_ids=self.eos_token_ids, limits=self.limits, rules=rules, cut=cut, hides_logprobs=hides_logprobs
        )
        with _state_to_blame(state):
            session = begin(stream_rules, prompt) if state is None else resume(stream_rules, state, prompt)
            return session, None if choice is None else reader.read(choice, session)

    def check_chunk(
        self, reply: ReceivedReply, prompt: list[int] | None, state: DerenderStreamState | None, what: str
    ) -> None:
        """Raises `InvalidRequestError` for a chunk of several choices, or for more tokens than the context holds."""
        if len(reply.choices) > 1:
            raise InvalidRequestError(
                f"{what} expects at most one choice per chunk (got {len(reply.choices)}).", param="generate_chunk"
            )
        check_replies([reply], self.limits)
        check_prompts([prompt], self.limits)
        prompt_len, prior, delta = len(prompt or ()), replay_size(state), num_tokens([reply])
        if prompt_len + prior + delta > self.limits.max_model_len:
            raise InvalidRequestError(
                f"prompt_token_ids length ({prompt_len}) plus output_token_ids length ({prior}) plus delta ({delta}) "
                f"exceeds max_model_len ({self.limits.max_model_len}).",
                param="generate_chunk",
            )


@contextmanager
def _state_to_blame(state: DerenderStreamState | None) -> Iterator[None]:
    """Whatever unforeseen goes wrong on a client's state, the state is to blame: it is not one that we wrote."""
    try:
        yield
    except TokenwireError:
        raise
    except Exception as exc:
        if state is None:
            raise
        raise InvalidStateError("derender failed") from exc


def needs_prompt(state: DerenderStreamState | None) -> bool:
    """Whether the parser must still learn what the prompt left open."""
    return state is None or state.tokenwire is None


def replay_size(state: DerenderStreamState | None) -> int:
    """Tokens that a state of vLLM's makes us run through again."""
    return 0 if state is None else len(state.output_token_ids)


def num_tokens(replies: list[ReceivedReply]) -> int:
    return sum(len(choice.token_ids or ()) for reply in replies for choice in reply.choices)


def first_given(*candidates: list[int] | None) -> list[int]:
    return next((ids for ids in candidates if ids is not None), [])


def reply_id(reply: ReceivedReply) -> str:
    return reply.request_id or uuid.uuid4().hex


def chunk_usage(reply: ReceivedReply, prompt_tokens: int | None) -> UsageInfo | None:
    """The chunk's usage, with the caller's own count of the prompt if it gave one."""
    usage = reply.usage
    if usage is None:
        return None
    return usage_of(usage.prompt_tokens if prompt_tokens is None else prompt_tokens, usage.completion_tokens or 0, None)
