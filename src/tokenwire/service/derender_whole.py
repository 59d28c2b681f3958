"""Derendering of whole replies: one choice's ids into text, message and logprobs."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET

from tokenwire.derender.chat_parser import ChatFacts, final_reason, read
from tokenwire.derender.logprob_text import LogprobText
from tokenwire.derender.parser import Message, MessageParser, assemble
from tokenwire.derender.sequence import SequenceText
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.errors import InvalidRequestError
from tokenwire.service.derender_input import DerenderLimits, TextRules, received_entries
from tokenwire.service.message_shapes import whole_message
from tokenwire.service.text_logprobs import text_entries
from tokenwire.wire.chat_reply import ChatChoice
from tokenwire.wire.derender import ReceivedChoice
from tokenwire.wire.generate import TextLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class LogprobCut:
    """How an OpenAI endpoint shows logprobs."""

    top: int | None = None
    """Candidates to keep; None and -1: all that came."""
    as_token_ids: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class WholeText:
    """One choice, decoded."""

    text: str
    token_ids: list[int]
    """What belongs to the sequence: all that came, unless a stop string cut it here."""
    finish_reason: str | None
    stop_reason: int | str | None
    logprobs: TextLogprobs | None


@dataclass(slots=True, frozen=True, kw_only=True)
class WholeReader:
    """Decodes the choices of one reply; they continue the same prompt."""

    vocabulary: Vocabulary
    eos_token_ids: frozenset[int]
    limits: DerenderLimits
    rules: TextRules
    cut: LogprobCut
    prompt_token_ids: list[int]

    def read(self, choice: ReceivedChoice, *, where: str, with_logprobs: bool = True) -> WholeText:
        """Raises `InvalidRequestError` for a choice without ids."""
        ids = choice.token_ids
        if not ids:
            raise InvalidRequestError(f"{where} has empty or null token_ids", param="token_ids")
        finish_reason = "stop" if choice.finish_reason is UNSET else choice.finish_reason
        stop_reason = choice.stop_reason
        sequence = SequenceText(
            self.vocabulary, self.prompt_token_ids, self.rules.options, self.rules.with_reported(choice)
        )
        hide_last = self.rules.hides_last(choice, finish_reason, self.eos_token_ids)
        released = sequence.feed(ids, finished=True, hide_last=hide_last)
        if released.stop_string is not None:
            finish_reason, stop_reason = "stop", released.stop_string
        return WholeText(
            text=released.text,
            token_ids=ids[: released.num_kept],
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            logprobs=self._logprobs(choice, released.num_kept) if with_logprobs else None,
        )

    def _logprobs(self, choice: ReceivedChoice, num_kept: int) -> TextLogprobs | None:
        entries = received_entries(choice, self.limits)
        if entries is None:
            return None
        if num_kept < len(choice.token_ids or ()):
            entries = entries[:num_kept]
        texts = LogprobText(self.vocabulary, self.prompt_token_ids)
        return text_entries(entries, texts, top=self.cut.top, as_token_ids=self.cut.as_token_ids)


def chat_choice(
    choice: ReceivedChoice,
    reader: WholeReader,
    facts: ChatFacts,
    parser: MessageParser | None,
    *,
    return_token_ids: bool,
) -> ChatChoice:
    """A choice as a chat message. `parser` None: the text is the content."""
    hides = parser is not None and not facts.include_reasoning
    whole = reader.read(choice, where=f"choice {choice.index}", with_logprobs=not hides)
    if parser is None:
        message = Message(content=whole.text)
    else:
        message = assemble([read(parser, whole.text, ended=True, finish_reason=whole.finish_reason)])
    mask = choice.masks
    return ChatChoice(
        index=choice.index,
        message=whole_message(message, forced=parser is not None and facts.forces_a_call),
        logprobs=whole.logprobs,
        finish_reason=final_reason(whole.finish_reason, facts, has_calls=bool(message.tool_calls)),
        stop_reason=whole.stop_reason,
        token_ids=whole.token_ids if return_token_ids and not hides else None,
        routed_experts=choice.routed_experts,
        weight_versions=choice.weight_versions,
        sampling_mask=UNSET if mask is None or hides else mask[: len(whole.token_ids)],
    )
