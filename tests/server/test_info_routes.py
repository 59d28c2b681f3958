"""What a server tells of itself: (1) models in vLLM's shape; (2) probes follow the engine; (3) pause and resume;
(4) figures count what happened, under our names and vLLM's; (5) load; (6) server_info; (7) the OpenAPI document covers
every route and holds together; (8) the docs page loads nothing from elsewhere; (9) ids and text."""

import asyncio
import json
import re
import shutil

import pytest

from tests.support.http import GENERATE, app_of, body, client_of, settings_of, until
from tests.support.scripted_engine import ScriptedEngine, one_sequence
from tests.support.tokenizers import SMOL
from tokenwire import __version__
from tokenwire.engine.base import EngineStatus
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server
from tokenwire.service.models import Adapter


async def get(app, path, **options):
    async with client_of(app) as client:
        return await client.get(path, **options)


async def test_models_have_vllms_fields():
    app = app_of(served_model_name=["one", "two"], model="/weights")
    app.state.server.models.add(Adapter("ad1", "/adapters/1", parent="one"))
    content = (await get(app, "/v1/models")).json()
    assert content["object"] == "list"
    assert [(c["id"], c["root"], c["parent"], c["max_model_len"]) for c in content["data"]] == [
        ("one", "/weights", None, 4096),
        ("two", "/weights", None, 4096),
        ("ad1", "/adapters/1", "one", 4096),
    ]
    assert set(content["data"][0]) == {
        "id",
        "object",
        "created",
        "owned_by",
        "root",
        "parent",
        "max_model_len",
        "permission",
    }


async def test_a_front_end_knows_the_context_from_the_models_files(tmp_path):
    folder = shutil.copytree(SMOL, tmp_path / "smol")
    (folder / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 2048}')
    server = build_server(settings_of(), None, tokenizer=Tokenizer.load(folder))
    assert [card["max_model_len"] for card in (await get(create_app(server), "/v1/models")).json()["data"]] == [2048]
    assert server.derender.setup.limits.max_model_len == 2048


@pytest.mark.parametrize(
    "status, health, ready",
    [
        (EngineStatus.READY, 200, 200),
        (EngineStatus.PAUSED, 200, 503),
        (EngineStatus.FROZEN, 200, 503),
        (EngineStatus.RESTARTING, 503, 503),
        (EngineStatus.DEAD, 503, 503),
    ],
)
async def test_probes_follow_the_engine(status, health, ready):
    engine = ScriptedEngine()
    engine._status = status
    async with client_of(app_of(engine)) as client:
        assert (await client.get("/health")).status_code == health
        assert (await client.get("/ping")).status_code == health
        assert (await client.post("/ping")).status_code == health
        assert (await client.get("/readyz")).status_code == ready
        assert (await client.get("/livez")).status_code == 200


async def test_a_draining_server_takes_nothing_new():
    app = app_of()
    app.state.server.drain()
    async with client_of(app) as client:
        assert (await client.get("/readyz")).text == "draining"
        assert (await client.get("/health")).status_code == 200
        reply = await client.post(GENERATE, json=body())
    assert (reply.status_code, reply.json()["error"]["type"]) == (503, "ServiceUnavailableError")
    assert "retry-after" in reply.headers


async def test_pause_refuses_and_resume_serves_again():
    async with client_of(app_of()) as client:
        assert (await client.post("/pause?mode=abort&clear_cache=false")).json() == {"status": "paused"}
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.post(GENERATE, json=body())).status_code == 503
        assert (await client.post("/resume")).json() == {"status": "resumed"}
        assert (await client.get("/is_paused")).json() == {"is_paused": False}
        assert (await client.post(GENERATE, json=body(max_tokens=1))).status_code == 200
        assert (await client.post("/reset_prefix_cache")).json() == {"success": True}


@pytest.mark.parametrize("query", ["mode=sleep", "clear_cache=maybe"])
async def test_a_bad_pause_is_a_400(query):
    async with client_of(app_of()) as client:
        assert (await client.post(f"/pause?{query}")).status_code == 400


def samples(text):
    """name{labels} -> value, the label order as it is."""
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


