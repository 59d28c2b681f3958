"""SGLang's `/generate` over the token service: requests translated, replies shaped as `meta_info` and triples.

Scores travel inside as packed arrays, so that one road serves replies with and without a tokenizer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenwire.errors import InvalidRequestError
from tokenwire.service.generate import PreparedGenerate
from tokenwire.wire.arrays import unpack_ids
from tokenwire.wire.generate import GenerateChunk, GenerateRequest, GenerateResponse, PackedLogprobs, StreamOptions
from tokenwire.wire.sglang import SGLangRequest, SGLangSampling

Triple = tuple[float | None, int, None]


def to_generate_requests(request: SGLangRequest, rid: str, *, text: bool) -> list[GenerateRequest]:
    """One request per prompt. `text` says whether replies can have text. Raises `InvalidRequestError`."""
    prompts = _prompts(request)
    is_batch = _is_batch(request)
    if is_batch and request.stream:
        raise InvalidRequestError("A stream has one prompt; send the prompts of a batch apart.", param="stream")
    return [_one(request, i, prompt, _rid(request, rid, i, is_batch), text) for i, prompt in enumerate(prompts)]


def _is_batch(request: SGLangRequest) -> bool:
    return bool(request.input_ids) and isinstance(request.input_ids[0], list)


def _prompts(request: SGLangRequest) -> list[list[int]]:
    prompts: Any = request.input_ids if _is_batch(request) else [request.input_ids]
    if any(not isinstance(p, list) or any(isinstance(i, list) or i < 0 for i in p) or not p for p in prompts):
        raise InvalidRequestError(
            "input_ids must be a non-empty list of ids, or a list of such lists, none negative.", param="input_ids"
        )
    return list(prompts)


def _rid(request: SGLangRequest, rid: str, index: int, is_batch: bool) -> str:
    if isinstance(request.rid, list):
        return str(_item(request.rid, index, "rid"))
    return f"{rid}_{index}" if is_batch else rid


def _item(value: Any, index: int, name: str) -> Any:
    """A batch's list has one item per prompt; a single value is meant for all."""
    if not isinstance(value, list):
        return value
    if index >= len(value):
        raise InvalidRequestError(f"{name} has {len(value)} items, fewer than there are prompts.", param=name)
    return value[index]


def _one(request: SGLangRequest, index: int, prompt: list[int], rid: str, text: bool) -> GenerateRequest:
    sampling = _item(request.sampling_params, index, "sampling_params") or SGLangSampling()
    ids: Any = request.token_ids_logprob
    if ids and isinstance(ids[0], list):
        ids = _item(ids, index, "token_ids_logprob")
    scores: dict[str, Any] = {}
    if _item(request.return_logprob, index, "return_logprob"):
        top = _item(request.top_logprobs_num, index, "top_logprobs_num") or 0
        if ids and top:
            raise InvalidRequestError(
                "top_logprobs_num and token_ids_logprob cannot be had together; ask for one.", param="top_logprobs_num"
            )
        scores["logprobs"] = len(ids) if ids else top
        scores["logprob_token_ids"] = ids or None
        start = _item(request.logprob_start_len, index, "logprob_start_len")
        if start is not None and 0 <= start < len(prompt):
            scores["prompt_logprobs"] = top
    scores["routed_experts_prompt_start"] = request.routed_experts_start_len
    return GenerateRequest(
        token_ids=prompt,
        sampling_params=sampling.to_sampling_params(**scores),
        request_id=rid,
        model=_item(request.lora_path, index, "lora_path"),
        output_mode="text" if text else "tokens",
        logprobs_format="packed",
        stream=request.stream,
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        priority=request.priority or 0,
        cache_salt=request.cache_salt,
        routed_experts_format="object" if request.return_routed_experts else "npy",
    )


