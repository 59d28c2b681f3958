"""Derendering chunk by chunk: one chunk of one sequence, with the state that the client brings and takes along."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from msgspec import UNSET

from tokenwire.derender.parser import MessageDelta
from tokenwire.derender.stream_state import StreamSession
from tokenwire.service.derender_input import DerenderLimits, TextRules, received_entries
from tokenwire.service.derender_whole import LogprobCut
from tokenwire.service.text_logprobs import text_entries
from tokenwire.wire.derender import ReceivedChoice
from tokenwire.wire.generate import TextLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class ChunkText:
    """What one chunk adds."""

    text: str
    delta: MessageDelta
    token_ids: list[int] | None
    """Those whose text is out now; a chunk before may have brought them. None where none came and none are out."""
    logprobs: TextLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


@dataclass(slots=True, frozen=True, kw_only=True)
class ChunkReader:
    """Decodes a chunk's choice on a session."""

    eos_token_ids: Collection[int]
    limits: DerenderLimits
    rules: TextRules
    cut: LogprobCut
    hides_logprobs: bool = False

    def read(self, choice: ReceivedChoice, session: StreamSession) -> ChunkText | None:
        """None for a choice that has ended before. The session takes in everything."""
        if session.ended:
            return None
        ids = choice.token_ids or []
        finish_reason = None if choice.finish_reason is UNSET else choice.finish_reason
        stop_reason = choice.stop_reason
        released = session.sequence.feed(
            ids,
            finished=finish_reason is not None,
            hide_last=self.rules.hides_last(choice, finish_reason, self.eos_token_ids),
        )
        if released.stop_string is not None:
            finish_reason, stop_reason = "stop", released.stop_string
        session.ended = finish_reason is not None
        session.saw(ids[: released.num_kept])
        delta = session.read(released.text, ended=session.ended, finish_reason=finish_reason)
        session.ids += ids[: released.num_kept]
        shown, session.ids = session.ids[: released.num_released], session.ids[released.num_released :]
        return ChunkText(
            text=released.text,
            delta=delta,
            token_ids=shown or choice.token_ids and [],
            logprobs=self._logprobs(choice, session, released.num_kept, released.num_released),
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )

    def _logprobs(
        self, choice: ReceivedChoice, session: StreamSession, num_kept: int, num_released: int
    ) -> TextLogprobs | None:
        """Entries leave together with their ids. Entries that are not one a token are passed on at once."""
        entries = received_entries(choice, self.limits)
        if self.hides_logprobs:
            return None
        queued = session.entries
        if entries is None:
            if not queued:
                return None
            entries = []
        if len(entries) == len(choice.token_ids or ()):
            queued = queued + entries[:num_kept]
            entries, session.entries = queued[:num_released], queued[num_released:]
        else:
            entries, session.entries = queued + entries, []
        return text_entries(entries, session.logprob_text, top=self.cut.top, as_token_ids=self.cut.as_token_ids)
