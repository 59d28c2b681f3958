"""A server over several replicas of the built-in engine: (1) each is a process of its own, and a rank, a session and
the load choose among them; (2) a rank that is not there is a 400 that names field, value and range, with one replica
too; (3) killing one replica under load answers its requests with an error, the others go on, new requests avoid it,
and it comes back; (4) what is asked of the engine reaches all; (5) nothing outlives the server."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.http import GENERATE, app_of, body, client_of, events_of
from tests.support.process import children_of, null_server, tokenwire
from tests.support.scripted_engine import ALL_CAPABILITIES, ScriptedEngine
from tests.support.tiny_llama import make_tiny_llama

PROMPT = list(range(3, 60))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def server(model):
    arguments = ("serve", str(model), "--port", "0", "--skip-tokenizer-init", "-dp", "2", "--engine-restarts", "1")
    with tokenwire(*arguments, "--enable-prompt-tokens-details") as process:
        process.wait_ready()
        warm_up(process)
        yield process


def warm_up(process):
    """After a change of the kernels the first request waits for their compiler, which may take minutes."""
    for rank in ("0", "1"):
        headers = {"X-data-parallel-rank": rank}
        reply = httpx.post(
            f"{process.address}{GENERATE}", json=body(PROMPT, max_tokens=4), headers=headers, timeout=300
        )
        assert reply.status_code == 200


def cores_of(process):
    children = children_of(process.popen.pid)
    return [pid for pid in children if b"core_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def figures(client, name):
    """A figure by replica."""
    found = {}
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(name + "{"):
            found[line.split('engine="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
    return found


def wait_for(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def cached(client, **headers):
    reply = client.post(GENERATE, json=body(PROMPT, max_tokens=1), headers=headers)
    assert reply.status_code == 200
    return (reply.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def test_a_rank_and_a_session_choose_the_replica_and_its_cache(server):
    assert len(cores_of(server)) == 2
    with server.client() as client:
        info = client.get("/server_info").json()["engine"]
        assert (info["capabilities"]["data_parallel_size"], info["replicas"]) == (2, ["ready", "ready"])
        assert client.post("/reset_prefix_cache").json() == {"success": True}
        assert cached(client, **{"X-data-parallel-rank": "1"}) == 0
        assert cached(client, **{"X-data-parallel-rank": "0"}) == 0
        assert cached(client, **{"X-data-parallel-rank": "1"}) > 0
        assert client.post("/reset_prefix_cache").json() == {"success": True}
        assert cached(client, **{"X-Session-ID": "mine"}) == 0
        assert all(cached(client, **{"X-Session-ID": "mine"}) > 0 for _ in range(4))
        steps = figures(client, "tokenwire_engine_steps_total")
        assert set(steps) == {"0", "1"}
        assert all(steps.values())


def test_the_load_is_shared(server):
    with server.client() as client:
        client.post("/pause?mode=keep")  # so that none ends before the last has come
        waiting = [Request(server.address) for _ in range(6)]
        for request in waiting:
            request.start()
        wait_for(lambda: sum(figures(client, "tokenwire_requests_waiting").values()) == 6)
        assert figures(client, "tokenwire_requests_waiting") == {"0": 3.0, "1": 3.0}
        client.post("/resume")
        for request in waiting:
            request.join(30)
            assert request.end == "length"


class Request(threading.Thread):
    """One long stream in its own thread."""

    def __init__(self, address, max_tokens=300, **headers):
        super().__init__()
        self.address, self.max_tokens, self.headers = address, max_tokens, headers
        self.started = threading.Event()
        self.text = ""

    def run(self):
        payload = body(PROMPT, max_tokens=self.max_tokens, ignore_eos=True, stream=True)
        with (
            httpx.Client(base_url=self.address, timeout=60) as client,
            client.stream("POST", GENERATE, json=payload, headers=self.headers) as reply,
        ):
            for text in reply.iter_text():
                self.text += text
                self.started.set()

    @property
    def end(self):
        last = events_of(self.text)[-1]
        return last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"]


def test_pause_and_resume_are_for_all(server):
    with server.client() as client:
        assert client.post("/pause?mode=abort").json() == {"status": "paused"}
        assert client.get("/server_info").json()["engine"]["replicas"] == ["paused", "paused"]
        refused = client.post(GENERATE, json=body(max_tokens=1))
        assert refused.status_code == 503
        client.post("/resume")
        for rank in ("0", "1"):
            assert cached(client, **{"X-data-parallel-rank": rank}) == 0


def test_killing_one_replica_under_load_leaves_the_others_alone(server):
    requests = [Request(server.address, 450, **{"X-data-parallel-rank": str(n % 2)}) for n in range(8)]
    for request in requests:
        request.start()
    for request in requests:
        assert request.started.wait(20)
    victim = cores_of(server)[1]
    os.kill(victim, signal.SIGKILL)
    for request in requests:
        request.join(40)
        assert not request.is_alive()
    ends = {rank: {request.end for request in requests[rank::2]} for rank in (0, 1)}
    assert sorted(ends.values(), key=str) == [{"length"}, {503}]
    down = next(rank for rank in (0, 1) if ends[rank] == {503})
    with server.client() as client:
        seen_down = False
        while client.get("/server_info").json()["engine"]["replicas"][down] == "restarting":
            seen_down = True
            assert client.get("/health").status_code == 200
            assert client.get("/readyz").status_code == 200
            assert client.post(GENERATE, json=body(max_tokens=1)).status_code == 200
            refused = client.post(GENERATE, json=body(max_tokens=1), headers={"X-data-parallel-rank": str(down)})
            assert refused.status_code in (503, 200)  # it may be back by now
        assert seen_down
        assert client.get("/server_info").json()["engine"]["replicas"] == ["ready", "ready"]
        assert cached(client, **{"X-data-parallel-rank": str(down)}) == 0
        wait_for(lambda: figures(client, "tokenwire_requests_running") == {"0": 0.0, "1": 0.0})
        assert figures(client, "tokenwire_engine_up") == {"0": 1.0, "1": 1.0}


def test_one_replica_serves_on_when_the_other_is_dead_for_good(server):
    cores = cores_of(server)
    os.kill(cores[-1], signal.SIGKILL)  # the younger one, which has been started again and has no restart left
    with server.client() as client:

        def states():
            return sorted(client.get("/server_info").json()["engine"]["replicas"])

        wait_for(lambda: states() == ["dead", "ready"])
        assert client.get("/health").status_code == 200
        assert client.post(GENERATE, json=body(max_tokens=1)).status_code == 200
        assert sorted(figures(client, "tokenwire_engine_up").values()) == [0.0, 1.0]
    server.signal()
    assert server.wait() == 0
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in cores), 10)


def test_an_abort_reaches_every_replica():
    with null_server("--data-parallel-size", "3", "--null-step-ms", "5") as process:
        process.wait_ready()
        running = [Request(process.address, 100_000, **{"X-Request-Id": f"r{n}"}) for n in range(6)]
        for request in running:
            request.start()
            assert request.started.wait(10)
        with process.client() as client:
            assert figures(client, "tokenwire_requests_running") == {"0": 2.0, "1": 2.0, "2": 2.0}
            ids = [f"r{n}" for n in range(6)]
            reply = client.post("/inference/v1/abort_requests", json={"request_ids": [*ids, "unknown"]}).json()
        assert (sorted(reply["aborted"]), reply["unknown"]) == (ids, ["unknown"])
        for request in running:
            request.join(10)
            assert request.end == "abort"


@pytest.mark.parametrize("path, field", [(GENERATE, "X-data-parallel-rank"), ("/generate", "routed_dp_rank")])
@pytest.mark.parametrize("rank", ["1", "-1", "7"])
async def test_a_rank_that_no_replica_has_is_refused(path, field, rank):
    alone = dataclasses.replace(ALL_CAPABILITIES, data_parallel_size=1)
    async with client_of(app_of(ScriptedEngine(capabilities=alone))) as client:
        if path == GENERATE:
            reply = await client.post(path, json=body(), headers={field: rank})
        else:
            reply = await client.post(path, json={"input_ids": [1, 2], field: int(rank)})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["param"] == field
    assert error["message"] == f"{field} must be 0 (this server has no data-parallel replicas), got {rank}."


def test_the_range_is_told(tmp_path):
    with null_server("-dp", "2") as process:
        process.wait_ready()
        with process.client() as client:
            reply = client.post(GENERATE, json=body(), headers={"X-data-parallel-rank": "2"})
            assert client.post(GENERATE, json=body(), headers={"X-data-parallel-rank": "1"}).status_code == 200
            assert client.post(GENERATE, json=body(), headers={"X-data-parallel-rank": "one"}).status_code == 200
    assert reply.status_code == 400
    assert "from 0 to 1 (this server has 2 data-parallel replicas), got 2." in reply.json()["error"]["message"]
