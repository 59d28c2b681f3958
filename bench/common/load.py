"""Prompts and requests: random ids, one thread a request, and what a streamed reply tells about time."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

GENERATE = "/inference/v1/generate"
VOCAB = (100, 40_000)
TIMEOUT_S = 600


def prompts(count: int, length: int, seed: str) -> list[list[int]]:
    """Random ids, so that no prefix cache helps unless it is meant to; the same ids for the same seed."""
    draw = random.Random(seed)
    return [[draw.randrange(*VOCAB) for _ in range(length)] for _ in range(count)]


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    """The reply's JSON. Raises `RuntimeError` for anything but 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        content = reply.read()
        if reply.status != 200:
            raise RuntimeError(f"{path}: status {reply.status}: {content[:300]!r}")
        return json.loads(content)
    finally:
        connection.close()


def generate_body(prompt: list[int], output_len: int, **fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": output_len, "temperature": 0, "ignore_eos": True, "detokenize": False}
    n = fields.pop("n", 1)
    if n > 1:
        sampling |= {"n": n, "temperature": 1.0, "seed": 1}
    return {"token_ids": prompt, "sampling_params": sampling, **fields}


def generate(port: int, prompt: list[int], output_len: int, **fields: Any) -> int:
    """Tokens that came back, over all choices."""
    reply = post(port, GENERATE, generate_body(prompt, output_len, **fields))
    return sum(len(choice["token_ids"]) for choice in reply["choices"])


def at_once(requests: Sequence[Callable[[], int]]) -> float:
    """Seconds from sending all of them to the last answer. Raises what the first failing one raised."""
    failures: list[BaseException] = []

    def work(request: Callable[[], int]) -> None:
        try:
            request()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(request,)) for request in requests]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall_s = time.perf_counter() - start
    if failures:
        raise failures[0]
    return wall_s


@dataclass(frozen=True, slots=True)
class Timing:
    """One streamed request, in seconds from sending it."""

    first_s: float
    last_s: float
    tokens: int

    @property
    def decode_per_s(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / (self.last_s - self.first_s) if self.tokens > 1 else 0.0


def stream(port: int, prompt: list[int], output_len: int, **fields: Any) -> Timing:
    body = json.dumps(generate_body(prompt, output_len, stream=True, **fields))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    start = time.perf_counter()
    connection.request("POST", GENERATE, body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise RuntimeError(f"status {reply.status}: {reply.read()[:300]!r}")
    first_s = last_s = 0.0
    tokens = 0
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        count = sum(len(choice.get("token_ids") or ()) for choice in json.loads(line[6:]).get("choices", ()))
        if count:
            last_s = time.perf_counter() - start
            first_s = first_s or last_s
            tokens += count
    connection.close()
    return Timing(first_s, last_s, tokens)
