"""Control routes in front of any engine:

1. An engine that does not obey a command is a 501 with the way out, before the body is looked at.
2. Calls to workers and profiling exist in development mode only.
3. All of them are for the operator; those that only read are for everybody.
4. Bodies are read as JSON whatever their type says; a missing one is `{}` where nothing in it is required.
5. Adapters that the settings name are loaded at the start, or end it with a sentence.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.http import app_of, client_of, settings_of
from tests.support.scripted_engine import ALL_CAPABILITIES, ScriptedEngine
from tokenwire.commands.adapters import load_adapters
from tokenwire.engine.control import Control, LoadAdapter, WeightTransfer
from tokenwire.server.build import build_server
from tokenwire.settings import Settings, SettingsError

CHANGING = {
    "/init_weight_transfer_engine": {"init_info": {}},
    "/shutdown_weight_transfer_engine": None,
    "/start_weight_update": None,
    "/start_draft_weight_update": None,
    "/update_weights": {"update_info": {}},
    "/finish_weight_update": None,
    "/update_weight_version": {"new_version": "v"},
    "/weight_checker": {"action": "reset"},
    "/sleep": None,
    "/wake_up": None,
    "/release_kv_cache_memory": None,
    "/reset_mm_cache": None,
    "/reset_encoder_cache": None,
    "/v1/load_lora_adapter": {"lora_name": "a", "lora_path": "/a"},
    "/v1/unload_lora_adapter": {"lora_name": "a"},
}
IN_DEVELOPMENT = {"/collective_rpc": {"method": "f"}, "/start_profile": None, "/stop_profile": None}
READING = ("/weight_info", "/get_world_size", "/is_sleeping")


def obedient(**info: Any) -> ScriptedEngine:
    """Obeys everything."""
    tags = frozenset(str(kind.__struct_config__.tag) for kind in Control.__subclasses__())
    return ScriptedEngine(capabilities=dataclasses.replace(ALL_CAPABILITIES, controls=tags), **info)


@pytest.mark.parametrize("path", [*CHANGING, *IN_DEVELOPMENT])
async def test_what_the_engine_does_not_obey_is_a_501_whatever_the_body(path: str) -> None:
    async with client_of(app_of(server_dev_mode=True)) as client:
        reply = await client.post(path, content=b"{")
    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (501, "NotImplementedError")
    assert error["message"].startswith(f"{path} is not implemented by this server. ")


@pytest.mark.parametrize("path", READING)
async def test_what_the_engine_does_not_tell_is_a_501(path: str) -> None:
    async with client_of(app_of()) as client:
        assert (await client.get(path)).status_code == 501
        assert (await client.get("/kv_event_sources")).json() == {}


@pytest.mark.parametrize("path", IN_DEVELOPMENT)
async def test_calls_to_workers_are_for_development(path: str) -> None:
    engine = obedient()
    async with client_of(app_of(engine)) as client:
        assert (await client.post(path, json=IN_DEVELOPMENT[path])).status_code == 501
    assert engine.controls == []
    async with client_of(app_of(engine, server_dev_mode=True)) as client:
        assert (await client.post(path, json=IN_DEVELOPMENT[path])).status_code == 200
    assert len(engine.controls) == 1


@pytest.mark.parametrize("path", [*CHANGING, *IN_DEVELOPMENT])
async def test_changes_are_for_the_operator(path: str) -> None:
    engine = obedient()
    abroad = client_of(app_of(engine, server_dev_mode=True), client=("10.0.0.1", 1))
    without_key = client_of(app_of(engine, server_dev_mode=True, api_key=["k"]))
    async with abroad, without_key:
        assert (await abroad.post(path, json={})).status_code == 403
        assert (await without_key.post(path, json={})).status_code == 401
    assert engine.controls == []


@pytest.mark.parametrize("path", CHANGING)
async def test_every_change_reaches_the_engine(path: str) -> None:
    engine = obedient()
    async with client_of(app_of(engine)) as client:
        if path == "/v1/unload_lora_adapter":
            await client.post("/v1/load_lora_adapter", json=CHANGING["/v1/load_lora_adapter"])
            engine.controls.clear()
        sent = CHANGING[path]
        reply = await (client.post(path) if sent is None else client.post(path, json=sent))
    assert reply.status_code == 200
    (message,) = engine.controls
    if isinstance(message, WeightTransfer):
        assert (message.action, message.info) == (path[1:], sent or {})


async def test_a_body_is_json_whatever_its_type_says() -> None:
    engine = obedient()
    async with client_of(app_of(engine)) as client:
        assert (await client.post("/update_weight_version", content=b'{"new_version": "v"}')).status_code == 200
        assert (await client.post("/finish_weight_update", content=b"null")).status_code == 200
        for content in (b"", b"{", b"[]", b'{"new_version": 3}'):
            assert (await client.post("/update_weight_version", content=content)).status_code == 400
    assert len(engine.controls) == 2


# --- adapters of the settings


def adapters_of(**values: Any) -> Settings:
    return settings_of(model="/weights", engine="vllm", **values)


async def test_adapters_of_the_settings_are_loaded_at_the_start() -> None:
    engine = obedient()
    settings = adapters_of(
        lora_modules=["a=/a", '{"name": "b", "path": "/b", "base_model_name": "m"}'], default_mm_loras={"image": "/i"}
    )
    server = build_server(settings, engine)
    await load_adapters(server)
    assert engine.controls == [
        LoadAdapter(name="a", path="/a"),
        LoadAdapter(name="b", path="/b"),
        LoadAdapter(name="image", path="/i"),
    ]
    assert [(a.name, a.parent, a.modality) for a in server.models.adapters()] == [
        ("a", "m", None),
        ("b", "m", None),
        ("image", "m", "image"),
    ]


@pytest.mark.parametrize(
    ("engine", "item", "sentence"),
    [
        (obedient, "nameless", "NAME=PATH"),
        (obedient, '{"name": "a"}', "path"),
        (obedient, "m=/a", "served model"),
        (ScriptedEngine, "a=/a", "takes no adapters"),
    ],
)
async def test_one_that_cannot_be_loaded_ends_the_start(engine: Any, item: str, sentence: str) -> None:
    server = build_server(adapters_of(lora_modules=[item]), engine())
    with pytest.raises(SettingsError, match=sentence):
        await load_adapters(server)


def test_an_engine_without_adapters_is_known_before_it_starts() -> None:
    with pytest.raises(SettingsError, match="takes no LoRA adapters"):
        settings_of(enable_lora=True)
