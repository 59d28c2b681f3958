"""Against answers of a reference server.

1. Detokenizing: every record's deltas step by step; with stop strings the text, the string, the ids and the step.
2. Derendering: every whole answer, and every refusal's status. Streams: each chunk beside its delta, and the delta too
   where no parser decides how far it may go.
3. Our own chunks, chained, add up to the whole answer.
4. The text level gives a running server's text, stop strings and token strings, at every step size.
5. Where ours differs, the table says so and why, and nothing else differs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import to_builtins

from tests.derender.conformance import (
    DETOK,
    GENERATE,
    WHOLE,
    Record,
    derender_records,
    facts,
    records,
    service_of,
    vocabulary,
)
from tests.derender.test_derender_service import chat, completion, joined_message, streamed, whole_message
from tests.support.scripted_engine import ScriptedEngine, interleave, logprobs_of, sequence
from tokenwire.derender.detokenizer import DetokenizerOptions, IncrementalDetokenizer
from tokenwire.derender.sequence import SequenceText
from tokenwire.derender.stop import StopRules
from tokenwire.errors import CallerError, ModelNotFoundError
from tokenwire.service.context import RequestContext, ServiceOptions
from tokenwire.service.generate import GenerateService
from tokenwire.service.models import ModelRegistry
from tokenwire.service.text import TokenizerText
from tokenwire.wire.codec import convert
from tokenwire.wire.generate import GenerateRequest

DETOK_RECORDS = records("detok.jsonl")
PLAIN = [r for r in DETOK_RECORDS if "stop" not in r["params"] and r["finish"] != "stop"]
WITH_STOP = [r for r in DETOK_RECORDS if r not in PLAIN]
DERENDER_RECORDS = derender_records()
GENERATE_RECORDS = [r for r in records("generate.jsonl") if r["path"].endswith("/derender")]
TEXT_RECORDS = [
    r
    for r in records("generate.jsonl")
    if r["path"].endswith("/generate")
    and r["status"] == 200
    and r.get("request", {}).get("output_mode") == "text"
    and r["request"]["sampling_params"].get("n", 1) == 1
    and "error" not in json.dumps(r.get("events", ""))
]


def options_of(record: Record) -> DetokenizerOptions:
    params = record["params"]
    return DetokenizerOptions(
        skip_special_tokens=params.get("skip_special_tokens", True),
        spaces_between_special_tokens=params.get("spaces_between_special_tokens", True),
    )


def steps_of(record: Record, size: int) -> list[list[int]]:
    ids = record["token_ids"]
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def test_every_delta_is_right() -> None:
    differing = set()
    for record in PLAIN:
        stream = IncrementalDetokenizer(vocabulary(record["tokenizer"]), record["prompt_token_ids"], options_of(record))
        deltas = [stream.feed(ids) for ids in steps_of(record, record["step"])]
        if deltas == record["expect"]["deltas"]:
            continue
        differing.add(record["id"])
        if record["id"].split("/")[1].startswith("prompt_cut") and record["id"] != "gemma3/prompt_cut_5":
            assert deltas == record["derender_deltas"], record["id"]
    assert differing == DETOK.keys() & {record["id"] for record in PLAIN}


@pytest.mark.parametrize("step", [None, 1, 3, 100])
def test_stop_strings_end_every_record_where_they_should(step: int | None) -> None:
    assert WITH_STOP
    for record in WITH_STOP:
        params, expected = record["params"], record["expect"]
        given = params.get("stop", [])
        rules = StopRules(
            tuple([given] if isinstance(given, str) else given),
            params.get("min_tokens", 0),
            params.get("include_stop_str_in_output", False),
        )
        sequence = SequenceText(vocabulary(record["tokenizer"]), record["prompt_token_ids"], options_of(record), rules)
        steps = steps_of(record, step or record["step"])
        text, ids, stop_string, used = "", [], None, 0
        for used, some in enumerate(steps, 1):
            last = used == len(steps)
            hide_last = last and record["finish"] == "stop" and not rules.include_in_output
            released = sequence.feed(some, finished=last, hide_last=hide_last)
            text += released.text
            ids += some[: released.num_kept]
            stop_string = released.stop_string
            if stop_string is not None:
                break
        assert (text, stop_string) == (expected["text"], expected["stop_string"]), record["id"]
        assert ids == expected["output_token_ids"], record["id"]
        if step is None:
            assert used == expected["steps_used"], record["id"]


async def answer(record: Record) -> tuple[int, Any]:
    body = json.loads(record["raw_body"]) if "raw_body" in record else record["request"]
    ask = chat if "/chat/" in record["path"] else completion
    try:
        return 200, await ask(service_of(record), body)
    except ModelNotFoundError:
        return 404, None
    except CallerError:
        return 400, None


def without_delta(value: Any) -> Any:
    choices = value["chunk"]["choices"]
    return value | {"chunk": value["chunk"] | {"choices": [{**choice, "delta": None} for choice in choices]}}


async def test_every_derender_answer_is_right() -> None:
    differing = set()
    for record in DERENDER_RECORDS:
        status, got = await answer(record)
        assert status == record["status"], record["id"]
        if status != 200:
            continue
        got, expected = facts(got), facts(record["response"])
        if "chunk" in expected and record["server_flags"]:
            got, expected = without_delta(got), without_delta(expected)
        if got != expected:
            differing.add(record["id"])
    assert differing == WHOLE.keys() & {record["id"] for record in DERENDER_RECORDS}


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_our_chunks_add_up_to_the_whole_answer(size: int) -> None:
    whole = [r for r in DERENDER_RECORDS if r["status"] == 200 and "generate_response" in r["request"]]
    assert whole
    for record in whole:
        body = record["request"]
        choice = body["generate_response"]["choices"][0]
        count = len(choice["token_ids"])
        prompt = body.get("prompt_token_ids") or body["generate_response"].get("prompt_token_ids") or []
        svc = service_of(record)
        expected = (await chat(svc, body))["choices"][0]
        sizes = [size] * (count // size) + ([count % size] if count % size else [])
        chunks = await streamed(svc, body | {"prompt_token_ids": prompt}, sizes)
        assert joined_message(chunks) == whole_message(expected), record["id"]
        assert chunks[-1]["finish_reason"] == expected["finish_reason"], record["id"]
        entries = [e for chunk in chunks for e in (chunk["logprobs"] or {"content": []})["content"]]
        assert entries == (expected["logprobs"] or {"content": []})["content"], record["id"]


async def test_a_running_server_s_derender_answers_are_right() -> None:
    differing = set()
    for record in GENERATE_RECORDS:
        if "raw_body" in record:
            continue  # not JSON: the codec's own tests
        status, got = await answer(record)
        assert status == record["status"], record["id"]
        if status == 200 and _without_versions(facts(got)) != facts(record["response"]):
            differing.add(record["id"])
    assert differing == GENERATE.keys() & {record["id"] for record in GENERATE_RECORDS}


def _without_versions(value: Any) -> Any:
    """The reference dropped weight versions on the way through; ours come out again."""
    if isinstance(value, dict):
        return {key: _without_versions(inner) for key, inner in value.items() if key != "weight_versions"}
    return [_without_versions(inner) for inner in value] if isinstance(value, list) else value


def text_events(record: Record) -> tuple[list[int], str, list[Any], dict[str, Any]]:
    """Ids, text, logprob entries and the last choice of a text answer, whole or streamed."""
    events = record["events"][:-1] if "events" in record else [record["response"]]
    choices = [choice for event in events for choice in event["choices"]]
    ids = [token_id for choice in choices for token_id in choice["token_ids"] or ()]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    return ids, "".join(choice["text"] for choice in choices), entries, choices[-1]


@pytest.mark.parametrize("step_size", [1, 3])
async def test_a_running_server_s_text_answers_are_right(step_size: int) -> None:
    assert TEXT_RECORDS
    for record in TEXT_RECORDS:
        ids, text, entries, last = text_events(record)
        by_string = isinstance(last["stop_reason"], str) and last["finish_reason"] == "stop"
        reason = None if by_string else last["finish_reason"]
        # What would have come after a stop string: it must not show.
        more = [0, 0] if by_string else []
        rows = [[(e, -0.5)] for e in [*ids, *more]]
        outputs = sequence(
            [*ids, *more],
            step_size=step_size,
            logprobs=logprobs_of(rows),
            finish_reason=reason or "length",
            stop_reason=None if by_string else last["stop_reason"],
        )
        svc = GenerateService(
            ScriptedEngine(interleave(outputs), vocab_size=50000),
            ModelRegistry(["smol"], root="smol"),
            ServiceOptions(),
            text=TokenizerText(vocabulary("smol").source),
        )
        request, _ = convert(GenerateRequest, record["request"] | {"stream": False})
        got = to_builtins(await svc.full(await svc.prepare(request, RequestContext())))["choices"][0]
        assert (got["text"], got["token_ids"]) == (text, ids), record["id"]
        assert (got["finish_reason"], got["stop_reason"]) == (last["finish_reason"], last["stop_reason"]), record["id"]
        if entries:
            shown = [(e["token"], e["bytes"]) for e in got["logprobs"]["content"]]
            assert shown == [(e["token"], e["bytes"]) for e in entries], record["id"]
