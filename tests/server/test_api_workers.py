"""Several front ends on one port: (1) any of them answers, one setting starts them and one line tells of them; (2) an
abort, by id or of all, reaches requests of the others; (3) a limit is that of the whole server, never more is admitted;
(4) pause and resume are for all, also for a front end that comes later; (5) figures are sums, and stay when a front end
dies; (6) killing a front end under load breaks its connections only, its requests end, and another takes its place;
(7) a stop signal drains all, a second one ends at once; (8) nothing outlives the starter; (9) what cannot start says so
once; (10) Unix sockets, front ends without an engine; (11) one front end is one process, as ever."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.http import GENERATE, body, events_of
from tests.support.process import children_of, null_server, tokenwire
from tests.support.tokenizers import SMOL


def front_ends_of(process):
    children = children_of(process.popen.pid)
    return [pid for pid in children if b"commands.worker" in _command_line(pid)]


def _command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def wait_for(condition, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Stream(threading.Thread):
    """One stream on a connection of its own."""

    def __init__(self, address, name="", max_tokens=100_000, **sampling):
        super().__init__()
        self.address, self.headers = address, {"X-Request-Id": name} if name else {}
        self.payload = body(max_tokens=max_tokens, stream=True, **sampling)
        self.begun = threading.Event()
        self.status, self.text, self.broken = 0, "", False

    def run(self):
        try:
            with (
                httpx.Client(base_url=self.address, timeout=60) as client,
                client.stream("POST", GENERATE, json=self.payload, headers=self.headers) as reply,
            ):
                self.status = reply.status_code
                for text in reply.iter_text():
                    self.text += text
                    self.begun.set()
        except httpx.TransportError:
            self.broken = True
        finally:
            self.begun.set()

    @property
    def reason(self):
        return events_of(self.text)[-1]["choices"][0]["finish_reason"]


def streams(address, count, **options):
    running = [Stream(address, f"r{number}", **options) for number in range(count)]
    for stream in running:
        stream.start()
    for stream in running:
        assert stream.begun.wait(20)
    return running


def figure(address, name):
    text = httpx.get(f"{address}/metrics", timeout=20).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


@pytest.fixture(scope="module")
def server():
    with null_server("--api-server-count", "3", "--null-step-ms", "5", "--max-num-queued-reqs", "12") as process:
        process.wait_ready()
        yield process


def test_any_front_end_answers_and_one_line_tells_of_them(server):
    assert len(front_ends_of(server)) == 3
    assert len([line for line in server.lines if " serves " in line]) == 1
    before = figure(server.address, "tokenwire_requests_total")
    replies = [httpx.post(f"{server.address}{GENERATE}", json=body(max_tokens=3)).json() for _ in range(12)]
    assert all(reply["choices"][0]["token_ids"] == [1000, 1001, 1002] for reply in replies)
    assert len({reply["request_id"] for reply in replies}) == 12
    # Whichever front end is asked, it tells of all.
    assert {figure(server.address, "tokenwire_requests_total") - before for _ in range(12)} == {12.0}


def test_an_abort_reaches_requests_of_the_others(server):
    running = streams(server.address, 12)
    ids = [f"r{number}" for number in range(12)]
    reply = httpx.post(f"{server.address}/inference/v1/abort_requests", json={"request_ids": [*ids[:6], "nobody"]})
    assert reply.json() == {"aborted": ids[:6], "unknown": ["nobody"]}
    for stream in running[:6]:
        stream.join(10)
        assert stream.reason == "abort"
    assert httpx.post(f"{server.address}/abort_request", json={"rid": "r6"}).status_code == 200
    running[6].join(10)
    assert running[6].reason == "abort"
    assert httpx.post(f"{server.address}/abort_request", json={"abort_all": True}).status_code == 200
    for stream in running:
        stream.join(10)
        assert stream.reason == "abort"
    assert figure(server.address, "tokenwire_requests_running") == 0


def test_a_limit_is_that_of_the_whole_server(server):
    for _ in range(3):
        running = streams(server.address, 30)
        assert sorted(stream.status for stream in running) == [200] * 12 + [503] * 18
        httpx.post(f"{server.address}/abort_request", json={"abort_all": True})
        for stream in running:
            stream.join(20)
        assert all(stream.reason == "abort" for stream in running if stream.status == 200)
        refused = next(stream for stream in running if stream.status == 503)
        assert "at most 12" in refused.text


def test_bad_requests_take_no_place(server):
    is_over, codes = threading.Event(), []

    def send(payload, wanted):
        with httpx.Client(base_url=server.address, timeout=20) as client:
            while not is_over.is_set():
                code = client.post(GENERATE, json=payload).status_code
                if code != wanted:
                    codes.append(code)
                    return

    payloads = [(body([99_999_999]), 400)] * 3 + [(body(max_tokens=1), 200)] * 6
    clients = [threading.Thread(target=send, args=payload) for payload in payloads]
    for client in clients:
        client.start()
    time.sleep(1.5)
    is_over.set()
    for client in clients:
        client.join(20)
    assert codes == []
    for stream in streams(server.address, 12, max_tokens=3):
        stream.join(20)
        assert (stream.status, stream.reason) == (200, "length")


def test_pause_and_resume_are_for_all(server):
    assert httpx.post(f"{server.address}/pause").json() == {"status": "paused"}
    assert {httpx.get(f"{server.address}/is_paused").json()["is_paused"] for _ in range(12)} == {True}
    assert {httpx.post(f"{server.address}{GENERATE}", json=body()).status_code for _ in range(12)} == {503}
    os.kill(front_ends_of(server)[0], signal.SIGKILL)
    wait_for(lambda: any("serves again" in line for line in server.lines))
    assert len(front_ends_of(server)) == 3
    assert {httpx.get(f"{server.address}/is_paused").json()["is_paused"] for _ in range(20)} == {True}
    httpx.post(f"{server.address}/resume")
    assert {httpx.post(f"{server.address}{GENERATE}", json=body(max_tokens=1)).status_code for _ in range(12)} == {200}


def test_killing_a_front_end_under_load_breaks_its_connections_only(server):
    known = figure(server.address, "tokenwire_requests_total")
    running = streams(server.address, 12, max_tokens=400)
    assert figure(server.address, "tokenwire_requests_total") == known + 12
    victims = front_ends_of(server)
    os.kill(victims[1], signal.SIGKILL)
    for stream in running:
        stream.join(30)
        assert not stream.is_alive()
    assert all(stream.broken or stream.reason == "length" for stream in running)
    assert 0 < sum(stream.broken for stream in running) < 12
    wait_for(lambda: len(front_ends_of(server)) == 3 and victims[1] not in front_ends_of(server))
    assert figure(server.address, "tokenwire_requests_total") == known + 12
    # What it had admitted is free again.
    again = streams(server.address, 12, max_tokens=20)
    for stream in again:
        stream.join(20)
        assert (stream.status, stream.reason) == (200, "length")


def test_a_stop_signal_drains_all():
    with null_server("--api-workers", "2", "--null-step-ms", "10") as process:
        process.wait_ready()
        running = streams(process.address, 8, max_tokens=150)
        process.signal(signal.SIGTERM)
        for stream in running:
            stream.join(20)
            assert stream.reason == "length"
        assert process.wait() == 0


def test_what_does_not_finish_in_time_is_aborted_and_a_second_signal_ends_at_once():
    with null_server("--api-workers", "2", "--null-step-ms", "10", "--shutdown-timeout", "0.5") as process:
        process.wait_ready()
        running = streams(process.address, 6)
        process.signal(signal.SIGTERM)
        for stream in running:
            stream.join(20)
            assert stream.reason == "abort"
        assert process.wait() == 0
    with null_server("--api-workers", "2", "--null-step-ms", "10") as process:
        process.wait_ready()
        running = streams(process.address, 4)
        process.signal(signal.SIGINT)
        time.sleep(0.3)
        start = time.monotonic()
        process.signal(signal.SIGINT)
        process.wait(10)
        assert time.monotonic() - start < 4
        for stream in running:
            stream.join(10)


def test_nothing_outlives_the_starter():
    with null_server("--api-workers", "2", "--null-step-ms", "10") as process:
        process.wait_ready()
        running = streams(process.address, 4)
        front_ends = front_ends_of(process)
        process.signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not any(_command_line(pid) for pid in front_ends), 10)
        for stream in running:
            stream.join(10)
            assert not stream.is_alive()


@pytest.mark.parametrize(
    "arguments, code, sentence",
    [
        (["/no/such/folder"], 1, "/no/such/folder"),
        (["--engine", "null", "--tokenizer", "/no/such/file"], 1, "/no/such: no tokenizer.json"),
        (["--engine", "remote", "--worker", "http://127.0.0.1:9", "--worker-start-timeout", "0.1"], 1, "127.0.0.1:9"),
    ],
)
def test_what_cannot_start_says_so_once(arguments, code, sentence):
    command = [sys.executable, "-m", "tokenwire", "serve", *arguments, "--api-workers", "2", "--port", "0"]
    done = subprocess.run([*command, "--log-level", "error"], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_two_servers_do_not_share_a_port(server):
    port = server.address.rsplit(":", 1)[1]
    for workers in ("1", "2"):
        command = [sys.executable, "-m", "tokenwire", "serve", "--engine", "null", "--port", port]
        done = subprocess.run([*command, "--api-workers", workers], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2
        assert f"Cannot listen on 127.0.0.1:{port}: Address already in use." in done.stderr


def test_it_listens_on_a_unix_socket(tmp_path):
    path = str(tmp_path / "sock")
    with tokenwire("serve", "--engine", "null", "--uds", path, "--api-workers", "2") as process:
        process.wait_ready()
        for _ in range(6):
            with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://x") as client:
                assert client.post(GENERATE, json=body(max_tokens=1)).status_code == 200
        process.signal()
        assert process.wait() == 0
    assert not (tmp_path / "sock").exists()


def test_front_ends_without_an_engine(tmp_path):
    arguments = ("render", "--tokenizer", str(SMOL), "--port", "0", "--served-model-name", "m", "--api-workers", "2")
    with tokenwire(*arguments) as process:
        process.wait_ready()
        for _ in range(6):
            ids = httpx.post(f"{process.address}/tokenize", json={"prompt": "Hello world"}).json()["tokens"]
            assert "Hello world" in httpx.post(f"{process.address}/detokenize", json={"tokens": ids}).json()["prompt"]
        assert httpx.get(f"{process.address}/metrics").status_code == 200
        process.signal()
        assert process.wait() == 0


def test_one_front_end_is_one_process():
    with null_server() as process:
        process.wait_ready()
        assert children_of(process.popen.pid) == []
