"""The state of one choice while its request runs: text stage, counts, weight versions, and its outputs added up."""

from __future__ import annotations

import dataclasses

from tokenwire.engine.base import EngineOutput, Logprobs, WeightSpan
from tokenwire.errors import EngineUnavailableError, GenerationError
from tokenwire.service.levels import TextStage


class ChoiceRun:
    """Takes a choice's engine outputs in order and gives them out as they may be shown."""

    __slots__ = ("_engine_tokens", "_held", "_num_prompt_rows", "_spans", "_stage", "num_tokens", "stopped")

    def __init__(self, stage: TextStage | None, num_prompt_rows: int = 0) -> None:
        """`num_prompt_rows`: rows of routed experts that belong to the prompt."""
        self._stage = stage
        self._num_prompt_rows = num_prompt_rows
        self._spans: list[WeightSpan] = []
        self._engine_tokens = 0
        self._held: EngineOutput | None = None
        self.num_tokens = 0
        """Tokens given out so far."""
        self.stopped = False
        """A stop string ended this choice before the engine did."""

    def take(self, output: EngineOutput) -> EngineOutput:
        """The output with text and cut at a stop string, where there is a text stage; weight spans on the last one."""
        if output.weight_version is not None:
            self._track(output.weight_version, len(output.token_ids))
        shown = output if self._stage is None else self._stage.process(output)
        self.num_tokens += len(shown.token_ids)
        if shown.finish_reason is not None:
            self.stopped = output.finish_reason is None
            self._finish(shown)
        return shown

    @property
    def has_labels(self) -> bool:
        """The engine said which weights made the tokens, as they came."""
        return bool(self._spans)

    def hold(self, shown: EngineOutput) -> None:
        """A stop string ended this choice: keep its last output until the engine has said its last word."""
        self._held = shown

    def last_word(self, end: EngineOutput) -> EngineOutput | None:
        """The held output, with what only the end of a sequence tells; None while that has not come."""
        held = self._held
        if held is None or end.finish_reason is None:
            return None
        self._held = None
        held.absorb(dataclasses.replace(end, finish_reason=None, stop_reason=None, error=None))
        self._finish(held)
        return held

    def _track(self, version: str, count: int) -> None:
        start, end = self._engine_tokens, self._engine_tokens + count
        self._engine_tokens = end
        if self._spans and self._spans[-1].version == version:
            self._spans[-1] = dataclasses.replace(self._spans[-1], end=end)
        elif count:
            self._spans.append(WeightSpan(version, start, end))

    def _finish(self, shown: EngineOutput) -> None:
        """Facts of a whole sequence, cut to the tokens that were kept."""
        if shown.routed_experts is not None and isinstance(shown.stop_reason, str):
            num_rows = max(0, self._num_prompt_rows + self.num_tokens - 1)  # the last token is routed nowhere
            shown.routed_experts = shown.routed_experts[:num_rows]
        spans = shown.weight_versions if shown.weight_versions is not None else self._spans
        if shown.weight_versions is None and not spans:
            return
        total = self.num_tokens
        shown.weight_versions = [
            WeightSpan(span.version, span.start, min(span.end, total)) for span in spans if span.start < total
        ]


def failure_of(output: EngineOutput) -> GenerationError | EngineUnavailableError:
    """What an output with finish reason "error" means to the caller."""
    if output.retryable:
        return EngineUnavailableError(f"The engine could not finish this request: {output.error or 'unknown reason'}")
    return GenerationError(output.error or "the engine reported an error")


class Collector:
    """All outputs of one choice, added up for a whole reply."""

    __slots__ = ("_logprobs", "_total")

    def __init__(self) -> None:
        self._total: EngineOutput | None = None
        self._logprobs: list[Logprobs] = []

    def add(self, output: EngineOutput) -> None:
        if output.logprobs is not None:
            self._logprobs.append(output.logprobs)
        total = self._total
        if total is None:
            self._total = dataclasses.replace(output, token_ids=list(output.token_ids), logprobs=None)
            return
        total.token_ids.extend(output.token_ids)
        total.absorb(dataclasses.replace(output, token_ids=[], logprobs=None))

    def result(self) -> EngineOutput | None:
        """None if the engine said nothing of this choice."""
        if self._total is not None and self._logprobs:
            self._total.logprobs = Logprobs.concat(self._logprobs)
        return self._total
