"""`tokenwire serve` as a process: (1) it says where it is and its curl works; (2) SIGTERM lets running requests finish,
refuses new ones, and ends with 0; (3) what does not finish in time is aborted with what it had; (4) a second signal
ends at once; (5) a taken port, a bad setting, a missing model are one sentence and an exit code; (6) Unix sockets;
(7) the access log; (8) request logs; (9) a front end starts without torch."""

import json
import shlex
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from tests.support.http import GENERATE, body, events_of, free_port
from tests.support.process import null_server, tokenwire
from tests.support.tokenizers import SMOL


@pytest.fixture(scope="module")
def server():
    with null_server() as process:
        process.wait_ready()
        yield process


def test_the_last_line_has_a_curl_that_works(server):
    command = server.lines[-1].split("try: ")[1]
    reply = json.loads(subprocess.run(shlex.split(command), capture_output=True, check=True, timeout=20).stdout)
    assert reply["choices"][0]["token_ids"] == list(range(1000, 1008))


def test_a_stream_over_a_socket_is_the_whole_reply(server):
    with server.client() as client:
        whole = client.post(GENERATE, json=body(max_tokens=50, logprobs=1)).json()["choices"][0]
        events = events_of(client.post(GENERATE, json=body(max_tokens=50, logprobs=1, stream=True)).text)
    choices = [event["choices"][0] for event in events]
    assert [t for c in choices for t in c["token_ids"]] == whole["token_ids"]
    assert [e for c in choices for e in c["logprobs"]["content"]] == whole["logprobs"]["content"]


def test_version_and_help_answer_at_once():
    for arguments in (["--version"], ["--help"], ["serve", "--help"], ["launch", "render", "--help"]):
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tokenwire", *arguments], capture_output=True, text=True, timeout=20
        )
        assert done.returncode == 0
        assert "tokenwire" in done.stdout
        assert time.monotonic() - start < 5


class Streaming(threading.Thread):
    """Reads one stream to its end, in its own thread."""

    def __init__(self, address, max_tokens):
        super().__init__()
        self.address, self.max_tokens = address, max_tokens
        self.started = threading.Event()
        self.text = ""

    def run(self):
        with (
            httpx.Client(base_url=self.address, timeout=60) as client,
            client.stream("POST", GENERATE, json=body(max_tokens=self.max_tokens, stream=True)) as reply,
        ):
            for text in reply.iter_text():
                self.text += text
                self.started.set()


def test_sigterm_lets_what_runs_finish():
    with null_server("--null-step-ms", "20") as process:
        process.wait_ready()
        running = Streaming(process.address, 60)
        running.start()
        assert running.started.wait(10)
        process.signal(signal.SIGTERM)
        time.sleep(0.2)
        with process.client() as client:
            assert client.get("/readyz").status_code == 503
            assert client.get("/livez").status_code == 200
            refused = client.post(GENERATE, json=body(max_tokens=1))
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "ServiceUnavailableError")
        assert "retry-after" in refused.headers
        running.join(20)
        assert process.wait() == 0
    choices = [event["choices"][0] for event in events_of(running.text)]
    assert [t for c in choices for t in c["token_ids"]] == list(range(1000, 1060))
    assert choices[-1]["finish_reason"] == "length"


def test_what_does_not_finish_in_time_is_aborted_with_what_it_had():
    with null_server("--null-step-ms", "10", "--shutdown-timeout", "0.3") as process:
        process.wait_ready()
        running = Streaming(process.address, 100_000)
        running.start()
        assert running.started.wait(10)
        process.signal(signal.SIGTERM)
        running.join(20)
        assert process.wait() == 0
    choices = [event["choices"][0] for event in events_of(running.text)]
    assert choices[-1]["finish_reason"] == "abort"
    ids = [t for c in choices for t in c["token_ids"]]
    assert ids == list(range(1000, 1000 + len(ids)))
    assert len(ids) > 10


def test_a_second_signal_ends_at_once():
    with null_server("--null-step-ms", "10") as process:
        process.wait_ready()
        running = Streaming(process.address, 100_000)
        running.start()
        assert running.started.wait(10)
        process.signal(signal.SIGINT)
        time.sleep(0.1)
        start = time.monotonic()
        process.signal(signal.SIGINT)
        process.wait(10)
        assert time.monotonic() - start < 3
        running.join(10)


