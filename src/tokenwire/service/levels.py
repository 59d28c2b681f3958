"""Output levels: how one choice's news are shaped for the wire. `tokens` is here; `text` and `derender` beside it.

A level is an object with two shaping methods; the loop that drives the engine is written once and knows no level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from tokenwire.engine.base import EngineOutput
from tokenwire.service.logprob_shapes import NO_SCORES, npy, packed, ragged, raw, token_id_entries
from tokenwire.wire.arrays import pack_ids
from tokenwire.wire.codec import Format, encode
from tokenwire.wire.generate import (
    CompactTokensChoice,
    GenerateRequest,
    OutputMode,
    PackedLogprobs,
    RoutedExpertsObject,
    TokenIdLogprobs,
    TokensChoice,
    WeightVersionSpan,
)
from tokenwire.wire.sampling import SamplingParams


class Level(Protocol):
    """Shapes the choices of one request. Outputs of one choice come in order; state is per choice index."""

    mode: OutputMode

    def full(self, output: EngineOutput) -> TokensChoice:
        """A finished choice, from everything it gave out."""

    def delta(self, output: EngineOutput) -> TokensChoice | None:
        """One stream event's choice, or None when these news show nothing at this level."""

    def gaps(self) -> tuple[str, ...]:
        """The fields in which ordinary deltas differ: those with ids, and without an end, masks and experts.

        Empty: deltas of this level are not that simple, and each is made by `delta`.
        """

    def gapped(self, index: int, gap: Any) -> TokensChoice:
        """An ordinary delta of choice `index` with `gap(name)` in each of `gaps`."""

    def values(self, output: EngineOutput) -> Sequence[bytes] | None:
        """What `delta` would show of an ordinary output in these fields, encoded; None: `delta` must make it."""


class TextStage(Protocol):
    """Turns one choice's ids into text and finds stop strings. State is per choice; any level may need it."""

    def process(self, output: EngineOutput) -> EngineOutput:
        """The output with `text` set, and cut where a stop string was found.

        A found stop string sets finish_reason "stop" and stop_reason to the string; ids and logprobs after the token
        that completed it are dropped. What may begin a stop string is held back together with its ids and
        logprobs, and comes with a later output.
        """


@dataclass(slots=True, frozen=True, kw_only=True)
class Shape:
    """How this request wants its arrays."""

    wants_logprobs: bool
    packed_logprobs: bool = False
    token_field: bool = False
    routed_experts_object: bool = False
    routed_experts_start: int = 0
    binary: bool = False
    tokens_as_token_ids: bool | None = None
    """Token strings of logprobs are `token_id:N`; None: as the server was told."""


class TokensLevel:
    """Ids only."""

    mode: OutputMode = "tokens"

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._labels: dict[int, str | None] = {}
        """Per choice the weight version that was told last."""

    def full(self, output: EngineOutput) -> TokensChoice:
        return TokensChoice(**self._fields(output, output.finish_reason or "stop"))

    def delta(self, output: EngineOutput) -> TokensChoice | None:
        if not output.token_ids and output.finish_reason is None:
            return None
        fields = self._fields(output, output.finish_reason)
        if not self._shape.binary:
            return TokensChoice(**fields)
        return CompactTokensChoice(weight_version=self._new_label(output), **fields)

    def gaps(self) -> tuple[str, ...]:
        return ("token_ids", "logprobs") if self._shape.wants_logprobs else ("token_ids",)

    def gapped(self, index: int, gap: Any) -> TokensChoice:
        kind = CompactTokensChoice if self._shape.binary else TokensChoice
        return kind(index=index, **{name: gap(name) for name in self.gaps()})

    def values(self, output: EngineOutput) -> Sequence[bytes] | None:
        shape = self._shape
        fmt: Format = "json"
        if shape.binary:
            fmt = "msgpack"
            label = output.weight_version
            if label is not None and self._labels.get(output.index) != label:
                return None
        ids = encode(shown_ids(output, shape), fmt)
        return (ids, encode(self._logprobs(output), fmt)) if shape.wants_logprobs else (ids,)

    def _fields(self, output: EngineOutput, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": output.index,
            "finish_reason": finish_reason,
            "token_ids": shown_ids(output, self._shape),
            "logprobs": self._logprobs(output),
            **extras(output, self._shape),
        }

    def _new_label(self, output: EngineOutput) -> str | None:
        """The weight version of these tokens, where it is not the one told before."""
        label = output.weight_version
        if label is None or self._labels.get(output.index) == label:
            return None
        self._labels[output.index] = label
        return label

    def _logprobs(self, output: EngineOutput) -> TokenIdLogprobs | PackedLogprobs | None:
        scores = output.logprobs
        if not self._shape.wants_logprobs:
            return None
        if scores is None:
            return packed(NO_SCORES, binary=self._shape.binary) if self._shape.packed_logprobs else TokenIdLogprobs([])
        if self._shape.packed_logprobs:
            return packed(scores, output.token_ids, binary=self._shape.binary)
        return token_id_entries(scores, output.token_ids, token_field=self._shape.token_field)


def shown_ids(output: EngineOutput, shape: Shape) -> list[int] | bytes:
    """New ids, as bytes on the MessagePack wire."""
    return pack_ids(output.token_ids) if shape.binary else output.token_ids


_NO_EXTRAS: dict[str, Any] = {}


def extras(output: EngineOutput, shape: Shape) -> dict[str, Any]:
    """The choice fields that are the same at every level, where there are any."""
    if output.finish_reason is None and output.sampling_mask is None and output.routed_experts is None:
        return _NO_EXTRAS
    fields: dict[str, Any] = {"stop_reason": output.stop_reason}
    if output.sampling_mask is not None:
        masks = output.sampling_mask
        fields["sampling_mask"] = ragged(masks) if shape.binary else [mask.tolist() for mask in masks]
    if output.routed_experts is not None:
        fields["routed_experts"] = routed_experts(output.routed_experts, shape)
    if output.weight_versions is not None:
        fields["weight_versions"] = [WeightVersionSpan(s.version, s.start, s.end) for s in output.weight_versions]
    return fields


def routed_experts(array: NDArray[Any], shape: Shape) -> str | bytes | RoutedExpertsObject:
    """[tokens, layers, experts per token] as `.npy`, or as an object of raw data, shape, first token and dtype."""
    if not shape.routed_experts_object:
        return npy(array, binary=shape.binary)
    return RoutedExpertsObject(
        data=raw(array, binary=shape.binary),
        shape=list(array.shape),
        start=shape.routed_experts_start,
        dtype=str(array.dtype),
    )


class TextTools(Protocol):
    """What the service needs of a loaded tokenizer; `service/text.py` has the one there is."""

    def check_context(self, request: GenerateRequest) -> None:
        """Raises `InvalidRequestError` where the request's level needs a parse_context and it is missing or wrong."""

    def prompt_texts(self, prompt_token_ids: list[int], rows: list[list[int]]) -> list[list[str]]:
        """Token strings for prompt logprobs: row i is prompt position i + 1, its own id first. Padding (-1) is ""."""

    def stage(self, prompt_token_ids: list[int], sampling: SamplingParams, mode: OutputMode) -> TextStage:
        """A fresh text stage for one choice of a reply at level `mode`."""

    def level(self, request: GenerateRequest, sampling: SamplingParams, shape: Shape) -> Level:
        """The level of `request.output_mode`, `text` or `derender`; its context has passed `check_context`."""
