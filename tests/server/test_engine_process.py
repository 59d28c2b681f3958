"""A server over the built-in engine's own process: (1) ids come back the same, whole and streamed; (2) a client that
leaves frees the engine, also two hundred at once; (3) killing the engine answers every open request with an error,
turns /health red, and with restarts left it comes back; (4) without restarts it stays red and refuses; (5) nothing
outlives the server."""

import asyncio
import json
import os
import random
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.http import GENERATE, RawClient, body, events_of
from tests.support.process import children_of, tokenwire
from tests.support.tiny_llama import make_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


def serve(model, *args):
    return tokenwire("serve", str(model), "--port", "0", "--skip-tokenizer-init", "--num-threads", "1", *args)


@pytest.fixture(scope="module")
def server(model):
    with serve(model, "--engine-restarts", "1") as process:
        process.wait_ready()
        yield process


def wait_for(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running(client):
    text = client.get("/metrics").text
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith("vllm:num_requests_run"))


class Request(threading.Thread):
    """One long request in its own thread; `ids` counts what has come of a stream."""

    def __init__(self, address, *, stream):
        super().__init__()
        self.address, self.stream = address, stream
        self.started = threading.Event()
        self.text, self.status = "", 0

    def run(self):
        payload = body(list(range(3, 20)), max_tokens=450, ignore_eos=True, stream=self.stream)
        with (
            httpx.Client(base_url=self.address, timeout=60) as client,
            client.stream("POST", GENERATE, json=payload) as reply,
        ):
            self.status = reply.status_code
            for text in reply.iter_text():
                self.text += text
                self.started.set()


def core_of(process):
    """The engine's process: the one child whose command line says so."""
    children = children_of(process.popen.pid)
    (pid,) = [pid for pid in children if b"core" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def test_whole_and_streamed_ids_are_the_same(server):
    with server.client() as client:
        payload = body(list(range(3, 40)), max_tokens=32, temperature=0, ignore_eos=True, logprobs=1)
        whole = client.post(GENERATE, json=payload).json()["choices"][0]
        events = events_of(client.post(GENERATE, json={**payload, "stream": True}).text)
    assert [t for e in events for t in e["choices"][0]["token_ids"]] == whole["token_ids"]
    assert len(whole["token_ids"]) == 32


def test_a_client_that_leaves_frees_the_engine(server):
    with server.client() as client:
        payload = body([5, 6, 7], max_tokens=450, ignore_eos=True, stream=True)
        with client.stream("POST", GENERATE, json=payload) as reply:
            next(reply.iter_bytes())
        wait_for(lambda: running(client) == 0)
        assert client.post(GENERATE, json=body([5], max_tokens=1)).status_code == 200


async def test_two_hundred_streams_half_of_them_dropped_leave_nothing_and_do_not_mix(server):
    """Each may sample one id only, its own: a token in the wrong stream would show."""
    rng = random.Random(3)
    port = int(server.address.rsplit(":", 1)[1])

    async def one(number):
        own = 3 + number
        client = await RawClient.open(port)
        sampling = {"max_tokens": 40, "ignore_eos": True, "allowed_token_ids": [own]}
        await client.post(body([own] * (1 + number % 50), stream=True, **sampling))
        leaves_after = rng.randrange(1, 40) if number % 2 else None
        ids: list[int] = []
        await client.read_until(b"\r\n\r\n")
        while (event := await client.read_until(b"\n\n")) and b"[DONE]" not in event:
            ids += json.loads(event[event.index(b"{") :])["choices"][0]["token_ids"]
            if leaves_after is not None and len(ids) >= leaves_after:
                break
        client.drop()
        assert set(ids) == {own}
        assert leaves_after is not None or len(ids) == 40

    await asyncio.gather(*(one(number) for number in range(200)))
    with server.client() as client:
        wait_for(lambda: running(client) == 0, 5)
        usage = [line for line in client.get("/metrics").text.splitlines() if line.startswith("vllm:kv_cache_usage")]
    assert [float(line.rsplit(" ", 1)[1]) for line in usage] == [0.0]


def test_killing_the_engine_answers_every_open_request_and_it_comes_back(server):
    streamed = [Request(server.address, stream=True) for _ in range(3)]
    whole = Request(server.address, stream=False)
    for request in (*streamed, whole):
        request.start()
    for request in streamed:
        assert request.started.wait(20)
    os.kill(core_of(server), signal.SIGKILL)
    for request in (*streamed, whole):
        request.join(20)
        assert not request.is_alive()
    for request in streamed:
        events = events_of(request.text)
        assert events[-1]["error"]["code"] == 503
        assert len([e for e in events if "error" in e]) == 1
    assert whole.status == 503
    with server.client() as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/health").status_code == 503
        assert client.get("/readyz").text == "restarting"
        refused = client.post(GENERATE, json=body(max_tokens=1))
        assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
        wait_for(lambda: client.get("/health").status_code == 200, 60)
        assert client.post(GENERATE, json=body([5], max_tokens=2)).status_code == 200


def test_without_restarts_left_a_dead_engine_stays_dead(server):
    open_request = Request(server.address, stream=True)
    open_request.start()
    assert open_request.started.wait(20)
    os.kill(core_of(server), signal.SIGKILL)
    open_request.join(20)
    assert events_of(open_request.text)[-1]["error"]["type"] == "InternalServerError"
    with server.client() as client:
        wait_for(lambda: client.get("/health").status_code == 503)
        assert client.get("/readyz").text == "dead"
        assert client.post(GENERATE, json=body(max_tokens=1)).status_code == 500
    server.signal()
    assert server.wait() == 0


def test_the_engine_does_not_outlive_a_killed_server(model):
    with serve(model) as process:
        process.wait_ready()
        core = core_of(process)
        process.signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not os.path.exists(f"/proc/{core}") or _is_zombie(core), 10)


def _is_zombie(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
