"""What one token of a stream costs on each wire: made by the server, read by the remote engine and by the client.

    python bench/wire_codec.py

In one process, no socket: a chunk of one token, without logprobs and with 0 and 20, over and over. The least of many
repetitions is shown, so other work on the machine does little harm.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tokenwire.client.codec import stream_reader
from tokenwire.engine.base import EngineOutput, EngineRequest, Logprobs
from tokenwire.engine.remote.dialects.scale_out_replies import ScaleOutReader
from tokenwire.server.frames import STREAM_TYPES, frame_events
from tokenwire.service.levels import Shape, TokensLevel
from tokenwire.wire.codec import Format
from tokenwire.wire.generate import CompactChunk, GenerateChunk
from tokenwire.wire.sampling import SamplingParams

CALLS, REPETITIONS = 200, 100
REQUEST_ID = "generate-tokens-" + "0" * 32


def output(logprobs: int | None) -> EngineOutput:
    """A token that is its own best candidate."""
    if logprobs is None:
        return EngineOutput(0, [1000])
    ids = np.array([[1000, *range(1000, 1000 + logprobs)]], np.int32)
    return EngineOutput(0, [1000], Logprobs(ids, np.full(ids.shape, -0.5, np.float32), np.ones(1, np.int32)))


def least_us(call: Callable[[], Any]) -> float:
    least = float("inf")
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        least = min(least, time.perf_counter() - began)
    return round(least / CALLS * 1e6, 1)


def measure(logprobs: int | None, fmt: Format, *, packed: bool) -> dict[str, Any]:
    level = TokensLevel(Shape(wants_logprobs=logprobs is not None, packed_logprobs=packed, binary=fmt == "msgpack"))
    kind = CompactChunk if fmt == "msgpack" else GenerateChunk
    news = output(logprobs)
    request = EngineRequest(
        request_id="r", prompt_token_ids=[1], sampling=SamplingParams(logprobs=logprobs), stream=True
    )

    def make() -> bytes:
        return frame_events([kind(request_id=REQUEST_ID, output_mode="tokens", choices=[level.delta(news)])], fmt)

    chunk = make()
    remote = ScaleOutReader(request, fmt)
    client = stream_reader(STREAM_TYPES[fmt].decode(), "tokens", where="bench")

    def read_by_client() -> None:
        for read in client.feed(chunk):
            choice = read.choices[0]
            _ = choice.token_id_array
            if choice.logprobs is not None:
                choice.logprobs.arrays()

    return {
        "bytes": len(chunk),
        "made_us": least_us(make),
        "read_by_remote_engine_us": least_us(lambda: list(remote.piece(chunk))),
        "read_by_client_us": least_us(read_by_client),
    }


def main() -> None:
    wires: dict[str, tuple[Format, bool]] = {
        "json": ("json", False),
        "json, packed": ("json", True),
        "msgpack": ("msgpack", True),
    }
    sys.stdout.write(json.dumps({"machine": platform.machine(), "cpus": os.cpu_count()}) + "\n")
    for logprobs in (None, 0, 20):
        for name, (fmt, packed) in wires.items():
            figures = {"wire": name, "logprobs": logprobs, **measure(logprobs, fmt, packed=packed)}
            sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
