"""What reaches vLLM of a request; over a stand-in that writes down its calls.

1. Priority, session id, data-parallel rank, reasoning facts, transfer parameters and cache salt are handed over.
2. Trace headers are, where vLLM traces.
3. Each of n sequences is a request of its own with a seed of its own.
4. Figures of speculative decoding and transfer parameters come back.
5. Tokens carry the label of the weights that are committed when they come.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engines.remote import outputs_of, request
from tests.support import fake_vllm
from tests.support.fake_vllm import FakeAsyncLLM
from tokenwire.engine.vllm import VllmEngine, VllmOptions


@pytest.fixture(autouse=True)
def _vllm_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)


async def engine_over(llm: FakeAsyncLLM) -> VllmEngine:
    engine = VllmEngine(VllmOptions(model="/weights"))
    await engine.adopt(llm)
    return engine


async def asked(llm: FakeAsyncLLM, **fields: Any) -> fake_vllm.Call:
    """The one call of `generate` that a request leads to."""
    await outputs_of(await engine_over(llm), request(**fields))
    (call,) = llm.named("generate")
    return call


async def test_what_steers_a_request_is_handed_over() -> None:
    _, (prompt, _, request_id), options = await asked(
        FakeAsyncLLM(),
        token_ids=[4, 5],
        request_id="mine",
        priority=-3,
        session_id="s",
        data_parallel_rank=1,
        reasoning_ended=True,
        reasoning_parser_kwargs={"chat_template_kwargs": {"a": 1}},
        cache_salt="salt",
    )
    assert prompt == {"prompt_token_ids": [4, 5], "type": "token", "cache_salt": "salt"}
    assert request_id == "mine"
    assert options == {
        "priority": -3,
        "session_id": "s",
        "data_parallel_rank": 1,
        "reasoning_ended": True,
        "reasoning_parser_kwargs": {"chat_template_kwargs": {"a": 1}},
    }


async def test_a_plain_request_hands_over_nothing_else() -> None:
    _, (prompt, params, _), options = await asked(FakeAsyncLLM(), stream=False)
    assert options == {}
    assert prompt == {"prompt_token_ids": [1, 2, 3], "type": "token"}
    assert (params.detokenize, params.output_kind, params.flat_logprobs) == (False, "final", True)


@pytest.mark.parametrize(("tracing", "given"), [(True, {"trace_headers": {"traceparent": "00-1"}}), (False, {})])
async def test_trace_headers_go_where_vllm_traces(tracing: bool, given: dict[str, Any]) -> None:
    _, _, options = await asked(FakeAsyncLLM(tracing=tracing), trace_headers={"traceparent": "00-1"})
    assert options == given


async def test_transfer_parameters_stand_beside_the_callers_extra_args() -> None:
    _, (_, params, _), _ = await asked(
        FakeAsyncLLM(),
        extra_args={"keep": 1},
        kv_transfer_params={"do_remote_decode": True},
        ec_transfer_params={"e": 1},
    )
    assert params.extra_args == {
        "keep": 1,
        "kv_transfer_params": {"do_remote_decode": True},
        "ec_transfer_params": {"e": 1},
    }


async def test_every_sequence_is_a_request_with_a_seed_of_its_own() -> None:
    llm = FakeAsyncLLM()
    outputs = await outputs_of(await engine_over(llm), request(n=2, seed=5, request_id="r"))
    assert {(call[1][2], call[1][1].seed, call[1][1].n) for call in llm.named("generate")} == {
        ("r-0", 5, 1),
        ("r-1", 6, 1),
    }
    assert sorted(output.index for output in outputs if output.finish_reason) == [0, 1]


async def test_figures_of_speculation_and_transfer_parameters_come_back() -> None:
    llm = FakeAsyncLLM()
    llm.completion["spec_decode_metrics"] = SimpleNamespace(
        num_spec_tokens=2, histogram=[0, 1, 1], num_draft_tokens=4, per_step_accepted=[2, 1], per_step_drafted=[2, 2]
    )
    last = (await outputs_of(await engine_over(llm), request()))[-1]
    assert last.spec_decode is not None
    assert (last.spec_decode.accepted, last.spec_decode.drafted) == ([2, 1], [2, 2])
    assert last.kv_transfer_params == {"back": 1}


async def test_tokens_carry_the_committed_label() -> None:
    llm = FakeAsyncLLM()
    llm.version = "w1"
    assert [o.weight_version for o in await outputs_of(await engine_over(llm), request())] == ["w1", "w1"]
