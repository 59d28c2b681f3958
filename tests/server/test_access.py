"""Who may call what: (1) with keys set, the API needs one, told in the standard error body; (2) probes need none;
(3) control routes need the key when one is set; (4) without one they answer this machine only, and no web page;
(5) request ids come back in headers when asked for; (6) CORS."""

import httpx
import pytest

from tests.support.http import GENERATE, app_of, body, client_of

ABROAD = ("203.0.113.5", 4242)
CONTROL = ["/pause", "/resume", "/reset_prefix_cache"]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic k1", "Bearer", "k1"])
@pytest.mark.parametrize("path", ["/v1/models", GENERATE, "/inference/v1/abort_requests", "/generate", "/invocations"])
async def test_without_a_key_the_api_is_closed(header, path):
    async with client_of(app_of(api_key=["k1", "k2"])) as client:
        headers = {"Authorization": header} if header else {}
        reply = await client.request("GET" if path == "/v1/models" else "POST", path, headers=headers)
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("AuthenticationError", 401, None)


async def test_a_path_behind_a_prefix_is_closed_too():
    app = app_of(api_key=["k"])
    transport = httpx.ASGITransport(app, root_path="/prefix")
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/prefix/v1/models")).status_code == 401
        assert (await client.get("/prefix/v1/models", headers={"Authorization": "Bearer k"})).status_code == 200


@pytest.mark.parametrize("key", ["k1", "k2"])
async def test_each_of_several_keys_opens_it(key):
    async with client_of(app_of(api_key=["k1", "k2"]), headers={"Authorization": f"bearer {key}"}) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.post(GENERATE, json=body(max_tokens=1))).status_code == 200
        assert (await client.post("/pause")).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/ping", "/version", "/metrics", "/load", "/docs"])
async def test_probes_need_no_key(path):
    async with client_of(app_of(api_key=["k"]), client=ABROAD) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", CONTROL)
async def test_control_needs_the_key_where_one_is_set(path):
    async with client_of(app_of(api_key=["k"])) as client:
        assert (await client.post(path)).status_code == 401
        assert (await client.post(path, headers={"Authorization": "Bearer k"})).status_code == 200


@pytest.mark.parametrize("path", CONTROL)
@pytest.mark.parametrize(
    "host, status", [("127.0.0.1", 200), ("::1", 200), ("::ffff:127.0.0.1", 200), (ABROAD[0], 403)]
)
async def test_without_a_key_control_answers_this_machine_only(path, host, status):
    async with client_of(app_of(), client=(host, 1)) as client:
        reply = await client.post(path)
    assert reply.status_code == status
    if status == 403:
        assert reply.json()["error"]["type"] == "PermissionDeniedError"
        assert "--allow-unauthenticated-admin" in reply.json()["error"]["message"]


async def test_abort_is_a_control_route():
    async with client_of(app_of(), client=ABROAD) as client:
        reply = await client.post("/inference/v1/abort_requests", json={"request_ids": ["a"]})
    assert reply.status_code == 403


async def test_any_caller_may_control_where_that_was_allowed():
    async with client_of(app_of(allow_unauthenticated_admin=True), client=ABROAD) as client:
        assert (await client.post("/pause")).status_code == 200


async def test_a_web_page_is_no_operator():
    async with client_of(app_of()) as client:
        reply = await client.post("/pause", headers={"Origin": "https://evil.example"})
    assert reply.status_code == 403


@pytest.mark.parametrize("given", ["mine", None])
async def test_request_ids_come_back_when_asked_for(given):
    headers = {"X-Request-Id": given} if given else {}
    async with client_of(app_of(enable_request_id_headers=True)) as client:
        reply = await client.post(GENERATE, json=body(max_tokens=1), headers=headers)
        missing = await client.post(GENERATE, content="{", headers={"Content-Type": "application/json", **headers})
    for one in (reply, missing):
        echoed = one.headers["x-request-id"]
        assert echoed == given if given else len(echoed) == 32


async def test_request_ids_do_not_come_back_otherwise():
    async with client_of(app_of()) as client:
        reply = await client.post(GENERATE, json=body(max_tokens=1), headers={"X-Request-Id": "mine"})
    assert "x-request-id" not in reply.headers


async def test_cors_answers_the_allowed_origin_only():
    app = app_of(allowed_origins=["https://ok.example"], api_key=["k"])
    async with client_of(app) as client:
        preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        good = await client.options(GENERATE, headers={"Origin": "https://ok.example", **preflight})
        bad = await client.options(GENERATE, headers={"Origin": "https://evil.example", **preflight})
    assert good.headers["access-control-allow-origin"] == "https://ok.example"
    assert bad.status_code == 400
