"""A live request: one vLLM request per sequence, so that each can be ended by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from tokenwire.engine.base import EngineOutput, EngineRequest
from tokenwire.engine.queue import RequestQueue
from tokenwire.engine.vllm.errors import translated
from tokenwire.engine.vllm.inputs import make_prompt
from tokenwire.engine.vllm.outputs import OutputMaker
from tokenwire.engine.vllm.params import ParamsMaker
from tokenwire.engine.vllm.weights import Weights
from tokenwire.errors import GenerationError, TokenwireError

logger = logging.getLogger(__name__)


class LiveRequest:
    """Runs between `start` and the end of its task. vLLM aborts a sequence when its generator is closed."""

    def __init__(
        self,
        engine: Any,
        request: EngineRequest,
        params: ParamsMaker,
        weights: Weights,
        arguments: Mapping[str, Any],
    ) -> None:
        """`arguments` go to `AsyncLLM.generate` of every sequence."""
        self.request = request
        self.stream = RequestQueue(request.sampling.n, self.cancel, self._stop, ask_end=self._ask_end)
        self._engine = engine
        self._params = params
        self._weights = weights
        self._arguments = arguments
        self._sequences: dict[int, asyncio.Task[None]] = {}
        self._open = set(range(request.sampling.n))
        self._ending: set[asyncio.Task[None]] = set()
        self.task: asyncio.Task[None] | None = None

    def start(self) -> asyncio.Task[None]:
        self.task = asyncio.create_task(self._play(), name=f"vllm-{self.request.request_id}")
        return self.task

    def cancel(self) -> None:
        """End all work; the stream gets nothing more."""
        self._open.clear()
        if self.task is not None:
            self.task.cancel()

    def fail(self, error: TokenwireError) -> None:
        self.stream.fail(error)
        self.cancel()

    def uses(self, adapter: Any) -> bool:
        """Will vLLM need this LoRARequest for a step to come?"""
        return bool(self._open) and self._arguments.get("lora_request") is adapter

    def vllm_ids(self) -> list[str]:
        """The ids that vLLM knows the open sequences by."""
        return [self._id(index) for index in sorted(self._open)]

    def finish_aborted(self) -> None:
        """End what vLLM has not ended by itself."""
        for index in sorted(self._open):
            self.stream.put(EngineOutput(index, [], finish_reason="abort"))
        self.cancel()

    def _id(self, index: int) -> str:
        return f"{self.request.request_id}-{index}" if self.request.sampling.n > 1 else self.request.request_id

    def _stop(self, index: int) -> None:
        self._open.discard(index)
        if not self._open:
            self.cancel()
        elif index in self._sequences:
            self._sequences[index].cancel()

    def _ask_end(self, index: int) -> bool:
        """vLLM answers an abort with a last output that has everything but transfer params."""
        if index not in self._open:
            return False
        task = asyncio.create_task(self._abort(index))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return True

    async def _abort(self, index: int) -> None:
        try:
            await self._engine.abort([self._id(index)])
        except Exception as exc:  # whoever waits gives up by itself
            logger.warning("Request %s: vLLM could not end sequence %d: %s", self.request.request_id, index, exc)

    async def _play(self) -> None:
        try:
            with translated():
                prompt = await make_prompt(self._engine, self.request)
                if self.request.sampling.n == 1:
                    await self._sequence(0, prompt)
                    return
                async with asyncio.TaskGroup() as group:
                    for index in sorted(self._open):
                        # A prompt is the reader's to change: every sequence gets its own.
                        self._sequences[index] = group.create_task(self._sequence(index, dict(prompt)))
        except TokenwireError as exc:
            self.stream.fail(_first(exc))

    async def _sequence(self, index: int, prompt: Any) -> None:
        """One sequence to its end."""
        maker = OutputMaker(self.request, index)
        with translated():
            params = self._params.make(self.request, index)
            results = self._engine.generate(prompt, params, self._id(index), **self._arguments)
            async with aclosing(results):
                async for result in results:
                    output = maker.make(result)
                    output.weight_version = self._weights.version
                    if output.finish_reason is not None:
                        self._open.discard(index)
                    self.stream.put(output)
        if index in self._open:
            raise GenerationError("vLLM ended a request without a finish reason.")


def _first(error: TokenwireError) -> TokenwireError:
    """The error that ended a group of sequences, not the group."""
    cause: BaseException | None = error.__cause__
    while isinstance(cause, ExceptionGroup):
        cause = cause.exceptions[0]
        if isinstance(cause, TokenwireError):
            return cause
    return error