def test_an_idle_server_stops_at_once():
    with null_server() as process:
        process.wait_ready()
        with process.client() as client:
            client.get("/health")
            start = time.monotonic()
            process.signal(signal.SIGTERM)
            assert process.wait() == 0
        assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    "arguments, code, sentence",
    [
        (["serve", "--port", "99999999"], 2, "--port must be a whole number from 0 to 65535, got 99999999."),
        (
            ["serve", "--max-num-sequences", "5"],
            2,
            "--max-num-sequences is not a flag. Did you mean --max-n-sequences?",
        ),
        (["serve", "--grpc"], 2, "--grpc is not supported: tokenwire speaks HTTP only."),
        (["serve", "--tool-call-parser", "nope"], 2, "--tool-call-parser must be one of"),
        (["serve", "--engine", "warp"], 2, "--engine must be one of"),
        (["serve", "/no/such/folder", "--port", "0"], 1, "/no/such/folder"),
        (["dance"], 2, "dance is not a command"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(arguments, code, sentence):
    done = subprocess.run([sys.executable, "-m", "tokenwire", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_taken_port_is_known_before_anything_is_loaded(server):
    port = server.address.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "tokenwire", "serve", "--engine", "null", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use." in done.stderr


def test_it_listens_on_a_unix_socket_and_takes_over_a_stale_one(tmp_path):
    path = str(tmp_path / "sock")
    for _ in range(2):
        with tokenwire("serve", "--engine", "null", "--uds", path) as process:
            process.wait_ready()
            with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://x") as client:
                assert client.post(GENERATE, json=body(max_tokens=1)).status_code == 200
                assert client.post("/pause").status_code == 200  # a Unix socket is this machine
            process.popen.kill()
            process.wait()
    with tokenwire("serve", "--engine", "null", "--uds", path) as process:
        process.wait_ready()
        process.signal()
        process.wait()
    assert not (tmp_path / "sock").exists()


def test_settings_come_from_a_file_and_the_environment(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("engine: 'null'\nserved-model-name: [from-file]\nmax_logprobs: 3\n")
    port = free_port()
    with tokenwire(
        "serve", "--config", str(path), env={"TOKENWIRE_PORT": str(port), "TOKENWIRE_MAX_LOGPROBS": "4"}
    ) as process:
        process.wait_ready()
        assert process.address == f"http://127.0.0.1:{port}"
        with process.client() as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == "from-file"
            assert client.get("/server_info").json()["limits"]["max_logprobs"] == 4


def test_the_access_log_leaves_out_what_it_should():
    with null_server("--disable-access-log-for-endpoints", "/health,/metrics") as process:
        process.wait_ready()
        with process.client() as client:
            for path in ("/health", "/metrics?x=1", "/version"):
                client.get(path)
        process.signal()
        process.wait()
    assert "GET /version" in process.output
    assert "/health" not in process.output
    assert "/metrics" not in process.output


def test_requests_are_logged_as_ids_when_asked_for():
    with null_server(
        "--enable-log-requests", "--enable-log-outputs", "--max-log-len", "2", "--log-level", "debug"
    ) as process:
        process.wait_ready()
        with process.client() as client:
            payload = {**body([11, 22, 33], max_tokens=3), "request_id": "mine"}
            client.post(GENERATE, json=payload)
        process.signal()
        process.wait()
    assert "Received 'generate-tokens-mine': 3 prompt tokens" in process.output
    assert "Prompt of 'generate-tokens-mine': [11, 22]" in process.output
    assert "Output of 'generate-tokens-mine', choice 0 (length): [1000, 1001]" in process.output


def test_a_front_end_without_engine_has_text_but_no_tokens():
    with tokenwire("render", "--tokenizer", str(SMOL), "--port", "0", "--served-model-name", "m") as process:
        process.wait_ready()
        with process.client() as client:
            assert client.get("/readyz").status_code == 200
            ids = client.post("/tokenize", json={"prompt": "Hello world", "add_special_tokens": False}).json()["tokens"]
            assert client.post("/detokenize", json={"tokens": ids}).json() == {"prompt": "Hello world"}
            assert client.post(GENERATE, json=body()).status_code == 404
            assert client.post("/pause").status_code == 404
            assert client.get("/server_info").json()["engine"] is None
            assert client.get("/metrics").status_code == 200
        process.signal()
        assert process.wait() == 0


def test_a_front_end_without_engine_starts_light_and_fast():
    script = (
        "import sys, tokenwire.commands.runtime, tokenwire.server.routing as r; list(r.all_routes());"
        "print(sorted(m for m in ('torch', 'transformers') if m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
