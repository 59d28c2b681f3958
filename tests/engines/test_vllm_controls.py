"""Control routes down to vLLM's calls; over a stand-in that writes them down.

1. Pause, resume and cache resets are vLLM's calls; a pause counts from its first moment, and one that failed does not.
2. Sleep at a level that gives memory back needs vLLM's flag; while asleep, a resume is refused and requests are 503.
3. A weight update runs step by step; its label is published at the end and only then; without a transfer backend the
   steps are 501.
4. Adapters get a vLLM name per load; what is used is not taken away; failures say what vLLM says.
5. Calls to workers, profiling, the configuration and KV events.
6. What this vLLM cannot do is a 501.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support import fake_vllm
from tests.support.fake_vllm import FakeAsyncLLM
from tests.support.http import GENERATE, app_of, body, client_of
from tokenwire.engine.vllm import VllmEngine, VllmOptions


@pytest.fixture(autouse=True)
def _vllm_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_vllm.install(monkeypatch)


@contextlib.asynccontextmanager
async def serving(llm: FakeAsyncLLM) -> AsyncIterator[httpx.AsyncClient]:
    engine = VllmEngine(VllmOptions(model="/weights"))
    await engine.adopt(llm)
    async with client_of(app_of(engine, server_dev_mode=True)) as client:
        yield client
    await engine.close()


def message(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["message"]


# --- pause, caches


async def test_pause_resume_and_resets_are_vllms_calls() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        assert (await client.post("/pause?mode=keep&clear_cache=false")).json() == {"status": "paused"}
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.post("/reset_prefix_cache?reset_external=true")).json() == {"success": False}
        assert (await client.post("/reset_mm_cache")).status_code == 200
        assert (await client.post("/reset_encoder_cache")).status_code == 200
    assert llm.calls[:-1] == [
        ("pause_generation", (), {"mode": "keep", "clear_cache": False}),
        ("resume_generation", (), {}),
        ("reset_prefix_cache", (False, True), {}),
        ("reset_mm_cache", (), {}),
        ("reset_encoder_cache", (), {}),
    ]


async def test_a_pause_that_failed_leaves_the_engine_serving() -> None:
    llm = FakeAsyncLLM()
    llm.fails["pause_generation"] = RuntimeError("no")
    async with serving(llm) as client:
        assert message(await client.post("/pause")) == (500, "no")
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 200


# --- sleep


async def test_sleep_and_wake_up_by_tags() -> None:
    llm = FakeAsyncLLM(sleep=True)
    async with serving(llm) as client:
        assert (await client.post("/sleep?level=2&mode=wait")).json() == {"status": "sleeping", "level": 2}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 503
        assert (await client.post("/resume")).status_code == 400
        partly = await client.post("/wake_up?tags=weights&tags=other")
        assert partly.json() == {"status": "sleeping", "tags": ["weights", "other"]}
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 503
        assert (await client.post("/wake_up")).json() == {"status": "awake", "tags": None}
        assert (await client.get("/is_sleeping")).json() == {"is_sleeping": False}
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 200
    assert llm.named("sleep") == [("sleep", (2, "wait"), {})]
    assert [call[1] for call in llm.named("wake_up")] == [(["weights", "other"],), (None,)]
    assert llm.named("resume_generation") == []


async def test_only_level_0_works_without_vllms_sleep_mode() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        status, text = message(await client.post("/sleep"))
        assert (status, "--enable-sleep-mode" in text) == (501, True)
        assert message(await client.post("/release_kv_cache_memory"))[0] == 501
        assert (await client.post(GENERATE, json=body(max_tokens=2))).status_code == 200
        assert (await client.post("/sleep?level=0")).json() == {"status": "sleeping", "level": 0}
        assert (await client.post("/wake_up?tags=scheduling")).status_code == 200
    assert [call[1] for call in llm.named("sleep")] == [(0, "abort")]


@pytest.mark.parametrize("query", ["level=3", "level=x", "mode=later"])
async def test_a_level_or_mode_that_is_none_is_refused(query: str) -> None:
    async with serving(FakeAsyncLLM(sleep=True)) as client:
        assert (await client.post(f"/sleep?{query}")).status_code == 400


async def test_the_cache_alone_can_be_given_back() -> None:
    async with serving(FakeAsyncLLM(sleep=True)) as client:
        await client.post("/pause")
        assert (await client.post("/release_kv_cache_memory")).json() == {"status": "kv_cache_released"}
        assert (await client.post("/resume")).status_code == 400
        assert (await client.post("/wake_up")).json()["status"] == "awake"


# --- weights


async def test_a_weight_update_step_by_step() -> None:
    llm = FakeAsyncLLM(transfer=True)
    init = {"master_address": "a", "master_port": 1, "rank_offset": 1, "world_size": 3}
    update = {"names": ["w"], "dtype_names": ["float32"], "shapes": [[2]]}
    async with serving(llm) as client:
        assert (await client.get("/weight_info")).json() == {"weight_version": "default"}
        assert (await client.get("/get_world_size")).json() == {"world_size": 4}
        assert (await client.get("/get_world_size?include_dp=false")).json() == {"world_size": 2}
        for path, sent, sentence in (
            ("init_weight_transfer_engine", {"init_info": init}, "Weight transfer initialized"),
            ("start_weight_update", None, "Weight update started"),
            ("update_weights", {"update_info": update}, "Weights updated"),
            ("update_weights", {"update_info": [update, update]}, "Weights updated"),
            ("finish_weight_update", {"weight_version": "step-1"}, "Weight update finished"),
            ("shutdown_weight_transfer_engine", None, "Weight transfer shut down"),
        ):
            reply = await client.post(f"/{path}", json=sent) if sent else await client.post(f"/{path}")
            assert (reply.status_code, reply.json()) == (200, {"message": sentence})
        assert (await client.get("/weight_info")).json() == {"weight_version": "step-1"}
        reply = await client.post(GENERATE, json=body(max_tokens=2))
        assert reply.json()["choices"][0]["weight_versions"] == [{"version": "step-1", "start": 0, "end": 2}]
    assert [call[:2] for call in llm.calls if "weight" in call[0]] == [
        ("init_weight_transfer_engine", (init,)),
        ("start_weight_update", ()),
        ("update_weights", (update,)),
        ("update_weights", ([update, update],)),
        ("finish_weight_update", ("step-1",)),
        ("shutdown_weight_transfer_engine", ()),
    ]


async def test_a_label_is_published_only_after_the_update_succeeded() -> None:
    llm = FakeAsyncLLM(transfer=True)
    wrapped = "Call to collective_rpc method failed: Worker failed with error 'no update is active', please check the"
    llm.fails["finish_weight_update"] = Exception(f"{wrapped} stack trace above for the root cause")
    async with serving(llm) as client:
        failed = await client.post("/finish_weight_update", json={"weight_version": "w"})
        assert message(failed) == (500, "no update is active")
        assert (await client.get("/weight_info")).json() == {"weight_version": "default"}
        llm.fails.clear()
        assert (await client.post("/finish_weight_update")).status_code == 200
        assert (await client.get("/weight_info")).json() == {"weight_version": "default"}


async def test_a_label_alone_can_be_set() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        reply = await client.post("/update_weight_version", json={"new_version": "7"})
        assert reply.json() == {"success": True, "new_version": "7"}
        assert (await client.post("/update_weight_version", json={})).status_code == 400
        stream = await client.post(GENERATE, json=body(stream=True, max_tokens=2))
        assert '"version":"7"' in stream.text


async def test_without_a_transfer_backend_the_steps_are_501() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        for path, sent in (("start_weight_update", {}), ("update_weights", {"update_info": {}})):
            status, text = message(await client.post(f"/{path}", json=sent))
            assert (status, "--weight-transfer-config" in text) == (501, True)
    assert llm.named("start_weight_update") == []


async def test_weights_are_summed_up_and_compared() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        check = {"action": "checksum"}
        sums = (await client.post("/weight_checker", json=check)).json()
        assert sums == {"checksums": {"tp0:w": "a", "tp1:w": "b"}}
        same = {"action": "compare", "baseline": sums["checksums"]}
        assert (await client.post("/weight_checker", json=same)).json() == {"match": True, "mismatches": []}
        other = {"action": "compare", "baseline": {"tp0:w": "a", "tp1:w": "x", "gone": "y"}}
        compared = (await client.post("/weight_checker", json=other)).json()
        assert compared == {"match": False, "mismatches": ["gone", "tp1:w"]}
        assert (await client.post("/weight_checker", json={"action": "compare"})).status_code == 400
        assert (await client.post("/weight_checker", json={"action": "reset"})).json() == {"status": "reset"}
    assert llm.named("collective_rpc")[0][1][0] == "reset_weights"


# --- adapters


def load(name: str, path: str, **fields: Any) -> dict[str, Any]:
    return {"url": "/v1/load_lora_adapter", "json": {"lora_name": name, "lora_path": path, **fields}}


def unload(name: str) -> dict[str, Any]:
    return {"url": "/v1/unload_lora_adapter", "json": {"lora_name": name}}


async def test_an_adapter_is_loaded_used_listed_and_unloaded() -> None:
    llm = FakeAsyncLLM(lora=True)
    async with serving(llm) as client:
        assert (await client.post(**load("ad", "/adapters/1"))).status_code == 200
        assert (await client.post(**load("ad", "/adapters/1"))).status_code == 400
        assert (await client.post(**load("m", "/adapters/1"))).status_code == 400
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["root"], card["parent"]) for card in listed][1:] == [("ad", "/adapters/1", "m")]
        reply = await client.post(GENERATE, json={**body(max_tokens=2), "model": "ad"})
        assert reply.json()["model"] == "ad"
        assert (await client.post(**unload("ad"))).status_code == 200
        assert (await client.post(**unload("ad"))).status_code == 404
        assert (await client.post(GENERATE, json={**body(max_tokens=2), "model": "ad"})).status_code == 404
    (call,) = llm.named("generate")
    assert (call[2]["lora_request"].lora_path, call[2]["lora_request"].lora_int_id) == ("/adapters/1", 1)
    assert llm.named("remove_lora") == [("remove_lora", (1,), {})]


async def test_new_weights_under_an_old_name_share_nothing_with_the_old_ones() -> None:
    llm = FakeAsyncLLM(lora=True)
    async with serving(llm) as client:
        await client.post(**load("ad", "/a"))
        assert (await client.post(**load("ad", "/a", load_inplace=True))).status_code == 200
        await client.post(**unload("ad"))
        await client.post(**load("ad", "/a"))
    names = [call[1][0].lora_name for call in llm.named("add_lora")]
    assert len(set(names)) == 3
    assert [call[1] for call in llm.named("remove_lora")] == [(1,), (2,)]


async def test_an_adapter_in_use_is_forgotten_but_not_taken_away() -> None:
    llm = FakeAsyncLLM(lora=True)
    running, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        running.set()
        await go_on.wait()

    llm.hold = hold
    async with serving(llm) as client:
        await client.post(**load("ad", "/a"))
        request = asyncio.create_task(client.post(GENERATE, json={**body(max_tokens=2), "model": "ad"}))
        await running.wait()
        assert (await client.post(**unload("ad"))).status_code == 200
        assert llm.named("remove_lora") == []
        go_on.set()
        assert (await request).json()["choices"][0]["token_ids"] == [7, 8]


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (
            "Worker failed with error 'Loading lora ad failed: No adapter found for /a', please check the stack trace",
            404,
        ),
        (
            "Worker failed with error 'LoRA rank 64 is greater than max_lora_rank 16.', please check the stack trace",
            400,
        ),
    ],
)
async def test_an_adapter_that_does_not_load_is_not_there(said: str, status: int) -> None:
    llm = FakeAsyncLLM(lora=True)
    llm.fails["add_lora"] = Exception(f"Call to add_lora method failed: {said} above for the root cause")
    async with serving(llm) as client:
        reply = await client.post(**load("ad", "/a"))
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, "lora_path")
        assert len((await client.get("/v1/models")).json()["data"]) == 1


# --- workers


async def test_workers_are_called_with_everything_that_was_sent() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        sent = {"method": "f", "args": ["a"], "kwargs": {"k": 1}, "timeout": 2.5}
        assert (await client.post("/collective_rpc", json=sent)).json() == {"results": [{"rank": 0}, None]}
        assert (await client.post("/collective_rpc", json={})).status_code == 400
    assert llm.named("collective_rpc") == [("collective_rpc", ("f", 2.5, ("a",), {"k": 1}), {})]


async def test_profiling_needs_a_profiler() -> None:
    llm = FakeAsyncLLM()
    async with serving(llm) as client:
        assert message(await client.post("/start_profile"))[0] == 501
    llm = FakeAsyncLLM(profiler="torch")
    async with serving(llm) as client:
        assert (await client.post("/start_profile", json={"profile_prefix": "p"})).status_code == 200
        assert (await client.post("/start_profile", json={"delay_iterations": 3})).status_code == 400
        assert (await client.post("/stop_profile")).status_code == 200
    assert [call[:2] for call in llm.calls if "profile" in call[0]] == [
        ("start_profile", ("p", None)),
        ("stop_profile", ()),
    ]


async def test_the_configuration_and_event_sources_are_told() -> None:
    async with serving(FakeAsyncLLM()) as client:
        told = (await client.get("/server_info?config_format=text")).json()
        assert "world_size_across_dp=4" in told["vllm_config"]
        assert "vllm_config" not in (await client.get("/server_info")).json()
        assert (await client.get("/kv_event_sources")).json() == {}
