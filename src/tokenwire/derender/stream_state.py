"""A streamed answer between two chunks, carried by the client: what was decoded, what waits, what the parser knows.

Our own part travels beside upstream's fields and has a bounded size, whatever came before. A state with upstream's
fields alone was made by vLLM: its decode window, or its whole output, is run through once, and from then on
the state is ours. Whatever comes back from a client is checked like any other input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenwire.derender.chat_parser import read
from tokenwire.derender.detokenizer import DetokenizerOptions, DetokenizerState
from tokenwire.derender.logprob_text import CONTEXT_TOKENS, LogprobText
from tokenwire.derender.parser import MessageDelta, MessageParser, ToolCallDelta, assemble
from tokenwire.derender.parser.state import dump_state, load_state
from tokenwire.derender.sequence import MAX_HELD_TOKENS, SequenceState, SequenceText
from tokenwire.derender.stop import StopRules
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidStateError
from tokenwire.wire.derender import DerenderStreamState, ReceivedEntry, TokenIds

VERSION = 1


class OwnState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Our part of the state, under the key `tokenwire`."""

    version: int
    sequence: SequenceState = SequenceState()
    parser: list[Any] | None = None
    logprobs: DetokenizerState | None = None
    """Only while a token string waits for its other bytes."""
    ids: TokenIds = []
    """Held back, with their logprobs."""
    entries: list[ReceivedEntry] = []
    ended: bool = False
    """A stop string, or a finish reason, has ended this sequence."""
    announced: int = 0
    """Calls that the server before us has announced and our parser has not reached yet."""


@dataclass(slots=True, kw_only=True)
class StreamRules:
    """What the request says, the same for every chunk."""

    vocabulary: Vocabulary
    options: DetokenizerOptions
    stop: StopRules
    new_parser: Callable[[Any], MessageParser] | None = None
    """Makes the request's parser, from its state or (None) at the beginning."""


@dataclass(slots=True)
class StreamSession:
    """One sequence while one chunk is worked on."""

    sequence: SequenceText
    parser: MessageParser | None
    logprob_text: LogprobText
    ids: list[int] = field(default_factory=list)
    entries: list[ReceivedEntry] = field(default_factory=list)
    context: list[int] = field(default_factory=list)
    text_offset: int = 0
    role_sent: bool = False
    has_calls: bool = False
    ended: bool = False
    announced: int = 0
    overdue: list[ToolCallDelta] = field(default_factory=list)
    """Calls that the replay found and that the server before us had not announced."""

    def read(self, text: str, *, ended: bool, finish_reason: str | None) -> MessageDelta:
        """What the text adds to the message."""
        if self.parser is None:
            return MessageDelta(content=text or None)
        delta = read(self.parser, text, ended=ended, finish_reason=finish_reason)
        self.has_calls = self.has_calls or self.parser.saw_tool_calls
        delta.tool_calls = self.overdue + [call for call in delta.tool_calls if self._is_news(call)]
        self.overdue = []
        return delta

    def _is_news(self, call: ToolCallDelta) -> bool:
        """Whether the client needs this; takes id and name off a call that it knows already."""
        if call.name is not None and call.index < self.announced:
            call.id = call.name = None
            return bool(call.arguments)
        return True

    def saw(self, token_ids: list[int]) -> None:
        """Remember the last sampled tokens, as upstream's states do."""
        self.context = [*self.context, *token_ids][-CONTEXT_TOKENS:]

    def state(self) -> DerenderStreamState:
        """What the client carries to the next chunk."""
        own = OwnState(
            version=VERSION,
            sequence=self.sequence.state(),
            parser=None if self.parser is None else self.parser.state,
            logprobs=self.logprob_text.state,
            ids=self.ids,
            entries=self.entries,
            ended=self.ended,
            announced=self.announced,
        )
        return DerenderStreamState(
            role_sent=self.role_sent,
            logprob_context_token_ids=self.context,
            logprob_text_offset=self.text_offset,
            tools_streamed=self.has_calls,
            tokenwire=msgspec.to_builtins(own),
        )


