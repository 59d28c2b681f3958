"""The render routes over HTTP.

1. All four answer on a server with and without an engine; what chat renders, generate takes. 2. Errors keep their
status. 3. A server without a tokenizer says so. 4. Another tokenizer's fingerprint is refused by generate.
5. Settings: template, content format, parsers' limits. 6. `tokenwire render` serves a folder of tokenizer files alone,
and loads no torch.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.http import GENERATE, app_of, client_of, settings_of
from tests.support.process import tokenwire
from tests.support.tokenizers import SMOL, tokenizer
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.server.app import create_app
from tokenwire.server.build import build_server
from tokenwire.settings import SettingsError

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions/render": {"messages": HI, "max_tokens": 5},
    "/v1/messages/render": {"model": "m", "messages": HI, "max_tokens": 5},
    "/v1/responses/render": {"input": "Hi", "max_output_tokens": 5},
}


def _front_end(**values: Any) -> Any:
    """A server that only renders and derenders."""
    return create_app(build_server(settings_of(**values), None, tokenizer=tokenizer("smol")))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("with_engine", [True, False])
async def test_a_conversation_is_rendered_with_or_without_an_engine(path: str, with_engine: bool) -> None:
    app = app_of(tokenizer=tokenizer("smol")) if with_engine else _front_end()
    async with client_of(app) as client:
        reply = await client.post(path, json=BODIES[path])
    assert reply.status_code == 200
    assert len(reply.json()["token_ids"]) == 31
    assert reply.json()["sampling_params"]["max_tokens"] == 5


async def test_completions_give_a_list() -> None:
    async with client_of(_front_end()) as client:
        reply = await client.post("/v1/completions/render", json={"prompt": ["Hello", "Hello world"]})
    assert [request["token_ids"] for request in reply.json()] == [[19556], [19556, 905]]


async def test_messagepack_goes_in_and_out() -> None:
    path = "/v1/chat/completions/render"
    async with client_of(_front_end()) as client:
        reply = await client.post(
            path, content=msgspec.msgpack.encode(BODIES[path]), headers={"content-type": "application/msgpack"}
        )
    assert reply.headers["content-type"] == "application/msgpack"
    assert len(msgspec.msgpack.decode(reply.content)["token_ids"]) == 31 * 4  # int32


async def test_generate_takes_what_render_made() -> None:
    async with client_of(app_of(tokenizer=tokenizer("smol"))) as client:
        rendered = (await client.post("/v1/chat/completions/render", json=BODIES["/v1/chat/completions/render"])).json()
        reply = await client.post(GENERATE, json=rendered)
        other = await client.post(GENERATE, json={**rendered, "render_fingerprint": "another"})
        info = await client.get("/server_info")
    assert reply.status_code == 200
    assert reply.json()["usage"]["prompt_tokens"] == 31
    assert other.status_code == 400
    assert other.json()["error"]["param"] == "render_fingerprint"
    assert info.json()["render_fingerprint"] == rendered["render_fingerprint"]


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"messages": "hi"}, 400, "Bad Request"),
        ({"messages": HI, "top_logprobs": 2}, 400, "BadRequestError"),
        ({"messages": HI, "model": "x"}, 404, "NotFoundError"),
        (
            {
                "messages": [*HI, {"role": "assistant", "content": "a"}, *HI],
                "prefix_token_ids": [5],
                "prefix_message_count": 2,
            },
            409,
            "ConflictError",
        ),
    ],
)
async def test_errors_keep_their_status(body: dict[str, Any], status: int, kind: str) -> None:
    async with client_of(_front_end()) as client:
        reply = await client.post("/v1/chat/completions/render", json=body)
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, kind)


async def test_unknown_fields_are_passed_over_or_refused_on_demand() -> None:
    for strict, status in ((False, 200), (True, 400)):
        async with client_of(_front_end(strict_fields=strict)) as client:
            reply = await client.post("/v1/chat/completions/render", json={"messages": HI, "nonsense": 1})
        assert reply.status_code == status


@pytest.mark.parametrize("path", [*BODIES, "/v1/completions/render"])
async def test_a_server_without_a_tokenizer_says_where_to_go(path: str) -> None:
    async with client_of(app_of()) as client:
        reply = await client.post(path, json=BODIES.get(path, {"prompt": "a"}))
    assert reply.status_code == 400
    assert "tokenwire render" in reply.json()["error"]["message"]


async def test_a_template_may_come_from_a_file_or_from_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "my.jinja"
    file.write_text("{{ messages[0].content }} there")
    prints = set()
    for given in (str(file), "Hello{{ messages[0].content }}"):
        async with client_of(_front_end(chat_template=given)) as client:
            reply = await client.post("/tokenize", json={"messages": HI, "return_token_strs": True})
            prints.add((await client.get("/server_info")).json()["render_fingerprint"])
        assert reply.json()["token_strs"] in (["Hi", "Ġthere"], ["Hello", "Hi"])
    assert len(prints) == 2


@pytest.mark.parametrize("given", ["no/such/file", "{% if %}"])
def test_a_template_that_is_none_stops_the_start(given: str) -> None:
    with pytest.raises(SettingsError, match="--chat-template"):
        _front_end(chat_template=given)


def test_a_format_that_the_tokenizer_cannot_write_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="Harmony"):
        _front_end(tokenizer_mode="harmony")


async def test_a_front_end_reads_lengths_and_defaults_from_the_models_files(tmp_path: Path) -> None:
    shutil.copytree(SMOL, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 100}')
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.5, "max_new_tokens": 60, "top_k": 7}')
    app = create_app(build_server(settings_of(), None, tokenizer=Tokenizer.load(tmp_path)))
    async with client_of(app) as client:
        params = (await client.post("/v1/chat/completions/render", json={"messages": HI})).json()["sampling_params"]
        long = await client.post("/v1/completions/render", json={"prompt": list(range(100))})
    assert (params["temperature"], params["max_tokens"], params["top_k"]) == (0.5, 60, 7)
    assert long.status_code == 400


def test_a_process_serves_a_folder_of_tokenizer_files_and_loads_no_torch(tmp_path: Path) -> None:
    shutil.copytree(SMOL, tmp_path, dirs_exist_ok=True)
    with tokenwire("render", str(tmp_path), "--port", "0", "--served-model-name", "m") as process:
        process.wait_ready()
        with process.client() as client:
            reply = client.post("/v1/chat/completions/render", json={"messages": HI})
        maps = Path(f"/proc/{process.popen.pid}/maps").read_text()
        status = Path(f"/proc/{process.popen.pid}/status").read_text()
    assert len(reply.json()["token_ids"]) == 31
    assert "torch" not in maps
    resident_kb = int(status.partition("VmRSS:")[2].split()[0])
    assert resident_kb < 150 * 1024
