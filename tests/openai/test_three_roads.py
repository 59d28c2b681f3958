"""One call, the split, and generate at the level `derender` give one message, over all formats.

1. `/v1/chat/completions` == `/render`, `/generate`, `/derender` == `/render`, `/generate` with output_mode derender.
2. Markers are tokens of their own where the format's models have them so.
3. Whole and streamed, with a stream cut in any steps: the same message and the same finish reason.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import pytest

from tests.openai.scripted import CHAT, EOS, SMOL, add_up, front, of_choice, plain, says, without_ids
from tests.parser.conformance import DATA, Record, read
from tests.support.http import GENERATE, client_of, events_of
from tests.support.tokenizers import DATA as TOKENIZERS
from tests.support.tokenizers import tokenizer
from tokenwire.render.tokenizer import Tokenizer

RENDER, DERENDER = f"{CHAT}/render", f"{CHAT}/derender"
PER_FORMAT = 2
STEPS = (1, 2, 3, 5, 8, 1000)

Answer = tuple[dict[str, Any], str]


def by_format() -> list[Any]:
    """Some records of every pair of parsers, always the same ones."""
    groups: dict[str, list[Record]] = {}
    for record in read(DATA / "records.jsonl"):
        groups.setdefault(f"{record['tool_parser']}-{record['reasoning_parser']}", []).append(record)
    return [
        pytest.param(random.Random(name).sample(records, min(PER_FORMAT, len(records))), id=name)
        for name, records in sorted(groups.items())
    ]


def tokenizer_for(text: str) -> Tokenizer:
    """The one that has most of the text's markers as tokens of their own, as the model of that format has."""
    added: dict[str, list[dict[str, Any]]] = json.loads((TOKENIZERS / "tokenizers" / "added.json").read_text("utf-8"))
    counts = {name: sum(token["content"] in text for token in tokens) for name, tokens in added.items()}
    best = max(counts, key=lambda name: counts[name])
    return tokenizer(best) if counts[best] else SMOL


def request_of(record: Record) -> dict[str, Any]:
    asked = {k: v for k, v in record["request"].items() if v}
    return {"messages": [{"role": "user", "content": "What is the weather?"}], "max_tokens": 2000, **asked}


async def one_call(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
    choice = (await client.post(CHAT, json=request)).json()["choices"][0]
    return plain(choice["message"]), choice["finish_reason"]


async def one_call_streamed(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
    choices = of_choice(events_of((await client.post(CHAT, json={**request, "stream": True})).text))
    return add_up(choice["delta"] for choice in choices), choices[-1]["finish_reason"]


async def rendered(client: httpx.AsyncClient, request: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**(await client.post(RENDER, json={**request, "stream": "stream" in fields})).json(), **fields}


async def split(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
    tokens = await rendered(client, request)
    reply = (await client.post(GENERATE, json=tokens)).json()
    body = {"generate_response": reply, "chat_request": request, "prompt_token_ids": tokens["token_ids"]}
    choice = (await client.post(DERENDER, json=body)).json()["choices"][0]
    return plain(choice["message"]), choice["finish_reason"]


async def split_streamed(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
    tokens = await rendered(client, request, stream=True)
    choices: list[Any] = []
    state = None
    for event in events_of((await client.post(GENERATE, json=tokens)).text):
        body = {"stream": True, "generate_chunk": event, "stream_state": state, "chat_request": request}
        answer = (await client.post(DERENDER, json={**body, "prompt_token_ids": tokens["token_ids"]})).json()
        state, choices = answer["stream_state"], choices + answer["chunk"]["choices"]
    return add_up(choice["delta"] for choice in choices), choices[-1]["finish_reason"]


async def at_level(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
    tokens = await rendered(client, request, output_mode="derender")
    choice = (await client.post(GENERATE, json=tokens)).json()["choices"][0]
    return plain(choice["message"]), choice["finish_reason"]


async def at_level_streamed(client: httpx.AsyncClient, request: dict[str, Any]) -> Answer:
    tokens = await rendered(client, request, output_mode="derender", stream=True)
    choices = of_choice(events_of((await client.post(GENERATE, json=tokens)).text))
    return add_up(choice["delta"] for choice in choices), choices[-1]["finish_reason"]


ROADS = (one_call, split, at_level)
STREAMS = (one_call_streamed, split_streamed, at_level_streamed)


async def walk(record: Record, dice: random.Random) -> None:
    parsers = {"tool_call_parser": record["tool_parser"], "reasoning_parser": record["reasoning_parser"]}
    settings = {name: value for name, value in parsers.items() if value}
    request, end = request_of(record), record["finish_reason"]
    tokens = tokenizer_for(record["text"])
    app, engine = front(says(record["text"], end=end, tokens=tokens), tokens=tokens, **settings)
    async with client_of(app) as client:
        answers = {road.__name__: await road(client, request) for road in ROADS}
        for step in dice.sample(STEPS, 2):
            engine.script = says(record["text"], end=end, step=step, tokens=tokens)
            answers |= {f"{road.__name__} in {step}s": await road(client, request) for road in STREAMS}
    first = next(iter(answers.values()))
    for name, (message, reason) in answers.items():
        assert (without_ids(message), reason) == (without_ids(first[0]), first[1]), f"{record['id']}: {name}"


@pytest.mark.parametrize("records", by_format())
def test_three_roads_give_one_message(records: list[Record]) -> None:
    dice = random.Random(str([record["id"] for record in records]))

    async def all_of_them() -> None:
        for record in records:
            await walk(record, dice)

    asyncio.run(all_of_them())


def test_the_end_of_the_turn_is_a_token_of_its_own() -> None:
    """What the scripts above rest on: smol's EOS ends an answer and has no text."""
    assert EOS > 0
