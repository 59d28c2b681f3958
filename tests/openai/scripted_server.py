"""A server process for clients of other makers: `python -m tests.openai.scripted_server`, on a free port.

What it answers follows from the conversation: a question about the weather is a call of `get_weather` (after a
thought), a tool's answer is put into words, "Count" is counted, anything else is greeted. The key is `secret`.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterable

import uvicorn

from tests.openai.scripted import CALL, SMOL, front, ids_of, says
from tests.support.http import settings_of
from tests.support.scripted_engine import Step
from tokenwire.engine.base import EngineRequest
from tokenwire.server.process import uvicorn_config

KEY = "secret"
GREETING = "Hello! How can I help?"
NO_THOUGHT = "</think>"
"""Without it, all of an answer would be reasoning."""
NUM_GREETING_TOKENS = len(ids_of(NO_THOUGHT + GREETING)) + 1
COUNTED = " one two three four five"


def answer(request: EngineRequest) -> Iterable[Step]:
    prompt = SMOL.decode(request.prompt_token_ids)
    structured = request.sampling.structured_outputs
    if "18 degrees" in prompt:
        text = f"{NO_THOUGHT}It is 18 degrees."
    elif structured is not None and structured.json is not None:
        text = NO_THOUGHT + '{"city": "Paris"}'
    elif "weather" in prompt:
        text = f"<think>A tool knows.</think>Let me look.\n{CALL}"
    elif "Count" in prompt:
        text = COUNTED
    else:
        text = NO_THOUGHT + GREETING
    return says(text)(request)


async def main() -> None:
    parsers = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
    app, _ = front(answer, api_key=[KEY], **parsers)
    settings = settings_of()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    await uvicorn.Server(uvicorn_config(app, settings.network, settings.logs)).serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