class Reply:
    """One choice's reply, made at once or added up from a stream's chunks."""

    def __init__(self, request: SGLangRequest, prepared: PreparedGenerate, rid: str, index: int) -> None:
        self._request = request
        self._prepared = prepared
        self._rid = rid
        self._index = index
        self._text = ""
        self._ids: list[int] = []
        self._lists: dict[str, list[Any]] = {}
        self._facts: dict[str, Any] = {"finish_reason": None}

    def add(self, choice: Any) -> None:
        """Take a TokensChoice or TextChoice, whole or a delta."""
        ids = unpack_ids(choice.token_ids or b"")  # the service was asked for raw bytes
        self._ids += ids
        self._text += getattr(choice, "text", "")
        if isinstance(choice.logprobs, PackedLogprobs):
            self._scores(choice.logprobs)
        if choice.weight_versions:
            self._facts["weight_version"] = choice.weight_versions[-1].version
        if choice.routed_experts is not None and self._request.return_routed_experts:
            self._facts["routed_experts"] = base64.b64encode(choice.routed_experts.data).decode("ascii")
        if choice.sampling_mask is not None:
            self._lists.setdefault("output_token_sampling_mask", []).extend(choice.sampling_mask)
        if choice.finish_reason is not None:
            self._facts["finish_reason"] = self._finish(choice)

    def add_prompt(self, scores: Any) -> None:
        """The prompt's scores, from logprob_start_len on; the first place has none, as SGLang has it."""
        if not isinstance(scores, PackedLogprobs):
            return
        token_ids, logprobs = _arrays(scores)
        prompt = self._prepared.engine_request.prompt_token_ids
        start = max(0, int(_item(self._request.logprob_start_len, 0, "logprob_start_len") or 0))
        rows = range(start, len(token_ids))
        sampled: list[Triple] = [(None, prompt[start], None)]
        sampled += [(_finite(logprobs[row, 0]), int(token_ids[row, 0]), None) for row in rows]
        self._lists["input_token_logprobs"] = sampled
        k = self._prepared.engine_request.sampling.prompt_logprobs
        if k:
            self._lists["input_top_logprobs"] = [None, *_best(scores, start, k)]

    def add_cached(self, usage: Any) -> None:
        details = getattr(usage, "prompt_tokens_details", None)
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else details
        cached = details.get("cached_tokens") if isinstance(details, dict) else getattr(details, "cached_tokens", None)
        if cached is not None:
            self._facts["cached_tokens"] = cached

    def shaped(self) -> dict[str, Any]:
        """The reply as it is now."""
        prompt = self._prepared.engine_request.prompt_token_ids
        meta = {
            "id": self._rid,
            "prompt_tokens": len(prompt),
            "weight_version": "default",
            "completion_tokens": len(self._ids),
            "cached_tokens": 0,
            **self._facts,
            **self._lists,
        }
        if "output_token_logprobs" in meta:
            meta["output_token_logprobs_length"] = len(meta["output_token_logprobs"])
        return {"text": self._text, "output_ids": self._ids, "meta_info": meta, "index": self._index}

    def _scores(self, packed: PackedLogprobs) -> None:
        token_ids, logprobs = _arrays(packed)
        sampled = self._lists.setdefault("output_token_logprobs", [])
        sampled += [(_finite(p), int(i), None) for i, p in zip(token_ids[:, 0], logprobs[:, 0], strict=True)]
        params = self._prepared.engine_request.sampling
        if params.logprob_token_ids:
            rows = self._lists.setdefault("output_token_ids_logprobs", [])
            rows += [_by_id(token_ids[t], logprobs[t], params.logprob_token_ids) for t in range(len(token_ids))]
        elif params.logprobs:
            top = self._lists.setdefault("output_top_logprobs", [])
            top += _best(packed, 0, params.logprobs)

    def _finish(self, choice: Any) -> dict[str, Any]:
        match choice.finish_reason:
            case "length":
                return {"type": "length", "length": len(self._ids)}
            case "abort":
                return {"type": "abort", "message": "Abort"}
            case _:
                matched = choice.stop_reason
                if matched is None and self._ids:
                    matched = self._ids[-1]
                return {"type": "stop", "matched": matched}


def replies_of(request: SGLangRequest, prepared: PreparedGenerate, response: GenerateResponse) -> list[dict[str, Any]]:
    """The replies of one prompt: one per choice."""
    replies = []
    for choice in response.choices:
        reply = Reply(request, prepared, _name(prepared, choice.index), choice.index)
        reply.add(choice)
        reply.add_prompt(response.prompt_logprobs)
        reply.add_cached(response.usage)
        replies.append(reply.shaped())
    return replies


class StreamShaper:
    """Chunks of one request's stream as SGLang's events, each of which repeats everything so far."""

    def __init__(self, request: SGLangRequest, prepared: PreparedGenerate) -> None:
        self._replies = [Reply(request, prepared, _name(prepared, i), i) for i in range(prepared.n)]

    def events(self, chunk: Any) -> Iterator[dict[str, Any]]:
        """Last events wait for the usage chunk, which knows what was cached."""
        if not isinstance(chunk, GenerateChunk):
            for reply in self._replies:
                reply.add_cached(chunk.usage)
                yield reply.shaped()
            return
        if not isinstance(chunk.prompt_logprobs, msgspec.UnsetType):
            for reply in self._replies:
                reply.add_prompt(chunk.prompt_logprobs)
        for choice in chunk.choices:
            reply = self._replies[choice.index]
            reply.add(choice)
            if choice.finish_reason is None:
                yield reply.shaped()


def _name(prepared: PreparedGenerate, index: int) -> str:
    rid = prepared.request.request_id or prepared.request_id
    return rid if prepared.n == 1 else f"{rid}_{index}"


def _arrays(packed: PackedLogprobs) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """[T, K] views; the service was asked for raw bytes."""
    assert isinstance(packed.token_ids, bytes)
    assert isinstance(packed.logprobs, bytes)
    shape = (-1, packed.k)
    return np.frombuffer(packed.token_ids, "<i4").reshape(shape), np.frombuffer(packed.logprobs, "<f4").reshape(shape)


def _best(packed: PackedLogprobs, first: int, k: int) -> list[list[Triple]]:
    """Per row from `first` on, its best k candidates in order; the sampled one is put back from column 0."""
    token_ids, logprobs = _arrays(packed)
    ranks = np.frombuffer(packed.ranks, "<i4")  # type: ignore[arg-type]
    rows = []
    for t in range(first, len(token_ids)):
        cells = zip(token_ids[t, 1:], logprobs[t, 1:], strict=True)
        row: list[Triple] = [(_finite(p), int(i), None) for i, p in cells if i >= 0]
        if 0 < ranks[t] <= k:
            row.insert(int(ranks[t]) - 1, (_finite(logprobs[t, 0]), int(token_ids[t, 0]), None))
        rows.append(row[:k])
    return rows


def _by_id(ids: NDArray[np.int32], logprobs: NDArray[np.float32], wanted: list[int]) -> list[Triple]:
    """Scores in the order in which ids were asked for."""
    known = {int(i): _finite(p) for i, p in zip(ids, logprobs, strict=True)}
    return [(known.get(i), i, None) for i in wanted]


def _finite(value: Any) -> float:
    """JSON has no infinities: a floor stands for them."""
    number = float(value)
    return number if np.isfinite(number) else -9999.0
