"""A sequence in vLLM that its reader ended: vLLM's answer to an abort is its last word. With a stand-in of AsyncLLM.

1. The sequence is aborted in vLLM by its own id; what the abort's output tells comes through, without tokens.
2. The other sequences go on; a vLLM that says nothing is not waited for beyond the time given.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.remote import request
from tokenwire.engine.base import EngineOutput, WeightSpan
from tokenwire.engine.vllm import request as vllm_request
from tokenwire.engine.vllm.request import LiveRequest


class AsyncLLM:
    """Gives a token every few milliseconds, and after an abort one last output, unless it is `mute`."""

    def __init__(self, *, mute: bool = False) -> None:
        self.mute = mute
        self.aborted: list[str] = []

    async def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        for number in range(20):
            await asyncio.sleep(0.005)
            if request_id in self.aborted and not self.mute:
                spans = [SimpleNamespace(version="s1", start=0, end=number)]
                yield self._result([], finish_reason="abort", weight_versions=spans, routed_experts="experts")
                return
            yield self._result([number], finish_reason="length" if number == 19 else None)

    @staticmethod
    def _result(token_ids: list[int], **fields: Any) -> Any:
        completion = SimpleNamespace(token_ids=token_ids, logprobs=None, stop_reason=None, **fields)
        return SimpleNamespace(outputs=[completion], kv_transfer_params=None, ec_transfer_params=None)

    async def abort(self, request_ids: list[str]) -> None:
        self.aborted += request_ids


@pytest.fixture(autouse=True)
def _plain_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make_prompt(engine: Any, asked: Any) -> dict[str, Any]:
        return {"prompt_token_ids": asked.prompt_token_ids}

    monkeypatch.setattr(vllm_request, "make_prompt", make_prompt)


def start(engine: AsyncLLM, *, n: int = 1) -> LiveRequest:
    params = SimpleNamespace(make=lambda asked, index: None)
    weights = SimpleNamespace(version="s1", weight_version="s1")
    live = LiveRequest(engine, request(n=n, max_tokens=20), params, weights, {})  # type: ignore[arg-type]
    live.start()
    return live


async def rest_of(live: LiveRequest) -> list[EngineOutput]:
    async with asyncio.timeout(5):
        return [output async for outputs in live.stream for output in outputs]


@pytest.mark.parametrize("n", [1, 2])
async def test_the_output_of_an_abort_is_the_last_word(n: int) -> None:
    engine = AsyncLLM()
    live = start(engine, n=n)
    await anext(live.stream)
    live.stream.stop(0, 5.0)
    rest = await rest_of(live)
    (last,) = [output for output in rest if output.index == 0]
    assert (last.token_ids, last.finish_reason, last.routed_experts) == ([], "abort", "experts")
    assert last.weight_versions is not None
    assert isinstance(last.weight_versions[0], WeightSpan)
    assert engine.aborted == ["r" if n == 1 else "r-0"]
    assert n == 1 or [o for o in rest if o.index == 1][-1].finish_reason == "length"


async def test_a_vllm_that_says_nothing_is_not_waited_for() -> None:
    live = start(AsyncLLM(mute=True))
    await anext(live.stream)
    live.stream.stop(0, 0.02)
    assert [(o.token_ids, o.finish_reason) for o in await rest_of(live)] == [([], "abort")]
    assert live.task is not None
    await asyncio.wait([live.task], timeout=1)
    assert live.task.done()
