"""Answers of `/inference/v1/generate`, whole or streamed, JSON or MessagePack, as engine outputs."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.engine.base import EngineOutput, EngineRequest, PromptOutput, WeightSpan
from tokenwire.engine.remote.dialects.scores import Entry, Packed, PromptEntry, content_rows, prompt_rows, unpack
from tokenwire.engine.remote.errors import ErrorInfo, from_info
from tokenwire.engine.remote.events import FrameSplitter, Splitter, SseSplitter
from tokenwire.engine.speculation import spec_stats
from tokenwire.errors import GenerationError
from tokenwire.wire.arrays import RaggedIds, unpack_ids

# `bytes` is base64 text in JSON and raw bytes in MessagePack; one set of types reads both.


class _Logprobs(Packed):
    content: list[Entry] | None = None


class _Experts(msgspec.Struct):
    data: bytes
    shape: list[int]
    dtype: str


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Choice(msgspec.Struct):
    index: int = 0
    token_ids: list[int] | bytes | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _Logprobs | None = None
    sampling_mask: list[list[int]] | RaggedIds | None = None
    routed_experts: bytes | _Experts | None = None
    weight_versions: list[_Span] | None = None
    weight_version: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Speculation(msgspec.Struct):
    acceptance_histogram: list[int]
    num_spec_tokens: int = 0
    num_draft_tokens: int = 0
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None


class _Metrics(msgspec.Struct):
    speculative_decoding: _Speculation | None = None


class _Answer(msgspec.Struct):
    """A whole reply or one stream event; an error event has nothing but `error`."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    prompt_logprobs: list[dict[int, PromptEntry] | None] | Packed | None = None
    prompt_token_id_logprobs: bytes | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    error: ErrorInfo | None = None


_DECODERS: dict[str, Any] = {
    "json": msgspec.json.Decoder(_Answer).decode,
    "msgpack": msgspec.msgpack.Decoder(_Answer).decode,
}
_DONE = {"json": b"[DONE]", "msgpack": msgspec.msgpack.encode("[DONE]")}


class ScaleOutReader:
    """Implements `Reader`. The last output of a stream waits for the usage event, which says what was cached."""

    has_enough = False

    def __init__(self, request: EngineRequest, fmt: Literal["json", "msgpack"]) -> None:
        self._decode = _DECODERS[fmt]
        self._done_mark = _DONE[fmt]
        self._splitter: Splitter = FrameSplitter() if fmt == "msgpack" else SseSplitter()
        self._prompt_len = len(request.prompt_token_ids)
        self._open = request.sampling.n
        self._first = True
        self._held: EngineOutput | None = None
        self._done = False
        self._labels: dict[int, str] = {}

    def whole(self, body: bytes) -> list[EngineOutput]:
        answer = self._answer(body)
        outputs = [_output(choice) for choice in answer.choices]
        if not outputs:
            raise GenerationError("the worker's answer has no choices")
        outputs[0].prompt = self._prompt(answer)
        self._finish(outputs[-1], answer)
        return outputs

    def piece(self, data: bytes) -> Iterator[EngineOutput]:
        for payload in self._splitter.feed(data):
            if payload == self._done_mark:
                self._done = True
                yield from self._release()
            elif not self._done:
                yield from self._event(self._answer(payload))

    def end(self) -> list[EngineOutput]:
        if not self._done:
            raise GenerationError("the worker's stream ended before its end mark")
        return []

    def _answer(self, payload: bytes) -> _Answer:
        try:
            answer: _Answer = self._decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            raise GenerationError(f"the worker's answer is not what the protocol says: {exc}") from exc
        if answer.error is not None:
            raise from_info(answer.error)
        return answer

    def _event(self, answer: _Answer) -> list[EngineOutput]:
        outputs = [self._labelled(choice) for choice in answer.choices]
        if self._first and outputs:
            outputs[0].prompt = self._prompt(answer)
            self._first = False
        if not answer.choices:  # the usage event
            if self._held is not None:
                later = self._prompt(answer)
                if self._held.prompt is None:
                    self._held.prompt = later
                else:
                    self._held.prompt.fill(later)
                self._finish(self._held, answer)
            return self._release()
        self._open -= sum(output.finish_reason is not None for output in outputs)
        if self._open <= 0:
            self._finish(outputs[-1], answer)
            self._held = outputs.pop()
        return outputs

    def _labelled(self, choice: _Choice) -> EngineOutput:
        """A label holds until the next one."""
        output = _output(choice)
        if choice.weight_version is not None:
            self._labels[choice.index] = choice.weight_version
        output.weight_version = self._labels.get(choice.index)
        return output

    def _release(self) -> list[EngineOutput]:
        held, self._held = self._held, None
        return [] if held is None else [held]

    def _prompt(self, answer: _Answer) -> PromptOutput:
        prompt = PromptOutput()
        if answer.prompt_logprobs is not None:
            prompt.logprobs = prompt_rows(answer.prompt_logprobs)
        if answer.prompt_token_id_logprobs is not None:
            prompt.token_id_logprobs = _npy(answer.prompt_token_id_logprobs)
        usage = answer.usage
        if usage is not None:
            prompt.num_encoder_tokens = max(0, usage.prompt_tokens - self._prompt_len)
            if usage.prompt_tokens_details is not None:
                prompt.num_cached_tokens = usage.prompt_tokens_details.cached_tokens
        return prompt

    def _finish(self, output: EngineOutput, answer: _Answer) -> None:
        """What is said once per request goes on its last output."""
        output.kv_transfer_params = answer.kv_transfer_params or output.kv_transfer_params
        output.ec_transfer_params = answer.ec_transfer_params or output.ec_transfer_params
        if answer.metrics is not None and answer.metrics.speculative_decoding is not None:
            s = answer.metrics.speculative_decoding
            output.spec_decode = spec_stats(
                s.num_spec_tokens, s.acceptance_histogram, s.num_draft_tokens, s.per_step_accepted, s.per_step_drafted
            )


