"""Several front ends over two replicas of the built-in engine: (1) they share the cores, their figures are told once,
and a session has one replica whichever front end it comes to; (2) abort, pause and limits are the server's, as with
one; (3) killing a front end under load ends its requests in the cores, the others go on; (4) killing a core under load
answers its requests with an error in every front end, the other core's go on, and it comes back to all; (5) a stop
signal drains and leaves nothing; (6) nothing outlives a killed starter."""

import os
import random
import signal
import time

import httpx
import pytest

from tests.server.test_api_workers import Stream, front_ends_of, wait_for
from tests.server.test_data_parallel import cores_of, figures, warm_up
from tests.support.http import GENERATE, body, events_of
from tests.support.process import tokenwire
from tests.support.tiny_llama import make_tiny_llama

PROMPT = list(range(3, 60))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"))


def serve(model, *args):
    shared = ("--port", "0", "--skip-tokenizer-init", "--api-workers", "2", "-dp", "2")
    return tokenwire("serve", str(model), *shared, *args)


@pytest.fixture(scope="module")
def server(model):
    with serve(model, "--engine-restarts", "1", "--enable-prompt-tokens-details") as process:
        process.wait_ready()
        warm_up(process)
        yield process


def streams(address, count, **options):
    running = [Stream(address, f"r{number}", max_tokens=440, ignore_eos=True, **options) for number in range(count)]
    for number, stream in enumerate(running):
        stream.headers["X-data-parallel-rank"] = str(number % 2)
        stream.start()
    for stream in running:
        assert stream.begun.wait(30)
    return running


def end_of(stream):
    if stream.broken:
        return "broken"
    last = events_of(stream.text)[-1]
    return last["error"]["code"] if "error" in last else last["choices"][0]["finish_reason"]


def running(address):
    with httpx.Client(base_url=address, timeout=20) as client:
        return sum(figures(client, "tokenwire_requests_running").values())


def cached(address, **headers):
    reply = httpx.post(f"{address}{GENERATE}", json=body(PROMPT, max_tokens=1), headers=headers, timeout=20)
    assert reply.status_code == 200
    return (reply.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def replicas(address):
    """As every front end sees them; each call may come to another one."""
    states = [httpx.get(f"{address}/server_info").json()["engine"]["replicas"] for _ in range(10)]
    return states[0] if all(state == states[0] for state in states) else None


def test_they_share_the_cores_and_a_session_has_one_replica(server):
    assert (len(cores_of(server)), len(front_ends_of(server))) == (2, 2)
    assert replicas(server.address) == ["ready", "ready"]
    for session in ("a", "b", "c"):
        assert httpx.post(f"{server.address}/reset_prefix_cache").json() == {"success": True}
        held = [cached(server.address, **{"X-Session-ID": session}) for _ in range(8)]
        assert held[0] == 0
        assert all(tokens > 0 for tokens in held[1:])
    open_streams = streams(server.address, 6)
    assert running(server.address) == 6
    for stream in open_streams:
        stream.join(30)
        assert end_of(stream) == "length"
    wait_for(lambda: running(server.address) == 0)


def test_an_abort_and_a_pause_are_the_servers(server):
    open_streams = streams(server.address, 6)
    ids = [f"r{number}" for number in range(6)]
    reply = httpx.post(f"{server.address}/inference/v1/abort_requests", json={"request_ids": ids})
    assert sorted(reply.json()["aborted"]) == ids
    for stream in open_streams:
        stream.join(20)
        assert end_of(stream) == "abort"
    httpx.post(f"{server.address}/pause")
    wait_for(lambda: replicas(server.address) == ["paused", "paused"])
    assert {httpx.post(f"{server.address}{GENERATE}", json=body()).status_code for _ in range(8)} == {503}
    httpx.post(f"{server.address}/resume")
    wait_for(lambda: replicas(server.address) == ["ready", "ready"])


def test_killing_a_front_end_under_load_ends_its_requests_in_the_cores(server):
    for _ in range(2):
        open_streams = streams(server.address, 10)
        os.kill(random.choice(front_ends_of(server)), signal.SIGKILL)
        for stream in open_streams:
            stream.join(40)
            assert not stream.is_alive()
        assert {end_of(stream) for stream in open_streams} <= {"broken", "length"}
        wait_for(lambda: len(front_ends_of(server)) == 2)
        wait_for(lambda: running(server.address) == 0)
        assert {httpx.post(f"{server.address}{GENERATE}", json=body(max_tokens=1)).status_code for _ in range(8)} == {
            200
        }


def test_killing_a_core_under_load_is_told_by_every_front_end_and_it_comes_back_to_all(server):
    open_streams = streams(server.address, 12)
    os.kill(cores_of(server)[0], signal.SIGKILL)
    for stream in open_streams:
        stream.join(40)
        assert not stream.is_alive()
    ends = [{end_of(stream) for stream in open_streams[rank::2]} for rank in (0, 1)]
    assert sorted(ends, key=str) == [{"length"}, {503}]
    assert httpx.get(f"{server.address}/health").status_code == 200
    wait_for(lambda: replicas(server.address) == ["ready", "ready"], 60)
    for rank in ("0", "1"):
        for _ in range(4):
            cached(server.address, **{"X-data-parallel-rank": rank})
    wait_for(lambda: running(server.address) == 0)


def test_a_stop_signal_drains_and_leaves_nothing(server):
    open_streams = streams(server.address, 6)
    everything = [*cores_of(server), *front_ends_of(server)]
    server.signal()
    for stream in open_streams:
        stream.join(30)
        assert end_of(stream) == "length"
    assert server.wait() == 0
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in everything), 10)


def test_a_pause_outlives_a_core_and_a_front_end_that_die_together(model):
    with serve(model, "--engine-restarts", "9") as process:
        process.wait_ready()
        asked = (("/pause?mode=abort", "paused"), ("/pause?mode=keep", "frozen"), ("/resume", "ready"))
        for path, state in asked:
            assert httpx.post(f"{process.address}{path}").status_code == 200
            front_ends, cores = front_ends_of(process), cores_of(process)
            killed = [*front_ends, cores[0]] if state == "paused" else [front_ends[0], cores[1]]
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: told_of(process) == [[state, state]] * 10, 60)  # noqa: B023
            assert not {*front_ends_of(process), *cores_of(process)} & {*killed}
            assert (len(front_ends_of(process)), len(cores_of(process))) == (2, 2)
            if state == "paused":
                assert httpx.post(f"{process.address}/resume").status_code == 200
        assert not any("is being restarted" in line for line in process.lines)


def told_of(process):
    try:
        return [httpx.get(f"{process.address}/server_info").json()["engine"]["replicas"] for _ in range(10)]
    except httpx.TransportError:  # a front end is away
        return None


@pytest.mark.slow
def test_nothing_outlives_a_killed_starter(model):
    with serve(model) as process:
        process.wait_ready()
        warm_up(process)
        open_streams = streams(process.address, 4)
        everything = [*cores_of(process), *front_ends_of(process)]
        process.signal(signal.SIGKILL)
        process.wait()
        time.sleep(0.1)
        wait_for(lambda: not any(_lives(pid) for pid in everything), 10)
        for stream in open_streams:
            stream.join(10)
            assert not stream.is_alive()


def _lives(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
