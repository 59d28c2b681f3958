"""Recorded requests and answers of a reference server, and how an answer of ours is held against them.

Streams are compared by what they say (per choice the joined ids, text, logprobs; the last reasons), not by how they
were cut. Floats may differ by `TOLERANCE`; values written as "<int>" and the like may be anything.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TOLERANCE = 2e-3
ROOT = Path(__file__).resolve().parents[2]
OWN_COPY = ROOT / "tests" / "data" / "conformance"
"""Small copies, so that a clone tests itself; the whole set is read where it is found."""

RANDOM = {
    "n3_seed",
    "n3_seed_again",
    "n2_greedy_stream",
    "extra_seed_t1",
    "extra_seed_t1_topk",
    "extra_stream_logprobs_n2",
}
"""Sampled, not greedy: only the shape and the counts can be compared."""


def conformance_file(name: str) -> Path:
    """The whole file by TOKENWIRE_CONFORMANCE or beside the checkout, else the small copy."""
    for folder in (os.environ.get("TOKENWIRE_CONFORMANCE"), ROOT.parent / "shared" / "conformance"):
        if folder and (Path(folder) / name).exists():
            return Path(folder) / name
    return OWN_COPY / name


def records(name: str = "generate.jsonl") -> list[dict[str, Any]]:
    with conformance_file(name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@dataclass(slots=True)
class Answer:
    status: int
    content_type: str
    body: Any
    """The JSON value, the text, or the list of events."""


def ask(client: httpx.Client, record: dict[str, Any]) -> Answer:
    """Send a record's request as it was recorded."""
    headers = dict(record.get("headers") or {})
    raw = record.get("raw_body")
    content = raw.encode() if raw is not None else None
    if content is None and record.get("request") is not None:
        content = json.dumps(record["request"]).encode()
    if content is not None and record.get("headers") is None:
        headers["Content-Type"] = "application/json"
    reply = client.request(record["method"], record["path"], content=content, headers=headers)
    kind = reply.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return Answer(reply.status_code, kind, list(_events(reply.text)))
    return Answer(reply.status_code, kind, reply.json() if "json" in kind else reply.text)


def _events(text: str) -> Iterator[Any]:
    for block in text.split("\n\n"):
        data = block.removeprefix("data: ")
        if data:
            yield data if data == "[DONE]" else json.loads(data)


def differences(record: dict[str, Any], answer: Answer) -> list[str]:
    """What is wrong with an answer, one line each; empty when it is as recorded."""
    if answer.status != record["status"]:
        return [f"status {answer.status}, expected {record['status']}: {str(answer.body)[:300]}"]
    expected = record.get("events", record.get("response", record.get("response_text")))
    if answer.status >= 400:
        return _error_differences(answer.body, expected)
    if record["id"] in RANDOM:
        return _shape_differences(answer.body, expected)
    actual = answer.body
    if "events" in record:
        if not isinstance(actual, list):
            return [f"a stream was expected, got {str(actual)[:200]}"]
        actual, expected = joined(actual), joined(expected)
    return list(compare(actual, expected, ""))


def _error_differences(body: Any, expected: Any) -> list[str]:
    if not isinstance(expected, dict) or "error" not in expected:
        return []
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        return [f"not an error body: {body}"]
    return [] if error["code"] == expected["error"]["code"] else [f"code {error['code']}"]


def _shape_differences(actual: Any, expected: Any) -> list[str]:
    if isinstance(expected, list):
        actual, expected = joined(actual), joined(expected)
        lengths = [{i: len(c["token_ids"]) for i, c in side["choices"].items()} for side in (actual, expected)]
    else:
        lengths = [{c["index"]: len(c["token_ids"]) for c in side["choices"]} for side in (actual, expected)]
    found = [] if lengths[0] == lengths[1] else [f"token counts {lengths[0]}, expected {lengths[1]}"]
    return found if set(actual) == set(expected) else [*found, f"fields {set(actual) ^ set(expected)}"]


def joined(events: list[Any]) -> dict[str, Any]:
    """A stream as one object: what was said once, and per choice everything added up."""
    whole: dict[str, Any] = {"choices": {}, "done": events[-1] == "[DONE]", "errors": [], "usage": None}
    for event in events:
        if event == "[DONE]":
            continue
        if "error" in event:
            whole["errors"].append(event["error"]["code"])
            continue
        for key in event.keys() - {"choices", "usage"}:
            whole[key] = event[key]
        whole["usage"] = event["usage"] or whole["usage"]
        for choice in event["choices"]:
            _add_choice(whole["choices"].setdefault(choice["index"], {}), choice)
    return whole


def _add_choice(total: dict[str, Any], choice: dict[str, Any]) -> None:
    for key, value in choice.items():
        if key in ("token_ids", "text", "sampling_mask") and value is not None:
            total[key] = total.get(key) + value if total.get(key) is not None else value
        elif key == "logprobs" and value is not None:
            total.setdefault("logprobs", {"content": []})["content"] += value["content"]
        elif key == "delta":
            total.setdefault("delta", []).append(value)
        elif value is not None or key not in total:
            total[key] = value


def compare(actual: Any, expected: Any, path: str) -> Iterator[str]:
    """Yield a line per difference. Fields of ours that the reference does not know are allowed where they are null."""
    if isinstance(expected, str) and PLACEHOLDER.search(expected):
        return
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        if actual != expected:
            yield f"{path}: {actual!r}, expected {expected!r}"
    elif isinstance(expected, int | float):
        if not isinstance(actual, int | float) or abs(actual - expected) > (
            TOLERANCE if isinstance(expected, float) else 0
        ):
            yield f"{path}: {actual!r}, expected {expected!r}"
    elif isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            yield f"{path}: {str(actual)[:200]}, expected {str(expected)[:200]}"
            return
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            yield from compare(a, e, f"{path}[{i}]")
    else:
        yield from _compare_objects(actual, expected, path)


def _compare_objects(actual: Any, expected: dict[Any, Any], path: str) -> Iterator[str]:
    if not isinstance(actual, dict):
        yield f"{path}: {str(actual)[:200]}, expected an object"
        return
    for key in expected.keys() - actual.keys():
        if expected[key] is not None:
            yield f"{path}.{key} is missing"
    for key in actual.keys() - expected.keys():
        if actual[key] is not None and key not in EXTRA_FIELDS:
            yield f"{path}.{key} is not expected: {str(actual[key])[:80]}"
    for key in expected.keys() & actual.keys():
        yield from compare(actual[key], expected[key], f"{path}.{key}")


PLACEHOLDER = re.compile(r"<(id|int|random|metrics)>")

EXTRA_FIELDS = {"text_token_count", "render_fingerprint"}
"""Fields of ours that the reference does not have."""
