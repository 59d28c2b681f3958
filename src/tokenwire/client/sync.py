"""The blocking client. `aio` mirrors it, method by method."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import httpx

from tokenwire.client import calls
from tokenwire.client.calls import Call, Prompt, Sampling
from tokenwire.client.codec import WireName, stream_reader
from tokenwire.client.replies import (
    AbortResponse,
    DerenderChunk,
    DerenderResponse,
    GenerateChunk,
    GenerateResponse,
    ModelList,
    Rendered,
    TokenizeResponse,
)
from tokenwire.client.retry import Retry
from tokenwire.client.transport import (
    DEFAULT_TIMEOUT,
    Settings,
    build_request,
    content_type,
    reply_error,
    translated,
)
from tokenwire.errors import TokenwireError

T = TypeVar("T")


class Client:
    """A client of one server.

    `wire="msgpack"` sends and asks for MessagePack on generate, arrays as raw bytes. `retries` repeats
    a call after a failed connect or a 503 with `Retry-After` of at most `max_retry_wait_s`; the default repeats
    nothing. `timeout` in seconds, or an `httpx.Timeout`, or None for no limit. `transport` is httpx's own hook
    (in-memory apps, unix sockets). Safe to share between threads.

    Methods raise the `tokenwire.errors` type the server's error stands for (see `client.errors`), with `status`.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        *,
        api_key: str | None = None,
        wire: WireName = "json",
        timeout: float | httpx.Timeout | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        max_retry_wait_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        settings = Settings(base_url, api_key, timeout, headers or {})
        self._http = httpx.Client(transport=transport, **settings.httpx_options())
        self._retry = Retry(retries, max_retry_wait_s)
        self._wire: WireName = wire

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- generate -----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: Prompt,
        sampling_params: Sampling = None,
        *,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> GenerateResponse:
        """A whole reply. `fields` are those of `GenerateRequest`, e.g. `output_mode="text"`, `cache_salt=...`."""
        body = calls.generate_body(prompt, sampling_params, fields) | {"stream": False}
        return self._send(calls.generate(body, wire=self._wire, headers=headers or {}))

    def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: Sampling = None,
        *,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> ChunkStream:
        """An iterator of chunks; the request is sent when the first one is asked for.

        Leave it early only through `with` or `close()`: that closes the connection, and the server stops generating.
        """
        body = calls.generate_body(prompt, sampling_params, fields) | {"stream": True}
        return ChunkStream(self, calls.generate(body, wire=self._wire, headers=headers or {}))

    def abort(self, request_ids: str | Iterable[str]) -> AbortResponse:
        """Stop running requests, by the ids of their replies or the ids they were sent with."""
        return self._send(calls.abort(request_ids))

    # --- messages and text --------------------------------------------------------------------------------------

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Rendered:
        """The prompt of a chat request, ready for `generate`. `fields` are those of a chat completion request."""
        return self._send(calls.render_chat({"messages": list(messages), **fields}, self._wire))

    def render_completion(self, prompt: str | Sequence[str] | Sequence[int], **fields: Any) -> list[Rendered]:
        """One prompt for each text of a completion request."""
        return self._send(calls.render_completion({"prompt": prompt, **fields}, self._wire))

    def derender_chat(self, body: Mapping[str, Any]) -> DerenderResponse:
        """Tokens of a whole reply to a chat message; `body` as `/v1/chat/completions/derender` takes it."""
        return self._send(calls.derender("chat", body))

    def derender_completion(self, body: Mapping[str, Any]) -> DerenderResponse:
        return self._send(calls.derender("completion", body))

    def derender_chat_chunk(self, body: Mapping[str, Any]) -> DerenderChunk:
        """One chunk of a stream; pass the `stream_state` of the last answer."""
        return self._send(calls.derender_chunk("chat", body))

    def derender_completion_chunk(self, body: Mapping[str, Any]) -> DerenderChunk:
        return self._send(calls.derender_chunk("completion", body))

    def tokenize(self, prompt: str | Sequence[Mapping[str, Any]], **fields: Any) -> TokenizeResponse:
        """Ids of a text, or of chat messages. `fields`: `add_special_tokens`, `return_token_strs`, ..."""
        return self._send(calls.tokenize(prompt, fields))

    def detokenize(self, token_ids: Sequence[int], **fields: Any) -> str:
        return self._send(calls.detokenize(token_ids, fields)).prompt

    # --- server -------------------------------------------------------------------------------------------------

    def models(self) -> ModelList:
        return self._send(calls.models())

    def health(self) -> None:
        """Returns if the server can serve, else raises what it answered."""
        self._send(calls.health())

    def server_info(self) -> dict[str, Any]:
        return self._send(calls.server_info())

    # --- the exchange -------------------------------------------------------------------------------------------

    def _send(self, call: Call[T]) -> T:
        response = self._open(call)
        try:
            with translated(call, self._http.base_url):
                content = response.read()
            return call.read(content, content_type(response))
        finally:
            response.close()

    def _open(self, call: Call[Any]) -> httpx.Response:
        """A 2xx response, its body not yet read."""
        attempt = 0
        while True:
            try:
                return self._attempt(call)
            except TokenwireError as error:
                wait_s = self._retry.wait_s(error, attempt)
                if wait_s is None:
                    raise
            time.sleep(wait_s)
            attempt += 1

    def _attempt(self, call: Call[Any]) -> httpx.Response:
        with translated(call, self._http.base_url):
            response = self._http.send(build_request(self._http, call), stream=True)
            if response.is_success:
                return response
            try:
                response.read()
            finally:
                response.close()
        raise reply_error(response, call)


class ChunkStream:
    """The chunks of one streamed reply. `request_id` is known once the first chunk came."""

    def __init__(self, client: Client, call: Call[Any]) -> None:
        self._client = client
        self._call = call
        self._chunks = self._read()
        self.request_id: str | None = None

    def __iter__(self) -> ChunkStream:
        return self

    def __next__(self) -> GenerateChunk:
        chunk = next(self._chunks)
        self.request_id = chunk.request_id
        return chunk

    def _read(self) -> Generator[GenerateChunk, None, None]:
        response = self._client._open(self._call)
        try:
            reader = stream_reader(content_type(response), self._call.output_mode, where=self._call.where)
            with translated(self._call, self._client._http.base_url):
                for data in response.iter_bytes():
                    yield from reader.feed(data)
            reader.end()
        finally:
            response.close()

    def close(self) -> None:
        """Close the connection if the stream is still open. No chunk comes after this."""
        self._chunks.close()

    def __enter__(self) -> ChunkStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
