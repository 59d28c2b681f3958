"""The peer: vLLM's own route and `ServingTokens` over an engine that costs nothing.

    VLLM_PYTHON bench/serving_layer/vllm_stub.py PORT STEP_MS

With STEP_MS 0 a request's tokens are there at once. Otherwise one task gives every open stream one token a step,
through vLLM's own output collector, as its engine client does.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from fastapi import FastAPI
from vllm.entrypoints.scale_out.token_in_token_out.api_router import router
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector


def token(position: int) -> int:
    return 1000 + position % 40000


def scores(token_id: int, k: int | None) -> Any:
    if k is None:
        return None
    return {token_id + j: Logprob(-0.5 - j, j + 1, None) for j in range(max(k, 1))}


class Request:
    """One stream of a stepped engine."""

    def __init__(self, request_id: str, prompt: list[int], sampling: Any) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.done = 0
        self.queue = RequestOutputCollector(RequestOutputKind.DELTA, request_id)

    def output(self) -> RequestOutput:
        token_id = token(self.done)
        self.done += 1
        ended = self.done == self.sampling.max_tokens
        entry = scores(token_id, self.sampling.logprobs)
        choice = CompletionOutput(
            0, "", [token_id], None, None if entry is None else [entry], finish_reason="length" if ended else None
        )
        return RequestOutput(self.request_id, None, self.prompt, None, [choice], ended, num_cached_tokens=0)


class StubEngine:
    errored = False

    def __init__(self, step_s: float) -> None:
        self.vllm_config = types.SimpleNamespace(scheduler_config=types.SimpleNamespace(max_num_seqs=256))
        self._step_s = step_s
        self._live: dict[str, Request] = {}
        self._task: asyncio.Task[None] | None = None

    async def generate(self, engine_input: Any, sp: Any, request_id: str, **_: Any) -> AsyncIterator[RequestOutput]:
        request = Request(request_id, engine_input["prompt_token_ids"], sp)
        if sp.output_kind != RequestOutputKind.DELTA:
            yield self._whole(request)
        elif self._step_s:
            async for output in self._stepped(request):
                yield output
        else:
            for i in range(sp.max_tokens):
                yield request.output()
                if i % 8 == 0:
                    await asyncio.sleep(0)

    def _whole(self, request: Request) -> RequestOutput:
        k = request.sampling.logprobs
        ids = [token(i) for i in range(request.sampling.max_tokens)]
        entries = None if k is None else [scores(i, k) for i in ids]
        choice = CompletionOutput(0, "", ids, None, entries, finish_reason="length")
        return RequestOutput(request.request_id, None, request.prompt, None, [choice], True, num_cached_tokens=0)

    async def _stepped(self, request: Request) -> AsyncIterator[RequestOutput]:
        if self._task is None:
            self._task = asyncio.create_task(self._steps())
        self._live[request.request_id] = request
        finished = False
        while not finished:
            output = request.queue.get_nowait() or await request.queue.get()
            finished = output.finished
            yield output

    async def _steps(self) -> None:
        while True:
            for request in list(self._live.values()):
                output = request.output()
                request.queue.put(output)
                if output.finished:
                    del self._live[request.request_id]
            await asyncio.sleep(self._step_s)

    async def abort(self, request_ids: Any) -> None:
        pass


class StubServing(ServingTokens):
    """The attributes that its methods read; the checks that need a model are left out, in the peer's favour."""

    def __init__(self, engine: StubEngine) -> None:
        self.engine_client = engine
        self.models = types.SimpleNamespace(model_name=lambda _: "stub")
        self.model_config = types.SimpleNamespace(is_encoder_decoder=False, max_model_len=1 << 20)
        self.online_renderer = types.SimpleNamespace(preprocess_completion=self._preprocess)
        self.request_logger = None
        self.has_tokenizer, self.force_no_detokenize = False, True
        self.return_tokens_as_token_ids = False
        self.enable_prompt_tokens_details = self.enable_log_outputs = False
        self.default_sampling_params: dict[str, Any] = {}
        self.override_max_tokens = None

    async def _preprocess(self, request: Any, prompt_input: Any, **_: Any) -> tuple[dict[str, Any]]:
        return ({"type": "token", "prompt_token_ids": prompt_input},)

    async def _check_model(self, request: Any) -> None:
        return None

    def _preflight(self) -> None:
        pass

    def _maybe_get_adapters(self, *args: Any, **kwargs: Any) -> None:
        return None

    def _log_inputs(self, *args: Any, **kwargs: Any) -> None:
        pass

    async def _get_trace_headers(self, headers: Any) -> None:
        return None

    def _get_data_parallel_rank(self, request: Any) -> None:
        return None

    def _get_session_id_from_headers(self, request: Any) -> None:
        return None


def main() -> None:
    port, step_ms = int(sys.argv[1]), float(sys.argv[2])
    app = FastAPI()
    app.include_router(router)
    app.state.serving_tokens = StubServing(StubEngine(step_ms / 1000))
    app.state.engine_client = app.state.serving_tokens.engine_client
    app.state.server_load_metrics, app.state.enable_server_load_tracking = 0, False
    app.state.args = types.SimpleNamespace(tokens_only=False)
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
