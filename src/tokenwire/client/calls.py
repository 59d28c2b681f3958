"""Each endpoint as a value: what to send and how to read the answer. Knows nothing of sync, async or sockets."""

from __future__ import annotations

import contextlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from tokenwire.client import codec
from tokenwire.client.codec import CONTENT_TYPES, WireName
from tokenwire.client.replies import (
    AbortResponse,
    DerenderChunk,
    DerenderResponse,
    DetokenizeResponse,
    GenerateResponse,
    ModelList,
    Rendered,
    TokenizeResponse,
)
from tokenwire.wire.arrays import pack_ids
from tokenwire.wire.generate import GenerateRequest
from tokenwire.wire.sampling import SamplingParams

T = TypeVar("T")

Prompt = GenerateRequest | Rendered | Mapping[str, Any] | Sequence[int]
"""What generate takes: a whole request (typed, rendered or plain), or just the prompt's token ids."""
Sampling = SamplingParams | Mapping[str, Any] | None


@dataclass(slots=True, frozen=True)
class Call(Generic[T]):
    """One HTTP exchange. `read` takes the content and content type of a 2xx reply."""

    method: str
    path: str
    read: Callable[[bytes, str], T]
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    output_mode: str = "tokens"

    @property
    def where(self) -> str:
        return f"{self.method} {self.path}"


def _reader(kind: type[T], where: str) -> Callable[[bytes, str], T]:
    def read(content: bytes, content_type: str) -> T:
        reply: T = codec.decode_reply(content, kind, where=where)
        return reply

    return read


def _post(path: str, body: object, read: Callable[[bytes, str], T], accept: WireName = "json") -> Call[T]:
    headers = {"Content-Type": CONTENT_TYPES["json"]}
    if accept != "json":
        headers["Accept"] = CONTENT_TYPES[accept]
    return Call("POST", path, read, codec.encode(body), headers)


def _post_for(path: str, body: object, kind: type[T]) -> Call[T]:
    return _post(path, body, _reader(kind, f"POST {path}"))


# --- generate ---------------------------------------------------------------------------------------------------

GENERATE = "/inference/v1/generate"


