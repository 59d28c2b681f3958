"""What one delta of a streamed answer costs to derender, by how much came before: python bench/derender_stream.py

In process: JSON in, state checked, one token decoded and parsed, JSON out; no socket. Prints one JSON line a setting:
microseconds of the delta at each position (the best of many, positions taking turns), bytes of request and reply, and
the ratio of last to first. Fixed input; machine and versions are on the first line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import msgspec

from tokenwire import __version__
from tokenwire.derender.chat_parser import ParserSetup
from tokenwire.derender.parser import find_format
from tokenwire.derender.vocabulary import Vocabulary
from tokenwire.render.tokenizer import Tokenizer
from tokenwire.service.derender import DerenderService, DerenderSetup
from tokenwire.service.derender_input import DerenderLimits
from tokenwire.service.models import ModelRegistry
from tokenwire.wire import codec
from tokenwire.wire.derender import DerenderChatStreamRequest, decode_chat

TOKENIZER = Path(__file__).parents[1] / "tests" / "data" / "tokenizers" / "smol"
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop": {"stop": ["<END>", "\n\nQuestion:"]},
    "parsed": {"parser": ("hermes", "qwen3")},
    "parsed, in a call": {
        "parser": ("hermes", "qwen3"),
        "opening": '</think>\n<tool_call>\n{"name": "f", "arguments": {"a": "',
    },
}
ROUNDS = 300
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
]


def service_for(tokenizer: Tokenizer, parser: tuple[str, str] | None) -> DerenderService:
    return DerenderService(
        DerenderSetup(
            models=ModelRegistry(["m"], root="m"),
            vocabulary=Vocabulary(tokenizer),
            limits=DerenderLimits(max_model_len=2**20),
            parser=None if parser is None else ParserSetup(format=find_format(*parser)),
        )
    )


async def bodies_at(service: DerenderService, ids: list[int], stop: Any, positions: list[int]) -> dict[int, bytes]:
    """The request bodies of the deltas at these positions of one answer."""
    request = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS, "stop": stop}
    state, found = None, {}
    for position, token_id in enumerate(ids, 1):
        body = msgspec.json.encode(
            {
                "stream": True,
                "generate_chunk": {"request_id": "r", "choices": [{"index": 0, "token_ids": [token_id]}]},
                "stream_state": state,
                "prompt_token_ids": [1, 2, 3],
                "chat_request": request,
            }
        )
        if position in positions:
            found[position] = body
        state = msgspec.json.decode(await derender(service, body))["stream_state"]
    return found


async def derender(service: DerenderService, body: bytes) -> bytes:
    decoded, _ = decode_chat(body)
    assert isinstance(decoded, DerenderChatStreamRequest)
    return codec.encode(await service.chat_stream(decoded))


async def measure(tokenizer: Tokenizer, setting: dict[str, Any], positions: list[int]) -> dict[int, tuple[float, int]]:
    """Seconds and bytes of the delta at each position. Positions take turns, so that all see the same machine."""
    service = service_for(tokenizer, setting.get("parser"))
    opening = tokenizer.encode(setting.get("opening", ""))
    words = tokenizer.encode("The quick brown fox jumps over the lazy dog, 1234 times. ")
    # Every position gets the same token, whatever came before.
    ids = opening + [words[i % len(words)] for i in range(max(positions) - len(opening))]
    for position in positions:
        ids[position - 1] = words[0]
    bodies = await bodies_at(service, ids, setting.get("stop"), positions)
    best = dict.fromkeys(positions, float("inf"))
    sizes = {position: len(body) + len(await derender(service, body)) for position, body in bodies.items()}
    for _ in range(ROUNDS):
        for position, body in bodies.items():
            start = time.perf_counter()
            await derender(service, body)
            best[position] = min(best[position], time.perf_counter() - start)
    return {position: (best[position], sizes[position]) for position in positions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="folder of a tokenizer")
    parser.add_argument("--positions", type=int, nargs="+", default=[100, 1000, 5000, 10000])
    args = parser.parse_args()
    print(
        json.dumps(
            {
                "tokenwire": __version__,
                "python": platform.python_version(),
                "machine": platform.platform(),
                "cpus": os.cpu_count(),
            }
        )
    )
    tokenizer = Tokenizer.load(args.tokenizer)
    for name, setting in SETTINGS.items():
        figures = asyncio.run(measure(tokenizer, setting, args.positions))
        first, last = figures[args.positions[0]], figures[args.positions[-1]]
        row = {
            "setting": name,
            "us_per_delta": {position: round(seconds * 1e6, 1) for position, (seconds, _) in figures.items()},
            "bytes_per_delta": {position: size for position, (_, size) in figures.items()},
            "time_ratio": round(last[0] / first[0], 2),
            "bytes_ratio": round(last[1] / first[1], 2),
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
