"""Servers whose model writes what a test says: texts as smol's ids, in steps of any size, one text a choice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpx

from tests.support.http import app_of, client_of, events_of
from tests.support.scripted_engine import ScriptedEngine, Step, interleave, logprobs_of, sequence
from tests.support.tokenizers import tokenizer
from tokenwire.engine.base import EngineOutput, EngineRequest, PromptOutput
from tokenwire.render.tokenizer import Tokenizer

SMOL = tokenizer("smol")
EOS = SMOL.piece_to_id("<|im_end|>") or 0
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tōkyō"}}\n</tool_call>'
HI = [{"role": "user", "content": "hi"}]


def ids_of(text: str, tokens: Tokenizer = SMOL) -> list[int]:
    return tokens.encode(text, add_special_tokens=False)


def rows_of(ids: Sequence[int], k: int) -> list[list[tuple[int, float]]]:
    """Each token with a logprob of its own, then `k` candidates, itself the best of them."""
    return [[(t, -0.25 - i), *[(t + j, -0.25 - i - j) for j in range(k)]] for i, t in enumerate(ids)]


def prompt_scores(request: EngineRequest) -> PromptOutput:
    k = request.sampling.prompt_logprobs
    rows = None if k is None else rows_of(request.prompt_token_ids[1:], k)
    return PromptOutput(num_cached_tokens=2, logprobs=None if rows is None else logprobs_of(rows))


def says(
    *texts: str, step: int = 1, end: str = "stop", tokens: Tokenizer = SMOL, **last: Any
) -> Callable[[EngineRequest], Iterable[Step]]:
    """A script: choice i of every request writes text i (again from the first where there are fewer)."""

    def script(request: EngineRequest) -> Iterable[Step]:
        outputs: list[list[EngineOutput]] = []
        named = request.sampling.logprob_token_ids
        k = len(named) if named else request.sampling.logprobs
        for index, text in zip(range(request.sampling.n), itertools.cycle(texts), strict=False):
            ids = ids_of(text, tokens) + ([EOS] if end == "stop" and not last.get("stop_reason") else [])
            scores = None if k is None else logprobs_of(rows_of(ids, k))
            outputs.append(sequence(ids, index=index, step_size=step, logprobs=scores, finish_reason=end, **last))
        steps = interleave(*outputs)
        steps[0].outputs[0].prompt = prompt_scores(request)
        return steps

    return script


def front(script: Any, *, tokens: Tokenizer = SMOL, **settings: Any) -> tuple[Any, ScriptedEngine]:
    """An app over a scripted engine with smol's tokenizer (or one with more tokens), and the engine."""
    engine = ScriptedEngine(script, eos_token_ids=(EOS,))
    return app_of(engine, tokenizer=tokens, **settings), engine


async def post(app: Any, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    async with client_of(app) as client:
        return await client.post(path, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})


async def whole(app: Any, path: str, body: dict[str, Any], **headers: str) -> Any:
    answer = await post(app, path, body, **headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def streamed(app: Any, path: str, body: dict[str, Any], **headers: str) -> list[Any]:
    answer = await post(app, path, {**body, "stream": True}, **headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


async def named_events(app: Any, path: str, body: dict[str, Any]) -> list[Any]:
    """Events of a stream with names; each name is its event's type."""
    answer = await post(app, path, {**body, "stream": True})
    assert answer.status_code == 200, answer.text
    events = []
    for piece in answer.text.split("\n\n")[:-1]:
        name, data = piece.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def add_up(deltas: Iterable[Any]) -> dict[str, Any]:
    """A choice's deltas as one message; absent and null are alike."""
    message: dict[str, Any] = {"content": None, "reasoning": None, "tool_calls": []}
    for delta in deltas:
        for name in ("content", "reasoning"):
            if delta.get(name):
                message[name] = (message[name] or "") + delta[name]
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call.get("id"), "name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments") or ""
    return message


def plain(message: Any) -> dict[str, Any]:
    """A whole message in the same shape."""
    calls = [{"id": c["id"], **c["function"]} for c in message.get("tool_calls") or ()]
    return {"content": message["content"] or None, "reasoning": message["reasoning"], "tool_calls": calls}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Call ids are random; everything else must be equal."""
    calls = [{"name": call["name"], "arguments": call["arguments"]} for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def of_choice(events: list[Any], index: int = 0) -> list[Any]:
    """One choice's chunks, in order."""
    return [choice for event in events for choice in event["choices"] if choice["index"] == index]
