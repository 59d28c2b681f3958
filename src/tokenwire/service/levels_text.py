"""The level `text`: ids with the text they make, and logprobs with token strings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from tokenwire.derender.logprob_text import LogprobText
from tokenwire.engine.base import EngineOutput
from tokenwire.service.levels import Shape, extras, shown_ids
from tokenwire.service.logprob_shapes import NO_SCORES, packed, token_id_entries
from tokenwire.service.text_logprobs import text_entries
from tokenwire.wire.codec import Format, encode
from tokenwire.wire.generate import OutputMode, PackedLogprobs, TextChoice, TextLogprobs


@dataclass(slots=True, frozen=True, kw_only=True)
class LogprobRules:
    """Which logprobs a text level shows."""

    wanted: bool
    top: int | None = None
    """How many candidates to keep; None: all that the engine gave."""
    as_token_ids: bool = False


class ChoiceLogprobs:
    """Logprobs of all choices of one request, each with its own run of token strings."""

    __slots__ = ("_new_text", "_rules", "_shape", "_texts")

    def __init__(self, shape: Shape, rules: LogprobRules, new_text: Callable[[], LogprobText]) -> None:
        self._shape = shape
        self._rules = rules
        self._new_text = new_text
        self._texts: dict[int, LogprobText] = {}

    def of(self, output: EngineOutput) -> TextLogprobs | PackedLogprobs | None:
        """The next logprobs of the output's choice; None where none were asked for."""
        rules, scores = self._rules, output.logprobs
        if not rules.wanted:
            return None
        if scores is None:
            return packed(NO_SCORES, binary=self._shape.binary) if self._shape.packed_logprobs else TextLogprobs([])
        if self._shape.packed_logprobs:
            return packed(scores, output.token_ids, binary=self._shape.binary)
        texts = self._texts.get(output.index)
        if texts is None:
            texts = self._texts[output.index] = self._new_text()
        entries = token_id_entries(scores, output.token_ids, token_field=False).content
        return text_entries(entries, texts, top=rules.top, as_token_ids=rules.as_token_ids)


class TextLevel:
    """A `Level`; the text itself comes from the text stage."""

    mode: OutputMode = "text"

    def __init__(self, shape: Shape, logprobs: ChoiceLogprobs) -> None:
        self._shape = shape
        self._logprobs = logprobs

    def full(self, output: EngineOutput) -> TextChoice:
        return self._choice(output, output.finish_reason or "stop")

    def delta(self, output: EngineOutput) -> TextChoice | None:
        if not output.token_ids and output.finish_reason is None and not output.text:
            return None
        return self._choice(output, output.finish_reason)

    def gaps(self) -> tuple[str, ...]:
        return ("token_ids", "text", "logprobs") if self._shape.wants_logprobs else ("token_ids", "text")

    def gapped(self, index: int, gap: Any) -> TextChoice:
        return TextChoice(index=index, **{name: gap(name) for name in self.gaps()})

    def values(self, output: EngineOutput) -> Sequence[bytes] | None:
        if output.text_token_count is not None:
            return None
        fmt: Format = "msgpack" if self._shape.binary else "json"
        ids, text = encode(shown_ids(output, self._shape), fmt), encode(output.text or "", fmt)
        return (ids, text, encode(self._logprobs.of(output), fmt)) if self._shape.wants_logprobs else (ids, text)

    def _choice(self, output: EngineOutput, finish_reason: str | None) -> TextChoice:
        count = output.text_token_count
        return TextChoice(
            index=output.index,
            finish_reason=finish_reason,
            token_ids=shown_ids(output, self._shape),
            text=output.text or "",
            logprobs=self._logprobs.of(output),
            text_token_count=UNSET if count is None else count,
            **extras(output, self._shape),
        )