def generate_body(prompt: Prompt, sampling_params: Sampling, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The request as plain objects. `fields` are top-level fields and win over those of `prompt`.

    Sampling parameters that `prompt` brings are kept; `sampling_params` wins over them key by key. A field given
    here by name must be one this package knows, so that a slip of the pen is a `TypeError`; fields inside a rendered
    or plain request travel as they are.
    """
    if isinstance(prompt, str | bytes):
        raise TypeError("generate takes token ids, not text; tokenize() or render_completion() make ids of a text")
    unknown = [name for name in fields if name not in GenerateRequest.__struct_fields__]
    if unknown:
        raise TypeError(f"generate has no field {unknown[0]!r}; the fields are {GenerateRequest.__struct_fields__}")
    if isinstance(prompt, Rendered):
        body = dict(prompt.body)
    elif isinstance(prompt, Mapping | GenerateRequest):
        body = msgspec.to_builtins(prompt, builtin_types=(bytes,))
    else:
        body = {"token_ids": _list_of(prompt)}
    body |= fields
    body["sampling_params"] = _plain(body.get("sampling_params")) | _plain(sampling_params)
    return body


def _list_of(ids: Sequence[int]) -> list[int]:
    """Arrays of any library become lists of ints in one go."""
    if isinstance(ids, list):
        return ids
    return ids.tolist() if hasattr(ids, "tolist") else [int(i) for i in ids]


def _plain(sampling: Sampling) -> dict[str, Any]:
    return msgspec.to_builtins(sampling) if sampling else {}


def generate(body: Mapping[str, Any], *, wire: WireName, headers: Mapping[str, str]) -> Call[GenerateResponse]:
    """The call for a whole reply, or for a stream if `body["stream"]` says so."""
    where = f"POST {GENERATE}"

    def read(content: bytes, content_type: str) -> GenerateResponse:
        return codec.decode_response(content, content_type, where=where)

    accept = CONTENT_TYPES[wire]
    if body.get("stream") and wire == "json":
        accept = "text/event-stream"
    own = {"Content-Type": CONTENT_TYPES[wire], "Accept": accept}
    mode = str(body.get("output_mode") or "tokens")
    content = codec.encode(body if wire == "json" else _raw(body), wire)
    return Call("POST", GENERATE, read, content, {**own, **headers}, mode)


def _raw(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The request with its arrays as raw bytes. What does not fit stays as it is: the server has the word for it."""
    raw = dict(body)
    if isinstance(raw.get("token_ids"), list):
        with contextlib.suppress(AttributeError, OverflowError, TypeError):
            raw["token_ids"] = pack_ids(raw["token_ids"])
    features = body.get("features")
    if isinstance(features, Mapping):
        raw["features"] = {
            name: _raw_items(value) if name in ("kwargs_data", "mm_metadata") else value
            for name, value in features.items()
        }
    return raw


def _raw_items(items: Any) -> Any:
    """By modality, each item's base64 text as its bytes."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        return {
            modality: [b64decode(item, validate=True) if isinstance(item, str) else item for item in some]
            for modality, some in items.items()
        }
    return items


def abort(request_ids: str | Iterable[str]) -> Call[AbortResponse]:
    ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
    path = "/inference/v1/abort_requests"

    def read(content: bytes, content_type: str) -> AbortResponse:
        if not content.strip():
            return AbortResponse()
        reply: AbortResponse = codec.decode_reply(content, AbortResponse, where=f"POST {path}")
        return reply

    return _post(path, {"request_ids": ids}, read)


# --- render and derender ----------------------------------------------------------------------------------------


def render_chat(body: Mapping[str, Any], wire: WireName = "json") -> Call[Rendered]:
    """Over MessagePack the answer's media are raw bytes."""
    path = "/v1/chat/completions/render"
    where = f"POST {path}"

    def read(content: bytes, content_type: str) -> Rendered:
        reply = codec.decode_reply(content, dict[str, Any], where=where, wire=codec.wire_of(content_type))
        return Rendered(reply)

    return _post(path, body, read, accept=wire)


def render_completion(body: Mapping[str, Any], wire: WireName = "json") -> Call[list[Rendered]]:
    path = "/v1/completions/render"
    where = f"POST {path}"

    def read(content: bytes, content_type: str) -> list[Rendered]:
        replies = codec.decode_reply(content, list[dict[str, Any]], where=where, wire=codec.wire_of(content_type))
        return [Rendered(one) for one in replies]

    return _post(path, body, read, accept=wire)


def _derender_path(kind: str) -> str:
    return {"chat": "/v1/chat/completions/derender", "completion": "/v1/completions/derender"}[kind]


def derender(kind: str, body: Mapping[str, Any]) -> Call[DerenderResponse]:
    return _post_for(_derender_path(kind), {**body, "stream": False}, DerenderResponse)


def derender_chunk(kind: str, body: Mapping[str, Any]) -> Call[DerenderChunk]:
    return _post_for(_derender_path(kind), {**body, "stream": True}, DerenderChunk)


def response_for_derender(response: GenerateResponse) -> dict[str, Any]:
    """A tokens-level reply as the `generate_response` of a derender request, without scores and arrays."""
    return {
        "request_id": response.request_id,
        "model": response.model,
        "created": response.created,
        "usage": msgspec.to_builtins(response.usage),
        "choices": [
            {
                "index": choice.index,
                "token_ids": choice.token_ids,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "logprobs": None,
            }
            for choice in response.choices
        ],
    }


# --- text and server --------------------------------------------------------------------------------------------


def tokenize(prompt: str | Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> Call[TokenizeResponse]:
    """`prompt` is text, or chat messages to be put through the template first."""
    given = {"prompt": prompt} if isinstance(prompt, str) else {"messages": list(prompt)}
    return _post_for("/tokenize", {**given, **fields}, TokenizeResponse)


def detokenize(token_ids: Sequence[int], fields: Mapping[str, Any]) -> Call[DetokenizeResponse]:
    return _post_for("/detokenize", {"tokens": list(token_ids), **fields}, DetokenizeResponse)


def models() -> Call[ModelList]:
    return Call("GET", "/v1/models", _reader(ModelList, "GET /v1/models"))


def health() -> Call[None]:
    return Call("GET", "/health", lambda content, content_type: None)


def server_info() -> Call[dict[str, Any]]:
    return Call("GET", "/server_info", _reader(dict[str, Any], "GET /server_info"))
