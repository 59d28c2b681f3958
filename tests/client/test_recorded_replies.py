"""Replies that a real vLLM 0.32 gave, read by this client.

1. Every recorded generate reply is read into the types of its level, and nothing is lost of ids, text and scores.
2. Every recorded stream is read chunk by chunk to its end or its error.
3. Every recorded error becomes a typed error with its status and message.

A few records of each kind are in `tests/data/client`; the whole set is read where TOKENWIRE_CONFORMANCE (or the
folder `../shared/conformance` beside the repository) has it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tokenwire.client import Client, DerenderChoice, DerenderDeltaChoice, ReplyError, TextChoice, TokensChoice
from tokenwire.errors import TokenwireError

ROOT = Path(__file__).parents[2]
OWN = ROOT / "tests" / "data" / "client" / "vllm_replies.jsonl"
WHOLE_SET = Path(os.environ.get("TOKENWIRE_CONFORMANCE", ROOT.parent / "shared" / "conformance")) / "generate.jsonl"


def records() -> list[dict[str, Any]]:
    lines = OWN.read_text().splitlines() + (WHOLE_SET.read_text().splitlines() if WHOLE_SET.exists() else [])
    found = {record["id"]: record for record in map(json.loads, lines)}
    return [record for record in found.values() if record.get("path") == "/inference/v1/generate"]


RECORDS = records()
CHOICES = {"tokens": TokensChoice, "text": TextChoice, "derender": DerenderChoice}
DELTAS = {"tokens": TokensChoice, "text": TextChoice, "derender": DerenderDeltaChoice}


def replaying(status: int, content: bytes, content_type: str) -> Client:
    response = httpx.Response(status, content=content, headers={"content-type": content_type})
    return Client("http://x", transport=httpx.MockTransport(lambda _: response))


def filled_in(value: Any) -> Any:
    """The record's placeholders for what changes from run to run, as values of their type."""
    if isinstance(value, dict):
        return {key: filled_in(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled_in(inner) for inner in value]
    return {"<int>": 1, "<metrics>": None}.get(value, value) if isinstance(value, str) else value


def replies(*, stream: bool, ok: bool = True) -> list[Any]:
    chosen = [r for r in RECORDS if ("events" in r) == stream and (r["status"] == 200) == ok]
    return [pytest.param(record, id=record["id"]) for record in chosen]


def same_scores(read: Any, raw: Any) -> None:
    assert [entry.logprob for entry in read.content] == [entry["logprob"] for entry in raw["content"]]
    for entry, was in zip(read.content, raw["content"], strict=True):
        for name in ("token_id", "rank", "token", "bytes"):
            assert getattr(entry, name) == was.get(name)
        assert [c.logprob for c in entry.top_logprobs] == [c["logprob"] for c in was["top_logprobs"]]
    assert len(read.arrays()) == len(raw["content"])


def same_choice(read: Any, raw: dict[str, Any]) -> None:
    for name in ("index", "finish_reason", "stop_reason", "token_ids"):
        assert getattr(read, name) == raw[name]
    if "text" in raw:
        assert read.text == raw["text"]
    if "message" in raw:
        assert (read.message.content, read.message.reasoning) == (
            raw["message"]["content"],
            raw["message"]["reasoning"],
        )
    if raw["logprobs"] is None:
        assert read.logprobs is None
    else:
        same_scores(read.logprobs, raw["logprobs"])
    if raw.get("weight_versions"):
        assert [(s.version, s.start, s.end) for s in read.weight_versions] == [
            (s["version"], s["start"], s["end"]) for s in raw["weight_versions"]
        ]


@pytest.mark.parametrize("record", replies(stream=False))
def test_a_recorded_reply_is_read_whole(record: dict[str, Any]) -> None:
    raw = filled_in(record["response"])
    reply = replaying(200, json.dumps(raw).encode(), record["content_type"]).generate([1])
    assert reply.request_id == raw["request_id"]
    assert reply.usage is not None
    assert reply.usage.completion_tokens == raw["usage"]["completion_tokens"]
    assert len(reply.choices) == len(raw["choices"])
    for choice, was in zip(reply.choices, raw["choices"], strict=True):
        assert type(choice) is CHOICES[raw["output_mode"]]
        same_choice(choice, was)
    if raw["prompt_logprobs"] is not None:
        assert isinstance(reply.prompt_logprobs, list)
        assert [p and {str(i): s.logprob for i, s in p.items()} for p in reply.prompt_logprobs] == [
            p and {i: s["logprob"] for i, s in p.items()} for p in raw["prompt_logprobs"]
        ]


@pytest.mark.parametrize("record", replies(stream=True))
def test_a_recorded_stream_is_read_to_its_end_or_its_error(record: dict[str, Any]) -> None:
    events = filled_in(record["events"])
    content = b"".join(b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + b"\n\n" for e in events)
    if events[-1] != "[DONE]":
        content += b"data: [DONE]\n\n"
    events = [event for event in events if event != "[DONE]"]
    mode = record["request"].get("output_mode", "tokens")
    stream = replaying(200, content, record["content_type"]).generate_stream([1], output_mode=mode)
    for event in events:
        if "error" in event:
            with pytest.raises(ReplyError) as caught:
                next(stream)
            assert (caught.value.message, caught.value.status) == (event["error"]["message"], event["error"]["code"])
            return
        chunk = next(stream)
        assert len(chunk.choices) == len(event["choices"])
        for choice, was in zip(chunk.choices, event["choices"], strict=True):
            assert type(choice) is DELTAS[mode]
            same_choice(choice, was)
            if "delta" in was:
                assert (choice.delta.content or None) == was["delta"].get("content")  # type: ignore[attr-defined]
    assert list(stream) == []


@pytest.mark.parametrize("record", replies(stream=False, ok=False))
def test_a_recorded_error_is_a_typed_error(record: dict[str, Any]) -> None:
    content = json.dumps(record["response"]).encode()
    with pytest.raises(TokenwireError) as caught:
        replaying(record["status"], content, record["content_type"]).generate([1])
    assert isinstance(caught.value, ReplyError)
    assert caught.value.status == record["status"]
    message = record["response"].get("error", {}).get("message") or record["response"].get("detail")
    assert message in caught.value.message
