"""Recorded answers of a reference server's ordinary endpoints, the engine writing what that server's model wrote.

1. Every field that was recorded is answered, with the recorded value unless it changes from run to run.
2. The same request streamed says the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.openai.scripted import add_up, front, ids_of, of_choice, streamed, whole
from tests.support.scripted_engine import interleave, sequence
from tokenwire.engine.base import EngineRequest

DATA = Path(__file__).parents[1] / "data" / "openai" / "coupled.jsonl"
RECORDS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
CHANGING = ("id", "created", "system_fingerprint")


def shown_text(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def replay(record: dict[str, Any]) -> Any:
    """A script that writes the recorded choices, prompt by prompt."""
    request, texts = record["request"], [shown_text(choice) for choice in record["response"]["choices"]]
    if request.get("echo"):
        texts = [text.removeprefix(request["prompt"]) for text in texts]
    by_prompt: dict[tuple[int, ...], str] = {}

    def script(asked: EngineRequest) -> Any:
        prompts = request["prompt"] if isinstance(request.get("prompt"), list) else [None]
        for prompt, text in zip(prompts, texts, strict=True):
            by_prompt[tuple(ids_of(prompt)) if prompt else tuple(asked.prompt_token_ids)] = text
        ids = ids_of(by_prompt[tuple(asked.prompt_token_ids)])
        return interleave(sequence(ids, finish_reason="length"))

    return script


def held_against(given: Any, recorded: Any, where: str = "reply") -> None:
    """Every recorded field is there with its value; we may say more."""
    if isinstance(recorded, dict):
        for name, value in recorded.items():
            assert name in given, f"{where}.{name}"
            if name not in CHANGING:
                held_against(given[name], value, f"{where}.{name}")
    elif isinstance(recorded, list):
        assert len(given) == len(recorded), where
        for index, (one, other) in enumerate(zip(given, recorded, strict=True)):
            held_against(one, other, f"{where}.{index}")
    else:
        assert given == recorded, where


@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
async def test_a_recorded_answer_is_given(record: dict[str, Any]) -> None:
    app, _ = front(replay(record), served_model_name=["smol"])
    reply = await whole(app, record["path"], record["request"])
    held_against(reply, record["response"])
    assert reply["id"].startswith(record["response"]["id"].removesuffix("<id>"))
    assert set(reply) == set(record["response"])
    events = await streamed(app, record["path"], record["request"])
    for choice in reply["choices"]:
        chunks = of_choice(events, choice["index"])
        if "message" in choice:
            assert add_up(chunk["delta"] for chunk in chunks)["content"] == shown_text(choice)
        else:
            assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]
        if choice["token_ids"] is not None:
            assert [t for chunk in chunks for t in chunk.get("token_ids", ())] == choice["token_ids"]
