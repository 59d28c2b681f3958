"""What the remote engine costs: CPU per streamed token, bytes per token on the wire, HTTP clients beside each other.

    python bench/remote_engine.py cpu        # CPU of the coordinator's process per token, workers in another process
    python bench/remote_engine.py bytes      # bytes per token, JSON and MessagePack, without logprobs and with 20
    python bench/remote_engine.py clients    # CPU per streamed chunk: ours, httpx, aiohttp where it is installed

Workers are null engines, which make known tokens at once, so that what is measured is everything around a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import httpx

from tokenwire.engine.base import EngineRequest
from tokenwire.engine.remote import RemoteEngine, RemoteOptions
from tokenwire.engine.remote.events import SseSplitter
from tokenwire.engine.remote.http import HttpClient
from tokenwire.wire.sampling import SamplingParams

PATH = "/inference/v1/generate"
STREAMS, TOKENS = 16, 1000
ROUNDS = 3
"""Interleaved; the least is shown."""


@contextlib.contextmanager
def null_worker(*flags: str) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "tokenwire",
        "serve",
        "--engine",
        "null",
        "--port",
        "0",
        "--served-model-name",
        "m",
    ]
    process = subprocess.Popen(
        [*command, "--disable-uvicorn-access-log", *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        line = next(line for line in process.stdout if " serves " in line)
        yield line.split(" at ")[1].split(" ")[0]
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def request(number: int, logprobs: int | None) -> EngineRequest:
    sampling = SamplingParams(max_tokens=TOKENS, logprobs=logprobs)
    return EngineRequest(request_id=f"r{number}", prompt_token_ids=[1, 2, 3], sampling=sampling, stream=True)


async def count(engine: RemoteEngine, number: int, logprobs: int | None) -> int:
    return sum([len(o.token_ids) async for outputs in engine.generate(request(number, logprobs)) for o in outputs])


async def measure_engine(url: str, *, msgpack: bool, logprobs: int | None) -> float:
    """Microseconds of this process's CPU per token; workers step slowly enough to send one token a chunk."""
    engine = RemoteEngine(RemoteOptions(workers=[url], prefer_msgpack=msgpack))
    await engine.start()
    await count(engine, -1, logprobs)
    began = time.process_time()
    tokens = sum(await asyncio.gather(*(count(engine, i, logprobs) for i in range(STREAMS))))
    spent = time.process_time() - began
    await engine.close()
    return spent / tokens * 1e6


def cpu() -> None:
    with null_worker("--null-step-ms", "2") as url:
        costs: dict[tuple[int | None, bool], list[float]] = {}
        for _, logprobs, msgpack in itertools.product(range(ROUNDS), (None, 0, 5, 20), (False, True)):
            cost = asyncio.run(measure_engine(url, msgpack=msgpack, logprobs=logprobs))
            costs.setdefault((logprobs, msgpack), []).append(cost)
        for (logprobs, msgpack), found in costs.items():
            wire = "msgpack" if msgpack else "json, packed"
            say(what="remote engine", wire=wire, logprobs=logprobs, us_per_token=round(min(found), 1), rounds=ROUNDS)


def body(logprobs: int | None, **fields: Any) -> dict[str, Any]:
    sampling = {"max_tokens": TOKENS, **({} if logprobs is None else {"logprobs": logprobs})}
    return {"token_ids": [1, 2, 3], "sampling_params": sampling, **fields}


def bytes_per_token() -> None:
    cases = {
        "json": ({}, {}),
        "json, packed": ({"logprobs_format": "packed"}, {}),
        "msgpack": ({}, {"accept": "application/msgpack"}),
    }
    with null_worker("--null-step-ms", "1") as url:
        for logprobs, streamed in itertools.product((None, 20), (False, True)):
            for name, (fields, headers) in cases.items():
                asked = body(logprobs, stream=streamed, **fields)
                size = len(httpx.post(url + PATH, json=asked, headers=headers, timeout=60).content)
                say(
                    what="bytes", wire=name, logprobs=logprobs, stream=streamed, bytes_per_token=round(size / TOKENS, 1)
                )


# --- clients: the same stream of events read by each, payloads counted, nothing decoded


async def with_ours(url: str) -> AsyncIterator[int]:
    client = HttpClient(url)
    content = json.dumps(body(None, stream=True)).encode()
    while True:
        events = 0
        splitter = SseSplitter()
        reply = await client.request("POST", PATH, headers={"content-type": "application/json"}, body=content)

        def sink(piece: bytes, splitter: SseSplitter = splitter) -> None:
            nonlocal events
            events += len(splitter.feed(piece))

        await reply.pump(sink)
        yield events


async def with_httpx(url: str) -> AsyncIterator[int]:
    async with httpx.AsyncClient(timeout=60) as client:
        while True:
            splitter = SseSplitter()
            async with client.stream("POST", url + PATH, json=body(None, stream=True)) as reply:
                yield sum([len(splitter.feed(piece)) async for piece in reply.aiter_raw()])


async def with_aiohttp(url: str) -> AsyncIterator[int]:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        while True:
            splitter = SseSplitter()
            async with session.post(url + PATH, json=body(None, stream=True)) as reply:
                yield sum([len(splitter.feed(piece)) async for piece in reply.content.iter_any()])


async def measure_client(url: str, make: Callable[[str], AsyncIterator[int]]) -> float:
    readers = [make(url) for _ in range(STREAMS)]

    async def one(reader: AsyncIterator[int]) -> int:
        return await anext(reader)

    await asyncio.gather(*map(one, readers))
    began = time.process_time()
    events = sum(await asyncio.gather(*map(one, readers)))
    spent = time.process_time() - began
    closing: list[Awaitable[Any]] = [reader.aclose() for reader in readers]  # type: ignore[attr-defined]
    await asyncio.gather(*closing)
    return spent / events * 1e6


def clients() -> None:
    makers = {"ours": with_ours, "httpx": with_httpx}
    if importlib.util.find_spec("aiohttp") is not None:
        makers["aiohttp"] = with_aiohttp
    with null_worker("--null-step-ms", "2") as url:
        for name, make in makers.items():
            cost = asyncio.run(measure_client(url, make))
            say(what="http client", client=name, us_per_chunk=round(cost, 1))


def say(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    say(machine=platform.machine(), cpus=os.cpu_count(), python=platform.python_version(), load=os.getloadavg()[0])
    {"cpu": cpu, "bytes": bytes_per_token, "clients": clients}[sys.argv[1] if len(sys.argv) > 1 else "cpu"]()
