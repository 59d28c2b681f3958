"""What the serving layer costs without a model: drives `tokenwire serve --engine null` over loopback.

    python bench/serving_layer.py [--quick]

One JSON line a case: requests and tokens per second, and the server's own CPU time per token and per request. Token
streams come from the null engine at once, so everything measured is HTTP, JSON, checks and the loop between them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

HOST, PORT = "127.0.0.1", 8377


@dataclass(frozen=True)
class Case:
    name: str
    stream: bool
    tokens: int
    logprobs: int | None = None
    prompt: int = 512
    concurrency: int = 1
    requests: int = 5


CASES = [
    Case("stream", True, 2000),
    Case("stream, logprobs 5", True, 1000, 5),
    Case("stream, 64 clients", True, 200, concurrency=64, requests=2),
    Case("whole", False, 8000),
    Case("whole, logprobs 20", False, 2000, 20, requests=3),
    Case("short whole, 4 clients", False, 16, prompt=64, concurrency=4, requests=300),
    Case("32k prompt, one token", False, 1, prompt=32000, requests=20),
]


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def post(connection: http.client.HTTPConnection, payload: str) -> int:
    connection.request("POST", "/inference/v1/generate", payload, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    size = len(reply.read())
    if reply.status != 200:
        raise SystemExit(f"status {reply.status}")
    return size


def run(case: Case, pid: int, scale: int) -> dict[str, object]:
    sampling: dict[str, object] = {"max_tokens": case.tokens, "detokenize": False}
    if case.logprobs is not None:
        sampling["logprobs"] = case.logprobs
    payload = json.dumps(
        {"token_ids": list(range(1, case.prompt + 1)), "sampling_params": sampling, "stream": case.stream}
    )
    requests = max(1, case.requests // scale)

    def work() -> None:
        connection = http.client.HTTPConnection(HOST, PORT)
        for _ in range(requests):
            post(connection, payload)
        connection.close()

    connection = http.client.HTTPConnection(HOST, PORT)
    size = post(connection, payload)
    connection.close()
    threads = [threading.Thread(target=work) for _ in range(case.concurrency)]
    cpu, start = cpu_seconds(pid), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall, cpu = time.perf_counter() - start, cpu_seconds(pid) - cpu
    total = requests * case.concurrency
    return {
        "case": case.name,
        "requests_per_s": round(total / wall, 1),
        "tokens_per_s": round(total * case.tokens / wall),
        "server_cpu_us_per_token": round(cpu / total / case.tokens * 1e6, 2),
        "server_cpu_us_per_request": round(cpu / total * 1e6),
        "bytes_per_token": round(size / case.tokens, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    scale = 10 if parser.parse_args().quick else 1
    start = time.perf_counter()
    command = [sys.executable, "-m", "tokenwire", "serve", "--engine", "null", "--port", str(PORT)]
    server = subprocess.Popen([*command, "--disable-uvicorn-access-log"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        started = time.perf_counter() - start
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
        print(json.dumps({**machine, "start_s": round(started, 2)}))
        for case in CASES:
            print(json.dumps(run(case, server.pid, scale)), flush=True)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
