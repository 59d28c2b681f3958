"""How the model marks its reasoning, as token ids: grammars begin after it, and a thinking budget ends it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from tokenwire.engine.local.options import LocalEngineOptions
from tokenwire.engine.local.requests import Request
from tokenwire.engine.local.sampling import ThinkingMarkers, last_occurrence


@dataclass(slots=True, frozen=True)
class Reasoning:
    """Both empty for a model without reasoning, or one of which it is not known."""

    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    @staticmethod
    def read(folder: Path, options: LocalEngineOptions) -> Reasoning:
        """The texts in the options, as the model's tokenizer has them."""
        file = folder / "tokenizer.json"
        if not options.reasoning_end or not file.exists():
            return Reasoning()
        tokenizer = Tokenizer.from_file(str(file))
        return Reasoning(_ids(tokenizer, options.reasoning_start), _ids(tokenizer, options.reasoning_end))

    @property
    def markers(self) -> ThinkingMarkers | None:
        """What a thinking budget needs; None without a start or an end."""
        return ThinkingMarkers(self.start, self.end, self.end) if self.start and self.end else None

    def end_to_come(self, request: Request) -> tuple[int, ...]:
        """What must have been generated before a grammar holds; empty: it holds from the first token on.

        A request that does not say whether reasoning has ended is judged by the last marker in its prompt; without
        any marker the model is taken to begin with reasoning (vLLM's rule).
        """
        ended = request.reasoning_ended
        if ended is None and self.end:
            prompt = request.prompt_token_ids
            closed = last_occurrence(prompt, self.end)
            ended = closed >= 0 and (not self.start or closed > last_occurrence(prompt, self.start))
        return () if ended else self.end


def _ids(tokenizer: Tokenizer, text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    whole = tokenizer.token_to_id(text)
    return (whole,) if whole is not None else tuple(tokenizer.encode(text, add_special_tokens=False).ids)
