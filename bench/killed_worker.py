"""What callers see when a worker dies under load: a coordinator over two workers, one of which is killed in the middle.

    python bench/killed_worker.py [--requests 200] [--tokens 200] [--step-ms 20] [--kill-after 3] [--rounds 3]

Workers are null engines, so every right answer is known. Half of the requests stream. A request that has been given no
token is tried on the other worker; a stream that has begun ends with one error event. Waits are of one request from
being sent to its end; `undisturbed_s` is the longest wait of the same load without a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

FIRST_ID = 1000
PATH = "/inference/v1/generate"


@dataclass
class Server:
    """A `tokenwire serve` of its own; its log is read along."""

    process: subprocess.Popen[str]
    address: str
    log: list[str] = field(default_factory=list)


@contextlib.contextmanager
def serve(*flags: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "tokenwire", "serve", "--port", "0", "--served-model-name", "m"]
    process = subprocess.Popen(
        [*command, "--disable-uvicorn-access-log", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=log.extend, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        line = next(line for line in process.stdout if " serves " in line)
        yield Server(process, line.split(" at ")[1].split(" ")[0], log)
    finally:
        process.terminate()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


@dataclass
class Answer:
    """What one request got."""

    ids: list[int]
    error: int | None
    wait_s: float

    def is_right(self, num_tokens: int) -> bool:
        return self.error is None and self.ids == list(range(FIRST_ID, FIRST_ID + num_tokens))


async def ask(client: httpx.AsyncClient, num_tokens: int, *, streamed: bool) -> Answer:
    began = time.monotonic()
    body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": num_tokens}, "stream": streamed}
    reply = await client.post(PATH, json=body)
    wait_s = time.monotonic() - began
    if not streamed:
        said = reply.json()
        ok = reply.status_code == 200
        return Answer(said["choices"][0]["token_ids"] if ok else [], None if ok else reply.status_code, wait_s)
    events = [json.loads(line[6:]) for line in reply.text.split("\n\n") if line and line != "data: [DONE]"]
    ids = [i for event in events for choice in event.get("choices", ()) for i in choice["token_ids"]]
    error = next((event["error"]["code"] for event in events if "error" in event), None)
    return Answer(ids, error, wait_s)


async def load(address: str, args: argparse.Namespace, victim: subprocess.Popen[str] | None) -> list[Answer]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        tasks = [
            asyncio.create_task(ask(client, args.tokens, streamed=number % 4 < 2)) for number in range(args.requests)
        ]
        if victim is not None:
            await asyncio.sleep(args.kill_after)
            victim.kill()
        return await asyncio.gather(*tasks)


def one_round(args: argparse.Namespace, *, kill: bool) -> dict[str, Any]:
    null = ("--engine", "null", "--null-step-ms", str(args.step_ms), "--max-num-seqs", str(args.requests))
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(serve(*null)) for _ in range(2)]
        urls = [worker.address for worker in workers]
        coordinator = stack.enter_context(serve("--engine", "remote", "--worker", *urls))
        victim = workers[0].process if kill else None
        answers = asyncio.run(load(coordinator.address, args, victim))
    right = sum(answer.is_right(args.tokens) for answer in answers)
    failed = [answer for answer in answers if answer.error is not None]
    return {
        "requests": len(answers),
        "answered": len(answers),
        "right": right,
        "ended_with_an_error_after_tokens": sum(bool(answer.ids) for answer in failed),
        "failed_without_a_token": sum(not answer.ids for answer in failed),
        "wrong": len(answers) - right - len(failed),
        "tried_again": sum("Trying another worker" in line for line in coordinator.log),
        "longest_wait_s": round(max(answer.wait_s for answer in answers), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--kill-after", type=float, default=3.0, help="seconds after the first request was sent")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    facts = {"machine": platform.machine(), "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
    sys.stdout.write(json.dumps(facts) + "\n")
    for _ in range(args.rounds):
        undisturbed = one_round(args, kill=False)["longest_wait_s"]
        sys.stdout.write(json.dumps({**one_round(args, kill=True), "undisturbed_s": undisturbed}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
