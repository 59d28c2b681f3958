"""The state of one choice while its request runs: text stage, counts, weight versions, and its outputs added up."""

from __future__ import annotations

from msgspec.structs import replace

from tokenwire.engine.base import EngineOutput, Logprobs, WeightSpan
from tokenwire.errors import EngineUnavailableError, GenerationError
from tokenwire.service.levels import TextStage


class ChoiceRun:
    """Takes a choice's engine outputs in order and gives them out as they may be shown."""

    __slots__ = (
        "_engine_tokens",
        "_held",
        "_label",
        "_label_start",
        "_num_prompt_rows",
        "_spans",
        "_stage",
        "num_tokens",
        "stopped",
    )

    def __init__(self, stage: TextStage | None, num_prompt_rows: int = 0) -> None:
        """`num_prompt_rows`: rows of routed experts that belong to the prompt."""
        self._stage = stage
        self._num_prompt_rows = num_prompt_rows
        self._spans: list[WeightSpan] = []
        """Of weight versions that are not the newest."""
        self._label: str | None = None
        self._label_start = self._engine_tokens = 0
        self._held: EngineOutput | None = None
        self.num_tokens = 0
        """Tokens given out so far."""
        self.stopped = False
        """A stop string ended this choice before the engine did."""

    def take(self, output: EngineOutput) -> EngineOutput:
        """The output with text and cut at a stop string, where there is a text stage; weight spans on the last one."""
        stage, count = self._stage, len(output.token_ids)
        if output.weight_version is not None:
            if output.weight_version != self._label and count:
                self._relabel(output.weight_version)
            self._engine_tokens += count
        if stage is None and output.finish_reason is None:
            self.num_tokens += count
            return output
        shown = output if stage is None else stage.process(output)
        self.num_tokens += len(shown.token_ids)
        if shown.finish_reason is not None:
            self.stopped = output.finish_reason is None
            self._finish(shown)
        return shown

    @property
    def has_labels(self) -> bool:
        """The engine said which weights made the tokens, as they came."""
        return self._label is not None

    def hold(self, shown: EngineOutput) -> None:
        """A stop string ended this choice: keep its last output until the engine has said its last word."""
        self._held = shown

    def last_word(self, end: EngineOutput) -> EngineOutput | None:
        """The held output, with what only the end of a sequence tells; None while that has not come."""
        held = self._held
        if held is None or end.finish_reason is None:
            return None
        self._held = None
        held.absorb(replace(end, finish_reason=None, stop_reason=None, error=None))
        self._finish(held)
        return held

    def _relabel(self, version: str) -> None:
        self._spans = self._labelled()
        self._label, self._label_start = version, self._engine_tokens

    def _labelled(self) -> list[WeightSpan]:
        """Spans by the labels that came with the tokens."""
        if self._label is None:
            return []
        return [*self._spans, WeightSpan(self._label, self._label_start, self._engine_tokens)]

    def _finish(self, shown: EngineOutput) -> None:
        """Facts of a whole sequence, cut to the tokens that were kept."""
        if shown.routed_experts is not None and isinstance(shown.stop_reason, str):
            num_rows = max(0, self._num_prompt_rows + self.num_tokens - 1)  # the last token is routed nowhere
            shown.routed_experts = shown.routed_experts[:num_rows]
        spans = shown.weight_versions if shown.weight_versions is not None else self._labelled()
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
            self._total = replace(output, token_ids=list(output.token_ids), logprobs=None)
            return
        total.token_ids.extend(output.token_ids)
        total.absorb(replace(output, token_ids=[], logprobs=None))

    def result(self) -> EngineOutput | None:
        """None if the engine said nothing of this choice."""
        if self._total is not None and self._logprobs:
            self._total.logprobs = Logprobs.concat(self._logprobs)
        return self._total
