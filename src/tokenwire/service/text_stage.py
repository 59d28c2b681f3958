"""The text stage of one choice: text beside ids, stop strings, and what must wait because it may begin one."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.derender.sequence import Released, SequenceText
from tokenwire.engine.base import EngineOutput, Logprobs


class HoldingTextStage:
    """A `TextStage` over `SequenceText`; ids, logprobs and sampling masks wait together with their text."""

    __slots__ = ("_ids", "_include_stop", "_masks", "_scores", "_sequence")

    def __init__(self, sequence: SequenceText, *, include_stop: bool) -> None:
        """`include_stop`: the token that stopped generation keeps its text."""
        self._sequence = sequence
        self._include_stop = include_stop
        self._ids: list[int] = []
        self._scores: list[Logprobs] = []
        self._masks: list[NDArray[np.int32]] = []

    def process(self, output: EngineOutput) -> EngineOutput:
        """See `TextStage.process`."""
        ids = output.token_ids
        finished = output.finish_reason is not None
        hide_last = bool(ids) and not self._include_stop and _ended_by_token(output)
        released = self._sequence.feed(ids, finished=finished, hide_last=hide_last)
        if released.num_released == released.num_kept == len(ids) and not self._ids:
            output.text = released.text
            return output if released.stop_string is None else self._stopped(output, released, {})
        return self._with_queue(output, released)

    def _with_queue(self, output: EngineOutput, released: Released) -> EngineOutput:
        kept, count = released.num_kept, released.num_released
        self._ids += output.token_ids[:kept]
        if output.logprobs is not None:
            self._scores.append(output.logprobs.slice(0, kept))
        if output.sampling_mask is not None:
            self._masks += output.sampling_mask[:kept]
        fields: dict[str, Any] = {
            "token_ids": self._ids[:count],
            "logprobs": self._take_scores(count),
            "sampling_mask": self._masks[:count] or None,
            "text": released.text,
        }
        self._ids, self._masks = self._ids[count:], self._masks[count:]
        if released.stop_string is not None:
            return self._stopped(output, released, fields)
        return msgspec.structs.replace(output, **fields)

    def _take_scores(self, count: int) -> Logprobs | None:
        if not self._scores or count == 0:
            return None
        queued = Logprobs.concat(self._scores)
        self._scores = [queued.slice(count, len(queued))] if count < len(queued) else []
        return queued.slice(0, count)

    def _stopped(self, output: EngineOutput, released: Released, fields: dict[str, Any]) -> EngineOutput:
        return msgspec.structs.replace(
            output,
            **fields,
            finish_reason="stop",
            stop_reason=released.stop_string,
            text_token_count=released.text_token_count,
        )


def _ended_by_token(output: EngineOutput) -> bool:
    return output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