def begin(rules: StreamRules, prompt_token_ids: list[int]) -> StreamSession:
    """The first chunk of a sequence."""
    return StreamSession(
        SequenceText(rules.vocabulary, prompt_token_ids, rules.options, rules.stop),
        None if rules.new_parser is None else rules.new_parser(None),
        LogprobText(rules.vocabulary, prompt_token_ids),
    )


def resume(rules: StreamRules, state: DerenderStreamState, prompt_token_ids: list[int]) -> StreamSession:
    """A later chunk. Raises `InvalidStateError` for a state that neither we nor vLLM can have written."""
    session = _replayed(rules, state, prompt_token_ids) if state.tokenwire is None else _restored(rules, state)
    session.role_sent = state.role_sent
    session.context = list(state.logprob_context_token_ids)
    session.text_offset = state.logprob_text_offset
    session.has_calls = session.has_calls or state.tools_streamed
    return session


def _restored(rules: StreamRules, state: DerenderStreamState) -> StreamSession:
    try:
        own = msgspec.convert(state.tokenwire, OwnState)
    except (msgspec.ValidationError, TypeError, ValueError) as exc:
        raise InvalidStateError(f"tokenwire: {exc}") from exc
    if own.version != VERSION:
        raise InvalidStateError(f"tokenwire: version {own.version} is not {VERSION}")
    if (own.parser is None) != (rules.new_parser is None):
        raise InvalidStateError("tokenwire: made with other parser settings than this server's")
    sequence = SequenceText.from_state(rules.vocabulary, own.sequence, rules.options, rules.stop)
    if len(own.ids) != sequence.num_held or len(own.entries) not in (0, len(own.ids)):
        raise InvalidStateError("tokenwire: ids held back and their text do not match")
    if any(len(entry.top_logprobs) > MAX_HELD_TOKENS for entry in own.entries):
        raise InvalidStateError("tokenwire: too many candidates held back")
    texts = LogprobText(rules.vocabulary, state=own.logprobs)
    parser = None if rules.new_parser is None else rules.new_parser(own.parser)
    return StreamSession(
        sequence, parser, texts, list(own.ids), list(own.entries), ended=own.ended, announced=own.announced
    )


def _replayed(rules: StreamRules, state: DerenderStreamState, prompt_token_ids: list[int]) -> StreamSession:
    texts = LogprobText(rules.vocabulary, context=state.logprob_context_token_ids)
    if rules.new_parser is None:
        sequence, held = _from_window(rules, state)
        return StreamSession(sequence, None, texts, held)
    session = begin(rules, prompt_token_ids)
    session.logprob_text = texts
    released = session.sequence.feed(state.output_token_ids)
    session.ids = state.output_token_ids[released.num_released :]
    delta = session.read(released.text, ended=False, finish_reason=None)
    announced = len(state.last_tool_call_ids)
    session.overdue = [
        ToolCallDelta(index, call.id, call.name, call.arguments)
        for index, call in enumerate(assemble([delta]).tool_calls)
        if index >= announced
    ]
    session.announced = announced
    session.parser = rules.new_parser(_without_held_space(session.parser))
    return session


def _without_held_space(parser: MessageParser | None) -> list[Any] | None:
    """The state of a parser whose held white space has been sent: upstream sends it as it comes."""
    if parser is None:
        return None
    state = load_state(parser.state)
    state.content_space = state.reasoning_space = ""
    return dump_state(state)


def _from_window(rules: StreamRules, state: DerenderStreamState) -> tuple[SequenceText, list[int]]:
    """Upstream's window: token strings up to `read_offset` have their text out, those after it wait for more bytes.

    Offsets beyond the window mean its end, as they do upstream.
    """
    read_offset = min(state.read_offset, len(state.prev_tokens))
    to_id = rules.vocabulary.source.piece_to_id
    given_out = [token_id for piece in state.prev_tokens[:read_offset] if (token_id := to_id(piece)) is not None]
    waiting = [token_id for piece in state.prev_tokens[read_offset:] if (token_id := to_id(piece)) is not None]
    sequence = SequenceText(rules.vocabulary, given_out, rules.options, rules.stop)
    released = sequence.feed(waiting)
    return sequence, waiting[released.num_released :]
