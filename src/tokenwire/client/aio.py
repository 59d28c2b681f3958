"""The asyncio client: `Client` again, method by method, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
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


class AsyncClient:
    """`Client` for asyncio: the same arguments, methods and errors. Many requests at once are what it is for."""

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        settings = Settings(base_url, api_key, timeout, headers or {})
        self._http = httpx.AsyncClient(transport=transport, **settings.httpx_options())
        self._retry = Retry(retries, max_retry_wait_s)
        self._wire: WireName = wire

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    # --- generate -----------------------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: Sampling = None,
        *,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> GenerateResponse:
        """A whole reply. `fields` are those of `GenerateRequest`, e.g. `output_mode="text"`, `cache_salt=...`."""
        body = calls.generate_body(prompt, sampling_params, fields) | {"stream": False}
        return await self._send(calls.generate(body, wire=self._wire, headers=headers or {}))

    def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: Sampling = None,
        *,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> AsyncChunkStream:
        """An iterator of chunks; the request is sent when the first one is asked for.

        Leave it early only through `async with` or `aclose()`: that closes the connection, and the server stops.
        """
        body = calls.generate_body(prompt, sampling_params, fields) | {"stream": True}
        return AsyncChunkStream(self, calls.generate(body, wire=self._wire, headers=headers or {}))

    async def abort(self, request_ids: str | Iterable[str]) -> AbortResponse:
        """Stop running requests, by the ids of their replies or the ids they were sent with."""
        return await self._send(calls.abort(request_ids))

    # --- messages and text --------------------------------------------------------------------------------------

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Rendered:
        """The prompt of a chat request, ready for `generate`. `fields` are those of a chat completion request."""
        return await self._send(calls.render_chat({"messages": list(messages), **fields}, self._wire))

    async def render_completion(self, prompt: str | Sequence[str] | Sequence[int], **fields: Any) -> list[Rendered]:
        """One prompt for each text of a completion request."""
        return await self._send(calls.render_completion({"prompt": prompt, **fields}, self._wire))

    async def derender_chat(self, body: Mapping[str, Any]) -> DerenderResponse:
        """Tokens of a whole reply to a chat message; `body` as `/v1/chat/completions/derender` takes it."""
        return await self._send(calls.derender("chat", body))

    async def derender_completion(self, body: Mapping[str, Any]) -> DerenderResponse:
        return await self._send(calls.derender("completion", body))

    async def derender_chat_chunk(self, body: Mapping[str, Any]) -> DerenderChunk:
        """One chunk of a stream; pass the `stream_state` of the last answer."""
        return await self._send(calls.derender_chunk("chat", body))

    async def derender_completion_chunk(self, body: Mapping[str, Any]) -> DerenderChunk:
        return await self._send(calls.derender_chunk("completion", body))

    async def tokenize(self, prompt: str | Sequence[Mapping[str, Any]], **fields: Any) -> TokenizeResponse:
        """Ids of a text, or of chat messages. `fields`: `add_special_tokens`, `return_token_strs`, ..."""
        return await self._send(calls.tokenize(prompt, fields))

    async def detokenize(self, token_ids: Sequence[int], **fields: Any) -> str:
        return (await self._send(calls.detokenize(token_ids, fields))).prompt

    # --- server -------------------------------------------------------------------------------------------------

    async def models(self) -> ModelList:
        return await self._send(calls.models())

    async def health(self) -> None:
        """Returns if the server can serve, else raises what it answered."""
        await self._send(calls.health())

    async def server_info(self) -> dict[str, Any]:
        return await self._send(calls.server_info())

    # --- the exchange -------------------------------------------------------------------------------------------

    async def _send(self, call: Call[T]) -> T:
        response = await self._open(call)
        try:
            with translated(call, self._http.base_url):
                content = await response.aread()
            return call.read(content, content_type(response))
        finally:
            await response.aclose()

    async def _open(self, call: Call[Any]) -> httpx.Response:
        """A 2xx response, its body not yet read."""
        attempt = 0
        while True:
            try:
                return await self._attempt(call)
            except TokenwireError as error:
                wait_s = self._retry.wait_s(error, attempt)
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)
            attempt += 1

    async def _attempt(self, call: Call[Any]) -> httpx.Response:
        with translated(call, self._http.base_url):
            response = await self._http.send(build_request(self._http, call), stream=True)
            if response.is_success:
                return response
            try:
                await response.aread()
            finally:
                await response.aclose()
        raise reply_error(response, call)


class AsyncChunkStream:
    """The chunks of one streamed reply. `request_id` is known once the first chunk came."""

    def __init__(self, client: AsyncClient, call: Call[Any]) -> None:
        self._client = client
        self._call = call
        self._chunks = self._read()
        self.request_id: str | None = None

    def __aiter__(self) -> AsyncChunkStream:
        return self

    async def __anext__(self) -> GenerateChunk:
        chunk = await anext(self._chunks)
        self.request_id = chunk.request_id
        return chunk

    async def _read(self) -> AsyncGenerator[GenerateChunk, None]:
        response = await self._client._open(self._call)
        try:
            reader = stream_reader(content_type(response), self._call.output_mode, where=self._call.where)
            with translated(self._call, self._client._http.base_url):
                async for data in response.aiter_bytes():
                    for chunk in reader.feed(data):
                        yield chunk
            reader.end()
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close the connection if the stream is still open. No chunk comes after this."""
        await self._chunks.aclose()

    async def __aenter__(self) -> AsyncChunkStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()