def _output(choice: _Choice) -> EngineOutput:
    output = EngineOutput(choice.index, _ids(choice.token_ids))
    if choice.logprobs is not None:
        scores = choice.logprobs
        output.logprobs = unpack(scores) if scores.content is None else content_rows(scores.content)
    if choice.finish_reason is not None:
        output.finish_reason = choice.finish_reason  # type: ignore[assignment]
        output.stop_reason = choice.stop_reason
        spans = choice.weight_versions
        output.weight_versions = None if spans is None else [WeightSpan(s.version, s.start, s.end) for s in spans]
        if choice.finish_reason == "error":
            output.error = "the worker reported an error"
    if choice.sampling_mask is not None:
        output.sampling_mask = _masks(choice.sampling_mask)
    if choice.routed_experts is not None:
        output.routed_experts = _experts(choice.routed_experts)
    return output


def _ids(value: list[int] | bytes | None) -> list[int]:
    if not isinstance(value, bytes):
        return value or []
    try:
        return unpack_ids(value)
    except ValueError as exc:
        raise GenerationError(f"the worker sent token_ids that are none: {exc}") from exc


def _masks(value: list[list[int]] | RaggedIds) -> list[NDArray[np.int32]]:
    """One array per token; those of a MessagePack worker are views on its bytes."""
    if not isinstance(value, RaggedIds):
        return [np.asarray(ids, np.int32) for ids in value]
    try:
        ends = np.cumsum(np.frombuffer(value.counts, "<i4"))
        flat = np.frombuffer(value.token_ids, "<i4")
        if len(ends) and ends[-1] != len(flat):
            raise ValueError(f"counts add up to {ends[-1]} ids, there are {len(flat)}")
    except ValueError as exc:
        raise GenerationError(f"the worker's sampling_mask does not fit together: {exc}") from exc
    return np.split(flat, ends[:-1]) if len(ends) else []


def _experts(value: bytes | _Experts) -> NDArray[Any]:
    if isinstance(value, bytes):
        return _npy(value)
    return np.frombuffer(value.data, np.dtype(value.dtype).newbyteorder("<")).reshape(value.shape)


def _npy(data: bytes) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as exc:
        raise GenerationError(f"the worker sent an array that is no .npy: {exc}") from exc
    return array
