"""Controls over a coordinator: they reach the worker's own routes, and its answers come back through ours.

1. Weight updates, labels, sleep, caches and adapters pass through; facts that are asked for are asked with GET.
2. While the workers sleep the coordinator takes nothing; once all are awake it does again.
3. What a worker does not obey the coordinator does not either.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.engines.remote import remote, worker
from tests.support import fake_vllm
from tests.support.fake_vllm import FakeAsyncLLM
from tests.support.http import GENERATE, app_of, body, client_of
from tests.support.scripted_engine import ALL_CAPABILITIES, ScriptedEngine
from tokenwire.engine.vllm import VllmEngine, VllmOptions


@pytest.fixture(autouse=True)
def _vllm_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)


@contextlib.asynccontextmanager
async def coordinator(llm: FakeAsyncLLM) -> AsyncIterator[httpx.AsyncClient]:
    """Before a worker that serves vLLM's stand-in."""
    engine = VllmEngine(VllmOptions(model="/weights"))
    await engine.adopt(llm)
    async with (
        worker(engine, server_dev_mode=True) as url,  # type: ignore[arg-type]
        remote(url) as before,
        client_of(app_of(before, server_dev_mode=True)) as client,
    ):
        yield client


async def test_a_weight_update_passes_through() -> None:
    llm = FakeAsyncLLM(transfer=True)
    async with coordinator(llm) as client:
        assert (await client.get("/weight_info")).json() == {"weight_version": "default"}
        assert (await client.get("/get_world_size?include_dp=false")).json() == {"world_size": 2}
        for path, sent in (
            ("start_weight_update", {}),
            ("update_weights", {"update_info": {"names": ["w"]}}),
            ("finish_weight_update", {"weight_version": "step-1"}),
        ):
            assert (await client.post(f"/{path}", json=sent)).status_code == 200
        reply = await client.post(GENERATE, json=body(max_tokens=2))
        assert reply.json()["choices"][0]["weight_versions"] == [{"version": "step-1", "start": 0, "end": 2}]
    assert [call[:2] for call in llm.calls if "weight" in call[0]] == [
        ("start_weight_update", ()),
        ("update_weights", ({"names": ["w"]},)),
        ("finish_weight_update", ("step-1",)),
    ]


async def test_sleep_passes_through() -> None:
    llm = FakeAsyncLLM(sleep=True)
    async with coordinator(llm) as client:
        assert (await client.post("/sleep?level=2")).json() == {"status": "sleeping", "level": 2}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 503
        assert (await client.post("/wake_up?tags=weights")).json() == {"status": "sleeping", "tags": ["weights"]}
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 503
        assert (await client.post("/wake_up")).json() == {"status": "awake", "tags": None}
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 200
        assert (await client.post("/reset_mm_cache")).status_code == 200
        sent = {"method": "f", "args": ["a"]}
        assert (await client.post("/collective_rpc", json=sent)).json() == {"results": [{"rank": 0}, None]}


async def test_adapters_pass_through() -> None:
    llm = FakeAsyncLLM(lora=True)
    async with coordinator(llm) as client:
        sent = {"lora_name": "ad", "lora_path": "/a"}
        assert (await client.post("/v1/load_lora_adapter", json=sent)).status_code == 200
        reply = await client.post(GENERATE, json={**body(max_tokens=2), "model": "ad"})
        assert reply.json()["model"] == "ad"
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "ad"})).status_code == 200
    (call,) = llm.named("generate")
    assert call[2]["lora_request"].lora_path == "/a"


async def test_what_a_worker_does_not_obey_is_a_501_here_too() -> None:
    engine = ScriptedEngine(capabilities=dataclasses.replace(ALL_CAPABILITIES, controls=frozenset({"pause"})))
    async with worker(engine) as url, remote(url) as before, client_of(app_of(before)) as client:
        assert (await client.post("/sleep")).status_code == 501
        assert (await client.post("/v1/load_lora_adapter", json={})).status_code == 501
        assert (await client.post("/pause")).status_code == 200