async def test_metrics_count_under_both_names():
    engine = ScriptedEngine(one_sequence([5, 6, 7], finish_reason="stop"))
    app = app_of(engine)
    async with client_of(app) as client:
        await client.post(GENERATE, json=body([1, 2, 3, 4]))
        await client.post(GENERATE, json=body([1, 2, 3, 4], stream=True))
        await client.post(GENERATE, json={**body(), "model": "nope"})
        await client.post(GENERATE, json={**body(), "who_knows": 1})
        await until(lambda: engine.num_live == 0)
        text = (await client.get("/metrics")).text
    found = samples(text)
    labels = '{engine="0",model_name="m"}'
    for prefix in ("tokenwire_", "vllm:"):
        assert found[f"{prefix}prompt_tokens_total{labels}"] == 11
        assert found[f"{prefix}generation_tokens_total{labels}"] == 9
        assert found[f"{prefix}time_to_first_token_seconds_count{labels}"] == 3
        assert found[f'{prefix}request_success_total{{engine="0",finished_reason="stop",model_name="m"}}'] == 3
    assert found[f"vllm:inter_token_latency_seconds_count{labels}"] == 6
    assert found[f"vllm:e2e_request_latency_seconds_count{labels}"] == 3
    assert found[f"vllm:num_requests_running{labels}"] == 0
    assert found['tokenwire_errors_total{code="404",engine="0",model_name="m",type="NotFoundError"}'] == 1
    assert found['tokenwire_unknown_fields_total{engine="0",field="who_knows",model_name="m"}'] == 1
    for name in ("num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"):
        assert f"vllm:{name}{labels}" in found
    for name in ("prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"):
        assert f"vllm:{name}{labels}" in found


async def test_metrics_come_as_open_metrics_when_asked_for():
    reply = await get(app_of(), "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert reply.headers["content-type"].startswith("application/openmetrics-text")
    assert reply.text.endswith("# EOF\n")


async def test_a_client_that_left_is_counted_once():
    engine = ScriptedEngine(gate=True)
    app = app_of(engine)
    metrics = app.state.server.metrics
    async with client_of(app) as client:
        task = asyncio.create_task(client.post(GENERATE, json=body()))
        await until(lambda: engine.requests)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: metrics.num_left == 1)
    assert (metrics.num_requests, metrics.prompt_tokens, sum(metrics.finished.values())) == (1, 0, 0)


@pytest.mark.parametrize("tracking, expected", [(True, 1), (False, 0)])
async def test_load_counts_what_is_in_flight_when_asked_to(tracking, expected):
    engine = ScriptedEngine(gate=True)
    async with client_of(app_of(engine, enable_server_load_tracking=tracking)) as client:
        task = asyncio.create_task(client.post(GENERATE, json=body(max_tokens=1)))
        await until(lambda: engine.requests)
        assert (await client.get("/load")).json() == {"server_load": expected}
        engine.open_gate()
        await task
        assert (await client.get("/load")).json() == {"server_load": 0}


async def test_server_info_tells_capabilities_and_limits():
    content = (await get(app_of(max_num_queued_reqs=5), "/server_info?config_format=json")).json()
    assert content["version"] == __version__
    assert content["engine"]["capabilities"]["structured_outputs"] == sorted(
        ["json", "regex", "choice", "grammar", "json_object", "structural_tag"]
    )
    assert content["limits"]["max_num_queued_reqs"] == 5
    assert content["limits"]["max_model_len"] == 4096


async def test_version():
    assert (await get(app_of(), "/version")).json() == {"version": __version__}


async def test_the_open_api_document_covers_every_route_and_holds_together():
    app = app_of()
    document = (await get(app, "/openapi.json")).json()
    assert {route.path for route in app.routes} == set(document["paths"])
    schemas = document["components"]["schemas"]
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert references <= set(schemas)
    request = schemas["GenerateRequest"]["properties"]
    assert {"token_ids", "sampling_params", "output_mode", "logprobs_format"} <= set(request)
    assert "temperature" in schemas["SamplingParams"]["properties"]
    assert "top_logprobs" in schemas["TokenIdLogprobEntry"]["properties"]
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)


async def test_the_docs_page_loads_nothing_from_elsewhere():
    reply = await get(app_of(), "/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert "openapi.json" in reply.text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", reply.text)


@pytest.fixture(scope="module")
def smol():
    return Tokenizer.load(SMOL)


async def test_text_to_ids_and_back(smol):
    async with client_of(app_of(tokenizer=smol)) as client:
        ids = await client.post("/tokenize", json={"prompt": "Hello world", "return_token_strs": True})
        text = await client.post("/detokenize", json={"model": "m", "tokens": [19556, 905, 999999]})
    assert ids.json() == {"count": 2, "max_model_len": 4096, "tokens": [19556, 905], "token_strs": ["Hello", "Ġworld"]}
    assert text.json() == {"prompt": "Hello world"}


@pytest.mark.parametrize(
    "path, payload, status",
    [
        ("/tokenize", {"model": "x", "prompt": "a"}, 404),
        ("/tokenize", {}, 400),
        ("/detokenize", {"tokens": [-1]}, 400),
        ("/detokenize", {"tokens": "a"}, 400),
    ],
)
async def test_bad_text_requests_are_refused(smol, path, payload, status):
    async with client_of(app_of(tokenizer=smol)) as client:
        assert (await client.post(path, json=payload)).status_code == status


async def test_a_server_without_tokenizer_says_so():
    async with client_of(app_of()) as client:
        reply = await client.post("/tokenize", json={"prompt": "a"})
    assert reply.status_code == 400
    assert "--skip-tokenizer-init" in reply.json()["error"]["message"]
